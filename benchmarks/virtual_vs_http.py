"""``bench`` against the simulated engine over HTTP beside ``simulate``: do the same sessions give the same figures?

    ./run python benchmarks/virtual_vs_http.py            # speed 1: 8 and 16 sessions, 600 s, three seeds: 12 minutes
    ./run python benchmarks/virtual_vs_http.py --quick    # speed 10, 120 s, one seed: two minutes

Over HTTP there is everything: client, gateway, console, engine. In virtual time there is the router and the engine's
model. Both have the same seeds, no added network, emptied caches, and tool calls at the ends of turns. What differs by
design is what the gateway's secret key decides: a home by a hash is another one in every run.

At speed 1 a run takes a few percent of a core, so the eighteen runs go at once, each with an engine, a warden and a
tester of its own, in a process of its own.

The quick variant counts each real millisecond of gateway and client ten times, and one short run is noise: it shows
that nothing is grossly wrong, and the tolerances are meant for the long one.

Tolerances: output tokens per minute and prefix hits 5 %, TTFB p50 10 % or 0.1 s, shares of decisions 3 points.
Exit status 0 if all hold, 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
from rich.console import Console

from lmwarden.bench.plan import Plan
from lmwarden.bench.progress import TerminalProgress
from lmwarden.bench.results import LevelResult, cells
from lmwarden.bench.runner import run_plan, stop_on_signals
from lmwarden.bench.virtual import SimulationPlan, simulate_plan
from lmwarden.bench.workload import load_workload
from lmwarden.cli.demo import HARDWARE, MODEL, demo_config
from lmwarden.cli.engine_process import simulated_engine
from lmwarden.serve import Warden

Cells = Mapping[tuple[int, str], LevelResult]


async def all_at_once(options: argparse.Namespace) -> Cells:
    """Play each (level, arm, seed) in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        files, children = [], []
        for level in options.levels:
            for arm in options.arms:
                for seed in range(1, 1 + options.seeds):
                    files.append(Path(folder) / f"{level}-{arm}-{seed}.json")
                    words = ["--levels", str(level), "--arms", arm, "--one", str(seed), "--json", str(files[-1])]
                    children.append(await asyncio.create_subprocess_exec(sys.executable, __file__, *words))
        if any(await asyncio.gather(*(child.wait() for child in children))):
            raise SystemExit("a run failed; see above")
        return cells(row for file in files for row in msgspec.json.decode(file.read_bytes(), type=list[LevelResult]))


async def over_http(options: argparse.Namespace) -> list[LevelResult]:
    """Play the plan against a simulated engine in a child process, behind the warden."""
    speed: float = options.speed
    arguments = ["--replicas", "4", "--speed", f"{speed:g}", "--hardware", HARDWARE, "--model", MODEL, "--tool-calls"]
    stop = asyncio.Event()
    with stop_on_signals(stop), tempfile.TemporaryDirectory() as folder:
        async with simulated_engine(arguments) as engine:
            warden = Warden(demo_config(engine.url, Path(folder)), speed=speed)
            await warden.start()
            try:
                plan = Plan(
                    url=warden.client_url,
                    model=MODEL,
                    workload=load_workload("claude-code"),
                    levels=options.levels,
                    arms=options.arms,
                    tools=True,
                    seconds=options.seconds,
                    seed=options.first_seed,
                    repeats=options.seeds,
                    speed=speed,
                    clock=lambda: time.monotonic() * speed,
                    console_url=warden.console_url,
                    engine_url=engine.url,
                )
                outcome = await run_plan(plan, TerminalProgress(Console(width=140)), stop)
            finally:
                await warden.stop()
    for row in outcome.levels:
        print(f"{row.sessions} sessions, {row.arm}, seed {row.seed}: requests by replica {row.requests_by_replica}")
    if outcome.lag_p99_s is not None:
        print(f"the load tester's own lag: p99 {1000 * outcome.lag_p99_s:.1f} ms of wall time")
    return outcome.levels


def in_virtual_time(options: argparse.Namespace) -> Cells:
    """Play the same without waiting."""
    plan = SimulationPlan(
        workload=load_workload("claude-code"),
        levels=options.levels,
        arms=options.arms,
        seeds=range(1, 1 + options.seeds),
        seconds=options.seconds,
        hardware=HARDWARE,
        network_s=0.0,
    )
    return cells(simulate_plan(plan))


def differences(http: LevelResult, virtual: LevelResult) -> list[tuple[str, float, float, float]]:
    """(name, over HTTP, in virtual time, tolerance) of each figure."""
    p50 = _known(http.ttfb_s.p50)
    found = [
        ("tokens/min", _known(http.output_tokens_per_minute), _known(virtual.output_tokens_per_minute), 0.05),
        ("hits", _known(http.prefix_hit_ratio), _known(virtual.prefix_hit_ratio), 0.05),
    ]
    rows = [(name, a, b, share * a) for name, a, b, share in found]
    rows.append(("p50 s", p50, _known(virtual.ttfb_s.p50), max(0.1, 0.1 * p50)))
    ours, theirs = _shares(http), _shares(virtual)
    rows += [(word, ours.get(word, 0.0), theirs.get(word, 0.0), 0.03) for word in sorted({*ours, *theirs})]
    return rows


def _known(value: float | None) -> float:
    if value is None:
        raise SystemExit("a figure was not measured: the run was too short")
    return value


def _shares(row: LevelResult) -> dict[str, float]:
    counts = row.decisions or {}
    total = sum(counts.values())
    return {word: count / total for word, count in counts.items() if count}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="speed 10, 120 s, one seed")
    parser.add_argument("--levels", default="8,16")
    parser.add_argument("--arms", default="off,hash,on")
    parser.add_argument("--one", type=int, help="only this seed, over HTTP only; with --json", metavar="SEED")
    parser.add_argument("--json", type=Path, help="where --one writes its rows")
    options = parser.parse_args()
    options.levels = [int(level) for level in options.levels.split(",")]
    options.arms = options.arms.split(",")
    options.speed, options.seconds, options.seeds = (10.0, 120.0, 1) if options.quick else (1.0, 600.0, 3)
    options.first_seed = 1
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.one is not None:
        options.first_seed, options.seeds = options.one, 1
        options.json.write_bytes(msgspec.json.encode(asyncio.run(over_http(options))))
        return 0
    virtual = in_virtual_time(options)
    http = cells(asyncio.run(over_http(options))) if options.quick else asyncio.run(all_at_once(options))
    print(f"speed {options.speed:g}, {options.seconds:g} s, seeds 1 to {options.seeds}, {HARDWARE}")
    print(f"{'sessions':>8} {'arm':5} {'figure':12}{'HTTP':>10}{'virtual':>10}{'difference':>12}{'allowed':>10}")
    wrong = 0
    for (sessions, arm), row in http.items():
        for name, ours, theirs, tolerance in differences(row, virtual[sessions, arm]):
            miss = abs(ours - theirs) > tolerance
            wrong += miss
            numbers = "".join(f"{value:{width}.4g}" for value, width in ((ours, 10), (theirs, 10), (theirs - ours, 12)))
            print(f"{sessions:8} {arm:5} {name:12}{numbers}{tolerance:10.3g}{'  *' if miss else ''}")
    print(f"{wrong} figures differ by more than allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
