"""For how long an engine has been silent: neither a look was answered nor a byte of an answer came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Silence:
    """Of one engine. Begins with the first question after ``over``."""

    def __init__(self, traffic: Callable[[], float | None] | None) -> None:
        """Args:
        traffic: loop time at which it last sent bytes of an answer; None: it never did, or nobody knows.
        """
        self._traffic = traffic
        self._since: float | None = None

    def over(self) -> None:
        """A look was answered."""
        self._since = None

    def length_s(self) -> float:
        """Real seconds so far. To be asked only while looks are not answered."""
        now = asyncio.get_running_loop().time()
        since = now if self._since is None else self._since
        heard = self._traffic() if self._traffic is not None else None
        self._since = since if heard is None else max(since, heard)
        return now - self._since
