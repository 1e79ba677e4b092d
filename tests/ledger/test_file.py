"""Trouble with the file: its words, and where a damaged one goes."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from lmwarden.ledger import file
from lmwarden.ledger.schema import LedgerError


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return error


def test_the_journal_goes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    (tmp_path / "f.damaged-1").touch()
    for ending in ("", "-wal"):
        Path(f"{path}{ending}").write_text(ending)
    assert file.move_aside(path) == tmp_path / "f.damaged-2"
    assert sorted(part.name for part in tmp_path.iterdir()) == ["f.damaged-1", "f.damaged-2", "f.damaged-2-wal"]
    assert (tmp_path / "f.damaged-2-wal").read_text() == "-wal"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (sqlite_error(sqlite3.SQLITE_FULL), "the disk is full"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full"),
        (sqlite_error(sqlite3.SQLITE_BUSY), "another process holds it locked"),
        (sqlite_error(sqlite3.SQLITE_READONLY_DBMOVED), "it is read-only"),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), "it cannot be opened"),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), "as SQLite says it"),
        (LedgerError("it is another version's"), "it is another version's"),
    ],
)
def test_in_words(error: Exception, words: str, tmp_path: Path) -> None:
    assert file.in_words(error, tmp_path / "f") == words


def test_where_hardly_anything_is_free_an_unclear_error_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite_error(sqlite3.SQLITE_IOERR_SHMSIZE)
    assert file.in_words(error, tmp_path / "no folder" / "f") == "as SQLite says it"
    free = os.statvfs(tmp_path)
    full = os.statvfs_result((free.f_bsize, free.f_frsize, free.f_blocks, 0, 0, *free[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert file.in_words(error, tmp_path / "f") == "the disk is full"
    assert file.in_words(sqlite_error(sqlite3.SQLITE_BUSY), tmp_path / "f") == "another process holds it locked"


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        (sqlite3.SQLITE_CORRUPT, True),
        (sqlite3.SQLITE_CORRUPT_INDEX, True),
        (sqlite3.SQLITE_NOTADB, True),
        (sqlite3.SQLITE_IOERR, False),
    ],
)
def test_damage(code: int, damage: bool) -> None:
    assert file.is_damage(sqlite_error(code)) is damage
    assert not file.is_damage(OSError())


def test_a_file_is_made_private_and_one_that_is_there_becomes_so(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for _ in range(2):
        file.make_private(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.write_text("kept")
        path.chmod(0o644)
    file.make_private(path)
    assert (stat.S_IMODE(path.stat().st_mode), path.read_text()) == (0o600, "kept")
