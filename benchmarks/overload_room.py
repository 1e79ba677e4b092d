"""The waiting room's table: every requirement beside what is reached, over held-out seeds, in virtual time.

    ./run python -m benchmarks.overload room [--case 24,32] [--seeds 1001,1002] [--json FILE]
    ./run python -m benchmarks.overload room --bound

Each case plays its cells with every seed and prints two tables: the figures (mean, with the least and the most), and
one line for each thing required: what, how much, reached, and whether. 600 s after a warm-up of 120 s unless the case
says otherwise. A ratio compares means over the seeds. "Both arms" are ``off`` (vLLM's balancer) and ``hash``;
"balanced" is ``on``, LM Warden's placement without the room. p95 includes requests that still waited at the end.

The whole takes about half an hour of one core; ``--case`` plays it in pieces, and ``--json`` adds the rows to a file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from lmwarden.bench.results import LevelResult, quantile
from lmwarden.bench.virtual import SimulationPlan, SimulationRun, simulate_plan
from lmwarden.bench.workload import Workload, load_workload
from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.virtual import Outage, VirtualRun

ROOM = "on+admission"
BOTH = ("off", "hash")
STEADY: dict[str, Any] = {"seconds": 600.0, "warmup_s": 120.0}
COLD: dict[str, Any] = {"seconds": 180.0}
ONE_SLOW_CARD: dict[str, Any] = {"hardware": "a4000-qwen3-4b-published"}
TIER_TOKENS = 100_000
HARDWARE = "a4000-qwen3-4b"
SHARED_TOKENS = 3_500
"""Of the workload's system prompt."""


class Column(NamedTuple):
    """One figure of a row."""

    name: str
    read: Callable[[LevelResult], float | None]
    digits: int
    more_is_better: bool = False


TOKENS = Column("tokens/min", lambda row: row.output_tokens_per_minute, 0, more_is_better=True)
P50 = Column("p50 s", lambda row: row.ttfb_s.p50, 2)
P95 = Column("p95 s", lambda row: row.ttfb_s.p95_with_waiting, 1)
SESSION_P50 = Column("session p50 s", lambda row: row.session_s.p50, 0)
SESSION_P95 = Column("session p95 s", lambda row: row.session_s.p95, 0)
COMPARED = (TOKENS, P50, P95, SESSION_P50, SESSION_P95)
"""What "every column" means."""
SHOWN = (
    TOKENS,
    P50,
    P95,
    Column("p99 s", lambda row: row.ttfb_s.p99, 1),
    Column("longest s", lambda row: row.ttfb_s.max, 0),
    SESSION_P50,
    SESSION_P95,
    Column("hits", lambda row: row.prefix_hit_ratio, 2),
    Column("held", lambda row: row.waited_in_room, 0),
)


class Verdict(NamedTuple):
    """One requirement and what became of it."""

    what: str
    required: str
    reached: str
    holds: bool


class Rows:
    """The rows of a case."""

    def __init__(self, rows: Sequence[LevelResult]) -> None:
        self.rows = rows

    def values(self, level: int, arm: str, column: Column) -> list[float]:
        """One value for each seed that has one."""
        found = (column.read(row) for row in self.rows if (row.sessions, row.arm) == (level, arm))
        return [value for value in found if value is not None]

    def mean(self, level: int, arm: str, column: Column) -> float | None:
        """Over the seeds; None: no seed has it."""
        values = self.values(level, arm, column)
        return mean(values) if values else None


class Case(NamedTuple):
    """What is played, and what is required of it."""

    text: str
    levels: tuple[int, ...]
    arms: tuple[str, ...]
    plan: dict[str, Any]
    require: Callable[[Rows, int], Iterator[Verdict]]
    """Called for each level."""


# Requirements


def within(
    rows: Rows, level: int, *, of: Sequence[str], ratio: float = 0.03, columns: Sequence[Column] = COMPARED
) -> Iterator[Verdict]:
    """At most so much worse than the best of the arms in each column."""
    for column in columns:
        ours = rows.mean(level, ROOM, column)
        others = [value for arm in of if (value := rows.mean(level, arm, column)) is not None]
        if ours is None or not others:
            continue
        best = max(others) if column.more_is_better else min(others)
        worse = (best - ours if column.more_is_better else ours - best) / best
        bound = f"at most {ratio:.0%} behind {' and '.join(of)}" if ratio else f"ahead of {' and '.join(of)}"
        yield Verdict(f"{level}: {column.name}", bound, f"{-worse:+.1%}", worse <= ratio)


