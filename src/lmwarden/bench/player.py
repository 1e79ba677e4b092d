"""Plays sessions against an endpoint: closed loop or open loop.

*Closed*: so many agents, never idle. A session's next turn is sent when the last one ended (after the tools' gap, if
any), and a new session starts when one ends. A failed turn ends its session, and its agent pauses for a (wall) second,
so that a dead endpoint is not hammered.

*Open*: sessions start at moments of their own (a Poisson process, or those of a trace), whether or not earlier ones
have ended. What an endpoint cannot serve piles up, as it does with people.

Subagents of a turn run at once, each with its own conversation, and the next turn waits for all of them; one that fails
is counted and ends alone. A fork runs beside the session that it copied, which has ended when both have.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Protocol

from lmwarden.bench.client import AgentClient
from lmwarden.bench.conversation import Conversation, Dialogue
from lmwarden.bench.measure import LevelRecords, SessionRecord, TurnRecord
from lmwarden.bench.plan import Cell, Plan
from lmwarden.bench.replay import ReplaySource
from lmwarden.bench.results import AS_RECORDED
from lmwarden.bench.sessions import SessionSource
from lmwarden.bench.trace import Trace
from lmwarden.bench.workload import Workload

_PAUSE_AFTER_FAILURE_S = 1.0


class Player(Protocol):
    """Plays one cell."""

    def prepare(self) -> None:
        """Make what is sent first, so that the run does not begin with a busy load tester."""
        ...

    async def play(self) -> None:
        """Play until cancelled."""
        ...

    @property
    def open_sessions(self) -> int:
        """Sessions that have started and not ended."""
        ...


def make_player(plan: Plan, cell: Cell, client: AgentClient, records: LevelRecords) -> Player:
    """Return the player of a cell.

    Raises:
        PlanError: the workload has no gaps of the plan's name.
    """
    if isinstance(plan.workload, Trace):
        replay = ReplaySource(
            plan.workload,
            model=plan.model,
            cell_key=f"{cell.seed}|{cell.sessions}|{cell.arm}",
            keep_gaps=plan.workload.keeps_gaps(plan.think),
        )
        stage = Stage(plan, replay.dialogue, client, records)
        if plan.open_loop and cell.sessions == AS_RECORDED:
            return OpenLoop(stage, iter(replay.start_times_s))
    else:
        stage = Stage(plan, _drawn(plan, cell, plan.workload), client, records)
    if plan.open_loop:
        return OpenLoop(stage, poisson_starts(cell.sessions, cell.seed))
    return ClosedLoop(stage, cell.sessions)


def _drawn(plan: Plan, cell: Cell, workload: Workload) -> Callable[[int], Dialogue]:
    source = SessionSource(
        workload,
        think=workload.think_named(plan.think),
        seed=cell.seed,
        sessions=cell.sessions,
        arm=cell.arm,
        prompt_reuse=plan.prompt_reuse,
    )
    return lambda index: Conversation(source.session(index), plan.model, plan.api, plan.tools)


def poisson_starts(per_hour: int, seed: int) -> Iterator[float]:
    """Yield the moments, in seconds, at which sessions start; the same ones in every arm."""
    random = Random(f"{seed}|{per_hour}|arrivals")
    start_s = 0.0
    while True:
        start_s += random.expovariate(per_hour / 3600)
        yield start_s


class Stage:
    """Plays single sessions.

    Args:
        plan: what is played.
        dialogue: makes the main conversation of session number ``index``.
        client: sends.
        records: is filled.
    """

    def __init__(
        self, plan: Plan, dialogue: Callable[[int], Dialogue], client: AgentClient, records: LevelRecords
    ) -> None:
        self.plan = plan
        self.dialogue = dialogue
        self.open_sessions = 0
        self._client = client
        self._records = records

    async def session(self, dialogue: Dialogue) -> bool:
        """Play one session with all that it starts; return whether all turns of its main agent were answered."""
        started_s = self.plan.clock()
        self.open_sessions += 1
        try:
            async with asyncio.TaskGroup() as forks:
                answered = await self._converse(dialogue, forks)
        finally:
            self.open_sessions -= 1
        if answered:
            self._records.sessions.append(SessionRecord(dialogue.index, started_s, self.plan.clock()))
        return answered

    async def _converse(self, dialogue: Dialogue, forks: asyncio.TaskGroup) -> bool:
        """Play the turns of one conversation in order; stop at the first that fails."""
        plan = self.plan
        for number, turn in enumerate(dialogue.turns):
            if turn.gap_before_s:
                await asyncio.sleep(turn.gap_before_s / plan.speed)
            record = TurnRecord(session=dialogue.index, turn=number, sent_s=plan.clock(), agent=dialogue.agent_id)
            self._records.turns.append(record)
            if not await self._client.play(dialogue, record):
                return False
            async with asyncio.TaskGroup() as subagents:
                for started, is_fork in dialogue.started_by(turn.branches):
                    (forks if is_fork else subagents).create_task(self._converse(started, forks))
        return True


class ClosedLoop:
    """A number of agents, each with one session after the other."""

    def __init__(self, stage: Stage, agents: int) -> None:
        self._stage = stage
        self._agents = agents
        self._first: list[Dialogue] = []

    @property
    def open_sessions(self) -> int:
        """See ``Player.open_sessions``."""
        return self._stage.open_sessions

    def prepare(self) -> None:
        """See ``Player.prepare``."""
        self._first = [self._stage.dialogue(index) for index in range(self._agents)]
        for dialogue in self._first:
            dialogue.body(0)

    async def play(self) -> None:
        """See ``Player.play``."""
        indexes = itertools.count(self._agents)
        first, self._first = self._first, []
        async with asyncio.TaskGroup() as agents:
            for dialogue in first:
                agents.create_task(self._agent(dialogue, indexes))

    async def _agent(self, dialogue: Dialogue, indexes: Iterator[int]) -> None:
        while True:
            if not await self._stage.session(dialogue):
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            dialogue = self._stage.dialogue(next(indexes))


class OpenLoop:
    """Sessions that start at moments of their own, in seconds from the beginning."""

    def __init__(self, stage: Stage, starts_s: Iterator[float]) -> None:
        self._stage = stage
        self._starts_s = starts_s

    @property
    def open_sessions(self) -> int:
        """See ``Player.open_sessions``."""
        return self._stage.open_sessions

    def prepare(self) -> None:
        """Nothing is sent at the beginning."""

    async def play(self) -> None:
        """See ``Player.play``."""
        plan = self._stage.plan
        began_s = plan.clock()
        async with asyncio.TaskGroup() as sessions:
            for index, start_s in enumerate(self._starts_s):
                dialogue = self._stage.dialogue(index)
                await asyncio.sleep(max(0.0, began_s + start_s - plan.clock()) / plan.speed)
                sessions.create_task(self._stage.session(dialogue))
