"""The tester's own lag."""

from __future__ import annotations

from tests.waiting import until

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
