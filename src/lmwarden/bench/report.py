"""Results for people: the table off → on, on the terminal and as Markdown.

One row per level. Each figure is written once per arm, joined by arrows in the order of the arms; repeats are
averaged. What was not measured is a dash. The line below the table says what else a reader must know: who
balanced in ``off``, what failed, what was never served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console as Terminal
from rich.measure import Measurement
from rich.table import Table

from lmwarden.bench.errors import BenchError, PlanError
from lmwarden.bench.results import BenchResult, LevelResult, cells, write_json

_ARROW = "→"
_NOT_MEASURED = "–"
_UNBOUNDED_COLUMNS = 1000
_NOTABLE = 1.05
"""A tail that grows by less when waiting requests are added is not worth a line."""

Column = tuple[str, Callable[[LevelResult], float | None], int]

_COLUMNS: tuple[Column, ...] = (
    ("Sessions\n/h", lambda row: row.sessions_per_hour, 0),
    ("Output\ntokens/min", lambda row: row.output_tokens_per_minute, 0),
    ("TTFB\np50 s", lambda row: row.ttfb_s.p50, 2),
    ("TTFB\np95 s", lambda row: row.ttfb_s.p95, 2),
    ("Replicas\nbusy", lambda row: row.replicas_busy, 2),
    ("Prefix\nhits %", lambda row: _percent(row.prefix_hit_ratio), 1),
    ("Stayed\n%", lambda row: _percent(row.stayed_ratio), 1),
)


def show(terminal: Terminal, result: BenchResult, notes: Sequence[str]) -> None:
    """Print table and notes; nothing but the notes where nothing was measured."""
    if result.levels:
        terminal.print()
        terminal.print(terminal_table(terminal, result))
        notes = [*result_notes(result), *notes]
    for note in notes:
        terminal.print(note, highlight=False, markup=False, soft_wrap=True)


def check_places(*, out: Path | None, json: Path | None) -> None:
    """Find out before a long run that its results can be written; makes the folder ``out``.

    Raises:
        PlanError: they cannot.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(f"--out {out}: cannot make this folder: {error.strerror}") from error
    if json is not None and (json.is_dir() or not json.parent.is_dir()):
        raise PlanError(f"--json {json}: expected a file in a folder that exists")


def save(result: BenchResult, notes: Sequence[str], *, out: Path | None, json: Path | None) -> None:
    """Write ``results.json`` and ``report.md`` into the folder ``out``, and the results alone to ``json``.

    Raises:
        BenchError: a file cannot be written.
    """
    try:
        if out is not None:
            write_json(result, out / "results.json")
            (out / "report.md").write_text(markdown(result, notes), "utf-8")
        if json is not None:
            write_json(result, json)
    except OSError as error:
        raise BenchError(f"cannot write {error.filename}: {error.strerror}") from error


def terminal_table(terminal: Terminal, result: BenchResult) -> Table:
    """Return the table for a terminal: spacious, else dense, else with each arm on a line of its own."""
    unbounded = terminal.options.update(width=_UNBOUNDED_COLUMNS)
    for gap in (1, 0):
        table = _table(result, _ARROW, gap)
        if Measurement.get(terminal, unbounded, table).maximum <= terminal.width:
            return table
    return _table(result, f"{_ARROW}\n", gap=0)


def _table(result: BenchResult, arrow: str, gap: int) -> Table:
    arms = arm_names(result.levels)
    table = Table(title=_title(result, arms), box=box.SIMPLE_HEAD, title_justify="left", padding=(0, gap, 0, 0))
    for heading in _headings():
        table.add_column(heading, justify="right", overflow="fold")
    for row in _rows(result.levels, arms, arrow):
        table.add_row(*row)
    return table


def markdown(result: BenchResult, notes: Sequence[str] = ()) -> str:
    """Return the table and notes as Markdown."""
    arms = arm_names(result.levels)
    lines = [f"## {_title(result, arms)}", ""]
    headings = [heading.replace("\n/", "/").replace("\n", " ") for heading in _headings()]
    lines.append("| " + " | ".join(headings) + " |")
    lines.append("|" + "---:|" * len(headings))
    lines += ["| " + " | ".join(row) + " |" for row in _rows(result.levels, arms, _ARROW)]
    lines += ["", *(f"- {note}" for note in [*result_notes(result), *notes])]
    return "\n".join(lines) + "\n"


