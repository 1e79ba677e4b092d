"""``lmwarden demo``: the whole product with no GPU, measured off against on.

Three parts on one machine: a simulated vLLM in a child process, whose clock runs ``speed`` times as fast as
the hardware that it models; the warden in this process, on the same modelled clock; and the load tester
beside it. What the simulated hardware would need is modelled; what the gateway costs is real, and at speed
10 it counts ten times. Every cell brings prompts of its own, so no arm profits from the other's cache; only
the shared system prompt stays.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from lmwarden.cli.bench import INTERRUPTED

if TYPE_CHECKING:
    import asyncio

    from rich.console import Console

    from lmwarden.assembly import RouterFactory
    from lmwarden.bench.language import AnyNote
    from lmwarden.bench.plan import Plan
    from lmwarden.bench.results import BenchResult
    from lmwarden.bench.runner import RunOutcome
    from lmwarden.config import Config
    from lmwarden.serve import Warden

MODEL = "qwen3-4b"
HARDWARE = "a4000-qwen3-4b"
MAX_NUM_SEQS = 32
"""Of the modelled hardware; a quarter of it is the spill threshold."""
MOST_LAG_S = 0.5
"""Modelled seconds (p99) by which the tester may be late; beyond that the times are this machine's own."""
PIN_LOOKS, PIN_LOOK_S = 100, 0.1
"""So often, and so many real seconds apart, it is looked whether the pins are tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the demo runs."""

    replicas: int
    levels: list[int]
    arms: list[str]
    seconds: float
    speed: float
    keep: bool = False


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """How the demo ended."""

    result: BenchResult
    notes: list[AnyNote]
    """What stands below its table."""
    interrupted: bool
    """Ctrl-C came before all was measured."""


def register(app: App) -> None:
    """Add the command to the application."""
    app.command(demo, name="demo")


