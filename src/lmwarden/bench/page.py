"""The report as one HTML file, in both languages, with its charts in it.

Nothing in it is loaded from anywhere and nothing in it runs: a reader who was not there can open it offline, print it
or send it on. The languages are two parts of one page, switched by a pair of radio buttons and a style sheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lmwarden.bench import measures
from lmwarden.bench.charts import Chart, LineChart, charts
from lmwarden.bench.figures import DrawnChart, described
from lmwarden.bench.language import LANGUAGES, AnyNote, Language, language
from lmwarden.bench.measures import NOT_MEASURED, Measure
from lmwarden.bench.notes import gain_note, most_repeats, result_notes
from lmwarden.bench.report import ARROW, interval_figures, is_open_loop, level_heading
from lmwarden.bench.results import BenchResult, arm_names, cell_label, cells, level_numbers, repeats
from lmwarden.bench.run_facts import fact_rows

_MEANINGS = (*measures.TABLE, measures.HITS_ENGINE)


_Cell: TypeAlias = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Grid:
    """A table. A cell is a text, or a text and a smaller one below it."""

    headings: list[str]
    rows: list[list[_Cell]]


def write_page(result: BenchResult, notes: Sequence[AnyNote], out: Path) -> None:
    """Write ``report.html``, and each chart as ``<key>.svg`` and ``<key>.png``, into a folder.

    Raises:
        OSError: a file cannot be written.
    """
    drawn = [(chart, DrawnChart(chart)) for chart in charts(result)]
    for chart, picture in drawn:
        (out / f"{chart.key}.svg").write_text(picture.svg(), "utf-8")
        (out / f"{chart.key}.png").write_bytes(picture.png)
    (out / "report.html").write_text(_page(result, notes, drawn), "utf-8")


def _page(result: BenchResult, notes: Sequence[AnyNote], drawn: Sequence[tuple[Chart, DrawnChart]]) -> str:
    source = (resources.files("lmwarden.bench") / "templates" / "report.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    parts = [_part(result, notes, drawn, language(code)) for code in LANGUAGES]
    return environment.from_string(source).render(parts=parts, arrow=ARROW) + "\n"


def _part(
    result: BenchResult, notes: Sequence[AnyNote], drawn: Sequence[tuple[Chart, DrawnChart]], words: Language
) -> dict[str, Any]:
    """Everything that the template needs for one language."""
    arms = arm_names(result.levels)
    arrows = f" {ARROW} ".join(arms)
    count = most_repeats(result.levels)
    gain = gain_note(result.levels, arms[0], arms[-1], words) if len(arms) > 1 else None
    lead = "page.table_lead_open" if is_open_loop(result) else "page.table_lead"
    return {
        "code": words.code,
        "text": words.text,
        "title": words.text("page.title", arms=arrows),
        "source": words.text(f"page.source_{result.source}"),
        "summary": words.say(gain) if gain is not None else None,
        "arms": [(arm, words.text(f"arm.{arm}")) for arm in arms if words.has(f"arm.{arm}")],
        "lead": words.text(lead, arms=arrows),
        "intervals": words.text("page.with_intervals", repeats=count)
        if count > 1
        else words.text("page.without_intervals"),
        "table": _table(result, measures.TABLE, words),
        "more": _table(result, _measured(result, measures.MORE), words),
        "charts": [
            {
                "key": chart.key,
                "title": words.text(f"chart.{chart.key}.title"),
                "caption": words.text(f"chart.{chart.key}.caption"),
                "svg": Markup(picture.inline_svg(words, f"{words.code}-{chart.key}", described(chart, words))),
                "data": _chart_data(chart, words),
            }
            for chart, picture in drawn
        ],
        "counters": _counters(result, words),
        "cells": _cells(result, words),
        "notes": [words.say(note) for note in [*result_notes(result), *notes]],
        "meanings": _meanings(result, words),
        "facts": fact_rows(result, words),
    }


def _measured(result: BenchResult, wanted: Sequence[Measure]) -> list[Measure]:
    return [measure for measure in wanted if any(measure.read(row) is not None for row in result.levels)]


def _table(result: BenchResult, columns: Sequence[Measure], words: Language) -> _Grid:
    groups, arms = repeats(result.levels), arm_names(result.levels)
    rows: list[list[_Cell]] = []
    for level in level_numbers(result.levels):
        runs = [groups.get((level, arm), []) for arm in arms]
        rows.append([words.level(level), *(interval_figures(runs, measure) for measure in columns)])
    headings = [level_heading(result, words), *(words.text(f"column.{measure.key}") for measure in columns)]
    return _Grid(headings, rows)


def _chart_data(chart: Chart, words: Language) -> _Grid:
    """The figures of a chart as a table."""
    if isinstance(chart, LineChart):
        heading = words.text("column.level_open" if chart.open_loop else "column.level")
        lined: list[list[_Cell]] = [
            [words.level(level), *(_written(line.values[number], chart.digits) for line in chart.lines)]
            for number, level in enumerate(chart.levels)
        ]
        return _Grid([heading, *(line.label for line in chart.lines)], lined)
    rows: list[list[_Cell]] = [
        [bar, *(f"{share:.1f}" for share in shares)] for bar, shares in zip(chart.bars, chart.shares, strict=True)
    ]
    return _Grid(["", *(f"{part} %" for part in chart.parts)], rows)


def _counters(result: BenchResult, words: Language) -> _Grid | None:
    """Two rows per cell: the clients' sums and the engine's; None where no engine was read."""
    rows: list[list[_Cell]] = []
    for row in cells(result.levels).values():
        if row.client is None or row.engine is None:
            continue
        name, client, engine = cell_label(row), row.client, row.engine
        seen: list[list[float | None]] = [
            [client.requests, client.prompt_tokens, client.output_tokens, None, client.cached_tokens],
            [
                *(engine.requests, engine.prompt_tokens, engine.generation_tokens),
                *(engine.prefix_queries_tokens, engine.prefix_hits_tokens),
            ],
        ]
        ratios = [row.prefix_hit_ratio, row.prefix_hit_ratio_engine]
        for who, figures, ratio in zip(("client", "engine"), seen, ratios, strict=True):
            hits = _written(measures.percent(ratio), 1)
            rows.append([name, words.text(f"column.{who}"), *(_written(figure, 0) for figure in figures), hits])
    if not rows:
        return None
    keys = ("requests", "prompt", "output", "queries", "cached", "prefix_hits")
    return _Grid(["", "", *(words.text(f"column.{key}") for key in keys)], rows)


def _cells(result: BenchResult, words: Language) -> _Grid:
    """Counts of each cell, summed over its repeats."""
    rows: list[list[_Cell]] = [
        [cell_label(row), str(row.requests), str(row.failed), str(row.unserved), _written(row.waited_in_room, 0)]
        for row in cells(result.levels).values()
    ]
    keys = ("requests", "failed", "unserved", "waited")
    return _Grid(["", *(words.text(f"column.{key}") for key in keys)], rows)


def _meanings(result: BenchResult, words: Language) -> list[tuple[str, str]]:
    longest_s = max((row.seconds for row in cells(result.levels).values()), default=0.0)
    coarse = f"{3600 / longest_s:.0f}" if longest_s else NOT_MEASURED
    found = [
        (words.text(f"column.{measure.key}"), words.text(f"meaning.{measure.key}", coarse=coarse))
        for measure in _MEANINGS
    ]
    return [*found, (words.text("column.unserved"), words.text("meaning.unserved"))]


def _written(value: float | None, digits: int) -> str:
    return NOT_MEASURED if value is None else f"{value:.{digits}f}"
