"""How many passwords somebody may try, without locking everybody out.

Every try takes a token, and the right password gives it back. Tokens come from the bucket of the *source*: the
address (an IPv6 one by its /64, as whoever has one address has all of them), or the browser, where it shows the mark
that it got when it signed in earlier. So

* one address that guesses is stopped after ten tries, and goes on with four a minute; another address does not feel it;
* a browser that was signed in before is let in although somebody guesses from its address, as behind one proxy all do;
* who guesses from many addresses empties the bucket that all *unknown* addresses share, and slows down newcomers. An
  address from which the right password came before, and a marked browser, do not need that bucket.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from lmwarden.config import address_of
from lmwarden.types import Clock

TRIES = 10
"""At once, from one source."""
TRIES_PER_S = 4 / 60
TRIES_OF_ALL = 60
"""At once, from all unknown addresses together."""
TRIES_OF_ALL_PER_S = 2.0
MOST_SOURCES = 10_000
"""Buckets that are kept; of the others it is forgotten that they tried."""


class _Bucket:
    """Tokens that come back with time."""

    __slots__ = ("_per_s", "_size", "_tokens", "_updated")

    def __init__(self, size: int, per_s: float, now: float) -> None:
        self._size = size
        self._per_s = per_s
        self._tokens = float(size)
        self._updated = now

    def wait_s(self, now: float) -> float:
        """Until there is a token; 0: there is one."""
        self._tokens = min(self._size, self._tokens + (now - self._updated) * self._per_s)
        self._updated = now
        return max(0.0, (1 - self._tokens) / self._per_s)

    def take(self) -> None:
        self._tokens -= 1

    def give_back(self) -> None:
        self._tokens = min(self._size, self._tokens + 1)


class Throttle:
    """The buckets. One thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all = _Bucket(TRIES_OF_ALL, TRIES_OF_ALL_PER_S, clock())
        self._sources: OrderedDict[str, _Bucket] = OrderedDict()
        self._trusted: OrderedDict[str, None] = OrderedDict()

    def begin(self, source: str, *, marked: bool = False) -> float:
        """Take what one try costs.

        Args:
            source: an address (see ``source_of``) or the mark of a browser.
            marked: it is a mark.

        Returns:
            Seconds until it may be tried; 0: now, and the token is taken.
        """
        now = self._clock()
        bucket = self._sources.get(source)
        if bucket is None:
            bucket = self._sources[source] = _Bucket(TRIES, TRIES_PER_S, now)
            if len(self._sources) > MOST_SOURCES:
                self._sources.popitem(last=False)
        self._sources.move_to_end(source)
        shared = None if marked or source in self._trusted else self._all
        wait_s = max(bucket.wait_s(now), shared.wait_s(now) if shared is not None else 0.0)
        if wait_s > 0:
            return wait_s
        bucket.take()
        if shared is not None:
            shared.take()
        return 0.0

    def succeeded(self, source: str, *, marked: bool = False) -> None:
        """It was the right password: give back what it cost, and remember the address."""
        bucket = self._sources.get(source)
        if bucket is not None:
            bucket.give_back()
        if marked:
            return
        if source not in self._trusted:
            self._all.give_back()
        self._trusted[source] = None
        self._trusted.move_to_end(source)
        if len(self._trusted) > MOST_SOURCES:
            self._trusted.popitem(last=False)


def source_of(address: str | None) -> str:
    """What stands for an address."""
    parsed = address_of(address or "")
    if parsed is None:
        return address or ""
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