def demo(
    *,
    replicas: int = 4,
    levels: str = "4,8,16",
    arms: str = "off,on",
    seconds: float = 120.0,
    speed: float = 10.0,
    out: Path | None = None,
    json: Path | None = None,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Show the whole product with no GPU: a simulated vLLM, the warden, and agent sessions, off and on.

    Ctrl-C ends early and prints what was measured.

    Args:
        replicas: data-parallel replicas of the simulated vLLM.
        levels: numbers of concurrent agent sessions.
        arms: routings to compare: off, hash, on, on+admission (with the waiting room, as shipped).
        seconds: modelled time of each level in each arm.
        speed: how many times as fast as the modelled hardware the simulation runs.
        out: folder for a report that can be handed to somebody (report.html, charts, figures).
        json: file for the results alone.
        keep: stay up afterwards, until Ctrl-C.
    """
    from asyncio import CancelledError

    import uvloop

    from lmwarden.bench.arms import parse_arms, parse_levels
    from lmwarden.bench.errors import PlanError
    from lmwarden.bench.progress import make_terminal
    from lmwarden.bench.report import check_places, save

    options = DemoOptions(
        replicas=replicas,
        levels=parse_levels(levels),
        arms=parse_arms(arms, as_is=False),
        seconds=seconds,
        speed=speed,
        keep=keep,
    )
    if not 1 <= replicas <= 64:
        raise PlanError(f"--replicas {replicas}: allowed are 1 to 64")
    if not 0 < speed <= 100:
        raise PlanError(f"--speed {speed:g}: allowed is above 0 to 100")
    if not 1 <= seconds <= 86_400:
        raise PlanError(f"--seconds {seconds:g}: allowed is 1 to 86400")
    check_places(out=out, json=json)
    try:
        outcome = uvloop.run(run_demo(options, make_terminal()))
    except CancelledError:
        return INTERRUPTED
    save(outcome.result, outcome.notes, out=out, json=json)
    return INTERRUPTED if outcome.interrupted else 0


async def run_demo(
    options: DemoOptions, terminal: Console, *, router_factory: RouterFactory | None = None
) -> DemoOutcome:
    """Run the demo and print its progress and its table.

    Args:
        options: what to run.
        terminal: where to print.
        router_factory: makes another router than the product's own (tests: random placement).

    Raises:
        BenchError: a part cannot be started, or broke.
    """
    import asyncio

    from lmwarden.bench.runner import stop_on_signals

    _quiet_logs()
    stop = asyncio.Event()
    with stop_on_signals(stop), tempfile.TemporaryDirectory(prefix="lmwarden-demo-") as folder:
        return await _run_in(Path(folder), options, terminal, router_factory, stop)


async def _run_in(
    folder: Path,
    options: DemoOptions,
    terminal: Console,
    router_factory: RouterFactory | None,
    stop: asyncio.Event,
) -> DemoOutcome:
    import asyncio

    from lmwarden.bench.errors import BenchError
    from lmwarden.cli.engine_process import simulated_engine
    from lmwarden.routing.router import Router
    from lmwarden.serve import Warden

    arguments = [
        *("--replicas", str(options.replicas), "--speed", f"{options.speed:g}"),
        *("--hardware", HARDWARE, "--model", MODEL, "--tool-calls"),
    ]
    async with simulated_engine(arguments) as engine:
        lost = asyncio.create_task(engine.ended())
        lost.add_done_callback(lambda _: stop.set())
        warden = Warden(demo_config(engine.url, folder), speed=options.speed, router_factory=router_factory or Router)
        await warden.start()
        try:
            await _pins_are_tested(warden)
            _introduce(options, terminal, engine.url, warden.client_url, warden.console_url)
            outcome = await _measure(options, terminal, stop, warden.client_url, warden.console_url, engine.url)
            if options.keep and not stop.is_set():
                terminal.print(f"Still running: {warden.client_url}. Ctrl-C ends it.", highlight=False)
                await stop.wait()
            if lost.done():
                raise BenchError(f"the simulated engine ended by itself with status {lost.result()}")
            return outcome
        finally:
            lost.cancel()
            await warden.stop()


async def _pins_are_tested(warden: Warden) -> None:
    """Wait until it is known that the engine obeys ranks: under load that could not be told, and would be warned of."""
    import asyncio

    from lmwarden.types import PinVerdict

    for _ in range(PIN_LOOKS):
        reports = [pin for engine in warden.control.snapshot.model(MODEL).engines for pin in engine.pins.values()]
        if all(report.verdict is not PinVerdict.UNVERIFIED for report in reports):
            return
        await asyncio.sleep(PIN_LOOK_S)


async def _measure(
    options: DemoOptions,
    terminal: Console,
    stop: asyncio.Event,
    client_url: str,
    console_url: str,
    engine_url: str,
) -> DemoOutcome:
    from lmwarden.bench.plan import Plan
    from lmwarden.bench.progress import TerminalProgress
    from lmwarden.bench.report import show
    from lmwarden.bench.results import BenchResult
    from lmwarden.bench.run_facts import utc_now
    from lmwarden.bench.runner import run_plan
    from lmwarden.bench.workload import load_workload
    from lmwarden.cli.bench import run_facts

    speed = options.speed
    plan = Plan(
        url=client_url,
        model=MODEL,
        workload=load_workload("claude-code"),
        levels=options.levels,
        arms=options.arms,
        tools=True,
        seconds=options.seconds,
        speed=speed,
        clock=lambda: time.monotonic() * speed,
        console_url=console_url,
        engine_url=engine_url,
    )
    started = utc_now()
    outcome = await run_plan(plan, TerminalProgress(terminal), stop)
    result = BenchResult(
        source="simulated",
        hardware=HARDWARE,
        workload=plan.workload.name,
        levels=outcome.levels,
        run=run_facts(plan, outcome, started),
    )
    notes = demo_notes(outcome, plan)
    gain = demo_gain(outcome, plan)
    show(terminal, result, [*notes, *gain])
    return DemoOutcome(result, notes, interrupted=stop.is_set())


def demo_notes(outcome: RunOutcome, plan: Plan) -> list[AnyNote]:
    """Return what stands below the demo's table."""
    from lmwarden.bench.language import Note
    from lmwarden.cli.bench import run_notes

    return [*run_notes(outcome, plan), Note("speed", {"speed": f"{plan.speed:g}"})]


def demo_gain(outcome: RunOutcome, plan: Plan) -> list[AnyNote]:
    """Return one sentence that says what the last arm gained over the first; none where nothing can be compared.

    A cut run's last level is shorter than what it would be compared with; and a machine that is too busy for the speed
    measures itself, which is said instead.
    """
    from lmwarden.bench.report import gain_sentence

    if len(plan.arms) < 2 or outcome.interrupted:
        return []
    if (outcome.lag_p99_s or 0.0) * plan.speed > MOST_LAG_S:
        slower = f"a --speed below {plan.speed:g}"
        return [f"Nothing is concluded: this machine was too busy. Try {slower}, or lmwarden simulate (virtual time)."]
    gain = gain_sentence(outcome.levels, plan.arms[0], plan.arms[-1])
    return [gain] if gain is not None else []


def _quiet_logs() -> None:
    """Warnings of the warden only: its news would tear the progress line."""
    import logging
    import sys

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def demo_config(engine_url: str, folder: Path) -> Config:
    """Return the configuration of a warden that is attached to one engine, on free ports of this host."""
    from lmwarden.config import Flag, load

    return load(
        None,
        [
            Flag("--engine", ("models", 0, "engine", "attach"), [engine_url]),
            Flag("--model", ("models", 0, "name"), MODEL),
            Flag("--max-num-seqs", ("models", 0, "engine", "max_num_seqs"), MAX_NUM_SEQS),
            Flag("--port", ("client", "port"), 0),
            Flag("--console-port", ("console", "port"), 0),
            Flag("--data-dir", ("storage", "dir"), str(folder)),
        ],
    )


def _introduce(options: DemoOptions, terminal: Console, engine_url: str, client_url: str, console_url: str) -> None:
    from lmwarden.bench.plan import REST_S

    cells = len(options.levels) * len(options.arms)
    wall_s = (cells * options.seconds + (cells - 1) * REST_S) / options.speed
    for line in (
        f"simulated vLLM  {engine_url}  {options.replicas} replicas, {HARDWARE}, speed {options.speed:g}",
        f"LM Warden       {client_url}",
        f"console         {console_url}",
        f"{cells} runs of {options.seconds:g} modelled seconds: about {wall_s:.0f} s",
    ):
        terminal.print(line, highlight=False, markup=False, soft_wrap=True)
