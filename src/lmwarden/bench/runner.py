"""Closed-loop levels against an endpoint: arms × levels × repeats, in wall time.

Theory of operation. A *cell* is one level in one arm with one seed. Its agents all start at once and are
never idle: a session's next turn is sent when the last one ended (after the tools' gap, if any), and a new
session starts when one ends. When the cell's time is over, what is still open is cancelled and counted as it
stands. Arms of one level follow each other directly, so that a slow drift of the host touches both.

All times are read from the plan's clock, which runs ``speed`` times as fast as the wall clock where the
engine is simulated; only the sleeps divide by the speed. A failed turn ends its session, and its agent pauses
for a (wall) second, so that a dead endpoint is not hammered.

Everything is checked before anything is switched (``pairing`` says how a foreign console is found out). Arms are
switched on the console, and what was set before is set back at the end, however it ends. Setting ``stop`` ends the
run early: the running cell is measured up to that moment.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from lmwarden.bench.arms import needs_console
from lmwarden.bench.client import AgentClient, Api, Conversation, listed_models
from lmwarden.bench.console import CacheCounters, Console
from lmwarden.bench.errors import BenchError, PlanError
from lmwarden.bench.lag import LagMonitor
from lmwarden.bench.measure import LevelRecords, SessionRecord, TurnRecord, Window, level_result
from lmwarden.bench.pairing import check_pair
from lmwarden.bench.progress import Progress
from lmwarden.bench.results import LevelResult
from lmwarden.bench.sessions import AgentSession, SessionSource
from lmwarden.bench.workload import Workload
from lmwarden.types import Clock

_PAUSE_AFTER_FAILURE_S = 1.0
_PROGRESS_PERIOD_S = 0.5
_SETTLE_LIMIT_S = 10.0
"""How long to wait for the endpoint to notice that the last cell's requests were cancelled."""
_SETTLE_PERIOD_S = 0.05
_SHORTEST_WINDOW_S = 1.0
"""An interrupted cell below this (modelled) length is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run, against what."""

    url: str
    model: str
    workload: Workload
    levels: list[int]
    arms: list[str]
    seconds: float
    clock: Clock
    speed: float = 1.0
    warmup_s: float = 0.0
    repeats: int = 1
    seed: int = 1
    """Of the first repeat; the next repeats use the next numbers."""
    think: str = "none"
    api: Api = Api.MESSAGES
    key: str | None = None
    console_url: str | None = None
    engine_url: str | None = None
    """Where the engine's own /metrics are; None: its counters are not read."""


@dataclass(slots=True)
class RunOutcome:
    """What a run measured."""

    levels: list[LevelResult] = field(default_factory=list)
    interrupted: bool = False
    lag_p99_s: float | None = None
    """The tester's own event-loop lag, wall seconds."""
    first_error: str | None = None
    """Of the first request that failed."""
    content_later_s: float | None = None
    """Mean time from the first token to the first one that is not reasoning; None: no answer reasoned."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One level in one arm with one seed."""

    sessions: int
    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.sessions} sessions, {self.arm}"


def plan_cells(plan: Plan) -> list[Cell]:
    """Return the cells in the order in which they run."""
    return [
        Cell(level, arm, plan.seed + repeat)
        for repeat in range(plan.repeats)
        for level in plan.levels
        for arm in plan.arms
    ]


async def run_plan(
    plan: Plan, progress: Progress, stop: asyncio.Event, *, on_checked: Callable[[], None] | None = None
) -> RunOutcome:
    """Run all cells; the model's routing is afterwards as it was.

    Args:
        plan: what to run.
        progress: is told what happens.
        stop: ends the run early.
        on_checked: called once when everything was checked, before the first switch.

    Raises:
        PlanError: the endpoint cannot be used as planned.
        BenchError: endpoint, console or engine do not answer, or do not belong together; or the console fails
            between cells.
    """
    plan.workload.think_named(plan.think)
    models = await listed_models(plan.url, plan.key)
    if plan.model not in models:
        raise PlanError(f"--model {plan.model}: {plan.url} serves {', '.join(models) or 'nothing'}")
    outcome = RunOutcome()
    lag = LagMonitor()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AgentClient(plan.url, api=plan.api, key=plan.key, clock=plan.clock))
        console = await stack.enter_async_context(Console(plan.console_url, plan.model, engine_url=plan.engine_url))
        before = None
        if needs_console(plan.arms):
            before = await console.state()
            await check_pair(plan.url, console, before, model=plan.model, api=plan.api, key=plan.key)
        await console.check_engine()
        if on_checked is not None:
            on_checked()
        if before is not None:
            stack.push_async_callback(console.restore, before)
        lag.start()
        stack.callback(lag.stop)
        cells = plan_cells(plan)
        for number, cell in enumerate(cells, start=1):
            if stop.is_set():
                break
            await console.apply(cell.arm)
            progress.started(str(cell), number, len(cells))
            run = CellRun(plan, cell, client, console)
            result = await run.run(progress, stop)
            progress.finished(result)
            _note(outcome, result, run.records)
            await run.settle()
    outcome.interrupted = stop.is_set()
    outcome.lag_p99_s = lag.p99_s()
    return outcome


