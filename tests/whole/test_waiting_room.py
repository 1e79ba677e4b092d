"""A warden whose agents need more context than the caches hold: some wait, all are served, and nothing is left behind.

Everything runs in this process, on one loop: the simulated engine, the warden and its agents, with real sockets between
them. The agents go on until a test has seen what it wants to see.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.waiting import PATIENCE_S, turns, until

from lmwarden.config import Flag, load
from lmwarden.serve import Warden
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving
from lmwarden.types import Decision, Outcome, RequestRecord

MODEL = "agents"
SPEED = 4.0
"""Modelled seconds per second. What the machine takes between two turns of an agent is modelled so many times as long:
above a second the agents would count as pausing, and the room would not engage."""
AGENTS = 14
ENGINE = SimulatedEngineOptions(replicas=2, speed=SPEED, model=MODEL, kv_cache_tokens=4_500, tool_calls=True)
"""Each rank holds about three of the agents' contexts."""
TOOLS = [{"name": "run", "description": "Runs a command.", "input_schema": {"type": "object"}}]


class Turn:
    """How one request ended for its agent."""

    def __init__(self, number: int, status: int, headers: Any, complete: bool) -> None:
        self.number = number
        """In the order in which they began."""
        self.status = status
        self.wait_ms = int(headers.get("X-LMWarden-Wait-Ms", -1))
        self.retry_after = headers.get("Retry-After")
        self.complete = complete


class Crowd:
    """Agents at work on a warden."""

    def __init__(self, warden: Warden, http: aiohttp.ClientSession) -> None:
        self.warden = warden
        self.turns: list[Turn] = []
        self.begun = 0
        self.going_on = True
        self._http = http
        self._agents: list[asyncio.Task[None]] = []

    async def come(self, count: int = AGENTS) -> None:
        """Begin, and wait until the room is engaged and somebody waits."""
        self._agents = [asyncio.create_task(self._work(f"agent-{number}")) for number in range(count)]
        await until(lambda: self.room["engaged"] and self.room["waiting"] > 2 and self._has_waited() > 2)

    def _has_waited(self) -> int:
        return sum(turn.wait_ms > 0 for turn in self.turns)

    async def _work(self, name: str) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"I am {name}. " + f"{name} does this. " * 250}]
        while self.going_on:
            await self._turn(name, messages)
            messages += [
                {"role": "assistant", "content": "Done."},
                {"role": "user", "content": "Go on, and do the next thing. " * 4},
            ]
            if len(messages) > 12:  # another session of the same agent
                del messages[1:]
                messages[0] = {"role": "user", "content": messages[0]["content"] + "."}

    async def _turn(self, name: str, messages: list[dict[str, Any]]) -> None:
        self.begun = number = self.begun + 1
        body = {"model": MODEL, "max_tokens": 10, "stream": True, "tools": TOOLS, "messages": messages}
        headers = {"X-Claude-Code-Session-Id": name}
        try:
            async with self._http.post(f"{self.warden.client_url}/v1/messages", json=body, headers=headers) as answer:
                text = b"".join([piece async for piece in answer.content.iter_any()])
                self.turns.append(Turn(number, answer.status, answer.headers, b"message_stop" in text))
                if answer.status != 200:
                    self.going_on = False
        except aiohttp.ClientError:
            pass  # cut: the agent sends it again

    async def leave(self) -> None:
        """Everybody breaks off at once."""
        for agent in self._agents:
            agent.cancel()
        await asyncio.gather(*self._agents, return_exceptions=True)

    async def some_leave_the_room(self) -> None:
        """Newcomers, whose turn would be last, come and go again, until one has left while he waited."""
        comers = 0

        async def one_left() -> bool:
            nonlocal comers
            comers += 1
            await until(lambda: self.waiting_now() > 3)
            name = f"passing-{comers}"
            comer = asyncio.create_task(self._turn(name, [{"role": "user", "content": f"I am {name}. " * 200}]))
            await turns(50)
            comer.cancel()
            await asyncio.gather(comer, return_exceptions=True)
            return any(_left_the_room(row) for row in self.warden.ledger.recent(100_000))

        await until(one_left)

    async def finish(self) -> None:
        """Everybody ends the turn that it is at, and goes."""
        self.going_on = False
        await asyncio.wait_for(asyncio.gather(*self._agents), PATIENCE_S)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The console."""
        async with self._http.request(method, self.warden.console_url + path, json=body) as answer:
            assert answer.status == 200
            return await answer.json()

    async def patch(self, **changes: Any) -> Any:
        """Change the routing; the answer's admission."""
        return (await self.ask("PATCH", f"/api/models/{MODEL}/routing", changes))["admission"]

    @property
    def room(self) -> dict[str, Any]:
        """As the latest snapshot has it."""
        view = self.warden.control.snapshot.model(MODEL).view
        return {
            "engaged": view.room is not None and view.room.engaged,
            "waiting": view.waiting,
        }

    def waiting_now(self) -> int:
        """At this very moment; the snapshot may be a second old."""
        (model,) = self.warden._models
        return model.router.view(self.warden._clock()).waiting

    async def at_rest(self) -> list[RequestRecord]:
        """Nothing is open any more, and all counts agree; the rows."""
        await until(lambda: not any(self._open().values()), self._open)
        assert await asyncio.to_thread(self.warden.ledger.flush, PATIENCE_S)
        assert not any(self._open().values())
        snapshot = self.warden.control.snapshot.model(MODEL)
        rows = self.warden.ledger.recent(100_000)
        ended = snapshot.counters.requests
        assert sum(ended.values()) == len(rows)
        # What was sent, and then refused because no engine took it, has a decision in its row and is not counted.
        decided = [row for row in rows if row.decision is not None and not (row.retried and row.status == 503)]
        assert sum(snapshot.view.decisions.values()) == len(decided)
        held = [row.waited_s for row in rows if row.waited_s > 0]
        assert sum(snapshot.counters.wait_counts) == len(held)
        assert snapshot.counters.wait_sum_s == pytest.approx(sum(held), abs=0.01 * len(held))
        return rows

    def _open(self) -> dict[str, int]:
        """What is not at rest, at this very moment."""
        self.warden.control.take()
        snapshot = self.warden.control.snapshot.model(MODEL)
        return {
            "waiting": snapshot.view.waiting,
            "in flight": snapshot.view.in_flight,
            "in flight by replica": sum(replica.in_flight for replica in snapshot.view.replicas),
            "open exchanges": snapshot.counters.open_exchanges,
            "buffered bytes": snapshot.counters.buffered_bytes,
        }


