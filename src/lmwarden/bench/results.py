"""The schema of results that ``bench``, ``simulate`` and ``demo`` share, and its arithmetic.

One ``LevelResult`` is one run: a number of sessions, an arm, a seed. Repeats stay separate rows in the
file, so that whoever reads it can judge the noise; ``merged`` averages them for a table. A figure that was
not measured is null, never 0. All seconds are modelled seconds (equal to wall seconds at speed 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

Balancer = Literal["engine", "emulated"]
Source = Literal["simulated", "measured"]
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


class SessionSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """From a session's first send to its last token; sessions that ended in the window."""

    p50: float | None = None
    p95: float | None = None


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """One level in one arm with one seed."""

    sessions: int
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


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: what ``--json`` and ``results.json`` hold."""

    schema: int = 1
    source: Source
    hardware: str | None
    workload: str
    levels: list[LevelResult]


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
    decisions: dict[str, int] | None = None
    for row in rows:
        for word, count in (row.decisions or {}).items():
            decisions = decisions or {}
            decisions[word] = decisions.get(word, 0) + count
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
        decisions=decisions,
        waited_in_room=sum(waited) if waited else None,
    )


def cells(levels: Iterable[LevelResult]) -> dict[tuple[int, str], LevelResult]:
    """Return one merged row per (sessions, arm), in order of first appearance."""
    groups: dict[tuple[int, str], list[LevelResult]] = {}
    for row in levels:
        groups.setdefault((row.sessions, row.arm), []).append(row)
    return {key: merged(rows) for key, rows in groups.items()}


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


def _mean_struct(kind: type[_Part], parts: Sequence[_Part]) -> _Part:
    return kind(**{name: mean(getattr(part, name) for part in parts) for name in kind.__struct_fields__})
