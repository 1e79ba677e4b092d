"""The data loop's lag."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import until

from lmwarden.gateway.loop_lag import LAG_BOUNDS_S, PERIOD_S, LoopLag


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def bucket(lag_s: float) -> int:
    return next((number for number, bound in enumerate(LAG_BOUNDS_S) if lag_s <= bound), len(LAG_BOUNDS_S))


async def test_nothing_is_known_before_the_start() -> None:
    assert LoopLag().snapshot() is None


@pytest.mark.parametrize("late_s", [0.0, 0.0004, 0.004, 0.019, 0.04])
async def test_a_tick_is_counted_by_how_late_it_comes(late_s: float) -> None:
    clock = Clock()
    lag = LoopLag(clock)
    lag.start()
    clock.now_s += PERIOD_S + late_s
    lag.tick()
    lag.stop()
    seen = lag.snapshot()
    assert seen is not None
    assert seen.counts[bucket(late_s)] == sum(seen.counts) == 1
    assert seen.sum_s == pytest.approx(late_s)


async def test_a_standstill_counts_for_every_tick_that_did_not_come() -> None:
    clock = Clock()
    lag = LoopLag(clock)
    lag.start()
    clock.now_s += PERIOD_S + 0.98
    lag.tick()
    # The loop is back: the ticks after it stand on the same grid and are not late.
    clock.now_s = 100.0 + 21 * PERIOD_S
    lag.tick()
    lag.stop()
    seen = lag.snapshot()
    assert seen is not None
    assert sum(seen.counts) == 21
    assert seen.counts[bucket(0.98)] == 10  # 0.98, 0.93, ... 0.53
    assert seen.sum_s == pytest.approx(sum(0.98 - PERIOD_S * missed for missed in range(20)))


async def test_a_machine_that_slept_is_not_counted_for_ever() -> None:
    clock = Clock()
    lag = LoopLag(clock)
    lag.start()
    clock.now_s += 8 * 3600
    lag.tick()
    lag.stop()
    seen = lag.snapshot()
    assert seen is not None
    assert sum(seen.counts) == 1200


async def test_it_ticks_by_itself_until_stopped_and_counts_the_loops_tasks() -> None:
    lag = LoopLag()
    lag.start()
    other = asyncio.ensure_future(asyncio.Event().wait())
    await until(lambda: (seen := lag.snapshot()) is not None and sum(seen.counts) >= 2)
    seen = lag.snapshot()
    assert seen is not None
    assert seen.tasks >= 2
    lag.stop()
    lag.stop()
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
