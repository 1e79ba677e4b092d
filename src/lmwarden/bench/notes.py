"""What a reader must know beside the figures: the run's own conditions, and what the figures leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from lmwarden.bench.console import Admission
from lmwarden.bench.language import Language, Note
from lmwarden.bench.results import AS_RECORDED, BenchResult, LevelResult, cell_label, cells

_NOTABLE = 1.05
"""A tail that grows by less when waiting requests are added is not worth a line."""
AGREEMENT_POINTS = 2.0
"""Prefix hits by usage and by the engine's counters agree within so many percentage points."""
_EDGE_RATIO = 0.05
"""How far the sums of tokens may differ before the ratios are not compared."""
_BACKLOG_RATIO = 1.5
_BACKLOG_LEAST = 3
"""The open loop has a backlog where the sessions grow by half over the window, and by at least three."""
LAG_LIMIT_MS = 20.0


def result_notes(result: BenchResult) -> list[Note]:
    """Return what a reader of the table must know beside it."""
    rows = result.levels
    notes = [Note("ttfb")]
    by_cell = cells(rows)
    longest_s = max((row.seconds for row in by_cell.values()), default=0.0)
    if longest_s:
        notes.append(Note("coarse", {"coarse": f"{3600 / longest_s:.0f}"}))
    repeats = most_repeats(rows)
    if repeats > 1:
        notes.append(Note("repeats", {"repeats": str(repeats)}))
    if any(row.balancer == "emulated" for row in rows):
        notes.append(Note("emulated"))
    if any(row.caches_emptied is False for row in rows):
        notes.append(Note("caches_not_emptied"))
    notes += _agreement(by_cell.values())
    for row in by_cell.values():
        notes += _cell_notes(row)
    left = sum(row.left for row in rows)
    if left:
        notes.append(Note("left", {"left": str(left)}))
    return notes


def most_repeats(rows: Sequence[LevelResult]) -> int:
    """Return how many runs the cell with most of them has; 1 of no rows."""
    return max((sum(r.sessions == row.sessions and r.arm == row.arm for r in rows) for row in rows), default=1)


def lag_notes(lag_p99_s: float | None, speed: float) -> list[Note]:
    """Return what the tester's own lag (wall seconds) says."""
    if lag_p99_s is None:
        return []
    lag_ms = 1000 * lag_p99_s
    if speed == 1:
        notes = [Note("lag", {"lag_ms": f"{lag_ms:.1f}"})]
    else:
        notes = [Note("lag_modelled", {"lag_ms": f"{lag_ms:.1f}", "modelled_ms": f"{lag_ms * speed:.0f}"})]
    return [*notes, Note("too_busy")] if lag_ms > LAG_LIMIT_MS else notes


def open_room_note(rooms: Sequence[Admission], sessions: int, arm: str, *, open_loop: bool = False) -> Note | None:
    """Say why the waiting room stayed open although the conversations did not fit; None: it did not, or they did.

    Args:
        rooms: as it was polled over one run.
        sessions: of the run, as are the other two.
    """
    over = [room.why_code for room in rooms if room.demand_ratio is not None and room.demand_ratio > 1]
    if 2 * len(over) <= len(rooms) or any(room.engaged for room in rooms):
        return None
    why = Counter(over).most_common(1)[0][0]
    if why not in ("gaps", "kept"):
        return None
    gaps = [room.gap_s for room in rooms if room.gap_s is not None]
    return Note(f"room_open_{why}", {"gap_s": f"{max(gaps, default=0.0):.1f}"}, (sessions, arm, open_loop))


def gain_note(rows: Sequence[LevelResult], before: str, after: str, words: Language) -> Note | None:
    """Say in one sentence what changed between two arms; None if no level has both."""
    by_cell = cells(rows)
    levels = [level for level, arm in by_cell if arm == before and (level, after) in by_cell]
    parts = [_gain(by_cell[level, before], by_cell[level, after], words) for level in levels]
    parts = [part for part in parts if part]
    if not parts:
        return None
    return Note("gain", {"before": before, "after": after, "levels": words.text("gain.between_levels").join(parts)})


