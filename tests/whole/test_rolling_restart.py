"""A rolling restart of the engines of an isolated model fails no request."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest
from tests.waiting import until
from tests.whole.agent import Asked, End, ask
from tests.whole.launched import MODEL, LaunchedWarden

AGENTS = 24


@pytest.mark.parametrize("replicas", [3])
async def test_a_rolling_restart_under_load_fails_nothing(warden: LaunchedWarden) -> None:
    before = {engine: warden.engine_pid(engine) for engine in warden.engines()}
    stop = asyncio.Event()
    asked: list[Asked] = []

    async def agent(http: aiohttp.ClientSession, name: str) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            asked.append(await ask(http, warden.client_url, MODEL, name, f"{name}, turn {turn}.", max_tokens=60))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        agents = [asyncio.ensure_future(agent(http, f"agent-{number}")) for number in range(AGENTS)]
        await until(lambda: len(asked) >= AGENTS, warden.describe)
        await asyncio.to_thread(warden.post, f"/api/models/{MODEL}/rolling-restart")
        await until(lambda: _all_new(warden, before), warden.describe)
        await warden.all_ready()
        stop.set()
        await asyncio.gather(*agents)

    assert Counter(one.end for one in asked) == {End.COMPLETE: len(asked)}
    await until(lambda: warden.routing()["in_flight"] == 0, warden.describe)
    assert {one.replica for one in asked} == {f"{engine}/0" for engine in before}


def _all_new(warden: LaunchedWarden, before: dict[str, int]) -> bool:
    now = {name: engine["process"]["pid"] for name, engine in warden.engines().items()}
    return all(now[engine] not in (None, pid) for engine, pid in before.items())
