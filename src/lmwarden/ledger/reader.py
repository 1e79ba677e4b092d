"""Reads the ledger's file for the console: one connection, one question at a time, each on one consistent state.

A connection stays open between questions, because opening one reads the whole schema again. It is given up when a
question fails, and when another file stands at the path (a damaged one is moved aside and a new one begun).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lmwarden.ledger import file, schema

T = TypeVar("T")

_BUSY_TIMEOUT_S = 2.0


class Reader:
    """Any thread but the data loop's: it waits for the disk."""

    def __init__(self, path: Path, on_damage: Callable[[sqlite3.Error], None] = lambda error: None) -> None:
        """Args:
        path: the file; need not exist yet.
        on_damage: told when a question found that the file is no sound database.
        """
        self._path = path
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Carry out a question inside a read transaction.

        Raises:
            LedgerError: the file cannot be read, or is of another version; ``str()`` says why.
        """
        with self._lock:
            try:
                connection = self._opened()
                connection.execute("BEGIN")
                try:
                    return question(connection)
                finally:
                    connection.execute("ROLLBACK")
            except (sqlite3.Error, OSError) as error:
                self._close()
                if isinstance(error, sqlite3.Error) and file.is_damage(error):
                    self._on_damage(error)
                raise schema.LedgerError(file.in_words(error, self._path)) from None

    def close(self) -> None:
        """Give up the connection; a later question opens another."""
        with self._lock:
            self._close()

    def _opened(self) -> sqlite3.Connection:
        inode = self._path.stat().st_ino
        if self._connection is None or inode != self._inode:
            self._close()
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=ro",
                uri=True,
                timeout=_BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,  # the lock keeps the threads apart
            )
            self._connection, self._inode = connection, inode
            found = schema.version_of(connection)
            if found != schema.SCHEMA_VERSION:
                self._close()
                raise schema.LedgerError(f"it has schema {found}, and this version reads {schema.SCHEMA_VERSION}")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
