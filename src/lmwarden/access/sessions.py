"""Who is signed in to the console: random tokens, kept as hashes, in memory only.

A session ends after twelve hours without use (an open page uses it all the time), after seven days in any case, when
its browser signs out, when the password changes, and with the warden. There are at most 500; a new one takes the
place of the one that was used least recently. The token for changes (CSRF) is derived from the session's, so a page
that was loaded anew gets the same one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict

from lmwarden.types import Clock

IDLE_S = 12 * 3600.0
LIFE_S = 7 * 24 * 3600.0
MOST_SESSIONS = 500
MARK_LIFE_S = 180 * 24 * 3600
"""Of the mark by which a browser that was signed in is known again."""
_MOST_CHARACTERS = 200


class _Times:
    __slots__ = ("begun", "used")

    def __init__(self, now: float) -> None:
        self.begun = now
        self.used = now


class Sessions:
    """All sessions. One thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._open: OrderedDict[bytes, _Times] = OrderedDict()
        """By the hash of the token; the least recently used first."""

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> str:
        """Open one; returns its token."""
        token = secrets.token_urlsafe(32)
        self._open[self._hash(token)] = _Times(self._clock())
        if len(self._open) > MOST_SESSIONS:
            self._open.popitem(last=False)
        return token

    def use(self, token: str) -> bool:
        """Whether there is such a session; it is used by asking."""
        if len(token) > _MOST_CHARACTERS:
            return False
        key = self._hash(token)
        times = self._open.get(key)
        if times is None:
            return False
        now = self._clock()
        if now - times.used > IDLE_S or now - times.begun > LIFE_S:
            del self._open[key]
            return False
        times.used = now
        self._open.move_to_end(key)
        return True

    def end(self, token: str) -> None:
        """Sign out; nothing happens where there is no such session."""
        self._open.pop(self._hash(token), None)

    def end_all(self) -> None:
        """The password changed."""
        self._open.clear()

    def change_token(self, token: str) -> str:
        """What a change under this session must carry."""
        return self._derive(b"change:", token)

    def may_change(self, token: str, change_token: str) -> bool:
        """Whether a change carries what it must."""
        return hmac.compare_digest(self.change_token(token).encode(), change_token.encode("utf-8", "replace"))

    def mark(self) -> str:
        """A new mark for a browser."""
        name = secrets.token_urlsafe(12)
        return f"{name}.{self._derive(b'mark:', name)}"

    def is_mark(self, text: str) -> bool:
        """Whether we gave this mark to somebody."""
        name, _, proof = text[:_MOST_CHARACTERS].partition(".")
        return hmac.compare_digest(self._derive(b"mark:", name).encode(), proof.encode("utf-8", "replace"))

    def _hash(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode("utf-8", "replace"), key=self._key, digest_size=32).digest()

    def _derive(self, purpose: bytes, text: str) -> str:
        content = purpose + text.encode("utf-8", "replace")
        return hashlib.blake2b(content, key=self._key, digest_size=24, person=b"lmw-console").hexdigest()
