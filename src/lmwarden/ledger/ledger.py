"""The ledger: takes what happened from the data loop, and one thread writes it in batches.

``record`` is an append to a bounded deque and nothing else: it never waits, wakes nobody and cannot fail. The writer
looks a few times a second, takes what is there and commits it in one transaction. Homes and changed settings must not
be lost when the process is killed a moment later: they wake the writer at once, and of several changes of one of them
only the latest is written (latest.py). The history of time series is made of the rows themselves and of views of the
routers (history_writer.py).

Whatever goes wrong with the file (disk full, locked, damaged) stays in that thread: the batch is kept and tried again,
the queues fill up meanwhile, and what does not fit any more is dropped and counted. The data plane notices nothing.
Trouble is logged once when it begins and once when it ends, not once a batch; ``trouble`` says it as long as it lasts.
What no disk would take (a mistake of ours in a row) is thrown away and counted: it must not hold up what follows it.
A damaged file is moved aside and a new one begun (file.py).

Killed at any moment the process leaves a readable file with complete rows: each batch is one transaction of SQLite's
write-ahead log. Only a crash of the machine itself may cost the last second, as nothing is forced to the disk.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import structlog

from lmwarden.config import StorageConfig
from lmwarden.ledger import file, schema
from lmwarden.ledger.halves import Halves
from lmwarden.ledger.history import History
from lmwarden.ledger.history_sums import Views
from lmwarden.ledger.history_writer import HistoryWriter
from lmwarden.ledger.latest import Latest
from lmwarden.ledger.reader import Reader
from lmwarden.ledger.retention import HOME_KEPT_S, Retention
from lmwarden.ledger.schema import SettingValue
from lmwarden.types import ConversationKey, Home, HomeChanges, RequestRecord, RouterView

log = structlog.get_logger("lmwarden.ledger")

FILE = "ledger.sqlite3"
MOST_WAITING_HOMES = 400_000
"""While the disk refuses: twice the conversations that a router keeps by default, about 100 MB."""
_MOST_WAITING_SETTINGS = 10_000
_PAUSE_S = 0.5
"""Between two looks of the writer: what a reader sees is at most so old."""
_BATCH_ROWS = 2000
_ROWS_AT_ONCE = schema.ROWS_AT_ONCE[-1]
"""So many are made ready, which holds the interpreter's lock, and then written, which does not."""
_BUSY_TIMEOUT_S = 2.0
_NOTICE_S = 3600.0
"""For so long ``trouble`` tells that a damaged file was moved aside."""


