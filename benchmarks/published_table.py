"""The published table of a four-card host beside the simulation of it, in virtual time.

    ./run python benchmarks/published_table.py [--seeds 1,2,3,4] [--seconds 180] [--balancer 0.26]

The published host: four RTX A4000, Qwen3-4B, data_parallel_size 4, vLLM 0.26.0; three minutes a cell, affinity off,
then on. "hash" is compared with the published "on" because it fits better than "on", which is our placement; that is
an inference. Simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean

from lmwarden.bench.results import LevelResult
from lmwarden.bench.virtual import simulate_level
from lmwarden.bench.workload import load_workload
from lmwarden.routing.engine_balancer import BALANCER_VERSIONS

PUBLISHED: dict[tuple[int, str], tuple[float, float, float, float, float]] = {
    (4, "off"): (5886, 2.05, 3.5, 2.71, 0.562),
    (4, "hash"): (6744, 0.38, 2.84, 2.83, 0.864),
    (8, "off"): (8364, 2.33, 6.32, 3.74, 0.443),
    (8, "hash"): (10752, 0.48, 5.03, 3.74, 0.861),
    (16, "off"): (9558, 3.25, 26.24, 3.91, 0.332),
    (16, "hash"): (12204, 0.85, 24.88, 3.69, 0.486),
    (24, "off"): (9048, 5.06, 58.82, 3.91, 0.328),
    (24, "hash"): (11178, 13.14, 38.34, 4.0, 0.379),
    (32, "off"): (14760, 12.32, 82.84, 4.0, 0.316),
    (32, "hash"): (16638, 27.66, 38.92, 4.0, 0.316),
}
"""(sessions, arm) to output tokens a minute, TTFB p50 and p95 in s, replicas busy, hits by the engine's counter."""

FIGURES: tuple[tuple[str, str, Callable[[LevelResult], float | None]], ...] = (
    ("tok/min", "{:.0f}", lambda cell: cell.output_tokens_per_minute),
    ("p50 s", "{:.2f}", lambda cell: cell.ttfb_s.p50),
    ("p95 s", "{:.1f}", lambda cell: cell.ttfb_s.p95),
    ("busy", "{:.2f}", lambda cell: cell.replicas_busy),
    ("hits", "{:.3f}", lambda cell: cell.prefix_hit_ratio_engine),
)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seeds", default="1,2,3,4")
    arguments.add_argument("--seconds", type=float, default=180.0)
    arguments.add_argument("--balancer", choices=BALANCER_VERSIONS, default="0.26")
    options = arguments.parse_args()
    workload = load_workload("claude-code")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print(f"simulated / published; {options.seconds:.0f} s, seeds {options.seeds}, off = balancer {options.balancer}")
    print("sessions arm  " + "".join(f"{name:>16}" for name, _, _ in FIGURES) + f"{'true hits':>12}")
    for level in (4, 8, 16, 24, 32):
        for arm in ("off", "hash", "on"):
            cells = [
                simulate_level(
                    workload, level=level, arm=arm, seed=seed, seconds=options.seconds, balancer=options.balancer
                )
                for seed in seeds
            ]
            print(f"{level:8} {arm:5}" + "".join(columns(cells, PUBLISHED.get((level, arm)))))


def columns(cells: list[LevelResult], published: tuple[float, ...] | None) -> list[str]:
    """Each figure as "simulated / published", and last the hits that requests themselves reported."""
    texts = []
    for number, (_, form, figure) in enumerate(FIGURES):
        text = form.format(average([figure(cell) for cell in cells]))
        if published is not None:
            text += " / " + form.format(published[number])
        texts.append(f"{text:>16}")
    return [*texts, f"{average([cell.prefix_hit_ratio for cell in cells]):12.3f}"]


def average(values: list[float | None]) -> float:
    """The mean of what was measured."""
    return mean(value for value in values if value is not None)


if __name__ == "__main__":
    main()
