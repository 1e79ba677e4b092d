"""``lmwarden bench``: the load tester against any endpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from lmwarden.cli.password import read_password

if TYPE_CHECKING:
    from lmwarden.bench.language import Note
    from lmwarden.bench.plan import Plan
    from lmwarden.bench.results import RunFacts
    from lmwarden.bench.runner import RunOutcome

_CONSOLE_PORT = 8081
_PASSWORD_FLAG = "--console-password-file"
_LEVELS = "4,8,16,24,32"
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
    console_password_file: Path | None = None,
    engine: str | None = None,
    levels: str | None = None,
    open_loop: str | None = None,
    seconds: float = 180.0,
    warmup: float = 0.0,
    rest: float = 30.0,
    arms: str = "off,on",
    repeats: int = 1,
    workload: str = "claude-code",
    think: str = "none",
    prompt_reuse: Literal["none", "across_arms", "across_levels"] = "none",
    caches: Literal["fresh", "warm"] = "fresh",
    network: float = 0.0,
    api: Literal["messages", "chat"] = "messages",
    tools: Annotated[bool, Parameter(negative="")] = False,
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
        console_password_file: file that holds the console's password, if it asks for one.
        engine: the engine's own address, to read its counters beside the client's figures and to empty its caches.
        levels: numbers of concurrent sessions (default: 4,8,16,24,32); a new one starts when one ends.
        open_loop: instead of levels, numbers of sessions that start per hour, at random moments; or, with a trace,
            recorded.
        seconds: measured time of each level in each arm.
        warmup: time before it that is not measured.
        rest: time between two runs, in which the warden forgets the conversations that the first one left.
        arms: off, hash, on, on+admission; or as-is, which switches nothing and needs no console.
        repeats: how often all of it is run, each time with another seed and beginning with another arm.
        workload: what the sessions look like: a shipped one by its name, the path of a .toml file, or trace:FILE.
        think: none, or agent: tools run between turns; with a trace none, or recorded.
        prompt_reuse: whether the arms, or the levels too, bring the same prompts as before.
        caches: fresh: emptied before each run if --engine can do that, and no prompt comes twice; warm: left alone.
        network: seconds of delay that are added to each request.
        api: which API the sessions speak.
        tools: send a tool, so that answers end in tool calls as an agent's do; vLLM then needs a tool parser.
        seed: makes the run repeatable; default: from the clock, so that no prompt is in a cache yet.
        out: folder for the report (report.html, report.md, charts) and its figures (results.json, results.csv).
        json: file for the results alone.
    """
    from asyncio import CancelledError

    import uvloop

    from lmwarden.bench.arms import parse_arms, parse_levels
    from lmwarden.bench.conversation import Api
    from lmwarden.bench.errors import PlanError
    from lmwarden.bench.plan import Caches, Plan, parse_rates
    from lmwarden.bench.report import check_places
    from lmwarden.bench.sessions import PromptReuse
    from lmwarden.bench.trace import Trace, load_played

    check_times(seconds, warmup, rest, network, repeats)
    for flag, address in (("--url", url), ("--console", console), ("--engine", engine)):
        check_address(flag, address)
    if open_loop is not None and levels is not None:
        raise PlanError("--levels and --open-loop exclude each other: the open loop has rates instead of levels")
    played = load_played(workload, open_loop=open_loop)
    check_places(out=out, json=json)
    plan = Plan(
        url=url,
        model=model,
        key=key,
        console_url=console or default_console(url),
        console_password=read_password(_PASSWORD_FLAG, console_password_file),
        engine_url=engine,
        levels=parse_levels(levels or _LEVELS) if open_loop is None else parse_rates(open_loop),
        open_loop=open_loop is not None,
        arms=parse_arms(arms, as_is=True),
        seconds=seconds,
        warmup_s=warmup,
        rest_s=rest,
        repeats=repeats,
        workload=played,
        think=think,
        prompt_reuse=PromptReuse(prompt_reuse),
        caches=Caches(caches),
        network_s=network,
        api=Api.COMPLETIONS if isinstance(played, Trace) else Api(api),
        tools=tools,
        seed=seed if seed is not None else int(time.time()),
        clock=time.monotonic,
    )
    if "as-is" in plan.arms and console is None:
        plan = _without_console(plan)
    try:
        return uvloop.run(_run(plan, out, json))
    except CancelledError:
        return INTERRUPTED