class Ledger:
    """One file, one writer thread. ``start``, then any method from any thread, then ``stop``."""

    def __init__(self, data_dir: Path, settings: StorageConfig) -> None:
        self.path = (data_dir / FILE).absolute()
        self.dropped_rows = 0
        """Rows that were lost because the disk could not follow."""
        self.written_rows = 0
        self._accepted_rows = 0
        self._settled_rows = 0
        """So many of the accepted ones are written, or lost."""
        self._settings = settings
        self._queue: deque[RequestRecord] = deque()
        self._batch: list[RequestRecord] = []
        self._halves = Halves(_BATCH_ROWS)
        self._homes: Latest[tuple[str, ConversationKey], tuple[Home, float] | None] = Latest(MOST_WAITING_HOMES)
        """By model and conversation: the home and what turns its clock into Unix time; None: forgotten."""
        self._changes: Latest[tuple[str, str], tuple[SettingValue, SettingValue]] = Latest(_MOST_WAITING_SETTINGS)
        """By model and key: the value and what the configuration file says."""
        self._history = HistoryWriter(settings)
        self.reader = Reader(self.path, self._found_damage)
        """Reads the file for other threads than the data loop's."""
        self.slow_reader = Reader(self.path, self._found_damage)
        """For questions that look at all rows of a time: charts and pages shall not wait the seconds that they take."""
        self.history = History(self.reader, settings)
        self._connection: sqlite3.Connection | None = None
        self._trouble: str | None = None
        self._notice: tuple[str, float] = ("", 0.0)
        """Of a file that was moved aside: the sentence, and until when it is told (monotonic seconds)."""
        self._damage: sqlite3.Error | None = None
        """That a reader met; the writer looks for itself."""
        self._retention = Retention(settings)
        self._wake = threading.Event()
        self._tried = threading.Event()
        self._stopping = False
        self._idle = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the writer; returns when it tried to open the file once, so that readers find the tables.

        Trouble with the file does not raise; it is logged and tried again.
        """
        self._thread = threading.Thread(target=self._run, name="lmwarden-ledger", daemon=True)
        self._thread.start()
        self._tried.wait()

    def stop(self) -> None:
        """Write what is there (once) and end the writer."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.reader.close()
        self.slow_reader.close()

    @property
    def trouble(self) -> str | None:
        """What is wrong with the file, in plain sentences; None: nothing."""
        trouble = self._trouble
        if trouble is not None:
            rows, homes = len(self._queue) + len(self._batch), len(self._homes)
            return (
                f"The ledger cannot write {self.path}: {trouble}. Requests are served all the same; {rows} request "
                f"rows and {homes} homes wait in memory, {self.dropped_rows} rows are lost."
            )
        notice, until_s = self._notice
        return notice if time.monotonic() < until_s else None

    def record(self, record: RequestRecord) -> None:
        """Take one row; O(1), never blocks, never raises."""
        if len(self._queue) >= self._settings.max_queued_rows:
            self.dropped_rows += 1
            return
        self._accepted_rows += 1
        self._queue.append(record)

    def observe(self, views: Mapping[str, RouterView], clock_now: float, wall_now: float) -> None:
        """Take what the routers show, about once a second, for the history; O(1), never waits.

        Args:
            views: by model.
            clock_now: now on the routers' clock.
            wall_now: now as Unix time.
        """
        self._history.observe(Views(views, clock_now, wall_now))

    def save_homes(self, model: str, changes: HomeChanges, clock_now: float, wall_now: float) -> None:
        """Write down what became of homes, at once; never waits for the disk.

        Args:
            model: Whose homes.
            changes: Since the last call.
            clock_now: Now on the clock of ``Home.last_used``.
            wall_now: Now as Unix time.
        """
        if not changes.changed and not changes.forgotten:
            return
        offset_s = wall_now - clock_now
        kept = (((model, home.conversation), (home, offset_s)) for home in changes.changed)
        forgotten = (((model, conversation), None) for conversation in changes.forgotten)
        self._homes.put(chain(kept, forgotten))
        self._wake.set()

    def load_homes(self, model: str, clock_now: float, wall_now: float | None = None) -> list[Home]:
        """The homes of a model that were used within HOME_KEPT_S, the longest unused first. Reads the file.

        Args:
            model: Whose homes.
            clock_now: Now on the clock that ``Home.last_used`` is to be on.
            wall_now: Now as Unix time.

        Returns:
            None of them if the file cannot be read; that is logged.
        """
        wall_now = time.time() if wall_now is None else wall_now
        rows = self._read(schema.HOMES, (model, wall_now - HOME_KEPT_S))
        return schema.from_home_rows(rows, wall_now - clock_now)

    def save_settings(self, model: str, key: str, value: SettingValue, configured: SettingValue) -> None:
        """Write down a setting that was changed at run time, at once; never waits for the disk.

        It is to hold until the configuration file says something else than ``configured``. A value that is what the
        file says is no change: what was written before is forgotten.
        """
        self._changes.put([((model, key), (value, configured))])
        self._wake.set()

    def settings(self, model: str) -> dict[str, tuple[SettingValue, SettingValue]]:
        """The settings of a model that were changed at run time: key to value and what the file said then.

        Reads the file; empty if that cannot be read, which is logged.
        """
        return schema.from_setting_rows(self._read(schema.SETTINGS, (model,)))

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing of what was taken so far waits any more; False: not within the time."""
        rows, homes, changes = self._accepted_rows, self._homes.accepted, self._changes.accepted
        self._wake.set()
        with self._idle:
            return self._idle.wait_for(
                lambda: (
                    self._settled_rows >= rows and self._homes.settled >= homes and self._changes.settled >= changes
                ),
                timeout_s,
            )

    def recent(self, limit: int = 500) -> list[RequestRecord]:
        """The latest written rows, newest first. For other threads than the data loop's.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        connection = self._reader()
        try:
            return [schema.from_row(row) for row in connection.execute(schema.RECENT, (limit,))]
        finally:
            connection.close()

    def _reader(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)

    def _read(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Rows of a query; none if the file cannot be read, which is no reason not to serve."""
        try:
            connection = self._reader()
            try:
                # The tables of another version may mean something else.
                known = schema.version_of(connection) == schema.SCHEMA_VERSION
                return connection.execute(query, values).fetchall() if known else []
            finally:
                connection.close()
        except sqlite3.Error as error:
            log.error("ledger cannot be read", file=str(self.path), reason=file.in_words(error, self.path))
            if file.is_damage(error):
                self._found_damage(error)
            return []

    def _found_damage(self, error: sqlite3.Error) -> None:
        self._damage = error
        self._wake.set()

    # The writer's thread

    def _run(self) -> None:
        self._write_all()
        while not self._stopping:
            self._wake.wait(_PAUSE_S)
            self._wake.clear()
            self._write_all()
        self._history.end()
        self._write_all()
        lost = len(self._queue) + len(self._batch)
        if lost or len(self._homes):
            self.dropped_rows += lost
            log.error("ledger rows lost at the end", rows=lost, homes=len(self._homes), reason=self._trouble)
        self._disconnect()

    def _write_all(self) -> None:
        """Write what waits, unless the file refuses; then there is time to forget."""
        if self._write_what_waits():
            self._tried.set()
            self._forget()
            with self._idle:
                self._idle.notify_all()
        self._tried.set()

    def _write_what_waits(self) -> bool:
        self._history.take_views()
        rows = self._accepted_rows
        # Rows that come meanwhile wait for the next look: a transaction costs as much for ten rows as for hundreds.
        while self._has_work(rows):
            while self._queue and len(self._batch) < self._halves.rows:
                self._batch.append(self._queue.popleft())
            if not self._write_batch():
                return False
        return True

    def _has_work(self, rows: int) -> bool:
        waits = self._settled_rows < rows or bool(len(self._homes) or len(self._changes))
        waits = waits or self._history.due(time.time())
        return waits or self._connection is None or self._damage is not None

    def _write_batch(self) -> bool:
        try:
            if self._connection is None:
                file.make_private(self.path)
                self._connection = schema.connect(str(self.path), timeout_s=_BUSY_TIMEOUT_S)
                self._history.opened(self._connection)
            if self._damage is not None:
                damage, self._damage = self._damage, None
                if not schema.is_sound(self._connection):
                    raise damage
            self._commit(self._connection)
        except Exception as error:
            return self._recover(error) if file.is_trouble(error) else self._throw_away(error)
        if not self._halves.rows_only:
            self._homes.written()
            self._changes.written()
        self._halves.written()
        self.written_rows += len(self._batch)
        self._retention.wrote(len(self._batch))
        self._settled_rows += len(self._batch)
        self._batch.clear()
        if self._trouble is not None:
            log.info("ledger writes again", dropped_rows=self.dropped_rows)
            self._trouble = None
        return True

    def _commit(self, connection: sqlite3.Connection) -> None:
        """Write all that waits in one transaction; only rows, if something is sought that no disk would take."""
        rows_only, now = self._halves.rows_only, time.time()
        homes = {} if rows_only else self._homes.take()
        changes = {} if rows_only else self._changes.take()
        if not (self._batch or homes or changes or self._history.due(now)):
            return
        connection.execute("BEGIN IMMEDIATE")
        for begin in range(0, len(self._batch), _ROWS_AT_ONCE):
            some = self._batch[begin : begin + _ROWS_AT_ONCE]
            schema.write_all(connection, schema.INSERT, [schema.to_row(record) for record in some])
        if self._batch:
            self._history.wrote_rows()
        history_is_due = not rows_only and self._history.due(now)
        if history_is_due:
            self._history.write(connection, now)
        schema.write_homes(connection, homes)
        schema.write_settings(connection, changes)
        connection.execute("COMMIT")
        if history_is_due:
            self._history.written()

    def _throw_away(self, error: Exception) -> bool:
        """Something of what waits no disk would take: find it and lose it. Returns whether to go on."""
        self._disconnect()
        rows = len(self._batch)
        if not self._halves.refused(rows):
            self._queue.extendleft(reversed(self._batch))
            self._batch.clear()
            return True
        if not (rows or len(self._homes) or len(self._changes)):
            self._trouble = str(error)
            return False
        # Its kind alone: the text of the error may be that of a value.
        log.error(
            "ledger cannot write what no disk would take; it is lost",
            rows=rows, homes=0 if rows else len(self._homes), settings=0 if rows else len(self._changes),
            reason=type(error).__name__,
        )  # fmt: skip
        if rows:
            self.dropped_rows += 1
            self._settled_rows += 1
            self._batch.clear()
        else:
            self._homes.written()
            self._changes.written()
        return True

    def _recover(self, error: Exception) -> bool:
        """After an error: whether to go on at once, with a new file."""
        # A connection inside a failed transaction, or on a file that went away, is of no use any more.
        self._disconnect()
        if file.is_damage(error):
            try:
                aside = file.move_aside(self.path)
            except (OSError, schema.LedgerError) as failure:
                error = failure
            else:
                log.error(
                    "ledger file was damaged and moved aside, a new one begins", file=aside.name, reason=str(error)
                )
                notice = (
                    f"The ledger's file was damaged ({error}) and moved aside to {aside}; a new one was begun. "
                    "Earlier request rows, charts, homes and changed settings are not in it."
                )
                self._notice = (notice, time.monotonic() + _NOTICE_S)
                return True
        trouble = file.in_words(error, self.path)
        if self._trouble != trouble:
            self._trouble = trouble
            log.error("ledger cannot write; requests are served all the same", file=str(self.path), reason=trouble)
        return False

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
        self._history.closed()

    def _forget(self) -> None:
        """Delete what is older or more than is kept, if it is time to look."""
        if self._connection is None or not self._retention.due():
            return
        try:
            self._retention.forget(self._connection, self._history)
        except sqlite3.Error as error:
            self._recover(error)