def _left_the_room(row: RequestRecord) -> bool:
    return row.decision is None and row.outcome is Outcome.CANCELLED


@asynccontextmanager
async def crowded(folder: Path, urls: list[str]) -> AsyncIterator[Crowd]:
    """Agents at work on a warden before these engines, whose room is engaged."""
    settings = load(
        None,
        [
            Flag("--engine", ("models",), [{"name": MODEL, "engine": {"attach": urls, "max_num_seqs": 32}}]),
            Flag("--port", ("client", "port"), 0),
            Flag("--console-port", ("console", "port"), 0),
            Flag("--data-dir", ("storage", "dir"), str(folder)),
            Flag("interval", ("watch", "interval_s"), 0.2),
            Flag("pins", ("watch", "test_pins"), False),
        ],
    )
    warden = Warden(settings, speed=SPEED)
    await warden.start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        crowd = Crowd(warden, http)
        try:
            await crowd.come()
            yield crowd
        finally:
            await crowd.leave()
            await warden.stop(drain_s=0)


@pytest.fixture
def ranks() -> tuple[int, ...]:
    """Of each engine; a test names others by its parameter."""
    return (2,)


@pytest.fixture
async def engines(ranks: tuple[int, ...]) -> AsyncIterator[list[AsyncExitStack]]:
    """Closing one early kills that engine."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(AsyncExitStack()) for _ in ranks]


@pytest.fixture
async def crowd(tmp_path: Path, ranks: tuple[int, ...], engines: list[AsyncExitStack]) -> AsyncIterator[Crowd]:
    urls = [
        await engine.enter_async_context(serving(msgspec.structs.replace(ENGINE, replicas=count)))
        for count, engine in zip(ranks, engines, strict=True)
    ]
    async with crowded(tmp_path, urls) as crowd:
        yield crowd


async def test_some_wait_all_are_served_and_the_books_agree(crowd: Crowd) -> None:
    card = await crowd.ask("GET", f"/api/models/{MODEL}/routing")
    admission = card["admission"]
    assert (admission["mode"], admission["why_code"], admission["engaged"]) == ("auto", "engaged", True)
    assert admission["room_for"] == 0
    assert admission["demand_ratio"] > 1
    assert 0 < admission["residents"] == sum(row["residents"] for row in card["replicas"]) < AGENTS
    assert admission["reserved_tokens"] == sum(row["reserved_tokens"] for row in card["replicas"])
    assert admission["tier_advice"]["needed_tokens_per_replica"] > ENGINE.kv_cache_tokens
    checks = (await crowd.ask("GET", "/api/checks"))["checks"]
    assert [check["level"] for check in checks if check["code"] == "waiting_room"] == ["warning"]
    listed = await crowd.ask("GET", f"/api/models/{MODEL}/conversations")
    assert {item["state"] for item in listed["items"]} >= {"waiting", "running"}

    await crowd.finish()
    assert {(turn.status, turn.complete) for turn in crowd.turns} == {(200, True)}
    rows = await crowd.at_rest()
    assert len(rows) == len(crowd.turns)
    assert Counter(row.outcome for row in rows) == {Outcome.OK: len(rows)}
    assert sorted(int(row.waited_s * 1000) for row in rows) == sorted(turn.wait_ms for turn in crowd.turns)
    decided = {row.decision for row in rows if row.waited_s > 0}
    assert decided <= {Decision.PLACED, Decision.STICKY, Decision.REHOMED}


async def test_who_leaves_while_waiting_takes_nothing_along(crowd: Crowd) -> None:
    await crowd.some_leave_the_room()
    await crowd.leave()
    rows = await crowd.at_rest()
    assert any(map(_left_the_room, rows))


@pytest.mark.parametrize("changes", [{"admission": "off"}, {"affinity": False}])
async def test_switched_off_everybody_goes_at_once(crowd: Crowd, changes: dict[str, Any]) -> None:
    after = await crowd.patch(**changes)
    assert (after["why_code"], after["waiting"], after["engaged"]) == ("off", 0, False)
    switched = crowd.begun

    def later() -> list[Turn]:
        """Those that began after it was switched off: whoever was let out by that did wait."""
        return [turn for turn in crowd.turns if turn.number > switched]

    await until(lambda: len(later()) > AGENTS)
    await crowd.finish()
    assert {turn.wait_ms for turn in later()} == {0}
    rows = await crowd.at_rest()
    assert Counter(row.outcome for row in rows) == {Outcome.OK: len(rows)}


@pytest.mark.parametrize("changes", [{"prefer": "tail"}, {"prefer": "median"}, {"max_wait_s": 1.0}])
async def test_other_settings_hold_at_once_and_lose_nobody(crowd: Crowd, changes: dict[str, Any]) -> None:
    after = await crowd.patch(**changes)
    assert {key: after[key] for key in changes} == changes
    more = len(crowd.turns) + 2 * AGENTS
    await until(lambda: len(crowd.turns) > more)
    await crowd.finish()
    rows = await crowd.at_rest()
    assert Counter(row.outcome for row in rows) == {Outcome.OK: len(rows)}
    expired = crowd.warden.control.snapshot.model(MODEL).view.wait_expired
    assert (expired > 0) == ("max_wait_s" in changes)


async def test_the_only_engine_that_dies_leaves_nobody_waiting(crowd: Crowd, engines: list[AsyncExitStack]) -> None:
    await engines[0].aclose()
    await crowd.finish()
    rows = await crowd.at_rest()
    # Refused where they waited, or let out in the moment before it was known, and then taken by nobody.
    assert any(row.waited_s > 0 for row in rows if row.status == 503)
    assert {turn.status for turn in crowd.turns} <= {200, 502, 503}
    assert all(turn.retry_after is not None for turn in crowd.turns if turn.status != 200)


@pytest.mark.parametrize("ranks", [(1, 1)])
async def test_one_engine_of_two_that_dies_loses_nobody_who_waits(crowd: Crowd, engines: list[AsyncExitStack]) -> None:
    await engines[0].aclose()
    more = len(crowd.turns) + AGENTS
    await until(lambda: len(crowd.turns) > more)
    await crowd.finish()
    rows = await crowd.at_rest()
    # What ran there and had sent something was cut; what had not, and what waited, was sent to the other one.
    assert {row.outcome for row in rows} <= {Outcome.OK, Outcome.FAILED}
    assert {row.replica for row in rows if row.outcome is Outcome.FAILED} <= {"e0/0"}


@pytest.mark.parametrize("drain_s", [0.0, PATIENCE_S])
async def test_a_warden_that_stops_serves_who_waits_or_tells_to_come_back(crowd: Crowd, drain_s: float) -> None:
    await until(lambda: crowd.waiting_now() > 3)
    crowd.going_on = False
    held, before = crowd.waiting_now(), len(crowd.turns)
    await crowd.warden.stop(drain_s=drain_s)
    await crowd.finish()
    last = crowd.turns[before:]
    if drain_s:
        assert {(turn.status, turn.complete) for turn in last} <= {(200, True), (503, False)}
        assert sum(turn.status == 200 for turn in last) >= held
    else:
        # Who was let out in the moment before all were ended may have had a byte already: its answer was cut.
        assert sum(turn.status == 503 for turn in last) >= held // 2
    assert all(turn.retry_after == "5" for turn in last if turn.status == 503)
