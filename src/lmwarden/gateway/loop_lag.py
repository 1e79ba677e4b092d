"""How late the data loop is: a clock that ticks on it, and a histogram of by how much each tick was late.

Everything that is relayed waits for the loop, so its lag is in every chunk's delay and says whether the warden itself
is the bottleneck (too much traffic for one core, or a machine that gives it none). One timer ticks twenty times a
second. A loop that is held up for a second has not been late once but twenty times: the ticks that should have come
meanwhile are counted with the lag that each of them had, or the histogram would look best when things are worst.

Counted are plain integers, as in ``counters``: other threads may read them.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable

import msgspec

LAG_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds of the buckets; a last one takes the rest. Timers of the loop are no finer than a millisecond."""
PERIOD_S = 0.05
_MOST_MISSED = 1200
"""Ticks that are counted for one standstill, a minute's worth: a machine that slept was not busy."""


class LoopLagSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The data loop at one moment, counted since its start."""

    counts: tuple[int, ...]
    """Ticks per bucket of ``LAG_BOUNDS_S`` and one more; not cumulative."""
    sum_s: float
    """Of all lags."""
    tasks: int
    """Asyncio tasks that exist: a few per engine and one per connection that is being opened, none per request."""


class LoopLag:
    """Ticks between ``start`` and ``stop``, both on the loop that is looked at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        clock: real seconds; not the loop's own, which stands still while the loop works.
        """
        self._clock = clock
        self._counts = [0] * (len(LAG_BOUNDS_S) + 1)
        self._sum_s = 0.0
        self._due_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to tick."""
        self._loop = asyncio.get_running_loop()
        self._due_s = self._clock()
        self._arm(self._loop)

    def stop(self) -> None:
        """Tick no more; what was counted stays. Again is harmless."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def snapshot(self) -> LoopLagSnapshot | None:
        """The figures, or None before the start. On the loop that is looked at, whose tasks are counted."""
        if self._loop is None:
            return None
        return LoopLagSnapshot(counts=tuple(self._counts), sum_s=self._sum_s, tasks=len(asyncio.all_tasks(self._loop)))

    def tick(self) -> None:
        """Count this tick, and those that did not come."""
        late_s = max(0.0, self._clock() - self._due_s)
        for _ in range(_MOST_MISSED):
            self._counts[bisect_left(LAG_BOUNDS_S, late_s)] += 1
            self._sum_s += late_s
            late_s -= PERIOD_S
            if late_s < 0:
                break
        if self._loop is not None:
            self._arm(self._loop)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = self._clock()
        # The next place on the grid: a tick that came late does not put off the ones after it.
        self._due_s += PERIOD_S * max(1, 1 + int((now_s - self._due_s) / PERIOD_S))
        self._timer = loop.call_later(self._due_s - now_s, self.tick)
