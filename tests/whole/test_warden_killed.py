"""kill -9 of the warden under load: a restart takes the engines over, and conversations go home."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
from tests.waiting import until
from tests.whole.agent import Asked, End, ask
from tests.whole.launched import MODEL, LaunchedWarden

CONVERSATIONS = 100


async def test_a_killed_warden_comes_back_with_its_engines_and_its_homes(warden: LaunchedWarden) -> None:
    pids = {engine: warden.engine_pid(engine) for engine in warden.engines()}
    names = [f"session-{number}" for number in range(CONVERSATIONS)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        first = await asyncio.gather(*(ask(http, warden.client_url, MODEL, name, f"I am {name}.") for name in names))
        assert {asked.end for asked in first} == {End.COMPLETE}
        homes = {name: asked.replica for name, asked in zip(names, first, strict=True)}
        # Far longer than it takes until the warden is killed, however late this process or the warden is.
        load = [
            asyncio.ensure_future(ask(http, warden.client_url, MODEL, name, f"I am {name}. Count.", max_tokens=9000))
            for name in names[:40]
        ]
        await until(lambda: warden.routing()["in_flight"] == len(load), warden.describe)
        await until(lambda: warden.homes() == CONVERSATIONS, warden.homes)

        warden.kill()
        cut = await asyncio.gather(*load)
        assert {asked.end for asked in cut} <= {End.BROKEN, End.UNREACHED}
        await warden.start()
        await warden.all_ready()

        assert {engine: warden.engine_pid(engine) for engine in warden.engines()} == pids
        # No more at once than a home may have before a turn spills: of a hundred some would, where engines are uneven.
        at_once = asyncio.Semaphore(warden.routing()["spill_threshold"])

        async def go_on(name: str) -> Asked:
            async with at_once:
                return await ask(http, warden.client_url, MODEL, name, f"I am {name}. Go on.")

        second = await asyncio.gather(*map(go_on, names))
    assert {asked.end for asked in second} == {End.COMPLETE}
    at_home = [asked.replica == homes[name] for name, asked in zip(names, second, strict=True)]
    assert sum(at_home) >= 0.99 * CONVERSATIONS, Counter(asked.decision for asked in second)
    assert Counter(asked.decision for asked in second)["sticky"] >= 0.99 * CONVERSATIONS
