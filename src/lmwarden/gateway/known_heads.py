"""A head that repeats need not be parsed again.

On a connection that is kept alive, one head follows another that differs in nothing but the digits of its
Content-Length: an agent's next call, an engine's next answer. A head that httptools has parsed and that framed its
message by a plain Content-Length is remembered in two parts, before and after those digits. Bytes that begin with the
same two parts around other digits are the same head with another length; there is nothing left in it to judge, and
nothing that two readers could read differently.

Only what the head says is remembered, never a decision: keys are checked anew for every request, and the credential
that is checked is cut out of the bytes that have just arrived. A head is only remembered by the call that gave its
bytes, and no others, to the parser.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})(?=\r\n)", re.IGNORECASE)
_MAX_HEAD_BYTES = 8192
"""Longer heads are not worth their memory."""
_MAX_DIGITS = 12
MAX_MISSES = 8
"""So many heads in a row that were not known, and a connection stops remembering: its peer never repeats itself."""


class KnownHead(NamedTuple):
    """A head around the digits of its Content-Length."""

    before: bytes
    after: bytes
    """Up to and with the empty line."""
    credential: tuple[int, int] | None = None
    """Where the credential stands, from the beginning of ``before``, or if negative from the end of ``after``."""

    def match(self, data: bytes) -> tuple[int, int] | None:
        """If ``data`` begins with this head: the length that it gives, and where the body begins."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(b"\r", start, start + _MAX_DIGITS + 1)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self.after, end):
            return None
        return int(digits), end + len(self.after)

    def credential_in(self, data: bytes, end: int) -> bytes | None:
        """The credential in the bytes of a head that matched and that ends at ``end``; None: it has none."""
        if self.credential is None:
            return None
        start, stop = self.credential
        return data[start:stop] if start > 0 else data[end + start : end + stop]


def remember(data: bytes, credential: bytes | None = None) -> KnownHead | None:
    """The head at the beginning of ``data``, which httptools has accepted; None if it is not worth it.

    Args:
        credential: what was read from this head as its credential. If it does not stand in it, nothing is remembered.
    """
    end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
    if end < 0:
        return None
    found = _LENGTH.search(data, 0, end + 2)
    if found is None:
        return None
    before, after = data[: found.start(1)], data[found.end(1) : end + 4]
    span = None
    if credential is not None:
        start = before.find(credential)
        if start < 0:
            start = after.find(credential) - len(after)
            if start < -len(after):
                return None
        span = (start, start + len(credential))
    return KnownHead(before, after, span)
