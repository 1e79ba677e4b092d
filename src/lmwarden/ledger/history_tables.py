"""The tables of the history, their statements, and for how long each resolution is kept.

``history`` has one row per step of time and series, three times over: in ticks of 10 s, in minutes, and in ten minutes.
All columns are sums (history_sums.py), so new sums are added to all three in the transaction that brings them: there is
no roll-up that could run late, twice, or not at all, and a row that comes late still finds its place.

``history_upto`` is the number of the last request row that was counted. What has a higher number is in ``requests`` and
not yet in ``history``; who counts it in has the history to the last row.
"""

from __future__ import annotations

from typing import NamedTuple

from lmwarden.config import StorageConfig
from lmwarden.ledger.history_sums import COUNTS, NUMBERS, TICK_S

STEPS_S = (TICK_S, 60, 600)
"""The resolutions; each divides the next."""
FINEST_KEPT_S = 86_400.0
"""The finest is for looking at today; an hour of last week has 60 minutes, which is a chart."""
POINT_BYTES = 110
"""One row of ``history`` on disk, measured with 64 busy replicas (benchmarks/history.py)."""

CREATE = (
    """
CREATE TABLE IF NOT EXISTS history_series (
    id INTEGER PRIMARY KEY, model TEXT NOT NULL, replica TEXT NOT NULL,
    UNIQUE (model, replica)
) STRICT
""",
    """
CREATE TABLE IF NOT EXISTS history (
    step_s INTEGER NOT NULL, series INTEGER NOT NULL, t INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, computed_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    placed INTEGER NOT NULL, sticky INTEGER NOT NULL, spilled INTEGER NOT NULL, client_pinned INTEGER NOT NULL,
    rehomed INTEGER NOT NULL, balanced INTEGER NOT NULL, unrouted INTEGER NOT NULL,
    ok INTEGER NOT NULL, client_error INTEGER NOT NULL, failed INTEGER NOT NULL, timeout INTEGER NOT NULL,
    cancelled INTEGER NOT NULL, refused INTEGER NOT NULL,
    first_byte_sum_s REAL NOT NULL,
    samples INTEGER NOT NULL, ready_sum INTEGER NOT NULL, in_flight_sum INTEGER NOT NULL,
    conversations_sum INTEGER NOT NULL, held_tokens_sum INTEGER NOT NULL,
    engine_samples INTEGER NOT NULL, busy_sum INTEGER NOT NULL, running_sum INTEGER NOT NULL,
    waiting_sum INTEGER NOT NULL, kv_samples INTEGER NOT NULL, kv_used_sum REAL NOT NULL,
    first_byte_counts BLOB,
    unknown_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (step_s, series, t)
) STRICT, WITHOUT ROWID
""",
    "CREATE TABLE IF NOT EXISTS history_upto (one INTEGER PRIMARY KEY CHECK (one = 1), row INTEGER NOT NULL) STRICT",
    # Rows of a file that had no history are not counted: of their time nothing else is known.
    "INSERT OR IGNORE INTO history_upto SELECT 1, coalesce(max(id), 0) FROM requests",
)
"""After the other tables."""
ADDED_COLUMN = "unknown_tokens INTEGER NOT NULL DEFAULT 0"
"""Of ``history``, since version 4. What was counted before has 0 there: it is taken as told, as it was shown then."""

_COLUMNS = ("step_s", "series", "t", *NUMBERS, COUNTS)
_ADDED = ", ".join(f"{name} = {name} + excluded.{name}" for name in NUMBERS)
MERGE = "merge_counts"
"""SQL function of two encoded histograms; the writer defines it."""
ADD = (
    f"INSERT INTO history ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
    f" ON CONFLICT (step_s, series, t) DO UPDATE SET {_ADDED},"
    f" {COUNTS} = {MERGE}({COUNTS}, excluded.{COUNTS})"
)

ANY_UNCOUNTED = "SELECT EXISTS (SELECT 1 FROM requests WHERE id > (SELECT row FROM history_upto))"
ALL_COUNTED = "UPDATE history_upto SET row = (SELECT coalesce(max(id), 0) FROM requests)"

SERIES = "SELECT id, model, replica FROM history_series"
ADD_SERIES = "INSERT INTO history_series (model, replica) VALUES (?, ?)"
FORGET_POINTS = "DELETE FROM history WHERE step_s = ? AND series = ? AND t <= ?"
FORGET_SERIES = (
    "DELETE FROM history_series"
    f" WHERE NOT EXISTS (SELECT 1 FROM history WHERE step_s = {STEPS_S[-1]} AND series = history_series.id)"
)


class Kept(NamedTuple):
    """One resolution and for how long it is kept."""

    step_s: int
    kept_s: float


def kept(settings: StorageConfig, series: int) -> list[Kept]:
    """All resolutions, the finest first.

    Where ``history_max_bytes`` is too little for so many series, the finest is the first to be kept for less.

    Args:
        settings: ``[storage]``.
        series: how many there are.
    """
    wanted_s = settings.history_days * 86_400
    room_bytes = float(settings.history_max_bytes)
    found = []
    for step_s in reversed(STEPS_S):
        bytes_per_s = max(series, 1) * POINT_BYTES / step_s
        kept_s = min(wanted_s, room_bytes / bytes_per_s)
        if step_s == TICK_S:
            kept_s = min(kept_s, FINEST_KEPT_S)
        room_bytes -= kept_s * bytes_per_s
        found.append(Kept(step_s, kept_s))
    return found[::-1]