def gains(rows: Rows, level: int, least: float, *, over: Sequence[str] = BOTH) -> Iterator[Verdict]:
    """So much more output than each of the arms."""
    ours = rows.mean(level, ROOM, TOKENS) or 0.0
    for arm in over:
        gain = ours / (rows.mean(level, arm, TOKENS) or 1.0) - 1.0
        yield Verdict(f"{level}: tokens/min over {arm}", f"at least {least:+.0%}", f"{gain:+.1%}", gain >= least)


def below(rows: Rows, level: int, column: Column, bound: float, *, times: str | None = None) -> Iterator[Verdict]:
    """At most ``bound``, or that many times another arm's."""
    ours = rows.mean(level, ROOM, column)
    other = None if times is None else rows.mean(level, times, column)
    if ours is None or (times is not None and other is None):
        return
    limit = bound * (other or 1.0)
    text = f"at most {limit:.2f}" + (f" ({bound:g} x {times})" if times else "")
    yield Verdict(f"{level}: {column.name}", text, f"{ours:.2f}", ours <= limit)


def nobody_starves(rows: Rows, level: int, longest_s: float = 240.0) -> Iterator[Verdict]:
    """Nobody waited for longer than the hard bound and a turn after it."""
    longest = max(rows.values(level, ROOM, SHOWN[4]), default=0.0)
    yield Verdict(
        f"{level}: longest wait s", f"at most {longest_s:g} and a turn", f"{longest:.0f}", longest <= longest_s + 30.0
    )


def as_balanced(rows: Rows, level: int) -> Iterator[Verdict]:
    """The room is not felt."""
    yield from within(rows, level, of=("on",))


def at_16(rows: Rows, level: int) -> Iterator[Verdict]:
    yield from as_balanced(rows, level)
    yield from gains(rows, level, 0.40)
    yield from below(rows, level, P50, 0.8)
    yield from below(rows, level, P95, 14.0)


def at_16_cold(rows: Rows, level: int) -> Iterator[Verdict]:
    yield from gains(rows, level, 0.20)


def overloaded(rows: Rows, level: int) -> Iterator[Verdict]:
    """24 and 32 sessions."""
    if level == 24:
        yield from gains(rows, level, 0.22)
        yield from within(rows, level, of=BOTH, ratio=0.0)
        return
    yield from gains(rows, level, 0.30)
    yield from below(rows, level, P50, 8.0)
    yield from below(rows, level, P95, 1.0, times="off")
    yield from below(rows, level, P95, 1.2, times="hash")
    yield from below(rows, level, SESSION_P95, 0.85, times="off")


def for_the_median(rows: Rows, level: int) -> Iterator[Verdict]:
    yield from gains(rows, level, 0.45)
    yield from below(rows, level, P50, 1.0)
    yield from nobody_starves(rows, level)


def robust(rows: Rows, level: int, least: float = -0.05) -> Iterator[Verdict]:
    """Never far below balanced."""
    yield from gains(rows, level, least, over=("on",))
    yield from nobody_starves(rows, level)


def newer_balancer(rows: Rows, level: int) -> Iterator[Verdict]:
    yield from within(rows, level, of=("off",), ratio=0.0 if level > 4 else 0.03)
    if level == 16:
        yield from gains(rows, level, 0.15, over=("off",))


def long_contexts(rows: Rows, level: int) -> Iterator[Verdict]:
    yield from gains(rows, level, 0.5, over=("on",))
    yield from nobody_starves(rows, level)


def with_tier(rows: Rows, level: int) -> Iterator[Verdict]:
    yield from within(rows, level, of=(*BOTH, "on"))


# Cases


def random_outputs() -> Workload:
    workload = load_workload("claude-code")
    return msgspec.structs.replace(
        workload, session=msgspec.structs.replace(workload.session, max_output_tokens=(20, 256))
    )


def fan_out() -> Workload:
    workload = load_workload("claude-code-subagents")
    assert workload.subagents is not None
    return msgspec.structs.replace(workload, subagents=msgspec.structs.replace(workload.subagents, agents=14))


def long_sessions() -> Workload:
    workload = load_workload("claude-code")
    layers = msgspec.structs.replace(
        workload.layers, shared_system_tokens=16_000, first_message_tokens=(34_000, 40_000), turn_tokens=(600, 1_000)
    )
    session = msgspec.structs.replace(workload.session, turns=10, max_output_tokens=300)
    return msgspec.structs.replace(workload, layers=layers, session=session)