class CellRun:
    """One cell while it runs."""

    def __init__(self, plan: Plan, cell: Cell, client: AgentClient, console: Console) -> None:
        self.records = LevelRecords()
        self._plan = plan
        self._cell = cell
        self._client = client
        self._console = console
        self._source = SessionSource(
            plan.workload,
            think=plan.workload.think_named(plan.think),
            seed=cell.seed,
            sessions=cell.sessions,
            arm=cell.arm,
        )
        self._system_text = self._source.system_text()
        self._counters_before: CacheCounters | None = None

    async def run(self, progress: Progress, stop: asyncio.Event) -> LevelResult | None:
        """Play the cell; None if it was stopped before anything could be measured."""
        plan, clock = self._plan, self._plan.clock
        if self._console.known and self._cell.arm == "off":
            self.records.balancer = (await self._console.state()).balancer()
        self._counters_before = await self._console.cache_counters()
        started_s = clock()
        window_start_s = started_s + plan.warmup_s
        indexes = itertools.count()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._agent(indexes)) for _ in range(self._cell.sessions)]
            tasks.append(group.create_task(self._watch(window_start_s)))
            await self._wait(started_s, progress, stop)
            window = Window(window_start_s, min(clock(), window_start_s + plan.seconds))
            for task in tasks:
                task.cancel()
        counters = await self._console.cache_counters()
        if counters is not None and self._counters_before is not None:
            self.records.engine_hit_ratio = counters.ratio_since(self._counters_before)
        if window.seconds < _SHORTEST_WINDOW_S:
            return None
        cell = self._cell
        return level_result(self.records, window, sessions=cell.sessions, arm=cell.arm, seed=cell.seed)

    async def settle(self) -> None:
        """Wait until the warden has nothing in flight, so that the next cell starts from rest."""
        if not self._console.known:
            return
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + _SETTLE_LIMIT_S
        with suppress(BenchError):
            while loop.time() < limit_s:
                if (await self._console.state()).in_flight == 0:
                    return
                await asyncio.sleep(_SETTLE_PERIOD_S)

    async def _wait(self, started_s: float, progress: Progress, stop: asyncio.Event) -> None:
        """Return when the cell's time is over or ``stop`` is set."""
        plan = self._plan
        total_s = plan.warmup_s + plan.seconds
        while not stop.is_set() and (left_s := started_s + total_s - plan.clock()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(left_s / plan.speed, _PROGRESS_PERIOD_S))
            answered = sum(turn.ended_s is not None for turn in self.records.turns)
            progress.moved(plan.clock() - started_s, total_s, answered)

    async def _agent(self, indexes: Iterator[int]) -> None:
        """One place of the closed loop: session after session, until cancelled."""
        for index in indexes:
            if not await self._session(self._source.session(index)):
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _session(self, session: AgentSession) -> bool:
        """Play one session; return whether all its turns were answered."""
        plan = self._plan
        conversation = Conversation(session, plan.model, self._system_text, plan.api)
        started_s = plan.clock()
        for number, turn in enumerate(session.turns):
            if turn.gap_before_s:
                await asyncio.sleep(turn.gap_before_s / plan.speed)
            record = TurnRecord(session=session.index, turn=number, sent_s=plan.clock())
            self.records.turns.append(record)
            if not await self._client.play(conversation, record):
                return False
        self.records.sessions.append(SessionRecord(session.index, started_s, plan.clock()))
        return True

    async def _watch(self, window_start_s: float) -> None:
        """Read the counters where the window begins, then poll *busy* each modelled second."""
        plan = self._plan
        await self._sleep_until(window_start_s)
        if plan.warmup_s:
            self._counters_before = await self._console.cache_counters()
        if not self._console.known:
            return
        for second in itertools.count(1):
            await self._sleep_until(window_start_s + second)
            with suppress(BenchError):
                busy = (await self._console.state()).busy()
                if busy is not None:
                    self.records.busy.append(busy)

    async def _sleep_until(self, moment_s: float) -> None:
        await asyncio.sleep(max(0.0, moment_s - self._plan.clock()) / self._plan.speed)


def _note(outcome: RunOutcome, result: LevelResult | None, records: LevelRecords) -> None:
    if result is not None:
        outcome.levels.append(result)
    if outcome.first_error is None:
        outcome.first_error = next((turn.error for turn in records.turns if turn.error), None)
    later = [
        turn.first_content_s - turn.first_token_s
        for turn in records.turns
        if turn.first_content_s is not None and turn.first_token_s is not None
    ]
    if any(later) and outcome.content_later_s is None:
        outcome.content_later_s = sum(later) / len(later)


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM set ``stop``, and the second cancel the task that entered."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
