"""When an engine that ended is started again.

Two ways to end, counted apart. A start that ended before the engine was ever ready is most likely to end likewise the
next time (a wrong argument, a GPU too small): the pause doubles, and after ``failed_after`` of them in a row the
engine is given up until a person wants it. An engine that was ready has shown that it can work: it is started again at
once after its first crash, then after pauses that double, and never given up; once it was ready for ``steady_s``, its
crashes are forgiven. A start that this machine had nothing left for (files, memory) says nothing of the engine, and
counts as neither.

There is no random part in the pauses: engines that end together (a driver was reset) may well start together, they
share nothing but the machine.
"""

from __future__ import annotations

from lmwarden.config import LaunchConfig


class Backoff:
    """Counts the ends of one engine. Pure: seconds come in as arguments."""

    def __init__(self, settings: LaunchConfig) -> None:
        self._settings = settings
        self.failed_starts = 0
        """In a row."""
        self._crashes = 0

    def ready(self) -> None:
        """The engine became ready."""
        self.failed_starts = 0

    def forget(self) -> None:
        """A person wants it: begin anew."""
        self.failed_starts = self._crashes = 0

    def failed_start(self) -> float | None:
        """It ended before it was ready. Returns the pause in seconds; None: give it up."""
        self.failed_starts += 1
        if self.failed_starts >= self._settings.failed_after:
            return None
        return self._pause_s(self.failed_starts)

    def no_start(self) -> float:
        """The machine could not start anything. Returns the pause in seconds."""
        return self._pause_s(1)

    def crash(self, ready_for_s: float) -> float:
        """It ended after it was ready for so long. Returns the pause in seconds."""
        self._crashes = 1 if ready_for_s >= self._settings.steady_s else self._crashes + 1
        return self._pause_s(self._crashes - 1)

    def _pause_s(self, times: int) -> float:
        if times == 0:
            return 0.0
        return min(self._settings.max_backoff_s, self._settings.start_backoff_s * 2.0 ** min(times - 1, 60))
