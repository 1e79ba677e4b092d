"""The published table of a four-card host beside the simulation of it, in virtual time.

    ./run python benchmarks/published_table.py [--seeds 1001,...] [--prompt-reuse across_arms] [--on two-choices]

The published host: four RTX A4000, Qwen3-4B, data_parallel_size 4, vLLM 0.26.0; three minutes a cell, affinity off,
then on, one run each, vLLM not restarted in between. So one simulated engine lives through both ramps here too.

Each figure stands beside the published one, with a mark where it misses by more than the tolerance (``*``) or twice
that (``**``). The cells at 4, 8 and 16 sessions are counted. What was fitted is in docs/measurements.md; the
fit used seeds 1-6, the defaults are others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import mean
from typing import NamedTuple

import msgspec

from lmwarden.bench.results import LevelResult
from lmwarden.bench.sessions import PromptReuse
from lmwarden.bench.virtual import MakeRouter, SimulationPlan, simulate_plan
from lmwarden.bench.workload import load_workload
from lmwarden.routing.conversations import Conversation
from lmwarden.routing.engine_balancer import BALANCER_VERSIONS
from lmwarden.routing.explain import Choice, Why
from lmwarden.routing.router import Router
from lmwarden.types import Action, Decision, RefuseReason, RoutingRequest, RoutingSettings

LEVELS = (4, 8, 16, 24, 32)
COUNTED = (4, 8, 16)
HARDWARE = "a4000-qwen3-4b-published"
SEEDS = "1001,1002,1003,1004,1005,1006,1007,1008"


class Published(NamedTuple):
    """One cell of the published table."""

    tokens_per_minute: float
    ttfb_p50_s: float
    ttfb_p95_s: float
    replicas_busy: float
    engine_hit_ratio: float
    """By the engine's own counters."""
    sessions_per_hour: float
    stayed_ratio: float | None = None


PUBLISHED: dict[tuple[int, str], Published] = {
    (4, "off"): Published(5886, 2.05, 3.5, 2.71, 0.562, 180),
    (4, "on"): Published(6744, 0.38, 2.84, 2.83, 0.864, 240, 1.0),
    (8, "off"): Published(8364, 2.33, 6.32, 3.74, 0.443, 300),
    (8, "on"): Published(10752, 0.48, 5.03, 3.74, 0.861, 380, 1.0),
    (16, "off"): Published(9558, 3.25, 26.24, 3.91, 0.332, 300),
    (16, "on"): Published(12204, 0.85, 24.88, 3.69, 0.486, 360, 1.0),
    (24, "off"): Published(9048, 5.06, 58.82, 3.91, 0.328, 300),
    (24, "on"): Published(11178, 13.14, 38.34, 4.0, 0.379, 420, 0.891),
    (32, "off"): Published(14760, 12.32, 82.84, 4.0, 0.316, 520),
    (32, "on"): Published(16638, 27.66, 38.92, 4.0, 0.316, 620, 0.673),
}
"""(sessions, arm) to what was measured."""


class Figure(NamedTuple):
    """A column of the comparison."""

    heading: str
    form: str
    simulated: Callable[[LevelResult], float | None]
    published: Callable[[Published], float | None]
    tolerance: Callable[[float], float] | None
    """How far a counted figure may be off, from the published value; None: not counted."""


FIGURES = (
    Figure(
        "tok/min",
        "{:.0f}",
        lambda row: row.output_tokens_per_minute,
        lambda published: published.tokens_per_minute,
        lambda value: 0.15 * value,
    ),
    Figure(
        "p50 s",
        "{:.2f}",
        lambda row: row.ttfb_s.p50,
        lambda published: published.ttfb_p50_s,
        lambda value: max(0.6, 0.3 * value),
    ),
    Figure("busy", "{:.2f}", lambda row: row.replicas_busy, lambda published: published.replicas_busy, lambda _: 0.4),
    Figure(
        "hits",
        "{:.3f}",
        lambda row: row.prefix_hit_ratio_engine,
        lambda published: published.engine_hit_ratio,
        lambda _: 0.08,
    ),
    Figure("p95 s", "{:.1f}", lambda row: row.ttfb_s.p95, lambda published: published.ttfb_p95_s, None),
    Figure(
        "sessions/h",
        "{:.0f}",
        lambda row: row.sessions_per_hour,
        lambda published: published.sessions_per_hour,
        None,
    ),
    Figure("stayed", "{:.3f}", lambda row: row.stayed_ratio, lambda published: published.stayed_ratio, None),
)


class TwoChoices(Router):
    """Our router with a worse placement: the less loaded of two replicas that are drawn at random.

    "Less loaded" is what the source names, requests in flight and then live conversations. Looking at two replicas only
    stands for whatever kept the real placement from being as good as it could have been.
    """

    def __init__(self, settings: RoutingSettings, *, engines: Mapping[str, int], seed: int = 0) -> None:
        super().__init__(settings, engines=engines, seed=seed)
        self._random = Random(seed)

    def _decide(self, request: RoutingRequest, conversation: Conversation | None, now: float) -> Choice | RefuseReason:
        ready = self._fleet.ready
        if not self._settings.affinity or conversation is not None or len(ready) < 2:
            return super()._decide(request, conversation, now)
        chosen = min(self._random.sample(ready, 2), key=lambda replica: (replica.in_flight, replica.conversations))
        return Choice(Decision.PLACED, chosen.engine, chosen, self._decider.threshold, Why.LEAST_LOADED)


