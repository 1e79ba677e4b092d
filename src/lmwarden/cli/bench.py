"""``lmwarden bench``: the load tester against any endpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from lmwarden.bench.runner import Plan, RunOutcome

_CONSOLE_PORT = 8081
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it; what was measured is kept all the same."""


def register(app: App) -> None:
    """Add the command to the application."""
    app.command(bench, name="bench")


def bench(
    *,
    url: str,
    model: str,
    key: Annotated[str | None, Parameter(env_var="LMWARDEN_KEY")] = None,
    console: str | None = None,
    engine: str | None = None,
    levels: str = "4,8,16,24,32",
    seconds: float = 180.0,
    warmup: float = 0.0,
    arms: str = "off,on",
    repeats: int = 1,
    workload: str = "claude-code",
    think: str = "none",
    api: Literal["messages", "chat"] = "messages",
    seed: int | None = None,
    out: Path | None = None,
    json: Path | None = None,
) -> int:
    """Play agent sessions against an endpoint and measure, arm by arm.

    Ctrl-C ends early: what was measured is kept, and the model's routing is set back.

    Args:
        url: the endpoint, e.g. http://127.0.0.1:8080.
        model: the model's name there.
        key: API key.
        console: the warden's console, which switches the arms (default: the same host, port 8081).
        engine: the engine's own address, to read its cache counters beside the client's figures.
        levels: numbers of concurrent sessions.
        seconds: measured time of each level in each arm.
        warmup: time before it that is not measured.
        arms: off, hash, on; or as-is, which switches nothing and needs no console.
        repeats: how often all of it is run, each time with another seed.
        workload: what the sessions look like.
        think: none, or agent: tools run between turns.
        api: which API the sessions speak.
        seed: makes the run repeatable; default: from the clock, so that no prompt is in a cache yet.
        out: folder for results.json and report.md.
        json: file for the results alone.
    """
    from asyncio import CancelledError
    from math import inf

    import uvloop

    from lmwarden.bench.arms import parse_arms, parse_levels
    from lmwarden.bench.client import Api
    from lmwarden.bench.errors import PlanError
    from lmwarden.bench.report import check_places
    from lmwarden.bench.runner import Plan
    from lmwarden.bench.workload import load_workload

    if not 0 < seconds < inf or not 0 <= warmup < inf or repeats < 1:
        raise PlanError("--seconds must be above 0, --warmup 0 or more, --repeats 1 or more")
    for flag, address in (("--url", url), ("--console", console), ("--engine", engine)):
        check_address(flag, address)
    check_places(out=out, json=json)
    plan = Plan(
        url=url,
        model=model,
        key=key,
        console_url=console or default_console(url),
        engine_url=engine,
        levels=parse_levels(levels),
        arms=parse_arms(arms),
        seconds=seconds,
        warmup_s=warmup,
        repeats=repeats,
        workload=load_workload(workload),
        think=think,
        api=Api(api),
        seed=seed if seed is not None else int(time.time()),
        clock=time.monotonic,
    )
    if "as-is" in plan.arms and console is None:
        plan = _without_console(plan)
    try:
        return uvloop.run(_run(plan, out, json))
    except CancelledError:
        return INTERRUPTED


def check_address(flag: str, address: str | None) -> None:
    """Refuse what is no ``http://host:port``.

    Raises:
        PlanError: it is not; the text names the flag.
    """
    from lmwarden.bench.errors import PlanError
    from lmwarden.config import ConfigError, parse_engine_url

    try:
        if address is not None:
            parse_engine_url(address)
    except ConfigError as error:
        raise PlanError(f"{flag}: {error}") from None


def default_console(url: str) -> str:
    """Return the console that belongs to an endpoint: the same host, port 8081."""
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    return f"http://{f'[{host}]' if ':' in host else host}:{_CONSOLE_PORT}"


def _without_console(plan: Plan) -> Plan:
    from dataclasses import replace

    return replace(plan, console_url=None)


async def _run(plan: Plan, out: Path | None, json: Path | None) -> int:
    import asyncio

    from lmwarden.bench.progress import TerminalProgress, make_terminal
    from lmwarden.bench.report import save, show
    from lmwarden.bench.results import BenchResult
    from lmwarden.bench.runner import run_plan, stop_on_signals

    terminal = make_terminal()
    stop = asyncio.Event()

    def introduce() -> None:
        for line in introduction(plan):
            terminal.print(line, highlight=False, markup=False, soft_wrap=True)

    with stop_on_signals(stop):
        outcome = await run_plan(plan, TerminalProgress(terminal), stop, on_checked=introduce)
    result = BenchResult(source="measured", hardware=None, workload=plan.workload.name, levels=outcome.levels)
    notes = run_notes(outcome, plan)
    show(terminal, result, notes)
    save(result, notes, out=out, json=json)
    return exit_status(outcome)


def introduction(plan: Plan) -> list[str]:
    """Return what somebody should know before a run begins, one line each."""
    from lmwarden.bench.arms import needs_console
    from lmwarden.bench.runner import plan_cells

    runs = len(plan_cells(plan))
    length_s = plan.warmup_s + plan.seconds
    total_s = runs * length_s
    total = f"{total_s / 60:.0f} min" if total_s >= 120 else f"{total_s:.0f} s"
    lines = [f"{runs} {'run' if runs == 1 else 'runs'} of {length_s:g} s: about {total}; seed {plan.seed}"]
    if needs_console(plan.arms):
        lines.append(f"The routing of {plan.model} is switched for everybody who uses it, and set back at the end.")
    return lines


def run_notes(outcome: RunOutcome, plan: Plan) -> list[str]:
    """Return what the run itself must be judged by, one plain sentence each."""
    notes = []
    if outcome.lag_p99_s is not None:
        lag_ms = 1000 * outcome.lag_p99_s
        times = f" of wall time, {lag_ms * plan.speed:.0f} ms of modelled time" if plan.speed != 1 else ""
        notes.append(f"The load tester's own lag: p99 {lag_ms:.1f} ms{times}.")
        if lag_ms > 20:
            notes.append("That is above 20 ms: this machine was too busy for exact times.")
    if outcome.content_later_s is not None:
        notes.append(f"The first token outside reasoning came {outcome.content_later_s:.2f} s later (mean).")
    if outcome.first_error is not None:
        notes.append(f"The first request that failed: {outcome.first_error}.")
    if outcome.interrupted:
        short = [row.seconds for row in outcome.levels[-1:] if row.seconds < plan.seconds]
        last = f", its last run {short[0]:.0f} of {plan.seconds:.0f} s" if short else ""
        notes.append(f"The run was interrupted; the table holds what was measured{last}.")
    return notes


def exit_status(outcome: RunOutcome) -> int:
    """Return 0; 1 where not one request was answered; ``INTERRUPTED`` after Ctrl-C."""
    if outcome.interrupted:
        return INTERRUPTED
    return 0 if any(row.ttfb_s.p50 is not None for row in outcome.levels) else 1
