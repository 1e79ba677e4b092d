"""``lmwarden simulate``: the load tester's sessions and the warden's own router in virtual time.

Nothing is waited for: three minutes of a four-card host take a fraction of a second, so every cell is played with
several seeds, and the table says how far they lie apart. The rows are those of ``bench``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from lmwarden.cli.bench import INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console

    from lmwarden.bench.language import AnyNote, Note
    from lmwarden.bench.results import LevelResult
    from lmwarden.bench.virtual import SimulationPlan


_LEVELS = "4,8,16,24,32"


def register(app: App) -> None:
    """Add the command to the application."""
    app.command(simulate, name="simulate")


def simulate(
    *,
    levels: str | None = None,
    open_loop: str | None = None,
    seconds: float = 180.0,
    warmup: float = 0.0,
    think: str = "none",
    arms: str = "off,on",
    balancer: Literal["0.26", "0.26-moe", "0.27"] = "0.26",
    seeds: str = "1,2,3",
    hardware: str = "a4000-qwen3-4b",
    replicas: int = 4,
    kv_cache_tokens: int | None = None,
    cpu_cache_tokens: int = 0,
    workload: str = "claude-code",
    prompt_reuse: Annotated[Literal["none", "across_arms", "across_levels"], Parameter(negative="")] = "none",
    network_s: float | None = None,
    prefer: Literal["balanced", "median", "tail"] = "balanced",
    out: Path | None = None,
    json: Path | None = None,
) -> int:
    """Play agent sessions on simulated hardware in virtual time, arm by arm.

    Ctrl-C ends early and keeps the cells that were played.

    Args:
        levels: numbers of concurrent sessions; default: 4,8,16,24,32.
        open_loop: instead of levels, numbers of sessions that start per hour, at random moments; or, with a trace,
            recorded.
        seconds: measured time of each level in each arm, in modelled seconds.
        warmup: time before it that is not measured.
        think: none, or agent: tools run between turns; with a trace none, or recorded.
        arms: off, hash, on, on+admission.
        balancer: the version of vLLM whose own balancer decides in off.
        seeds: each cell is played once with each; the table shows their mean, the lines below it their range.
        hardware: a named profile, or a TOML file (lmwarden calibrate writes one).
        replicas: data-parallel replicas of the one engine.
        kv_cache_tokens: KV cache of each replica; default: the profile's.
        cpu_cache_tokens: CPU tier of each replica.
        workload: what the sessions look like: a shipped one by its name, the path of a .toml file, or trace:FILE.
        prompt_reuse: none: every cell starts with empty caches and prompts of its own; across_arms, across_levels: the
            engine lives through all cells, and the same prompts come again in the next arm, or at the next level too.
        network_s: added to every request on its way in; default 0.12.
        prefer: what the waiting room of on+admission favours.
        out: folder for a report that can be handed to somebody (report.html, charts, figures).
        json: file for the results alone.
    """
    from lmwarden.bench.arms import parse_arms, parse_levels
    from lmwarden.bench.errors import PlanError
    from lmwarden.bench.plan import parse_rates
    from lmwarden.bench.progress import make_terminal
    from lmwarden.bench.report import check_places, gain_sentence, save, show
    from lmwarden.bench.results import BenchResult
    from lmwarden.bench.sessions import PromptReuse
    from lmwarden.bench.trace import load_played
    from lmwarden.bench.virtual import NETWORK_S, SimulationPlan, hardware_name

    if open_loop is not None and levels is not None:
        raise PlanError("--open-loop: a rate of sessions takes the place of --levels; give one of the two")
    plan = SimulationPlan(
        levels=parse_levels(levels or _LEVELS) if open_loop is None else parse_rates(open_loop),
        open_loop=open_loop is not None,
        arms=parse_arms(arms, as_is=False),
        seeds=parse_seeds(seeds),
        workload=load_played(workload, open_loop=open_loop),
        seconds=seconds,
        warmup_s=warmup,
        think=think,
        balancer=balancer,
        hardware=hardware,
        replicas=replicas,
        kv_cache_tokens=kv_cache_tokens,
        cpu_cache_tokens=cpu_cache_tokens,
        prefer=prefer,
        prompt_reuse=PromptReuse(prompt_reuse),
        network_s=NETWORK_S if network_s is None else network_s,
    )
    check_places(out=out, json=json)
    terminal = make_terminal()
    rows, interrupted = _play(plan, terminal)
    result = BenchResult(source="simulated", hardware=hardware_name(hardware), workload=plan.workload.name, levels=rows)
    notes = simulation_notes(plan, rows, interrupted=interrupted)
    gain = None if interrupted or len(plan.arms) < 2 else gain_sentence(rows, plan.arms[0], plan.arms[-1])
    show(terminal, result, [*notes, *([] if gain is None else [gain])])
    save(result, notes, out=out, json=json)
    return INTERRUPTED if interrupted else 0


def parse_seeds(text: str) -> list[int]:
    """Read a comma-separated list of seeds.

    Raises:
        PlanError: one is not a whole number from 0, or is repeated.
    """
    from lmwarden.bench.errors import PlanError

    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise PlanError(f"--seeds {text}: expected different whole numbers from 0, separated by commas, e.g. 1,2,3")
    return seeds


def _play(plan: SimulationPlan, terminal: Console) -> tuple[list[LevelResult], bool]:
    """The rows, and whether Ctrl-C came before the last of them."""
    from rich.live import Live
    from rich.text import Text

    from lmwarden.bench.errors import PlanError
    from lmwarden.bench.virtual import SimulationRun
    from lmwarden.simulation.scheduler import NeverFitsError

    rows: list[LevelResult] = []
    try:
        run = SimulationRun(plan)
        total = len(run.cells)
        with Live(console=terminal, transient=True, auto_refresh=False) as live:
            for number, cell in enumerate(run.cells, start=1):
                if terminal.is_terminal:
                    live.update(Text(f"[{number}/{total}] {cell}, seed {cell.seed}"), refresh=True)
                rows.append(run.play(cell))
    except NeverFitsError as error:
        flag = "--hardware" if plan.kv_cache_tokens is None else "--kv-cache-tokens"
        raise PlanError(f"{flag}: {error}; give more, or another --workload") from None
    except ValueError as error:
        raise PlanError(_with_flag(str(error))) from None
    except KeyboardInterrupt:
        return rows, True
    return rows, False


def _with_flag(sentence: str) -> str:
    """``kv_cache_tokens must be ...`` with the name of the flag instead of the plan's field."""
    name, _, rest = sentence.partition(" ")
    known = ("kv_cache_tokens", "cpu_cache_tokens", "replicas", "seconds", "warmup", "network_s")
    return f"--{name.replace('_', '-')} {rest}" if name in known else f"--hardware: {sentence}"


