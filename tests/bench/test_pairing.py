"""A console is switched only if it belongs to the endpoint that is measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from tests.bench.stub_endpoint import StubEndpoint, serving

from lmwarden.bench import pairing
from lmwarden.bench.console import Console
from lmwarden.bench.conversation import Api
from lmwarden.bench.errors import BenchError


@pytest.fixture
async def stub() -> AsyncIterator[StubEndpoint]:
    async with serving(StubEndpoint()) as endpoint:
        yield endpoint


async def check(url: str, console_url: str, api: Api = Api.MESSAGES) -> None:
    async with Console(console_url, "m") as console:
        await pairing.check_pair(url, console, await console.state(), model="m", api=api, key="k")


async def refusal(url: str, console_url: str) -> str:
    with pytest.raises(BenchError) as caught:
        await check(url, console_url)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 1
    return str(caught.value)


@pytest.mark.parametrize("api", list(Api))
async def test_one_warden_is_recognised_by_one_request_to_a_named_replica(stub: StubEndpoint, api: Api) -> None:
    await check(stub.url, stub.url, api)
    assert stub.probes == ["e0/1"]
    assert stub.patches == []


async def test_a_counter_that_moves_late_is_waited_for(stub: StubEndpoint) -> None:
    stub.counts = False
    checking = asyncio.create_task(check(stub.url, stub.url))
    await stub.probed.wait()
    stub.decisions["sticky"] = 1
    await checking


async def test_a_console_of_another_warden_is_refused(stub: StubEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "_MOVES_LIMIT_S", 0.0)
    async with serving(StubEndpoint()) as other:
        # Its own users keep it busy, and its counters of their decisions move.
        other.decisions = {"sticky": 5, "placed": 3}
        said = await refusal(stub.url, other.url)
    assert f"--console {other.url}: not the console of --url {stub.url}, whose requests it does not count" in said


async def test_a_console_whose_replicas_the_endpoint_does_not_know_is_refused(stub: StubEndpoint) -> None:
    stub.known_here = ["e0/0"]
    assert "which knows no replica e0/1" in await refusal(stub.url, stub.url)


async def test_an_endpoint_that_is_no_warden_is_refused(stub: StubEndpoint) -> None:
    stub.decision = None
    said = await refusal(stub.url, stub.url)
    assert "answers name no decision (X-LMWarden-Decision), so no warden is there" in said
    assert "--arms as-is" in said


async def test_an_endpoint_that_refuses_is_quoted() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "An API key is required"}}, status=401)

    app = web.Application()
    app.router.add_post("/v1/messages", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with serving(StubEndpoint()) as console:
            said = await refusal(f"http://127.0.0.1:{runner.addresses[0][1]}", console.url)
    finally:
        await runner.cleanup()
    assert "a test request answered 401: " in said
    assert "An API key is required" in said


async def test_without_a_ready_replica_nothing_is_asked(stub: StubEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_down(request: web.Request) -> web.Response:
        replicas: list[dict[str, Any]] = [{"replica": "e0/0", "state": "down"}]
        return web.json_response({"affinity": True, "in_flight": 0, "replicas": replicas})

    monkeypatch.setattr(stub, "_routing", all_down)
    async with serving(stub) as endpoint:
        assert "no replica of m is ready" in await refusal(endpoint.url, endpoint.url)
    assert stub.probes == []