ALL = (*BOTH, "on", ROOM)
BALANCED = ("on", ROOM)
CASES: dict[str, Case] = {
    "low": Case("4 and 8 sessions", (4, 8), ALL, STEADY, as_balanced),
    "16": Case("16 sessions", (16,), ALL, STEADY, at_16),
    "16-cold": Case("16 sessions, 180 s from a cold start", (16,), ALL, COLD, at_16_cold),
    "gaps": Case("tools run between the turns", (16,), BALANCED, {**STEADY, "think": "agent"}, as_balanced),
    "poisson": Case(
        "sessions start at random, 70 % and 90 % of what the host takes (per hour)",
        (449, 577),
        BALANCED,
        {**STEADY, "open_loop": True},
        as_balanced,
    ),
    "24": Case("24 sessions", (24,), ALL, STEADY, overloaded),
    "32": Case("32 sessions", (32,), ALL, STEADY, overloaded),
    "median": Case("prefer = median", (24, 32), (*BOTH, ROOM), {**STEADY, "prefer": "median"}, for_the_median),
    "tier": Case(
        "a CPU tier of 100,000 tokens a card, all arms with it",
        (24, 32),
        ALL,
        {**STEADY, "cpu_cache_tokens": TIER_TOKENS},
        with_tier,
    ),
    "kv+20": Case(
        "the engines report 20 % more KV cache than there is",
        (16, 24, 32),
        BALANCED,
        {**STEADY, "told_kv_ratio": 1.2},
        robust,
    ),
    "kv-20": Case(
        "... 20 % less", (16, 24, 32), BALANCED, {**STEADY, "told_kv_ratio": 0.8}, partial(robust, least=-0.10)
    ),
    "outputs": Case("20 to 256 output tokens", (16, 24, 32), BALANCED, {**STEADY, "workload": random_outputs}, robust),
    "mixed": Case("mixed sizes", (24, 32), BALANCED, {**STEADY, "workload": partial(load_workload, "mixed")}, robust),
    "lost": Case(
        "a replica dies 200 s into the window and is back after 100 s, empty",
        (16, 24),
        BALANCED,
        {**STEADY, "outage": Outage(rank=1, down_s=320.0, up_s=420.0)},
        robust,
    ),
    "fan-out": Case("every third turn starts 14 subagents", (8, 16), BALANCED, {**STEADY, "workload": fan_out}, robust),
    "58k": Case(
        "7 replicas of a 27B model, contexts of 54k to 68k",
        (26,),
        BALANCED,
        {**STEADY, "workload": long_sessions, "hardware": "5090-qwen3-27b", "replicas": 7},
        long_contexts,
    ),
    "0.27": Case(
        "off is vLLM 0.27's balancer", (4, 8, 16, 24, 32), ("off", ROOM), {**STEADY, "balancer": "0.27"}, newer_balancer
    ),
    "24-slow": Case("24 sessions, one slow card", (24,), ALL, {**STEADY, **ONE_SLOW_CARD}, overloaded),
    "32-slow": Case("32 sessions, one slow card", (32,), ALL, {**STEADY, **ONE_SLOW_CARD}, overloaded),
    "cold": Case("180 s from a cold start", (24, 32), ALL, COLD, overloaded),
}


def play(case: Case, seeds: Sequence[int]) -> list[LevelResult]:
    """All rows of a case."""
    plan: dict[str, Any] = {"workload": partial(load_workload, "claude-code"), **case.plan}
    workload = plan.pop("workload")()
    return simulate_plan(SimulationPlan(workload=workload, levels=case.levels, arms=case.arms, seeds=seeds, **plan))


def figures(case: Case, rows: Rows) -> Iterator[str]:
    """The table of a case."""
    yield f"| sessions | arm | {' | '.join(column.name for column in SHOWN)} |"
    yield "|---" * (len(SHOWN) + 2) + "|"
    for level in case.levels:
        for arm in case.arms:
            cells = [spread(rows.values(level, arm, column), column.digits) for column in SHOWN]
            yield f"| {level} | {arm} | {' | '.join(cells)} |"


