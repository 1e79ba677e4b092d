"""Why the median rises with affinity under overload, and why the spill threshold does not matter.

    ./run python -m benchmarks.overload conservation|shape|thrash|threshold|cache|balancers [--steady]
    ./run python -m benchmarks.overload room [--case ...]: the waiting room's table (overload_room.py)

These are the runs behind docs/overload.md.

Virtual time; each subcommand takes some seconds. The host is the published one (four cards, the third slower) unless
``--hardware`` names another; "on" is the placement that stands for the published one, "warden" is ours.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import StatisticsError, correlation, mean, pstdev

import msgspec
from benchmarks import overload_room
from benchmarks.published_table import HARDWARE, TwoChoices

from lmwarden.bench.results import LevelResult, quantile
from lmwarden.bench.virtual import MakeRouter, SimulationPlan, SimulationRun
from lmwarden.bench.workload import load_workload
from lmwarden.routing.contract import RouterContract
from lmwarden.routing.router import Router
from lmwarden.simulation.virtual import VirtualRun
from lmwarden.simulation.virtual_load import VirtualRecord
from lmwarden.types import RoutingSettings

SHARED_TOKENS = 3_600
"""A later turn with fewer cached tokens found the shared system prompt and nothing of its own."""
STEADY = {"seconds": 600.0, "warmup_s": 120.0}
PUBLISHED = {"seconds": 180.0, "warmup_s": 0.0}
SERIES: dict[str, tuple[str, MakeRouter]] = {"off": ("off", Router), "on": ("on", TwoChoices), "warden": ("on", Router)}
"""Column to (arm, router)."""


class Study:
    """Plays cells with the options of the command line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.hardware: str = options.hardware
        self.seeds = [int(seed) for seed in options.seeds.split(",")]
        self.length = STEADY if options.steady else PUBLISHED

    def _run(self, level: int, series: str, more: Mapping[str, object]) -> SimulationRun:
        arm, make_router = SERIES[series]
        plan: dict[str, object] = {"hardware": self.hardware, "make_router": make_router, **self.length, **more}
        return SimulationRun(
            SimulationPlan(
                workload=load_workload("claude-code"),
                levels=[level],
                arms=[arm],
                seeds=self.seeds,
                **plan,  # type: ignore[arg-type]
            )
        )

    def records(self, level: int, series: str, **more: object) -> list[VirtualRun]:
        """Every request of the cell, for each seed."""
        run = self._run(level, series, more)
        return [run.records(cell) for cell in run.cells]

    def rows(self, level: int, series: str, **more: object) -> list[LevelResult]:
        """The figures of the cell, for each seed."""
        run = self._run(level, series, more)
        return [run.play(cell) for cell in run.cells]


def average(rows: Sequence[LevelResult], read: Callable[[LevelResult], float | None]) -> float:
    """The mean of a figure over the seeds."""
    return mean(value for row in rows if (value := read(row)) is not None)


def figures(rows: Sequence[LevelResult]) -> str:
    """Output tokens per minute, p50, p95 and true hits."""
    tokens = average(rows, lambda row: row.output_tokens_per_minute)
    p50, p95 = average(rows, lambda row: row.ttfb_s.p50), average(rows, lambda row: row.ttfb_s.p95)
    hits = average(rows, lambda row: row.prefix_hit_ratio)
    return f"{tokens:9.0f}{p50:8.2f}{p95:8.1f}{100 * hits:8.1f}"


def conservation(study: Study) -> None:
    """Little's law: sessions = turns per second * seconds per turn, whatever the router does."""
    print("sessions series  turns/s  s per turn  product  mean TTFB  p50 TTFB")
    for level in (24, 32):
        for series in SERIES:
            parts = []
            for run in study.records(level, series):
                served = [record for record in run.records if ended_inside(record, run)]
                rate = len(served) / (run.end_s - run.start_s)
                turn_s = mean((record.ended_s or 0.0) - record.sent_s for record in served)
                waits = [(record.first_token_s or 0.0) - record.sent_s for record in served]
                parts.append((rate, turn_s, rate * turn_s, mean(waits), quantile(waits, 0.5) or 0.0))
            rate, turn_s, product, wait, median = (mean(values) for values in zip(*parts, strict=True))
            print(f"{level:8} {series:7} {rate:7.3f} {turn_s:11.1f} {product:8.1f} {wait:10.1f} {median:9.1f}")


def ended_inside(record: VirtualRecord, run: VirtualRun) -> bool:
    """Whether the answer ended in the measured window."""
    return record.ended_s is not None and run.start_s <= record.ended_s <= run.end_s


def shape(study: Study) -> None:
    """How unequal queues make a low median and a long tail out of one mean."""
    print("sessions series  mean TTFB   p50   p95  spread/mean  in flight max-min  turns of a session ~ its wait")
    for level in (16, 24, 32):
        for series in SERIES:
            parts = [shape_of(run) for run in study.records(level, series)]
            wait, p50, p95, spread, imbalance, slope = (mean(values) for values in zip(*parts, strict=True))
            print(f"{level:8} {series:7} {wait:9.1f} {p50:6.1f}{p95:6.1f}{spread:12.2f}{imbalance:18.1f}{slope:19.2f}")


