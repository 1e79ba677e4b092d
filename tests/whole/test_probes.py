"""Engines that serve while their probes fail, for as long as it lasts: no request fails for it, and none is held.

What a probe says decides where new requests go while there is a better place; it never costs anybody an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.engine.fake_vllm import page
from tests.security.house import ACT, ObedientEngine
from tests.stub_engine import MESSAGE_BEGIN, MESSAGE_END, Act, held, silence, whole
from tests.test_serve import config, running
from tests.waiting import PATIENCE_S, until

from lmwarden.config import Flag
from lmwarden.engine.watch import EngineState
from lmwarden.serve import Warden
from lmwarden.types import Outcome

MODEL = "qwen3-4b"
UP, DOWN = EngineState.UP, EngineState.DOWN
LOOKS = 2
"""That fail before a test believes that it lasts."""

UNWELL = whole({"error": "not now"}, 503)
ANOTHER_RUN = whole(page(ranks=1, started=2000.5).encode(), content_type="text/plain")
"""Metrics after which an engine that is up is asked for its models again."""
FAILURES: dict[str, Mapping[str, Act]] = {
    "models 503": {"/v1/models": UNWELL, "/metrics": ANOTHER_RUN},
    "models hang": {"/v1/models": silence(), "/metrics": ANOTHER_RUN},
    "health 503": {"/health": UNWELL},
    "health hangs": {"/health": silence()},
    "all hang": {"/health": silence(), "/metrics": silence(), "/v1/models": silence()},
}


class Moody(ObedientEngine):
    """Serves whatever comes, and answers its probes as the test says."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.failing: Mapping[str, Act] = {}
        self.looks = 0
        self.go_on = asyncio.Event()
        self.acts = {"long": held(MESSAGE_BEGIN, self.go_on, MESSAGE_END)}

    def _probe(self, path: str) -> Act | None:
        self.looks += path == "/health"
        return self.failing.get(path) or super()._probe(path)

    async def looked_at(self) -> None:
        """Wait for so many looks more."""
        enough = self.looks + LOOKS
        await until(lambda: self.looks >= enough)


@dataclass
class Place:
    """A warden before two engines."""

    warden: Warden
    engines: list[Moody]
    http: aiohttp.ClientSession

    async def turn(self, conversation: str) -> str:
        """One request that must be served at once; by which replica."""
        async with self.http.post(self.warden.client_url + "/v1/messages", **_request(conversation)) as response:
            assert response.status == 200, await response.text()
            assert response.headers["X-LMWarden-Wait-Ms"] == "0"
            return response.headers["X-LMWarden-Replica"]

    async def begin(self, conversation: str) -> aiohttp.ClientResponse:
        """A stream of which the first event has come."""
        wanted = _request(conversation, **{ACT: "long"})
        response = await self.http.post(self.warden.client_url + "/v1/messages", **wanted)
        assert await response.content.readexactly(len(MESSAGE_BEGIN)) == MESSAGE_BEGIN
        return response

    async def are(self, *states: EngineState) -> None:
        """Wait until the warden believes this of the engines, and goes on to believe it."""
        (model,) = self.warden._models

        def believed() -> list[EngineState]:
            return [watch.state for watch in model.watches]

        await until(lambda: believed() == list(states), believed)
        for engine in self.engines:
            await engine.looked_at()
        assert believed() == list(states)

    async def served(self, count: int) -> None:
        """Nothing is open; so many requests were asked, and all were answered whole and never waited."""
        await until(lambda: len(self.warden.ledger.recent()) == count, self.warden.ledger.recent)
        rows = self.warden.ledger.recent()
        assert {(row.outcome, row.waited_s, row.retried) for row in rows} == {(Outcome.OK, 0.0, False)}
        self.warden.control.take()
        assert self.warden.control.snapshot.models[0].view.in_flight == 0


def _request(conversation: str, **headers: str) -> dict[str, Any]:
    body = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
    return {"json": body, "headers": {"X-Claude-Code-Session-Id": conversation} | headers}


