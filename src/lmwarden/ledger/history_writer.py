"""The writer's half of the history: counts rows and views, and writes their sums once a tick.

The data loop hands over views of the routers (``observe``: an append). Everything else runs in the ledger's writer
thread, between the calls that the ledger makes:

    opened      a file was opened; there may be rows in it that are not counted yet (a warden was killed)
    wrote_rows  rows were written, inside the ledger's transaction
    write       when ``due``: adds all sums to the file, inside the ledger's transaction
    written     that transaction is committed
    closed      the file was given up, with or without a failed transaction

Rows are counted in the file, behind ``history_upto``, in the transaction that moves it, so that no failure can count a
row twice or not at all. Gauges are nowhere else; they wait, up to a bound, until a file takes them. What is lost is a
gap.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from lmwarden.config import StorageConfig
from lmwarden.ledger import histogram
from lmwarden.ledger import history_tables as tables
from lmwarden.ledger.history_rows import uncounted
from lmwarden.ledger.history_sums import Spot, Sums, Tallies, Views, add_views, numbers, tick_of

MOST_WAITING_VIEWS = 300
"""Between two looks of the writer. More only where it waits for a disk; then the oldest go."""
MOST_WAITING_SPOTS = 20_000
"""Sums of gauges while the disk refuses: an hour of 64 replicas, some ten megabytes."""

GRACE_S = 3600.0
"""Kept longer than wanted, so that a chart of all that is kept has its first step whole."""


class HistoryWriter:
    """Adds to the history. ``observe`` from the data loop, all else in the writer's thread."""

    def __init__(self, settings: StorageConfig) -> None:
        self._settings = settings
        self._views: deque[Views] = deque(maxlen=MOST_WAITING_VIEWS)
        self._gauges: Tallies = {}
        self._rows_wait = False
        """There are rows in the file behind ``history_upto``."""
        self._series: dict[tuple[str, str], int] = {}
        self._tick = 0
        """In which was written last."""
        self._ending = False

    def observe(self, views: Views) -> None:
        """Take views of all routers, about one a second; O(1), never waits."""
        self._views.append(views)

    def end(self) -> None:
        """What there is becomes due, although its tick is not over."""
        self._ending = True

    def take_views(self) -> None:
        """Count the views that wait."""
        while self._views:
            views = self._views.popleft()
            if len(self._gauges) < MOST_WAITING_SPOTS:
                add_views(self._gauges, views)

    def due(self, wall_now: float) -> bool:
        """Whether there is something to write and a tick ended since the last time."""
        waits = self._rows_wait or bool(self._gauges)
        return waits and (self._ending or tick_of(wall_now) != self._tick)

    def opened(self, connection: sqlite3.Connection) -> None:
        """Begin with a file.

        Raises:
            sqlite3.Error: it cannot be read.
        """
        connection.create_function(tables.MERGE, 2, histogram.merged, deterministic=True)
        self._rows_wait = bool(connection.execute(tables.ANY_UNCOUNTED).fetchone()[0])
        self._read_series(connection)

    def wrote_rows(self) -> None:
        """There are rows to be counted."""
        self._rows_wait = True

    def write(self, connection: sqlite3.Connection, wall_now: float) -> None:
        """Add everything to the file; all rows in it are counted then.

        Raises:
            sqlite3.Error: it cannot be written.
        """
        if self._gauges or self._rows_wait:
            self._tick = tick_of(wall_now)
        connection.executemany(tables.ADD, self._points(connection))
        connection.execute(tables.ALL_COUNTED)

    def written(self) -> None:
        """What was written is committed."""
        self._gauges.clear()
        self._rows_wait = False

    def closed(self) -> None:
        """The file was given up; whatever was not committed is not in it."""
        self._rows_wait = False
        self._series.clear()
        self._tick = 0

    def forget(self, connection: sqlite3.Connection, wall_now: float) -> None:
        """Delete what is older than it is kept. After rows were deleted, and ``write`` before that, in one transaction.

        Raises:
            sqlite3.Error: the file cannot be written.
        """
        connection.execute(tables.ALL_COUNTED)  # the numbers of rows begin anew when all rows are gone
        for step_s, kept_s in tables.kept(self._settings, len(self._series)):
            end = int(wall_now - kept_s - GRACE_S) - step_s  # a step goes when it is too old as a whole
            connection.executemany(tables.FORGET_POINTS, [(step_s, series, end) for series in self._series.values()])
        connection.execute(tables.FORGET_SERIES)
        self._read_series(connection)

    def _read_series(self, connection: sqlite3.Connection) -> None:
        self._series = {(model, replica): number for number, model, replica in connection.execute(tables.SERIES)}

    def _points(self, connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
        waiting: Iterable[tuple[Spot, Sums]] = chain(self._gauges.items(), uncounted(connection).items())
        for spot, sums in waiting:
            series = self._series_of(connection, spot.model, spot.replica)
            values, counts = tuple(numbers(sums)), histogram.encoded(sums.first_byte_counts)
            for step_s in tables.STEPS_S:
                yield (step_s, series, spot.t - spot.t % step_s, *values, counts)

    def _series_of(self, connection: sqlite3.Connection, model: str, replica: str) -> int:
        number = self._series.get((model, replica))
        if number is None:
            number = connection.execute(tables.ADD_SERIES, (model, replica)).lastrowid
            assert number is not None
            self._series[model, replica] = number
        return number
