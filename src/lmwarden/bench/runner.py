"""Runs a plan against an endpoint: arms × levels × repeats, in wall time.

Theory of operation. Cells (``cell``) run one after the other; the agents of a cell all start at once. Arms of one level
follow each other directly, so that a slow drift of the host touches both, and each repeat begins with another arm.

Everything is checked before anything is switched (``pairing`` says how a foreign console is found out). Arms are
switched on the console, and what was set before is set back at the end, however it ends. Setting ``stop`` ends the
run early: the running cell is measured up to that moment, and what was measured is handed to ``on_result`` as it comes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lmwarden.bench.arms import WITH_ROOM, needs_console
from lmwarden.bench.cell import CellRun
from lmwarden.bench.client import AgentClient, listed_models
from lmwarden.bench.console import Console
from lmwarden.bench.counters import EngineUnderTest
from lmwarden.bench.errors import BenchError, PlanError
from lmwarden.bench.lag import LagMonitor
from lmwarden.bench.language import Note
from lmwarden.bench.measure import LevelRecords
from lmwarden.bench.notes import open_room_note
from lmwarden.bench.pairing import check_pair
from lmwarden.bench.plan import Caches, Plan, plan_cells
from lmwarden.bench.progress import Progress
from lmwarden.bench.results import LevelResult
from lmwarden.bench.sessions import PromptReuse


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
    password_unused: bool = False
    """A password was given, and the console asked for none."""
    room_notes: list[Note] = field(default_factory=list)
    """Why the waiting room stayed open where one would not expect it."""
    replicas: int | None = None
    """Of the model, by the console; None: there is none."""


async def run_plan(
    plan: Plan,
    progress: Progress,
    stop: asyncio.Event,
    *,
    on_checked: Callable[[], None] | None = None,
    on_result: Callable[[RunOutcome], None] | None = None,
) -> RunOutcome:
    """Run all cells; the model's routing is afterwards as it was.

    Args:
        plan: what to run.
        progress: is told what happens.
        stop: ends the run early.
        on_checked: called once when everything was checked, before the first switch.
        on_result: called after each cell with all that was measured so far, so that a run that dies leaves something.

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
        client = await stack.enter_async_context(
            AgentClient(
                plan.url, api=plan.api, key=plan.key, clock=plan.clock, speed=plan.speed, network_s=plan.network_s
            )
        )
        console = await stack.enter_async_context(Console(plan.console_url, plan.model, password=plan.console_password))
        engine = await stack.enter_async_context(EngineUnderTest(plan.engine_url))
        before = None
        if needs_console(plan.arms):
            before = await console.state()
            outcome.replicas = len(before.replicas)
            outcome.password_unused = console.password_unused
            await check_pair(plan.url, console, before, model=plan.model, api=plan.api, key=plan.key)
        await engine.check()
        await _check_caches(plan, engine)
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
            run = CellRun(plan, cell, client, console, engine)
            result = await run.run(progress, stop)
            progress.finished(result)
            _note(outcome, result, run.records)
            if cell.arm == WITH_ROOM and plan.think == "none":
                note = open_room_note(run.records.rooms, cell.sessions, cell.arm, open_loop=plan.open_loop)
                outcome.room_notes += [note] if note is not None else []
            outcome.lag_p99_s = lag.p99_s()
            if on_result is not None:
                on_result(outcome)
            await run.settle()
            if number < len(cells):
                await run.rest(stop)
    outcome.interrupted = stop.is_set()
    return outcome


async def _check_caches(plan: Plan, engine: EngineUnderTest) -> None:
    """Prompts that come twice find themselves in the caches, unless these can be emptied in between."""
    if plan.caches is Caches.FRESH and plan.prompt_reuse is not PromptReuse.NONE and not await engine.empty_caches():
        raise BenchError(
            f"--caches fresh with --prompt-reuse {plan.prompt_reuse.value} needs an engine whose caches can be emptied"
            " (--engine URL, and VLLM_SERVER_DEV_MODE=1 there); allowed without: --caches warm"
        )


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
    """Let the first SIGINT or SIGTERM set ``stop``, and the second cancel the task that entered.

    SIGHUP, from a terminal that was closed, sets ``stop`` too, unless it is to be ignored (nohup). What is printed from
    then on goes nowhere: an error at each line would keep the run from setting back, measuring and saving to its end.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    def on_hang_up() -> None:
        with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            for descriptor in (1, 2):
                if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):  # it was a terminal
                    os.dup2(nowhere.fileno(), descriptor)
        stop.set()  # never more: kernel and shell both send it

    numbers = [signal.SIGINT, signal.SIGTERM]
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, on_hang_up)
        numbers.append(signal.SIGHUP)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
