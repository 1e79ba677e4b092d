"""The ledger: takes a record per request from the data loop, and one thread writes them in batches.

``record`` is an append to a bounded deque and nothing else: it never waits, wakes nobody and cannot fail.
The writer looks a few times a second, takes what is there and commits it in one transaction. Whatever goes
wrong with the file (disk full, locked, damaged) stays in that thread: the batch is kept and tried again, the
deque fills up meanwhile, and what does not fit any more is dropped and counted. The data plane notices
nothing. Trouble is said once when it begins and once when it ends, not once a batch.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import structlog

from lmwarden.config import StorageConfig
from lmwarden.ledger import schema
from lmwarden.types import RequestRecord

log = structlog.get_logger("lmwarden.ledger")

FILE = "ledger.sqlite3"
_PAUSE_S = 0.25
"""Between two looks of the writer: what a reader sees is at most so old."""
_BATCH_ROWS = 2000
_BUSY_TIMEOUT_S = 2.0
_RETENTION_EVERY_S = 600.0


class Ledger:
    """One file, one writer thread. ``start``, then ``record`` from any thread, then ``stop``."""

    def __init__(self, data_dir: Path, settings: StorageConfig) -> None:
        self.path = (data_dir / FILE).absolute()
        self.dropped_rows = 0
        """Rows that were lost because the disk could not follow."""
        self.written_rows = 0
        self._accepted_rows = 0
        self._settings = settings
        self._queue: deque[RequestRecord] = deque()
        self._batch: list[tuple[Any, ...]] = []
        self._connection: sqlite3.Connection | None = None
        self._trouble: str | None = None
        self._retention_due_s = 0.0
        self._wake = threading.Event()
        self._tried = threading.Event()
        self._stopping = False
        self._idle = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the writer; returns when it tried to open the file once, so that ``recent`` finds the tables.

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

    def record(self, record: RequestRecord) -> None:
        """Take one row; O(1), never blocks, never raises."""
        if len(self._queue) >= self._settings.max_queued_rows:
            self.dropped_rows += 1
            return
        self._accepted_rows += 1
        self._queue.append(record)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything recorded so far is written; False: not within the time."""
        accepted = self._accepted_rows
        self._wake.set()
        with self._idle:
            return self._idle.wait_for(lambda: self.written_rows >= accepted, timeout_s)

    def recent(self, limit: int = 500) -> list[RequestRecord]:
        """The latest written rows, newest first. For other threads than the data loop's.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        connection = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
        try:
            return [schema.from_row(row) for row in connection.execute(schema.RECENT, (limit,))]
        finally:
            connection.close()

    def _run(self) -> None:
        self._write_all()
        self._tried.set()
        while not self._stopping:
            self._wake.wait(_PAUSE_S)
            self._wake.clear()
            self._write_all()
        self._write_all()
        lost = len(self._queue) + len(self._batch)
        if lost:
            self.dropped_rows += lost
            log.error("ledger rows lost at the end", rows=lost, reason=self._trouble)
        if self._connection is not None:
            self._connection.close()

    def _write_all(self) -> None:
        """Write until the queue is empty or the file refuses."""
        while self._queue or self._batch or self._connection is None:
            while self._queue and len(self._batch) < _BATCH_ROWS:
                self._batch.append(schema.to_row(self._queue.popleft()))
            if not self._write_batch():
                return
        self._forget()
        with self._idle:
            self._idle.notify_all()

    def _write_batch(self) -> bool:
        try:
            if self._connection is None:
                self._connection = schema.connect(str(self.path), timeout_s=_BUSY_TIMEOUT_S)
                self.path.chmod(0o600)
            if self._batch:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(schema.INSERT, self._batch)
                self._connection.execute("COMMIT")
        except (sqlite3.Error, schema.LedgerError, OSError) as error:
            self._complain(error)
            return False
        self.written_rows += len(self._batch)
        self._batch.clear()
        if self._trouble is not None:
            log.info("ledger writes again", dropped_rows=self.dropped_rows)
            self._trouble = None
        return True

    def _complain(self, error: Exception) -> None:
        if self._trouble != str(error):
            self._trouble = str(error)
            log.error("ledger cannot write; requests are served all the same", reason=self._trouble)
        if self._connection is not None:
            # A connection inside a failed transaction, or on a file that went away: begin anew next time.
            self._connection.close()
            self._connection = None

    def _forget(self) -> None:
        """Delete what is older or more than is kept."""
        if time.monotonic() < self._retention_due_s or self._connection is None:
            return
        self._retention_due_s = time.monotonic() + _RETENTION_EVERY_S
        oldest = time.time() - self._settings.retention_days * 86400
        try:
            self._connection.execute(schema.FORGET_OLD, (oldest,))
            self._connection.execute(schema.FORGET_SURPLUS, (self._settings.max_rows,))
        except sqlite3.Error as error:
            self._complain(error)