def shape_of(run: VirtualRun) -> tuple[float, ...]:
    served = [record for record in run.records if record.first_token_s is not None and record.sent_s >= run.start_s]
    waits = [(record.first_token_s or 0.0) - record.sent_s for record in served]
    turns = Counter(record.session for record in served)
    by_session = {
        session: mean((r.first_token_s or 0.0) - r.sent_s for r in served if r.session == session) for session in turns
    }
    try:
        slope = correlation([turns[session] for session in turns], [by_session[session] for session in turns])
    except StatisticsError:
        slope = 0.0
    return (
        mean(waits),
        quantile(waits, 0.5) or 0.0,
        quantile(waits, 0.95) or 0.0,
        pstdev(waits) / mean(waits),
        imbalance(run),
        slope,
    )


def imbalance(run: VirtualRun) -> float:
    """Most minus fewest requests in flight on a replica, each second."""
    spreads = []
    for second in range(int(run.start_s), int(run.end_s)):
        held = Counter(dict.fromkeys(range(4), 0))
        for record in run.records:
            ended_s = record.ended_s if record.ended_s is not None else run.end_s
            if (
                record.replica is not None
                and record.dispatched_s is not None
                and record.dispatched_s <= second < ended_s
            ):
                held[record.replica.rank] += 1
        spreads.append(max(held.values()) - min(held.values()))
    return mean(spreads)


def thrash(study: Study) -> None:
    """Later turns that find only the shared system prompt: there is no cache left that affinity could protect."""
    print(
        "sessions  " + "".join(f"{series:>9}" for series in SERIES) + "   % of later turns with only the system prompt"
    )
    for level in (4, 8, 16, 24, 32):
        shares = []
        for series in SERIES:
            later = [
                record
                for run in study.records(level, series)
                for record in run.records
                if record.turn and record.first_token_s is not None
            ]
            shares.append(100 * mean(record.cached_tokens < SHARED_TOKENS for record in later))
        print(f"{level:8}  " + "".join(f"{share:9.0f}" for share in shares))


def threshold(study: Study) -> None:
    """The spill threshold where nothing is cached, and where something is."""
    print("sessions threshold series  tok/min  p50 s   p95 s  hits %  stayed %")
    for level in (16, 24, 32):
        for limit in (4, 8, 16):
            for series in ("on", "warden"):
                rows = study.rows(level, series, make_router=partial(with_threshold, SERIES[series][1], limit))
                stayed = 100 * average(rows, lambda row: row.stayed_ratio)
                print(f"{level:8} {limit:9} {series:6}{figures(rows)}{stayed:9.0f}")


def with_threshold(
    make: MakeRouter, limit: int, settings: RoutingSettings, *, engines: Mapping[str, int], seed: int = 0
) -> RouterContract:
    return make(msgspec.structs.replace(settings, spill_threshold=limit), engines=engines, seed=seed)


def cache(study: Study) -> None:
    """The counterfactual: the same load on cards whose cache holds all conversations."""
    print("sessions KV tokens series  tok/min  p50 s   p95 s  hits %")
    for level in (24, 32):
        for tokens in (44_000, 80_000, 110_000):
            for series in SERIES:
                print(f"{level:8} {tokens:9} {series:7}{figures(study.rows(level, series, kv_cache_tokens=tokens))}")


def balancers(study: Study) -> None:
    """What "off" is depends on vLLM: 0.26.0 rotates blindly for dense models, 0.27.1 knows its own requests."""
    print("sessions think  series          tok/min  p50 s   p95 s  hits %")
    for think in ("none", "agent"):
        for level in (4, 8, 16, 24, 32):
            for version in ("0.26", "0.27"):
                rows = study.rows(level, "off", balancer=version, think=think)
                print(f"{level:8} {think:6} off, vLLM {version}{figures(rows)}")
            print(f"{level:8} {think:6} warden        {figures(study.rows(level, 'warden', think=think))}")


STUDIES: dict[str, Callable[[Study], None]] = {
    "conservation": conservation,
    "shape": shape,
    "thrash": thrash,
    "threshold": threshold,
    "cache": cache,
    "balancers": balancers,
}


def main() -> None:
    if sys.argv[1:2] == ["room"]:
        overload_room.main(sys.argv[2:])
        return
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("study", choices=list(STUDIES))
    arguments.add_argument("--seeds", default="1001,1002,1003,1004")
    arguments.add_argument("--hardware", default=HARDWARE)
    arguments.add_argument(
        "--steady", action="store_true", help="600 s after a warm-up of 120 s, instead of 180 s cold"
    )
    options = arguments.parse_args()
    length = "600 s, warm" if options.steady else "180 s, cold"
    print(f"{options.study}: {options.hardware}, seeds {options.seeds}, {length}")
    STUDIES[options.study](Study(options))


if __name__ == "__main__":
    main()
