"""The charts of a report as data: what is drawn, before anything is drawn.

A *line chart* has one line per arm and figure over the levels, which stand at equal distances. A *bar chart* has one
bar per level and arm, divided into parts that sum to 100 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmwarden.bench import measures
from lmwarden.bench.measures import Measure
from lmwarden.bench.results import BenchResult, LevelResult, arm_names, cell_label, cells, level_numbers, repeats


@dataclass(frozen=True, slots=True)
class Line:
    """One line: a figure of one arm over the levels."""

    arm: str
    label: str
    dashed: bool
    values: tuple[float | None, ...]
    half_widths: tuple[float | None, ...]
    """Of the 95 % confidence intervals."""


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over levels. ``key`` names it in the texts (``chart.…``), ``unit`` its upright axis (``axis.…``)."""

    key: str
    unit: str
    levels: tuple[int, ...]
    lines: tuple[Line, ...]
    open_loop: bool
    logarithmic: bool = False
    digits: int = 2
    most: float | None = None
    """Upper end of the axis, where the figure has one."""


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars that are divided into parts."""

    key: str
    unit: str
    bars: tuple[str, ...]
    """Level and arm of each."""
    parts: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    """For each bar the share of each part, in percent."""


Chart = LineChart | BarChart


def charts(result: BenchResult) -> list[Chart]:
    """Return the charts for which something was measured."""
    lines = [
        _lines(result, "ttfb", "seconds", [("p50", measures.TTFB_P50), ("p95", measures.TTFB_P95)], logarithmic=True),
        _lines(result, "hits", "percent", [("", measures.HITS)], most=100.0),
        _lines(result, "busy", "replicas", [("", measures.BUSY)], most=_replicas(result)),
        _lines(result, "output", "tokens_per_minute", [("", measures.OUTPUT)]),
        _lines(
            result, "turns", "seconds", [("later", measures.LATER_P95), ("first", measures.FIRST_P95)], logarithmic=True
        ),
        _lines(result, "session", "seconds", [("p50", measures.SESSION_P50), ("p95", measures.SESSION_P95)]),
        _lines(result, "room", "seconds", [("", measures.ROOM_P95)]),
    ]
    rows = list(cells(result.levels).values())
    bars = [
        _bars("spread", rows, _spread(rows)),
        _bars("decisions", rows, [row.decisions for row in rows]),
    ]
    return [chart for chart in [*lines, *bars] if chart is not None]


def _lines(
    result: BenchResult,
    key: str,
    unit: str,
    figures: Sequence[tuple[str, Measure]],
    *,
    logarithmic: bool = False,
    most: float | None = None,
) -> LineChart | None:
    """One line per arm and figure; the second figure is dashed. None where nothing of it was measured."""
    groups = repeats(result.levels)
    levels = tuple(sorted(level_numbers(result.levels)))
    lines = []
    for arm in arm_names(result.levels):
        for number, (name, measure) in enumerate(figures):
            found = [measure.over(groups.get((level, arm), [])) for level in levels]
            if any(value is not None for value, _ in found):
                values, halves = zip(*found, strict=True)
                lines.append(Line(arm, f"{arm} {name}".strip(), number > 0, tuple(values), tuple(halves)))
    if not lines:
        return None
    open_loop = any(row.loop == "open" for row in result.levels)
    digits = figures[0][1].digits
    return LineChart(key, unit, levels, tuple(lines), open_loop, logarithmic, digits, most)


def _spread(rows: Sequence[LevelResult]) -> Sequence[Mapping[str, float] | None]:
    """Requests by replica: the engine's own count where it has one for every cell, since it knows them all."""
    ranks = [row.engine.requests_by_rank if row.engine is not None else None for row in rows]
    if all(ranks):
        return [{f"rank {rank}": count for rank, count in (counts or {}).items()} for counts in ranks]
    return [row.requests_by_replica for row in rows]


def _bars(key: str, rows: Sequence[LevelResult], counts: Sequence[Mapping[str, float] | None]) -> BarChart | None:
    parts = list(dict.fromkeys(part for row in counts for part, count in (row or {}).items() if count))
    bars, shares = [], []
    for row, row_counts in zip(rows, counts, strict=True):
        total = sum((row_counts or {}).values())
        if row_counts and total:
            bars.append(cell_label(row))
            shares.append(tuple(100 * row_counts.get(part, 0) / total for part in parts))
    if not bars or (key == "spread" and len(parts) < 2):
        return None
    return BarChart(key, "share", tuple(bars), tuple(parts), tuple(shares))


def _replicas(result: BenchResult) -> float | None:
    """How many there are, if anything says so."""
    if result.run is not None and result.run.replicas is not None:
        return float(result.run.replicas)
    named = [len(row.requests_by_replica) for row in result.levels if row.requests_by_replica]
    return float(max(named)) if named else None
