"""The figures of a table: how each is read from a row, and how many digits it deserves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmwarden.bench.intervals import half_width
from lmwarden.bench.results import LevelResult, mean

NOT_MEASURED = "–"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure. ``key`` names it in the texts (``column.…``)."""

    key: str
    read: Callable[[LevelResult], float | None]
    digits: int

    def over(self, rows: Sequence[LevelResult]) -> tuple[float | None, float | None]:
        """Return mean and half the 95 % confidence interval over the runs of one cell; None where unknown."""
        values = [self.read(row) for row in rows]
        return mean(values), half_width(values)

    def written(self, value: float | None) -> str:
        """Return a value as text; a dash where it was not measured."""
        return NOT_MEASURED if value is None else f"{value:.{self.digits}f}"


def percent(ratio: float | None) -> float | None:
    """Return a ratio in percent."""
    return None if ratio is None else 100 * ratio


SESSIONS_PER_HOUR = Measure("sessions_per_hour", lambda row: row.sessions_per_hour, 0)
OUTPUT = Measure("output_tokens_per_minute", lambda row: row.output_tokens_per_minute, 0)
TTFB_P50 = Measure("ttfb_p50", lambda row: row.ttfb_s.p50, 2)
TTFB_P95 = Measure("ttfb_p95", lambda row: row.ttfb_s.p95, 2)
BUSY = Measure("replicas_busy", lambda row: row.replicas_busy, 2)
HITS = Measure("prefix_hits", lambda row: percent(row.prefix_hit_ratio), 1)
HITS_ENGINE = Measure("prefix_hits_engine", lambda row: percent(row.prefix_hit_ratio_engine), 1)
STAYED = Measure("stayed", lambda row: percent(row.stayed_ratio), 1)
FIRST_P50 = Measure("first_turn_p50", lambda row: row.ttfb_s.first_turn_p50, 2)
FIRST_P95 = Measure("first_turn_p95", lambda row: row.ttfb_s.first_turn_p95, 2)
LATER_P50 = Measure("later_turn_p50", lambda row: row.ttfb_s.later_turn_p50, 2)
LATER_P95 = Measure("later_turn_p95", lambda row: row.ttfb_s.later_turn_p95, 2)
SESSION_P50 = Measure("session_p50", lambda row: row.session_s.p50, 1)
SESSION_P95 = Measure("session_p95", lambda row: row.session_s.p95, 1)
ROOM_P95 = Measure("room_p95", lambda row: row.room_wait_s.p95, 2)

TABLE = (SESSIONS_PER_HOUR, OUTPUT, TTFB_P50, TTFB_P95, BUSY, HITS, STAYED)
"""The columns of the table, as its source had them."""
MORE = (FIRST_P50, FIRST_P95, LATER_P50, LATER_P95, SESSION_P50, SESSION_P95, HITS_ENGINE)
"""What a report shows beside them."""