def result_notes(result: BenchResult) -> list[str]:
    """Return what a reader of the table must know beside it, one plain sentence each."""
    rows = result.levels
    notes = ["TTFB is from the client's send to the first generated token; p50 and p95 are over served requests."]
    by_cell = cells(rows)
    longest_s = max((row.seconds for row in by_cell.values()), default=0.0)
    if longest_s:
        notes.append(f"Sessions/h is coarse: one session more or less is {3600 / longest_s:.0f} per hour.")
    repeats = max((sum(r.sessions == row.sessions and r.arm == row.arm for r in rows) for row in rows), default=1)
    if repeats > 1:
        notes.append(f"Each figure is the mean over {repeats} runs with different seeds.")
    if any(row.balancer == "emulated" for row in rows):
        notes.append("In off, an imitation of vLLM's balancer chose the engine, since there are several.")
    for (sessions, arm), row in by_cell.items():
        if row.failed:
            notes.append(f"{sessions} sessions, {arm}: {row.failed} of {row.requests} requests failed.")
        if _waiting_matters(row):
            p95 = row.ttfb_s.p95_with_waiting
            notes.append(
                f"{sessions} sessions, {arm}: {row.unserved} of {row.requests} requests had no first token at the"
                f" end; with their wait so far, p95 is {p95:.2f} s."
            )
    return notes


def _waiting_matters(row: LevelResult) -> bool:
    """Whether requests that still waited change the tail. A closed loop always ends with a few of them."""
    p95, with_waiting = row.ttfb_s.p95, row.ttfb_s.p95_with_waiting
    return with_waiting is not None and (p95 is None or with_waiting > _NOTABLE * p95)


def arm_names(rows: Sequence[LevelResult]) -> list[str]:
    """Return the arms in order of first appearance."""
    return list(dict.fromkeys(row.arm for row in rows))


def gain_sentence(rows: Sequence[LevelResult], before: str, after: str) -> str | None:
    """Say in one plain sentence what changed between two arms; None if no level has both."""
    by_cell = cells(rows)
    levels = [level for level, arm in by_cell if arm == before and (level, after) in by_cell]
    parts = [_gain(level, by_cell[level, before], by_cell[level, after]) for level in levels]
    parts = [part for part in parts if part]
    if not parts:
        return None
    return f"From {before} to {after}: " + "; ".join(parts) + "."


def _gain(level: int, before: LevelResult, after: LevelResult) -> str:
    facts = []
    if before.prefix_hit_ratio is not None and after.prefix_hit_ratio is not None:
        old, new = 100 * before.prefix_hit_ratio, 100 * after.prefix_hit_ratio
        facts.append(f"{old:.0f}→{new:.0f} % of the prompt from the cache")
    if before.ttfb_s.p50 and after.ttfb_s.p50:
        facts.append(f"first token {before.ttfb_s.p50:.2f}→{after.ttfb_s.p50:.2f} s (median)")
    if before.output_tokens_per_minute and after.output_tokens_per_minute:
        more = 100 * (after.output_tokens_per_minute / before.output_tokens_per_minute - 1)
        facts.append(f"{more:+.0f} % output")
    return f"at {level} sessions {', '.join(facts)}" if facts else ""


def _title(result: BenchResult, arms: Sequence[str]) -> str:
    where = f", {result.hardware}" if result.hardware else ""
    return f"{' → '.join(arms)} ({result.workload}, {result.source}{where})"


def _headings() -> list[str]:
    return ["Sessions", *(heading for heading, _, _ in _COLUMNS)]


def _rows(levels: Sequence[LevelResult], arms: Sequence[str], arrow: str) -> list[list[str]]:
    by_cell = cells(levels)
    rows = []
    for level in dict.fromkeys(row.sessions for row in levels):
        measured = [by_cell.get((level, arm)) for arm in arms]
        rows.append([str(level), *(_figures(measured, read, digits, arrow) for _, read, digits in _COLUMNS)])
    return rows


def _figures(
    measured: Sequence[LevelResult | None], read: Callable[[LevelResult], float | None], digits: int, arrow: str
) -> str:
    values = [read(row) if row is not None else None for row in measured]
    if sum(value is not None for value in values) <= 1:
        # One arm alone has this figure (nothing *stays* without affinity): an arrow would say nothing.
        values = [value for value in values if value is not None] or [None]
    return arrow.join(_NOT_MEASURED if value is None else f"{value:.{digits}f}" for value in values)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio
