"""Results for people: the table off → on, on the terminal and as Markdown, and the files of a run.

One row per level. Each figure is written once per arm, joined by arrows in the order of the arms; repeats are
averaged. What was not measured is a dash. The lines below the table say what else a reader must know (``notes``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from rich import box
from rich.console import Console as Terminal
from rich.measure import Measurement
from rich.table import Table

from lmwarden.bench.errors import BenchError, PlanError
from lmwarden.bench.language import LANGUAGES, AnyNote, Language, Note, language
from lmwarden.bench.measures import NOT_MEASURED, TABLE, Measure
from lmwarden.bench.notes import gain_note, most_repeats, result_notes
from lmwarden.bench.results import BenchResult, LevelResult, arm_names, cells, level_numbers, repeats, write_json
from lmwarden.bench.spreadsheet import write_csv

ARROW = "→"
_UNBOUNDED_COLUMNS = 1000
_HEADINGS = {
    "sessions_per_hour": "Sessions\n/h",
    "output_tokens_per_minute": "Output\ntokens/min",
    "ttfb_p50": "TTFB\np50 s",
    "ttfb_p95": "TTFB\np95 s",
    "replicas_busy": "Replicas\nbusy",
    "prefix_hits": "Prefix\nhits %",
    "stayed": "Stayed\n%",
}
"""Broken in two, so that the table fits a terminal."""


def show(terminal: Terminal, result: BenchResult, notes: Sequence[AnyNote]) -> None:
    """Print table and notes; nothing but the notes where nothing was measured."""
    if result.levels:
        terminal.print()
        terminal.print(terminal_table(terminal, result))
        notes = [*_terminal_notes(result), *notes]
    for note in notes:
        terminal.print(language("en").say(note), highlight=False, markup=False, soft_wrap=True)


def check_places(*, out: Path | None, json: Path | None) -> None:
    """Find out before a long run that its results can be written; makes the folder ``out``.

    Raises:
        PlanError: they cannot.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=out):
                pass
        except OSError as error:
            raise PlanError(f"--out {out}: cannot write into this folder: {error.strerror}") from error
    if json is not None:
        if json.is_dir() or not json.parent.is_dir():
            raise PlanError(f"--json {json}: expected a file in a folder that exists")
        was_there = json.exists()
        try:
            with json.open("ab"):
                pass
            if not was_there:
                json.unlink()
        except OSError as error:
            raise PlanError(f"--json {json}: cannot write this file: {error.strerror}") from error


def save(result: BenchResult, notes: Sequence[AnyNote], *, out: Path | None, json: Path | None) -> None:
    """Write the report into the folder ``out``, and the results alone to the file ``json``.

    A folder gets ``results.json``, ``results.csv``, ``report.md`` and ``report.zh.md``, ``report.html`` (one file with
    everything in it, in both languages), and each chart as ``.svg`` and ``.png``.

    Raises:
        BenchError: a file cannot be written.
    """
    try:
        if out is not None:
            save_results(result, out)
            for code in LANGUAGES:
                name = "report.md" if code == "en" else f"report.{code}.md"
                (out / name).write_text(markdown(result, notes, language(code)), "utf-8")
            if result.levels:
                # Drawing needs a plotting library, which takes a second to load.
                from lmwarden.bench.page import write_page

                write_page(result, notes, out)
        if json is not None:
            write_json(result, json)
    except OSError as error:
        raise BenchError(f"cannot write {error.filename}: {error.strerror}") from error


def save_results(result: BenchResult, out: Path) -> None:
    """Write ``results.json`` and ``results.csv`` into a folder; cheap, so it is done after each run.

    Raises:
        OSError: a file cannot be written.
    """
    write_json(result, out / "results.json")
    write_csv(result, out / "results.csv")


def terminal_table(terminal: Terminal, result: BenchResult) -> Table:
    """Return the table for a terminal: spacious, else dense, else with each arm on a line of its own."""
    unbounded = terminal.options.update(width=_UNBOUNDED_COLUMNS)
    for gap in (1, 0):
        table = _table(result, ARROW, gap)
        if Measurement.get(terminal, unbounded, table).maximum <= terminal.width:
            return table
    return _table(result, f"{ARROW}\n", gap=0)


