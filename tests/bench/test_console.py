"""Reading and switching a warden."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.bench.stub_endpoint import CACHE_PAGE, StubEndpoint, serving

from lmwarden.bench.console import CacheCounters, Console, ReplicaRow, RoutingState, parse_cache_counters
from lmwarden.bench.errors import BenchError


@pytest.fixture
async def stub() -> AsyncIterator[StubEndpoint]:
    async with serving(StubEndpoint()) as endpoint:
        yield endpoint


async def test_an_arm_is_switched_and_set_back(stub: StubEndpoint) -> None:
    async with Console(stub.url, "m") as console:
        before = await console.state()
        await console.apply("on")
        await console.apply("as-is")
        assert stub.routing["placement"] == "least-loaded"
        await console.restore(before)
    assert stub.patches == [
        {"affinity": True, "placement": "least-loaded"},
        {"affinity": True, "placement": "hash"},
    ]


def state(*running: int | None, engines: tuple[str, ...] = ("e0", "e0")) -> RoutingState:
    rows = [ReplicaRow(f"{engine}/{i}", count) for i, (engine, count) in enumerate(zip(engines, running, strict=True))]
    return RoutingState(affinity=True, in_flight=0, replicas=rows)


def test_busy_counts_replicas_and_not_requests() -> None:
    assert state(3, 0).busy() == 1
    assert state(0, 0).busy() == 0


def test_a_dead_replica_is_not_busy_whatever_its_last_scrape_said() -> None:
    rows = [ReplicaRow("e0/0", 3), ReplicaRow("e0/1", 2, "down"), ReplicaRow("e0/2", None, "down")]
    assert RoutingState(affinity=True, in_flight=0, replicas=rows).busy() == 1


def test_busy_is_unknown_where_one_replica_does_not_report() -> None:
    assert state(3, None).busy() is None
    assert RoutingState(affinity=True, in_flight=0, replicas=[]).busy() is None


def test_only_one_engine_can_balance_by_itself() -> None:
    assert state(0, 0).balancer() == "engine"
    assert state(0, 0, engines=("e0", "e1")).balancer() == "emulated"


async def test_a_console_that_refuses_is_quoted_in_one_line(stub: StubEndpoint) -> None:
    async with Console(stub.url, "other") as console:
        with pytest.raises(BenchError, match="serves no model other") as caught:
            await console.state()
    assert "\n" not in str(caught.value)


async def test_a_console_that_is_not_there_is_named(unused_tcp_port: int) -> None:
    async with Console(f"http://127.0.0.1:{unused_tcp_port}", "m") as console:
        with pytest.raises(BenchError, match="--console"):
            await console.state()


async def test_an_answer_of_another_form_is_named(stub: StubEndpoint) -> None:
    stub.routing = {"affinity": "yes"}
    async with Console(stub.url, "m") as console:
        with pytest.raises(BenchError, match="another form"):
            await console.state()


def test_counters_are_summed_over_ranks_and_created_lines_are_no_counters() -> None:
    assert parse_cache_counters(CACHE_PAGE % (1000, 700)) == CacheCounters(1100, 750)
    assert parse_cache_counters(b"# nothing here\n") is None
    assert parse_cache_counters(b"<html>vllm:prefix_cache_hits_total</html>") is None


def test_the_ratio_is_that_of_the_difference() -> None:
    before = CacheCounters(1000, 500)
    assert CacheCounters(2000, 1300).ratio_since(before) == 0.8
    assert before.ratio_since(before) is None
    assert CacheCounters(50, 20).ratio_since(before) is None


async def test_counters_are_read_where_the_engine_is_known(stub: StubEndpoint) -> None:
    async with Console(None, "m", engine_url=stub.url) as console:
        assert await console.cache_counters() == CacheCounters(100, 50)
        assert not console.known
    async with Console(stub.url, "m") as console:
        assert await console.cache_counters() is None
