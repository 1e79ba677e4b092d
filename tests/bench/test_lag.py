"""The tester's own lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.waiting import until

from lmwarden.bench import lag
from lmwarden.bench.lag import LagMonitor


async def test_lag_is_sampled_and_never_negative() -> None:
    monitor = LagMonitor()
    assert monitor.p99_s() is None
    monitor.start()
    await until(lambda: monitor.p99_s() is not None)
    monitor.stop()
    p99_s = monitor.p99_s()
    assert p99_s is not None and p99_s >= 0
    monitor.stop()


class Loop:
    """An event loop that wakes up as late as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.next: tuple[float, Callable[[Loop], None]] | None = None
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, wake: Callable[[Loop], None], loop: Loop) -> None:
        assert loop is self
        self.next = when_s, wake

    def wakes(self, late_s: float) -> None:
        assert self.next is not None
        when_s, wake = self.next
        self.now_s = when_s + late_s
        wake(self)


def test_lag_is_by_how_much_each_wake_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, monitor = Loop(monkeypatch), LagMonitor()
    monitor.start()
    for late_s in (0.0, 0.25, 0.5, -0.001):  # a timer may fire a clock's tick too early
        loop.wakes(late_s)
    assert monitor._lags_s == pytest.approx([0.0, 0.25, 0.5, 0.0])
    assert monitor.p99_s() == pytest.approx(0.5, rel=0.02)


def test_of_a_long_run_the_latest_lags_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_KEPT", 10)
    loop, monitor = Loop(monkeypatch), LagMonitor()
    monitor.start()
    for late_s in range(1, 38):
        loop.wakes(float(late_s))
    assert 5 <= len(monitor._lags_s) <= 10
    assert monitor._lags_s[-5:] == [33.0, 34.0, 35.0, 36.0, 37.0]
