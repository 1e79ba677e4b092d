"""The ledger's file in trouble: what it is called in plain words, and what is done with one that is damaged.

A damaged file is moved aside with its journal and never deleted: whoever needs its rows may still get most of them
out with SQLite's own ``.recover``. A new file takes its place.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from lmwarden.ledger.schema import LedgerError

MOST_DAMAGED = 8
"""So many damaged files are kept; a disk that damages more than that is not written to any more."""

_NEARLY_FULL_BYTES = 128 * 1024
"""With less than this free SQLite may not even be able to open its journal, and then it does not say why."""

_WORDS = {
    sqlite3.SQLITE_BUSY: "another process holds it locked",
    sqlite3.SQLITE_LOCKED: "another process holds it locked",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
}

_SIDE_FILES = ("-wal", "-shm", "")
"""Moved in this order: without its journal a new file cannot pick up what belonged to the damaged one."""


_OUR_FAULT = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


def is_trouble(error: BaseException) -> bool:
    """Whether it is the file that refuses, and not what is to be written into it."""
    refuses = isinstance(error, (sqlite3.Error, LedgerError, OSError, MemoryError))
    return refuses and not isinstance(error, _OUR_FAULT)


def is_damage(error: BaseException) -> bool:
    """Whether SQLite found that the file is no sound database."""
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def move_aside(path: Path) -> Path:
    """Rename a damaged file, and its journal with it. Returns its new path.

    Raises:
        LedgerError: there are too many already.
        OSError: it cannot be renamed.
    """
    for number in range(1, MOST_DAMAGED + 1):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            break
    else:
        raise LedgerError(f"it is damaged, and {MOST_DAMAGED} damaged ones lie beside it: check the disk")
    for ending in _SIDE_FILES:
        part = Path(f"{path}{ending}")
        if part.exists():
            part.rename(f"{aside}{ending}")
    return aside


def in_words(error: Exception, path: Path) -> str:
    """Why a file cannot be written or read, without its name and a full stop."""
    if isinstance(error, LedgerError):
        return str(error)
    code, number = _code(error), getattr(error, "errno", None)
    if code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(path):
        return "the disk is full"
    return _WORDS.get(code, str(error))


def _code(error: BaseException) -> int:
    """SQLite's primary result code, 0 if it is not SQLite's."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_full(path: Path) -> bool:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _NEARLY_FULL_BYTES


def make_private(path: Path) -> None:
    """See to it that nobody else may read the file, which is made if it is not there.

    Before it is opened as a database: SQLite gives its journal the mode that it finds. A file that is there is never
    opened for this, because closing it again would give up the locks of other connections.

    Raises:
        OSError: it cannot be made.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        path.chmod(0o600)