def markdown(result: BenchResult, notes: Sequence[AnyNote] = (), words: Language | None = None) -> str:
    """Return the table and notes as Markdown; with repeats each figure has its 95 % confidence interval."""
    words = words or language("en")
    arms = arm_names(result.levels)
    lines = [f"## {table_title(result, arms)}", ""]
    if most_repeats(result.levels) > 1:
        lines += [words.text("page.with_intervals", repeats=most_repeats(result.levels)), ""]
    headings = [level_heading(result, words), *(words.text(f"column.{measure.key}") for measure in TABLE)]
    lines.append("| " + " | ".join(headings) + " |")
    lines.append("|" + "---:|" * len(headings))
    groups = repeats(result.levels)
    for level in level_numbers(result.levels):
        runs = [groups.get((level, arm), []) for arm in arms]
        figures = [" ".join(interval_figures(runs, measure)).strip() for measure in TABLE]
        lines.append("| " + " | ".join([words.level(level), *figures]) + " |")
    lines += ["", *(f"- {words.say(note)}" for note in [*result_notes(result), *notes])]
    return "\n".join(lines) + "\n"


def interval_figures(runs: Sequence[Sequence[LevelResult]], measure: Measure) -> tuple[str, str]:
    """Return one figure of one level in all arms, and half the intervals: ``2.33→0.48`` and ``±0.12→±0.03``.

    The second text is empty where no interval is known.
    """
    found = [measure.over(rows) for rows in runs]
    means = _joined([None if value is None else measure.written(value) for value, _ in found], ARROW)
    halves = [None if half is None else f"±{measure.written(half)}" for _, half in found]
    return means, _joined(halves, ARROW) if any(halves) else ""


def level_heading(result: BenchResult, words: Language) -> str:
    """Return the heading of the first column: what the number of a level counts."""
    return words.text("column.level_open" if is_open_loop(result) else "column.level")


def is_open_loop(result: BenchResult) -> bool:
    """Whether the levels are rates."""
    return any(row.loop == "open" for row in result.levels)


def table_title(result: BenchResult, arms: Sequence[str]) -> str:
    """Return the line above a table."""
    where = f", {result.hardware}" if result.hardware else ""
    return f"{f' {ARROW} '.join(arms)} ({result.workload}, {result.source}{where})"


def _terminal_notes(result: BenchResult) -> list[Note]:
    """The notes, without one that a simulated engine always earns, because it counts as vLLM 0.26 does."""
    notes = result_notes(result)
    return notes if result.source == "measured" else [note for note in notes if note.key != "incomparable"]


def gain_sentence(rows: Sequence[LevelResult], before: str, after: str) -> str | None:
    """Say in one plain English sentence what changed between two arms; None if no level has both."""
    note = gain_note(rows, before, after, language("en"))
    return None if note is None else language("en").say(note)


def _table(result: BenchResult, arrow: str, gap: int) -> Table:
    arms = arm_names(result.levels)
    title = table_title(result, arms)
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, gap, 0, 0))
    first = "Sessions\nstarted/h" if is_open_loop(result) else "Sessions"
    for heading in (first, *_HEADINGS.values()):
        table.add_column(heading, justify="right", overflow="fold")
    by_cell = cells(result.levels)
    for level in level_numbers(result.levels):
        measured = [by_cell.get((level, arm)) for arm in arms]
        table.add_row(language("en").level(level), *(_figures(measured, measure, arrow) for measure in TABLE))
    return table


def _figures(measured: Sequence[LevelResult | None], measure: Measure, arrow: str) -> str:
    values = [measure.read(row) if row is not None else None for row in measured]
    return _joined([None if value is None else measure.written(value) for value in values], arrow)


def _joined(texts: Sequence[str | None], arrow: str) -> str:
    if sum(text is not None for text in texts) <= 1:
        # One arm alone has this figure (nothing *stays* without affinity): an arrow would say nothing.
        texts = [text for text in texts if text is not None] or [None]
    return arrow.join(text or NOT_MEASURED for text in texts)
