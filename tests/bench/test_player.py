"""Who is sent when: subagents at once, the parent after them, forks beside it. Events decide, never time."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from tests.bench.stub_endpoint import StubEndpoint, serving
from tests.waiting import PATIENCE_S

from lmwarden.bench.client import AgentClient
from lmwarden.bench.conversation import Api, Conversation
from lmwarden.bench.measure import LevelRecords
from lmwarden.bench.plan import Plan
from lmwarden.bench.plans import AgentSession, Branch, TurnPlan
from lmwarden.bench.player import ClosedLoop, OpenLoop, Stage, poisson_starts
from lmwarden.bench.workload import load_workload

TURN = TurnPlan(new_tokens=20, max_output_tokens=5, gap_before_s=0.0)


def conversation(name: str, *turns: TurnPlan, agent_id: str | None = None, forked: bool = False) -> AgentSession:
    return AgentSession(
        index=0, session_id=name, turns=turns or (TURN,), text_key=name.encode(), agent_id=agent_id, forked=forked
    )


@dataclass
class Gate:
    """Holds answers until it is told; knows who is waiting."""

    stub: StubEndpoint
    waiting: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    doors: dict[str, asyncio.Event] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.headers["X-Claude-Code-Session-Id"]
        name += request.headers.get("x-claude-code-agent-id", "")
        door = self.doors[name] = asyncio.Event()
        self.waiting.append(name)
        self.seen.append(name)
        self.changed.set()
        await door.wait()
        return await self.stub.whole_answer(request)

    def open(self, name: str) -> None:
        self.waiting.remove(name)
        self.doors[name].set()

    async def until(self, *names: str) -> None:
        """Until exactly these wait."""
        async with asyncio.timeout(PATIENCE_S):
            while sorted(self.waiting) != sorted(names):
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    async with serving(StubEndpoint()) as stub:
        gate = Gate(stub)
        stub.answer = gate.answer
        yield gate


def stage(gate: Gate, client: AgentClient, records: LevelRecords, made: Callable[[int], AgentSession]) -> Stage:
    plan = Plan(
        url=gate.stub.url, model="m", workload=load_workload("claude-code"), levels=[1], arms=["on"], seconds=1.0,
        clock=time.monotonic,
    )  # fmt: skip
    return Stage(plan, lambda index: Conversation(made(index), "m", Api.MESSAGES), client, records)


def agent_client(gate: Gate) -> AgentClient:
    return AgentClient(gate.stub.url, api=Api.MESSAGES, key=None, clock=time.monotonic)


async def test_subagents_run_at_once_and_the_next_turn_waits_for_all_of_them(gate: Gate) -> None:
    children = tuple(Branch(conversation("s", TURN, TURN, agent_id=f"-{n}"), copies_context=False) for n in range(3))
    parent = conversation("s", TurnPlan(20, 5, 0.0, branches=children), TURN)
    records = LevelRecords()
    async with agent_client(gate) as client:
        here = stage(gate, client, records, lambda _: parent)
        playing = asyncio.create_task(here.session(here.dialogue(0)))
        await gate.until("s")
        gate.open("s")
        await gate.until("s-0", "s-1", "s-2")
        assert here.open_sessions == 1
        for name in ("s-0", "s-1"):
            gate.open(name)
            await gate.until("s-0", "s-1", "s-2")  # second turns of the two, and the first of the third
        assert gate.seen.count("s-0") == 2 and gate.seen.count("s-2") == 1
        for name in ("s-0", "s-1", "s-2"):
            gate.open(name)
        await gate.until("s-2")
        assert records.sessions == []
        gate.open("s-2")
        await gate.until("s")
        gate.open("s")
        assert await playing
    assert [record.agent for record in records.turns] == [None, "-0", "-1", "-2", "-0", "-1", "-2", None]
    assert len(records.sessions) == 1
    assert here.open_sessions == 0


async def test_a_fork_goes_on_beside_its_parent_and_the_session_ends_with_both(gate: Gate) -> None:
    fork = Branch(conversation("fork", TURN, TURN, forked=True), copies_context=True)
    parent = conversation("s", TurnPlan(20, 5, 0.0, branches=(fork,)), TURN)
    records = LevelRecords()
    async with agent_client(gate) as client:
        here = stage(gate, client, records, lambda _: parent)
        playing = asyncio.create_task(here.session(here.dialogue(0)))
        await gate.until("s")
        gate.open("s")
        await gate.until("s", "fork")
        assert len(gate.stub.bodies[-1]["messages"]) == len(gate.stub.bodies[-2]["messages"]) == 3
        gate.open("s")
        await gate.until("fork")
        gate.open("fork")
        await gate.until("fork")
        assert records.sessions == []
        gate.open("fork")
        assert await playing
    assert len(records.sessions) == 1


async def test_a_subagent_that_fails_ends_alone(gate: Gate) -> None:
    child = Branch(conversation("s", TURN, TURN, agent_id="-sub"), copies_context=False)
    parent = conversation("s", TurnPlan(20, 5, 0.0, branches=(child,)), TURN)
    records = LevelRecords()

    async def refuse_subagents(request: web.Request) -> web.StreamResponse:
        if "x-claude-code-agent-id" in request.headers:
            return web.Response(status=503)
        return await gate.stub.whole_answer(request)

    gate.stub.answer = refuse_subagents
    async with agent_client(gate) as client:
        here = stage(gate, client, records, lambda _: parent)
        assert await here.session(here.dialogue(0))
    assert [record.failed for record in records.turns] == [False, True, False]


async def test_what_is_sent_first_is_made_before_the_run(gate: Gate) -> None:
    made: list[int] = []

    def make(index: int) -> AgentSession:
        made.append(index)
        return conversation(f"s{index}")

    async with agent_client(gate) as client:
        loop = ClosedLoop(stage(gate, client, LevelRecords(), make), 3)
        loop.prepare()
        assert made == [0, 1, 2]
        playing = asyncio.create_task(loop.play())
        await gate.until("s0", "s1", "s2")
        gate.open("s1")
        await gate.until("s0", "s2", "s3")
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    assert loop.open_sessions == 0


async def test_the_open_loop_waits_for_nobody(gate: Gate) -> None:
    made: list[int] = []

    def make(index: int) -> AgentSession:
        made.append(index)
        return conversation(f"s{index}")

    async with agent_client(gate) as client:
        here = stage(gate, client, LevelRecords(), make)
        loop = OpenLoop(here, poisson_starts(360_000, 1))
        loop.prepare()
        playing = asyncio.create_task(loop.play())
        async with asyncio.timeout(PATIENCE_S):
            while len(gate.waiting) < 5:
                gate.changed.clear()
                await gate.changed.wait()
        assert made[:5] == [0, 1, 2, 3, 4]
        assert loop.open_sessions >= 5
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


def test_starts_are_a_poisson_process_of_their_rate_and_the_same_in_every_arm() -> None:
    starts = list(itertools.islice(poisson_starts(3600, 7), 4000))
    assert starts == list(itertools.islice(poisson_starts(3600, 7), 4000))
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert statistics.mean(gaps) == pytest.approx(1.0, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(1.0, rel=0.08)
