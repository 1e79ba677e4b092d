"""Which weights of the placement sum serve best, in virtual time on the simulated engine.

    ./run python benchmarks/placement_weights.py [--seeds 1,2,3] [--seconds 300] [--levels 8,16] [--think none]

Prints, for each set of weights, output tokens per minute and time to first byte, averaged over the seeds. Simulated.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import mean

from lmwarden.bench.results import LevelResult
from lmwarden.bench.virtual import SimulationPlan, simulate_plan
from lmwarden.bench.workload import load_workload
from lmwarden.routing.replicas import DEFAULT_WEIGHTS, Weights
from lmwarden.routing.router import Router

CANDIDATES: dict[str, Weights] = {
    "in flight only": Weights(warm=0.0, live=0.0, kv=0.0, held=0.0),
    "in flight + 8 kv + live": Weights(warm=0.0, live=4.0, kv=8.0, held=0.0),
    "in flight + 4 kv + warm + held": Weights(warm=1.0, live=0.0, kv=4.0, held=1.0),
    "in flight + warm": Weights(warm=1.0, live=0.0, kv=0.0, held=0.0),
    "in flight + warm + 2 held": Weights(warm=1.0, live=0.0, kv=0.0, held=2.0),
    "chosen": DEFAULT_WEIGHTS,
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", default="1,2,3")
    arguments.add_argument("--seconds", type=float, default=300.0)
    arguments.add_argument("--warmup", type=float, default=0.0)
    arguments.add_argument("--levels", default="8,16")
    arguments.add_argument("--think", default="none")
    options = arguments.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    workload = load_workload("claude-code")
    for level in (int(level) for level in options.levels.split(",")):
        print(f"\n{level} sessions, think {options.think}, {options.seconds:.0f} s, seeds {options.seeds} (simulated)")
        print(f"{'weights':36} {'tok/min':>8} {'p50 s':>7} {'p95 s':>7} {'hits':>6} {'busy':>5}")
        for name, weights in CANDIDATES.items():
            plan = SimulationPlan(
                workload=workload,
                levels=[level],
                arms=["on"],
                seeds=seeds,
                seconds=options.seconds,
                warmup_s=options.warmup,
                think=options.think,
                make_router=partial(Router, weights=weights),
            )
            cells = simulate_plan(plan)
            print(row(name, cells))


def row(name: str, cells: list[LevelResult]) -> str:
    """One line of the table: means over the seeds."""

    def average(values: list[float | None]) -> float:
        return mean(value for value in values if value is not None)

    tokens = average([cell.output_tokens_per_minute for cell in cells])
    p50, p95 = average([cell.ttfb_s.p50 for cell in cells]), average([cell.ttfb_s.p95 for cell in cells])
    hits, busy = average([cell.prefix_hit_ratio for cell in cells]), average([cell.replicas_busy for cell in cells])
    return f"{name:36} {tokens:8.0f} {p50:7.2f} {p95:7.2f} {hits:6.3f} {busy:5.2f}"


if __name__ == "__main__":
    main()
