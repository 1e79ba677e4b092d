"""The tester's own lag."""

from __future__ import annotations

import asyncio

from lmwarden.bench.lag import LagMonitor


async def test_lag_is_sampled_and_never_negative() -> None:
    monitor = LagMonitor()
    assert monitor.p99_s() is None
    monitor.start()
    async with asyncio.timeout(5):
        while monitor.p99_s() is None:  # noqa: ASYNC110 - the monitor has nothing to wait for
            await asyncio.sleep(0)
    monitor.stop()
    p99_s = monitor.p99_s()
    assert p99_s is not None and p99_s >= 0
    monitor.stop()