def check_times(seconds: float, warmup_s: float, rest_s: float, network_s: float, repeats: int) -> None:
    """Refuse what is no length of time, and no number of repeats.

    Raises:
        PlanError: one is not.
    """
    from math import inf

    from lmwarden.bench.errors import PlanError

    if not 0 < seconds < inf or not 0 <= warmup_s < inf or repeats < 1:
        raise PlanError("--seconds must be above 0, --warmup 0 or more, --repeats 1 or more")
    if not 0 <= rest_s < inf:
        raise PlanError("--rest must be 0 or more")
    if not 0 <= network_s <= 60:
        raise PlanError(f"--network {network_s:g}: allowed are 0 to 60 seconds")


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
    from lmwarden.bench.report import save, save_results, show
    from lmwarden.bench.results import BenchResult
    from lmwarden.bench.run_facts import utc_now
    from lmwarden.bench.runner import run_plan, stop_on_signals

    terminal = make_terminal()
    stop = asyncio.Event()
    started = utc_now()

    def introduce() -> None:
        for line in introduction(plan):
            terminal.print(line, highlight=False, markup=False, soft_wrap=True)

    def result_of(outcome: RunOutcome) -> BenchResult:
        facts = run_facts(plan, outcome, started)
        return BenchResult(
            source="measured", hardware=None, workload=plan.workload.name, levels=outcome.levels, run=facts
        )

    def keep(outcome: RunOutcome) -> None:
        if out is not None:
            save_results(result_of(outcome), out)

    with stop_on_signals(stop):
        outcome = await run_plan(plan, TerminalProgress(terminal), stop, on_checked=introduce, on_result=keep)
    notes = run_notes(outcome, plan)
    show(terminal, result_of(outcome), notes)
    save(result_of(outcome), notes, out=out, json=json)
    return exit_status(outcome)


def run_facts(plan: Plan, outcome: RunOutcome, started: str) -> RunFacts:
    """Return what a reader needs to judge and repeat this process's run."""
    import sys

    from lmwarden.bench.results import RunFacts
    from lmwarden.bench.run_facts import command_line, machine, versions

    return RunFacts(
        command=command_line(sys.argv[1:]),
        started=started,
        machine=machine(),
        versions=versions(),
        caches=plan.caches.value,
        prompt_reuse=plan.prompt_reuse.value,
        think=plan.think,
        network_s=plan.network_s,
        warmup_s=plan.warmup_s,
        speed=plan.speed,
        replicas=outcome.replicas,
        tester_lag_p99_s=outcome.lag_p99_s,
        interrupted=outcome.interrupted,
    )


def introduction(plan: Plan) -> list[str]:
    """Return what somebody should know before a run begins, one line each."""
    from lmwarden.bench.arms import needs_console
    from lmwarden.bench.plan import Caches, plan_cells, run_seconds

    runs = len(plan_cells(plan))
    length_s = plan.warmup_s + plan.seconds
    total_s = run_seconds(plan)
    total = f"{total_s / 60:.0f} min" if total_s >= 120 else f"{total_s:.0f} s"
    lines = [f"{runs} {'run' if runs == 1 else 'runs'} of {length_s:g} s: about {total}; seed {plan.seed}"]
    if needs_console(plan.arms):
        lines.append(f"The routing of {plan.model} is switched for everybody who uses it, and set back at the end.")
    if plan.engine_url is not None and plan.caches is Caches.FRESH:
        lines.append(f"The caches of {plan.engine_url} are emptied before each run; --caches warm leaves them alone.")
    return lines


def run_notes(outcome: RunOutcome, plan: Plan) -> list[Note]:
    """Return what the run itself must be judged by, one sentence each."""
    from lmwarden.bench.language import Note
    from lmwarden.bench.notes import lag_notes

    notes = lag_notes(outcome.lag_p99_s, plan.speed)
    notes += outcome.room_notes
    if outcome.content_later_s is not None:
        notes.append(Note("content_later", {"later": f"{outcome.content_later_s:.2f}"}))
    if outcome.first_error is not None:
        notes.append(Note("first_error", {"error": outcome.first_error}))
    if outcome.password_unused:
        notes.append(Note("password_unused"))
    if outcome.interrupted:
        short = [row.seconds for row in outcome.levels[-1:] if row.seconds < plan.seconds]
        if short:
            notes.append(Note("interrupted_short", {"short": f"{short[0]:.0f}", "seconds": f"{plan.seconds:.0f}"}))
        else:
            notes.append(Note("interrupted"))
    return notes


def exit_status(outcome: RunOutcome) -> int:
    """Return 0; 1 where not one request was answered; ``INTERRUPTED`` after Ctrl-C."""
    if outcome.interrupted:
        return INTERRUPTED
    return 0 if any(row.ttfb_s.p50 is not None for row in outcome.levels) else 1
