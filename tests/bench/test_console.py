"""Reading and switching a warden."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.bench.stub_endpoint import StubEndpoint, serving

from lmwarden.bench.console import Console, ReplicaRow, RoutingState
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
        {"affinity": True, "placement": "least-loaded", "admission": "off"},
        {"affinity": True, "placement": "hash", "admission": "auto"},
    ]


@pytest.mark.parametrize("name", ["a/b#1", "a?", "%41 b", "m%23"])
async def test_a_model_is_asked_for_by_any_name(stub: StubEndpoint, name: str) -> None:
    stub.model = name
    async with Console(stub.url, name) as console:
        assert (await console.state()).affinity


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


async def test_a_console_that_is_not_there_is_named(dead_port: int) -> None:
    async with Console(f"http://127.0.0.1:{dead_port}", "m") as console:
        with pytest.raises(BenchError, match="--console"):
            await console.state()


async def test_an_answer_of_another_form_is_named(stub: StubEndpoint) -> None:
    stub.routing = {"affinity": "yes"}
    async with Console(stub.url, "m") as console:
        with pytest.raises(BenchError, match="another form"):
            await console.state()


async def test_a_password_is_sent_only_where_it_is_asked_for(stub: StubEndpoint) -> None:
    async with Console(stub.url, "m", password="open sesame") as console:
        await console.state()
        assert console.password_unused
    assert stub.console_authorizations == [None]
    stub.password = "open sesame"
    async with Console(stub.url, "m", password="open sesame") as console:
        await console.state()
        assert not console.password_unused
    assert stub.console_authorizations[1:] == [None, "Basic bG13YXJkZW46b3BlbiBzZXNhbWU="]


async def test_a_console_that_wants_another_password_or_one_at_all_says_so(stub: StubEndpoint) -> None:
    stub.password = "open sesame"
    async with Console(stub.url, "m", password="wrong") as console:
        with pytest.raises(BenchError, match="refuses the password"):
            await console.state()
    async with Console(stub.url, "m") as console:
        with pytest.raises(BenchError, match="asks for a password: --console-password-file"):
            await console.state()
