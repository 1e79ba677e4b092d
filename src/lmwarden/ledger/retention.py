"""What the ledger forgets, and when: rows that are too old, or more than are kept, and homes that nobody used.

Every ten minutes everything is looked at. Rows beyond ``max_rows`` go sooner, as soon as a twentieth of that was
written: a busy host writes millions of rows in ten minutes, and the file would keep the size of its worst ten minutes.

At most ``MOST_AT_ONCE`` rows go in one transaction, and the next one comes after the rows that wait have been written:
a deletion of a million rows takes the writer half a minute, in which the queue before it would overflow.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from lmwarden.config import StorageConfig
from lmwarden.ledger import schema
from lmwarden.ledger.history_writer import HistoryWriter

HOME_KEPT_S = 24 * 3600.0
"""A home that was not used for so long is forgotten, as the router does."""
MOST_AT_ONCE = 20_000
"""About a quarter of a second of the writer's time."""
_EVERY_S = 600.0
_SHARE = 20
_LEAST_ROWS = 1000
"""So many are written before it is worth a look, however few are kept."""


class Retention:
    """The writer's thread alone uses it."""

    def __init__(self, settings: StorageConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._due_s = clock()
        self._every_rows = max(_LEAST_ROWS, settings.max_rows // _SHARE)
        self._rows = 0
        """Written since the surplus was looked at."""

    def wrote(self, rows: int) -> None:
        """So many more rows are in the file."""
        self._rows += rows

    def due(self) -> bool:
        """Whether there may be something to forget."""
        return self._rows >= self._every_rows or self._clock() >= self._due_s

    def forget(self, connection: sqlite3.Connection, history: HistoryWriter) -> None:
        """Delete, in one transaction. What was too much for one makes it due again at once.

        Raises:
            sqlite3.Error: the file cannot be written; it is tried again when it is due.
        """
        everything, now = self._clock() >= self._due_s, time.time()
        self._rows = 0
        if everything:
            self._due_s = self._clock() + _EVERY_S
        connection.execute("BEGIN IMMEDIATE")
        history.write(connection, now)  # counts rows that are about to go
        gone = connection.execute(schema.FORGET_SURPLUS, (self._settings.max_rows, MOST_AT_ONCE)).rowcount
        if everything:
            oldest = now - self._settings.retention_days * 86400
            gone = max(gone, connection.execute(schema.FORGET_OLD, (oldest, MOST_AT_ONCE)).rowcount)
            connection.execute(schema.FORGET_OLD_HOMES, (now - HOME_KEPT_S,))
            history.forget(connection, now)
        connection.execute("COMMIT")
        history.written()
        if gone >= MOST_AT_ONCE:
            self._rows = self._every_rows
            if everything:
                self._due_s = self._clock()
