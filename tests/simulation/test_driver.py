"""The clockwork: late timers lose nothing, and waiting costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lmwarden.simulation.driver import EngineDriver, Stream
from lmwarden.simulation.engine import ApiServers, SimulatedEngine
from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.metrics import EngineMetrics
from lmwarden.simulation.scheduler import EngineRequest, SchedulerLimits

FAST = 100_000.0
"""At this speed one wake-up of the driver covers 100 modelled seconds: thousands of steps."""


class Bench:
    """An engine of one rank under a driver."""

    def __init__(self, speed: float) -> None:
        self.engine = SimulatedEngine(load_profile("tiny-cpu"), SchedulerLimits(), 1, ApiServers("0.26", 1, 1))
        self.metrics = EngineMetrics(self.engine, "m")
        self.driver = EngineDriver(self.engine, self.metrics, speed)

    def stream(self, output_tokens: int) -> Stream:
        request = EngineRequest(range(1000), 10, output_tokens)
        return Stream(request, ["kab "] * output_tokens, "length")


@pytest.fixture
async def fast() -> AsyncIterator[Bench]:
    bench = Bench(FAST)
    yield bench
    bench.driver.close()


async def test_a_late_stream_gets_all_its_due_tokens_at_once(fast: Bench) -> None:
    stream = fast.stream(50)
    fast.driver.submit(stream, None)
    assert await stream.more(0) == 50
    assert stream.complete


async def test_lateness_does_not_show_in_modelled_time(fast: Bench) -> None:
    stream = fast.stream(50)
    fast.driver.submit(stream, None)
    await stream.whole()
    request = stream.request
    assert request.first_token_s is not None
    assert request.last_token_s is not None
    assert request.last_token_s - request.first_token_s == pytest.approx(49 * 0.0082, rel=0.05)
    assert "vllm:inter_token_latency_seconds_count" in fast.metrics.render()


async def test_several_streams_share_one_timer(fast: Bench) -> None:
    streams = [fast.stream(20 + index) for index in range(8)]
    for stream in streams:
        fast.driver.submit(stream, 0)
    await asyncio.gather(*(stream.whole() for stream in streams))
    assert [stream.request.generated_tokens for stream in streams] == list(range(20, 28))
    assert fast.engine.next_event() is None


async def test_an_aborted_stream_gets_nothing_more() -> None:
    bench = Bench(speed=1e-6)  # the first step would take hours
    stream = bench.stream(5)
    bench.driver.submit(stream, None)
    assert bench.engine.in_flight(0) == 1
    bench.driver.abort(stream)
    assert bench.engine.in_flight(0) == 0
    assert stream.available == 0
    bench.driver.close()


async def test_aborting_a_complete_stream_changes_nothing(fast: Bench) -> None:
    stream = fast.stream(3)
    fast.driver.submit(stream, None)
    await stream.whole()
    fast.driver.abort(stream)
    assert fast.engine.scheduler(0).counters.aborted == 0


async def test_the_clock_is_the_loops_times_speed(fast: Bench) -> None:
    before = asyncio.get_running_loop().time()
    assert before * FAST <= fast.driver.now() <= asyncio.get_running_loop().time() * FAST