@asynccontextmanager
async def place(folder: Path, *engines: Moody) -> AsyncIterator[Place]:
    """A running one; looks are quick, and silence counts soon."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        urls = [f"http://127.0.0.1:{engine.port}" for engine in engines]
        quick = [
            Flag("timeout", ("watch", "probe_timeout_s"), 0.2),
            Flag("silent", ("watch", "silent_down_s"), 0.6),
            Flag("pins", ("watch", "test_pins"), False),
        ]
        # What is stated need not be asked: the warden serves before its engines answer.
        settings = config(folder, *urls, more=quick, model=MODEL, data_parallel_size=1)
        warden = await stack.enter_async_context(running(settings))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Place(warden, list(engines), http)


@pytest.mark.parametrize("failure", FAILURES)
async def test_when_the_probes_of_all_fail_everybody_is_served_as_before(tmp_path: Path, failure: str) -> None:
    async with place(tmp_path, Moody(), Moody()) as here:
        await here.are(UP, UP)
        homes = [await here.turn(f"c{number}") for number in range(4)]
        assert set(homes) == {"e0/0", "e1/0"}
        streams = [await here.begin(f"c{number}") for number in range(4)]
        for engine in here.engines:
            engine.failing = FAILURES[failure]
        await here.are(DOWN, DOWN)
        for _ in range(3):
            assert [await here.turn(f"c{number}") for number in range(4)] == homes
        assert {await here.turn(f"new{number}") for number in range(4)} == {"e0/0", "e1/0"}
        for engine in here.engines:
            engine.go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            assert [await stream.content.read() for stream in streams] == [MESSAGE_END] * 4
        for engine in here.engines:
            engine.failing = {}
        await here.are(UP, UP)
        await here.served(4 + 4 + 12 + 4)


@pytest.mark.parametrize("failure", ["models 503", "health 503", "all hang"])
async def test_when_the_probes_of_one_fail_its_streams_go_on_and_the_other_takes_the_rest(
    tmp_path: Path, failure: str
) -> None:
    async with place(tmp_path, Moody(), Moody()) as here:
        await here.are(UP, UP)
        homes = {f"c{number}": await here.turn(f"c{number}") for number in range(4)}
        (moved, *_) = [name for name, home in homes.items() if home == "e1/0"]
        stream = await here.begin(moved)
        here.engines[1].failing = FAILURES[failure]
        await here.are(UP, DOWN)
        assert {await here.turn(name) for name in (*homes, "new")} == {"e0/0"}
        here.engines[1].go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await stream.content.read() == MESSAGE_END
        here.engines[1].failing = {}
        await here.are(UP, UP)
        assert await here.turn(moved) == "e0/0", "it does not flap back"
        await here.served(4 + 1 + 5 + 1)


async def test_an_engine_that_does_not_list_its_models_yet_gets_nothing_and_disturbs_nobody(tmp_path: Path) -> None:
    late = Moody()
    late.failing = {"/v1/models": UNWELL}
    async with place(tmp_path, Moody(), late) as here:
        await here.are(UP, DOWN)
        assert {await here.turn(f"c{number}") for number in range(6)} == {"e0/0"}
        assert late.generations == []
        late.failing = {}
        await here.are(UP, UP)
        asked = 6

        async def it_gets_one() -> bool:
            nonlocal asked
            asked += 1
            return await here.turn(f"c{asked}") == "e1/0"

        await until(it_gets_one)
        await here.served(asked)


async def test_an_engine_that_is_up_need_not_list_its_models(tmp_path: Path) -> None:
    """Only an engine that comes up, or comes up as another run, is asked for them; clients are answered by us."""
    async with place(tmp_path, Moody()) as here:
        await here.are(UP)
        here.engines[0].failing = {"/v1/models": UNWELL}
        await here.are(UP)
        await here.turn("c")
        async with here.http.get(here.warden.client_url + "/v1/models") as response:
            assert [card["id"] for card in (await response.json())["data"]] == [MODEL]
        await here.served(1)