class Comparison(NamedTuple):
    """All cells, each the mean over the seeds, beside the published ones."""

    cells: dict[tuple[int, str], list[LevelResult]]

    def simulated(self, cell: tuple[int, str], figure: Figure) -> float | None:
        """One figure, averaged over the runs that have it."""
        values = [value for row in self.cells[cell] if (value := figure.simulated(row)) is not None]
        return mean(values) if values else None

    def miss(self, cell: tuple[int, str], figure: Figure) -> float:
        """How far the figure is off, in tolerances; 0 where the figure is not compared."""
        ours, theirs = self.simulated(cell, figure), figure.published(PUBLISHED[cell])
        if figure.tolerance is None or ours is None or theirs is None:
            return 0.0
        return abs(ours - theirs) / figure.tolerance(theirs)

    def misses(self, levels: Sequence[int] = COUNTED) -> list[float]:
        """How far each counted figure is off, in tolerances."""
        return [
            self.miss(cell, figure)
            for cell in self.cells
            if cell[0] in levels
            for figure in FIGURES
            if figure.tolerance is not None
        ]


def compare(
    *,
    seeds: Sequence[int],
    levels: Sequence[int] = LEVELS,
    prompt_reuse: PromptReuse = PromptReuse.ACROSS_ARMS,
    hardware: str = HARDWARE,
    make_router: MakeRouter = TwoChoices,
    **more: object,
) -> Comparison:
    """Play off and on at every level; ``more`` are fields of ``SimulationPlan``."""
    plan = SimulationPlan(
        workload=load_workload("claude-code"),
        levels=levels,
        arms=["off", "on"],
        seeds=seeds,
        prompt_reuse=prompt_reuse,
        hardware=hardware,
        make_router=make_router,
        **more,  # type: ignore[arg-type]
    )
    cells: dict[tuple[int, str], list[LevelResult]] = {}
    for row in simulate_plan(plan):
        cells.setdefault((row.sessions, row.arm), []).append(row)
    return Comparison(dict(sorted(cells.items(), key=lambda item: (item[0][0], item[0][1] != "off"))))


class HashPlacement(Router):
    """A home by a hash of the session, whatever the settings say."""

    def __init__(self, settings: RoutingSettings, *, engines: Mapping[str, int], seed: int = 0) -> None:
        super().__init__(_by_hash(settings), engines=engines, seed=seed)

    def configure(self, settings: RoutingSettings, now: float) -> Sequence[Action]:
        """See ``RouterContract``."""
        return super().configure(_by_hash(settings), now)


def _by_hash(settings: RoutingSettings) -> RoutingSettings:
    return msgspec.structs.replace(settings, placement="hash")


ON: dict[str, MakeRouter] = {"two-choices": TwoChoices, "hash": HashPlacement, "least-loaded": Router}
"""What may stand for the published "on"."""


def print_comparison(comparison: Comparison) -> None:
    """The table, and how many of the counted figures are within their tolerances."""
    print(f"{'sessions':>8} {'arm':4}" + "".join(f"{figure.heading:>17}" for figure in FIGURES) + f"{'true hits':>11}")
    for cell in comparison.cells:
        texts = []
        for figure in FIGURES:
            ours, theirs = comparison.simulated(cell, figure), figure.published(PUBLISHED[cell])
            text = " / ".join("–" if value is None else figure.form.format(value) for value in (ours, theirs))
            miss = comparison.miss(cell, figure)
            texts.append(f"{text + ('**' if miss > 2 else '*' if miss > 1 else ''):>17}")
        true_hits = mean(row.prefix_hit_ratio or 0.0 for row in comparison.cells[cell])
        print(f"{cell[0]:8} {cell[1]:4}" + "".join(texts) + f"{true_hits:11.3f}")
    misses = comparison.misses()
    within = sum(miss <= 1 for miss in misses)
    print(f"4, 8, 16 sessions: {within} of {len(misses)} within tolerance, the worst off by {max(misses):.2f} of it")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", default=SEEDS)
    arguments.add_argument("--seconds", type=float, default=180.0)
    arguments.add_argument("--balancer", choices=BALANCER_VERSIONS, default="0.26")
    arguments.add_argument("--prompt-reuse", choices=list(PromptReuse), default=PromptReuse.ACROSS_ARMS)
    arguments.add_argument("--hardware", default=HARDWARE)
    arguments.add_argument("--on", choices=list(ON), default="two-choices")
    options = arguments.parse_args()
    print(
        f"simulated / published; {options.hardware}, {options.seconds:g} s, seeds {options.seeds}, "
        f"off = balancer of vLLM {options.balancer}, on = {options.on}, prompt reuse {options.prompt_reuse}"
    )
    print_comparison(
        compare(
            seeds=[int(seed) for seed in options.seeds.split(",")],
            prompt_reuse=PromptReuse(options.prompt_reuse),
            hardware=options.hardware,
            make_router=ON[options.on],
            seconds=options.seconds,
            balancer=options.balancer,
        )
    )


if __name__ == "__main__":
    main()