def simulation_notes(plan: SimulationPlan, rows: Sequence[LevelResult], *, interrupted: bool) -> list[AnyNote]:
    """Return what stands below the table and in a report, one sentence each."""
    from lmwarden.bench.language import Note

    notes: list[AnyNote] = [Note("virtual", {"replicas": str(plan.replicas), "network_s": f"{plan.network_s:g}"})]
    if "off" in plan.arms:
        notes.append(Note("virtual_off", {"balancer": plan.balancer}))
    notes.append(Note(f"virtual_{plan.prompt_reuse.value}"))
    notes += spread_notes(rows)
    if interrupted:
        notes.append(Note("interrupted_virtual"))
    return notes


def spread_notes(rows: Sequence[LevelResult]) -> list[Note]:
    """Return one note per cell with the range over its seeds; none where there is one seed."""
    from lmwarden.bench.language import Note

    groups: dict[tuple[int, str], list[LevelResult]] = {}
    for row in rows:
        groups.setdefault((row.sessions, row.arm), []).append(row)
    notes = []
    for (sessions, arm), repeats in groups.items():
        if len(repeats) < 2:
            continue
        hits = [None if row.prefix_hit_ratio is None else 100 * row.prefix_hit_ratio for row in repeats]
        values = {
            "seeds": str(len(repeats)),
            "output": _range([row.output_tokens_per_minute for row in repeats], 0),
            "p50": _range([row.ttfb_s.p50 for row in repeats], 2),
            "p95": _range([row.ttfb_s.p95 for row in repeats], 2),
            "busy": _range([row.replicas_busy for row in repeats], 2),
            "hits": _range(hits, 1),
        }
        notes.append(Note("spread", values, (sessions, arm, repeats[0].loop == "open")))
    return notes


def _range(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{min(known):.{digits}f}–{max(known):.{digits}f}"
