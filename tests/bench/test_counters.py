"""The engine's own counters, and emptying its caches."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.bench.stub_endpoint import CACHE_PAGE, StubEndpoint, serving

from lmwarden.bench.counters import EngineCounters, EngineUnderTest, parse_counters
from lmwarden.bench.errors import BenchError


@pytest.fixture
async def stub() -> AsyncIterator[StubEndpoint]:
    async with serving(StubEndpoint()) as endpoint:
        yield endpoint


def counters(queries: float, hits: float) -> EngineCounters:
    return EngineCounters(prefix_queries_tokens=queries, prefix_hits_tokens=hits)


def test_counters_are_summed_over_labels_and_created_lines_are_no_counters() -> None:
    assert parse_counters(CACHE_PAGE % (1000, 700)) == EngineCounters(
        requests=11,
        prompt_tokens=4000,
        generation_tokens=300,
        prefix_queries_tokens=1100,
        prefix_hits_tokens=750,
        requests_by_rank={"0": 11.0},
    )
    assert parse_counters(b"# nothing here\n") == EngineCounters()
    assert parse_counters(b"<html>vllm:prefix_cache_hits_total</html>") == EngineCounters()


def test_growth_is_a_difference_and_a_restart_has_none() -> None:
    before = counters(1000, 500)
    assert counters(2000, 1300).since(before) == counters(1000, 800)
    assert counters(50, 20).since(before) is None
    assert EngineCounters(requests=3.0).since(before) == EngineCounters()
    ranks = EngineCounters(requests_by_rank={"0": 5.0, "1": 3.0})
    assert ranks.since(EngineCounters(requests_by_rank={"0": 4.0})) == EngineCounters(
        requests_by_rank={"0": 1.0, "1": 3.0}
    )


def test_the_ratio_needs_queries() -> None:
    assert counters(1000, 800).hit_ratio == 0.8
    assert counters(0, 0).hit_ratio is None
    assert EngineCounters().hit_ratio is None


async def test_counters_are_read_where_the_engine_is_known(stub: StubEndpoint) -> None:
    async with EngineUnderTest(stub.url) as engine:
        await engine.check()
        seen = await engine.counters()
        assert seen is not None and (seen.prefix_queries_tokens, seen.prefix_hits_tokens) == (100, 50)
    async with EngineUnderTest(None) as engine:
        await engine.check()
        assert await engine.counters() is None
        assert not await engine.empty_caches()


async def test_an_engine_without_counters_is_named_before_the_run(dead_port: int) -> None:
    async with EngineUnderTest(f"http://127.0.0.1:{dead_port}") as engine:
        with pytest.raises(BenchError, match="no prefix-cache counters"):
            await engine.check()


async def test_caches_are_emptied_where_the_engine_knows_how(stub: StubEndpoint) -> None:
    async with EngineUnderTest(stub.url) as engine:
        assert await engine.empty_caches()
        assert engine.knows_reset
        stub.can_reset = False
        assert not await engine.empty_caches()
        assert not engine.knows_reset
