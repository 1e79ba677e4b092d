"""The load tester's own lag: how late its event loop wakes up.

A tester that cannot keep up reports its own delay as the server's. A timer fires every 50 ms; by how much it
is late is the lag. Wall seconds, never modelled ones: multiply by the speed to compare with results.
"""

from __future__ import annotations

import asyncio

from lmwarden.bench.results import quantile

_PERIOD_S = 0.05
_KEPT = 20_000
"""Samples kept: the last 17 minutes."""


class LagMonitor:
    """Measures between ``start`` and ``stop``; both belong to one running event loop."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Begin to sample."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + _PERIOD_S
        self._handle = loop.call_at(self._due_s, self._wake, loop)

    def stop(self) -> None:
        """Stop sampling; what was sampled stays."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def p99_s(self) -> float | None:
        """99th percentile of the lag in wall seconds; None before the first sample."""
        return quantile(self._lags_s, 0.99)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        if len(self._lags_s) >= _KEPT:
            del self._lags_s[: _KEPT // 2]
        self._lags_s.append(max(0.0, now_s - self._due_s))
        self._due_s = now_s + _PERIOD_S
        self._handle = loop.call_at(self._due_s, self._wake, loop)
