"""``benchmarks/chaos`` mends what it broke, also where it is stopped in between, and its accounts are two-sided."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import psutil
import pytest
from benchmarks import chaos
from benchmarks.soaking.watching import Metrics

FOR_EVER_S = 1e6


class Engine:
    """A process of which only is known whether it runs."""

    def __init__(self) -> None:
        self.runs = True
        self.stopped = asyncio.Event()

    def suspend(self) -> None:
        self.runs = False
        self.stopped.set()

    def resume(self) -> None:
        self.runs = True


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_engine_that_stands_still_goes_on_after_all() -> None:
    engine = Engine()
    task = asyncio.create_task(chaos.stand_still(cast(psutil.Process, engine), FOR_EVER_S))
    await engine.stopped.wait()
    assert not engine.runs
    await cancelled(task)
    assert engine.runs


async def test_bytes_flow_again_after_all() -> None:
    proxy = chaos.Proxy()
    task = asyncio.create_task(proxy.delay(FOR_EVER_S))
    await asyncio.sleep(0)
    assert not proxy._flows.is_set()
    await cancelled(task)
    assert proxy._flows.is_set()


def row(decision: str | None, outcome: str) -> dict[str, Any]:
    return {"model": "m", "decision": decision, "outcome": outcome}


def test_rows_and_counters_are_compared_by_decision_and_outcome() -> None:
    rows = [row("sticky", "ok"), row("sticky", "ok"), row(None, "cancelled"), row(None, "refused"), row(None, "failed")]
    counts = {("sticky", "ok"): 2, ("left", "cancelled"): 1, ("refused", "refused"): 1, ("none", "failed"): 1}
    series = {
        f'lmwarden_requests_total{{decision="{decision}",model="m",outcome="{outcome}"}}': float(count)
        for (decision, outcome), count in counts.items()
    }
    assert chaos.counted(Metrics(series)) == chaos.decided(rows)
    assert chaos.counted(Metrics(series)) != chaos.decided(rows[1:])