def spread(values: Sequence[float], digits: int) -> str:
    """``mean (least–most)``."""
    if not values:
        return "–"
    middle, least, most = (f"{value:.{digits}f}" for value in (mean(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least}–{most})"


def verdicts(case: Case, rows: Rows) -> Iterator[str]:
    """What is required beside what is reached."""
    yield "| what | required | reached | |"
    yield "|---|---|---|---|"
    for level in case.levels:
        for verdict in case.require(rows, level):
            holds = "yes" if verdict.holds else "**no**"
            yield f"| {verdict.what} | {verdict.required} | {verdict.reached} | {holds} |"


# What can be had at all


def bound(seeds: Sequence[int]) -> Iterator[str]:
    """The least p95 that goes with a given output, by arithmetic with constants that are measured here.

    ``n`` replicas give X turns a second, of which the share f waits, and each of those reads its context again, which
    takes r seconds of a replica: ``n = X (s + r f)``, where s is the time that a turn takes besides. Where everything
    fits (16 sessions) only first turns read, f = 1/6, so that X there tells s. At most R conversations keep their
    context at once: what the caches hold beyond the shared part, over the mean context at a turn's end. The others
    wait, so that by Little's law a wait is ``(sessions - R) / (X f)`` on average, and reading comes after it. If all
    of them were equal, that would be the p95 as long as more than 5 % wait. Optimistic: no wait is longer than another,
    no cache has a hole, and r is that of the quickest reads.
    """
    n, first_share = 4, 1.0 / 6.0
    fits = records("on", 16, seeds)
    rate = mean(ends(run) / (run.end_s - run.start_s) for run in fits)
    r_s = quantile([r.first_token_s - r.dispatched_s for run in fits for r in ended(run) if r.turn == 0], 0.05) or 0.0
    own_tokens = mean(r.prompt_tokens + r.output_tokens - SHARED_TOKENS for run in fits for r in ended(run))
    places = n * (load_profile(HARDWARE).kv_cache_tokens - SHARED_TOKENS) / own_tokens
    s_s = n / rate - r_s * first_share
    yield (
        f"16 sessions, on: {rate:.3f} turns/s; reading r = {r_s:.2f} s; a turn besides s = {s_s:.2f} replica-seconds;"
        f" contexts of {own_tokens:.0f} tokens beyond the shared ones, so R = {places:.1f}"
    )
    for level, gain in ((24, 0.22), (32, 0.30)):
        rows = Rows(play(Case("", (level,), BOTH, STEADY, overloaded), seeds))
        target = (1.0 + gain) * max(rows.mean(level, arm, TOKENS) or 0.0 for arm in BOTH) / 60.0 / 256.0
        share = (n / target - s_s) / r_s
        wait_s = (level - places) / (target * share) + r_s
        yield (
            f"{level} sessions, {gain:+.0%} over both arms: at least {target:.3f} turns/s, so at most {share:.2f} of"
            f" the turns wait, and p95 is at least {wait_s:.1f} s (off: {rows.mean(level, 'off', P95):.1f} s)"
        )


def ceiling(seeds: Sequence[int]) -> Iterator[str]:
    """The most output of any number of sessions with LM Warden's placement: holding some back cannot give more."""
    levels = (14, 15, 16, 17, 18)
    rows = Rows(play(Case("", levels, ("on",), STEADY, as_balanced), seeds))
    outputs = {level: rows.mean(level, "on", TOKENS) or 0.0 for level in levels}
    yield "on: " + ", ".join(f"{level} sessions {tokens:.0f}" for level, tokens in outputs.items()) + " tokens/min"


def records(arm: str, level: int, seeds: Sequence[int]) -> list[VirtualRun]:
    """Every request of a steady cell, for each seed."""
    run = SimulationRun(
        SimulationPlan(workload=load_workload("claude-code"), levels=(level,), arms=(arm,), seeds=seeds, **STEADY)
    )
    return [run.records(cell) for cell in run.cells]


def ends(run: VirtualRun) -> int:
    """Turns that ended within the window, whenever they were sent."""
    return sum(1 for record in run.records if record.ended_s is not None and run.start_s <= record.ended_s <= run.end_s)


def ended(run: VirtualRun) -> list[Any]:
    """What was sent and answered within the window."""
    return [record for record in run.records if record.sent_s >= run.start_s and record.ended_s is not None]


def main(arguments: Sequence[str]) -> None:
    """Play the cases that are named, and print their tables."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.overload room", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--seeds", default="1001,1002,1003,1004,1005,1006,1007,1008")
    parser.add_argument("--bound", action="store_true", help="print what can be had at all, instead")
    parser.add_argument("--json", type=Path, help="file to which the rows are added, one case a line")
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.bound:
        print("\n".join([*bound(seeds), *ceiling(seeds)]))
        return
    for name in options.case.split(","):
        case = CASES[name]
        rows = Rows(play(case, seeds))
        print(f"\n### {name}: {case.text}; seeds {seeds[0]} to {seeds[-1]}\n", flush=True)
        print("\n".join([*figures(case, rows), "", *verdicts(case, rows)]), flush=True)
        if options.json is not None:
            with options.json.open("ab") as file:
                file.write(msgspec.json.encode({"case": name, "rows": rows.rows}) + b"\n")


if __name__ == "__main__":
    sys.exit("overload_room: is a part of another script: ./run python -m benchmarks.overload room [--case ...]")
