"""The schema of results that ``bench``, ``simulate`` and ``demo`` share, and its arithmetic.

One ``LevelResult`` is one run: a number of sessions, an arm, a seed. Repeats stay separate rows in the
file, so that whoever reads it can judge the noise; ``merged`` averages them for a table. A figure that was
not measured is null, never 0. All seconds are modelled seconds (equal to wall seconds at speed 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from lmwarden.bench.counters import EngineCounters

Balancer = Literal["engine", "emulated"]
Source = Literal["simulated", "measured"]
Loop = Literal["closed", "open"]
AS_RECORDED = 0
"""The level of an open loop whose sessions start when they did in the trace; it is the run's only one."""
_Part = TypeVar("_Part", bound=msgspec.Struct)


class TtfbSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """From the client's send to the first generated token, waiting in the warden included."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None
    first_turn_p95: float | None = None
    later_turn_p95: float | None = None
    p95_with_waiting: float | None = None
    """With requests that had no first token when the level ended, at their wait so far."""
    first_turn_p50: float | None = None
    later_turn_p50: float | None = None


class SessionSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """From a session's first send to its last token; sessions that ended in the window."""

    p50: float | None = None
    p95: float | None = None


class WaitSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """In the warden's waiting room, of the requests that waited there."""

    p50: float | None = None
    p95: float | None = None
    max: float | None = None


class ClientCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended well in the window, and their usage by their answers; None: an answer did not say."""

    requests: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """One level in one arm with one seed."""

    sessions: int
    """At once in the closed loop; in the open loop, how many start per hour."""
    arm: str
    seed: int | None
    """None in a merged row."""
    seconds: float
    """Length of the window that was measured: shorter than planned if the run was interrupted."""
    sessions_per_hour: float | None
    output_tokens_per_minute: float | None
    ttfb_s: TtfbSeconds
    session_s: SessionSeconds
    replicas_busy: float | None
    prefix_hit_ratio: float | None
    prefix_hit_ratio_engine: float | None
    stayed_ratio: float | None
    requests: int
    failed: int
    unserved: int
    balancer: Balancer | None
    decisions: dict[str, int] | None
    """None: the answers named no decision (no warden in between)."""
    waited_in_room: int | None
    loop: Loop = "closed"
    open_at_start: int | None = None
    """Sessions going on when the window began: in the open loop, where a number that grows is a backlog."""
    open_at_end: int | None = None
    left: int = 0
    """Requests whose client left in the middle of the answer, as the workload wants; they are no failures."""
    caches_emptied: bool | None = None
    """The engine's prefix caches were emptied before this run; None: that was not tried."""
    room_wait_s: WaitSeconds = WaitSeconds()
    requests_by_replica: dict[str, int] | None = None
    """By the replica that each answer's head named; None: none did."""
    client: ClientCounters | None = None
    engine: EngineCounters | None = None
    """Growth of the engine's own counters over the window; None: its address is unknown."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader must know to judge a run or to repeat it."""

    command: str
    started: str
    """UTC, e.g. 2026-11-29T23:10:00Z."""
    machine: str
    """Processor, cores, memory, operating system of the load tester's host."""
    versions: dict[str, str]
    """Of LM Warden, Python, and what else took part."""
    caches: str = "fresh"
    prompt_reuse: str = "none"
    think: str = "none"
    network_s: float = 0.0
    warmup_s: float = 0.0
    speed: float = 1.0
    replicas: int | None = None
    tester_lag_p99_s: float | None = None
    """Wall seconds."""
    interrupted: bool = False


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: what ``--json`` and ``results.json`` hold."""

    schema: int = 1
    source: Source
    hardware: str | None
    workload: str
    levels: list[LevelResult]
    run: RunFacts | None = None


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the quantile by linear interpolation between order statistics; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that were measured; None if none was."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def sum_known(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if one is missing, because a sum with holes is not a measurement."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def stayed_ratio(decisions: dict[str, int] | None) -> float | None:
    """Return sticky / (sticky + spilled + rehomed); None at 0, or where decisions are unknown."""
    if decisions is None:
        return None
    sticky = decisions.get("sticky", 0)
    bound = sticky + decisions.get("spilled", 0) + decisions.get("rehomed", 0)
    return sticky / bound if bound else None


def merged(rows: Sequence[LevelResult]) -> LevelResult:
    """Average repeats of one level and arm: every figure is the mean over rows, every count the sum.

    The mean of quantiles is not the quantile of the pooled requests; it is what one run shows on average.
    """
    if len(rows) == 1:
        return rows[0]
    first = rows[0]
    waited = [row.waited_in_room for row in rows if row.waited_in_room is not None]
    return LevelResult(
        sessions=first.sessions,
        arm=first.arm,
        seed=None,
        seconds=sum(row.seconds for row in rows),
        sessions_per_hour=mean(row.sessions_per_hour for row in rows),
        output_tokens_per_minute=mean(row.output_tokens_per_minute for row in rows),
        ttfb_s=_mean_struct(TtfbSeconds, [row.ttfb_s for row in rows]),
        session_s=_mean_struct(SessionSeconds, [row.session_s for row in rows]),
        replicas_busy=mean(row.replicas_busy for row in rows),
        prefix_hit_ratio=mean(row.prefix_hit_ratio for row in rows),
        prefix_hit_ratio_engine=mean(row.prefix_hit_ratio_engine for row in rows),
        stayed_ratio=mean(row.stayed_ratio for row in rows),
        requests=sum(row.requests for row in rows),
        failed=sum(row.failed for row in rows),
        unserved=sum(row.unserved for row in rows),
        balancer=first.balancer,
        decisions=_sum_counts([row.decisions for row in rows]),
        waited_in_room=sum(waited) if waited else None,
        loop=first.loop,
        open_at_start=_mean_count([row.open_at_start for row in rows]),
        open_at_end=_mean_count([row.open_at_end for row in rows]),
        left=sum(row.left for row in rows),
        caches_emptied=first.caches_emptied,
        room_wait_s=_mean_struct(WaitSeconds, [row.room_wait_s for row in rows]),
        requests_by_replica=_sum_counts([row.requests_by_replica for row in rows]),
        client=_sum_struct(ClientCounters, [row.client for row in rows]),
        engine=_sum_struct(EngineCounters, [row.engine for row in rows]),
    )


def cells(levels: Iterable[LevelResult]) -> dict[tuple[int, str], LevelResult]:
    """Return one merged row per (sessions, arm), in order of first appearance."""
    return {key: merged(rows) for key, rows in repeats(levels).items()}


def repeats(levels: Iterable[LevelResult]) -> dict[tuple[int, str], list[LevelResult]]:
    """Return the runs of each (sessions, arm), in order of first appearance."""
    groups: dict[tuple[int, str], list[LevelResult]] = {}
    for row in levels:
        groups.setdefault((row.sessions, row.arm), []).append(row)
    return groups


def arm_names(rows: Sequence[LevelResult]) -> list[str]:
    """Return the arms in the order of the first repeat."""
    return list(dict.fromkeys(row.arm for row in rows))


def level_numbers(rows: Sequence[LevelResult]) -> list[int]:
    """Return the levels in order of first appearance."""
    return list(dict.fromkeys(row.sessions for row in rows))


def cell_label(row: LevelResult) -> str:
    """Return the short name of a cell, the same in every language: ``8 on``, or the arm alone beside no other level."""
    return row.arm if row.sessions == AS_RECORDED else f"{row.sessions} {row.arm}"


def write_json(result: BenchResult, path: Path) -> None:
    """Write the result, indented, with a final newline.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def read_json(path: Path) -> BenchResult:
    """Read a file that ``write_json`` wrote.

    Raises:
        msgspec.DecodeError: it has another form.
        OSError: the file cannot be read.
    """
    return msgspec.json.decode(path.read_bytes(), type=BenchResult)


def _sum_counts(counts: Sequence[dict[str, int] | None]) -> dict[str, int] | None:
    """Counts by word, summed over runs; None if no run has them."""
    total: dict[str, int] | None = None
    for one in counts:
        for word, count in (one or {}).items():
            total = total or {}
            total[word] = total.get(word, 0) + count
    return total


def _mean_count(counts: Sequence[int | None]) -> int | None:
    average = mean(counts)
    return None if average is None else round(average)


def _sum_struct(kind: type[_Part], parts: Sequence[_Part | None]) -> _Part | None:
    """Every field summed over runs; a field that one run lacks is None, and all is None if one run has none."""
    if any(part is None for part in parts):
        return None
    sums: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        values = [getattr(part, name) for part in parts]
        if None in values:
            sums[name] = None
        elif isinstance(values[0], dict):
            sums[name] = {key: sum(value.get(key, 0) for value in values) for key in values[0]}
        else:
            sums[name] = sum(values)
    return kind(**sums)


def _mean_struct(kind: type[_Part], parts: Sequence[_Part]) -> _Part:
    return kind(**{name: mean(getattr(part, name) for part in parts) for name in kind.__struct_fields__})