def _cell_notes(row: LevelResult) -> list[Note]:
    cell = (row.sessions, row.arm, row.loop == "open")
    notes = []
    if row.failed:
        notes.append(Note("failed", {"failed": str(row.failed), "requests": str(row.requests)}, cell))
    if _waiting_matters(row):
        values = {
            "unserved": str(row.unserved),
            "requests": str(row.requests),
            "p95": f"{row.ttfb_s.p95_with_waiting:.2f}",
        }
        notes.append(Note("unserved", values, cell))
    before, after = row.open_at_start, row.open_at_end
    if before == 0 and after:
        notes.append(Note("began_empty", {"after": str(after)}, cell))
    elif before and after and after >= max(_BACKLOG_RATIO * before, before + _BACKLOG_LEAST):
        notes.append(Note("backlog", {"before": str(before), "after": str(after)}, cell))
    return notes


def _waiting_matters(row: LevelResult) -> bool:
    """Whether requests that still waited change the tail. A closed loop always ends with a few of them."""
    p95, with_waiting = row.ttfb_s.p95, row.ttfb_s.p95_with_waiting
    return with_waiting is not None and (p95 is None or with_waiting > _NOTABLE * p95)


def _agreement(rows: Iterable[LevelResult]) -> list[Note]:
    """Whether the engine's counters say what the answers said; nothing where only one of them is known.

    The two look at different requests: the answers' usage is known of those that ended in the window, and the engine
    counts when it looks a prompt up. Where the engine looked up more than ``_EDGE_RATIO`` beyond (or below) what the
    answers account for, the ratios may differ without anything being wrong, and that is said instead.
    """
    notes, apart, compared = [], [], False
    for row in rows:
        client, engine = row.prefix_hit_ratio, row.prefix_hit_ratio_engine
        if client is None or engine is None:
            continue
        if abs(_edge_ratio(row)) > _EDGE_RATIO:
            apart.append(row)
            continue
        compared = True
        if abs(client - engine) * 100 > AGREEMENT_POINTS:
            values = {
                "client": f"{100 * client:.1f}",
                "engine": f"{100 * engine:.1f}",
                "points": f"{AGREEMENT_POINTS:g}",
            }
            notes.append(Note("disagree", values, (row.sessions, row.arm, row.loop == "open")))
    if compared and not notes:
        key = "agree_where_comparable" if apart else "agree"
        notes.append(Note(key, {"points": f"{AGREEMENT_POINTS:g}"}))
    if apart:
        furthest = max(apart, key=lambda row: abs(_edge_ratio(row)))
        cells_apart = ", ".join(cell_label(row) for row in apart)
        more, limit = f"{100 * _edge_ratio(furthest):+.0f}", f"{100 * _EDGE_RATIO:g}"
        notes.append(Note("incomparable", {"cells": cells_apart, "more": more, "limit": limit}))
    return notes


def _edge_ratio(row: LevelResult) -> float:
    """By how much the engine looked up more than the answers account for; 0 where either sum is unknown."""
    queries = row.engine.prefix_queries_tokens if row.engine is not None else None
    prompts = row.client.prompt_tokens if row.client is not None else None
    return queries / prompts - 1 if queries is not None and prompts else 0.0


def _gain(before: LevelResult, after: LevelResult, words: Language) -> str:
    facts = []
    if before.prefix_hit_ratio is not None and after.prefix_hit_ratio is not None:
        old, new = f"{100 * before.prefix_hit_ratio:.0f}", f"{100 * after.prefix_hit_ratio:.0f}"
        facts.append(words.text("gain.hits", old=old, new=new))
    if before.ttfb_s.p50 and after.ttfb_s.p50:
        old, new = f"{before.ttfb_s.p50:.2f}", f"{after.ttfb_s.p50:.2f}"
        facts.append(words.text("gain.ttfb", old=old, new=new))
    if before.output_tokens_per_minute and after.output_tokens_per_minute:
        more = 100 * (after.output_tokens_per_minute / before.output_tokens_per_minute - 1)
        facts.append(words.text("gain.output", more=f"{more:+.0f}"))
    if not facts:
        return ""
    said = words.text("gain.between_facts").join(facts)
    if before.loop == "open" and before.sessions == AS_RECORDED:
        return words.text("gain.level_recorded", facts=said)
    key = "gain.level_open" if before.loop == "open" else "gain.level"
    return words.text(key, level=before.sessions, facts=said)
