"""The reader: one connection that follows the file, and says what is wrong with it."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from tests.ledger.samples import LIMIT_S, record

from lmwarden.ledger import schema
from lmwarden.ledger.ledger import FILE, Ledger
from lmwarden.ledger.reader import Reader


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM requests").fetchone()[0])


def write(ledger: Ledger, rows: int) -> None:
    for _ in range(rows):
        ledger.record(record())
    assert ledger.flush(LIMIT_S)


def test_each_question_sees_what_is_written_by_then(ledger: Ledger) -> None:
    write(ledger, 1)
    assert ledger.reader.ask(count) == 1
    write(ledger, 2)
    assert ledger.reader.ask(count) == 3


def test_a_question_sees_one_state(ledger: Ledger) -> None:
    def twice(connection: sqlite3.Connection) -> tuple[int, int]:
        before = count(connection)
        write(ledger, 5)
        return before, count(connection)

    assert ledger.reader.ask(twice) == (0, 0)
    assert ledger.reader.ask(count) == 5


def test_any_thread_may_ask(ledger: Ledger) -> None:
    write(ledger, 2)
    assert ledger.reader.ask(count) == 2
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(ledger.reader.ask(count))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2, 2, 2, 2]


def test_a_new_file_in_the_old_ones_place_is_read(ledger: Ledger, tmp_path: Path) -> None:
    write(ledger, 2)
    assert ledger.reader.ask(count) == 2
    ledger.stop()
    (tmp_path / FILE).rename(tmp_path / "aside")
    reader = ledger.reader
    with pytest.raises(schema.LedgerError, match="No such file"):
        reader.ask(count)
    schema.connect(str(tmp_path / FILE), timeout_s=1.0).close()
    assert reader.ask(count) == 0
    reader.close()


def test_a_file_that_was_exchanged_between_two_questions_is_noticed(ledger: Ledger, tmp_path: Path) -> None:
    write(ledger, 2)
    assert ledger.reader.ask(count) == 2
    ledger.stop()
    reader = Reader(tmp_path / FILE)
    assert reader.ask(count) == 2
    (tmp_path / FILE).rename(tmp_path / "aside")
    schema.connect(str(tmp_path / FILE), timeout_s=1.0).close()
    assert reader.ask(count) == 0
    reader.close()


def test_a_mistake_in_a_question_ends_nothing(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError):
        ledger.reader.ask(lambda connection: 1 // 0)
    with pytest.raises(schema.LedgerError, match="no such table"):
        ledger.reader.ask(lambda connection: connection.execute("SELECT * FROM absent"))
    assert ledger.reader.ask(count) == 0


def test_it_cannot_write(ledger: Ledger) -> None:
    with pytest.raises(schema.LedgerError, match="read-only"):
        ledger.reader.ask(lambda connection: connection.execute("DELETE FROM requests"))


def test_damage_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    told: list[sqlite3.Error] = []
    with pytest.raises(schema.LedgerError, match="not a database"):
        Reader(tmp_path / FILE, told.append).ask(count)
    assert len(told) == 1


def test_a_file_of_another_version_is_not_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    reader = Reader(tmp_path / FILE)
    for _ in range(2):
        with pytest.raises(schema.LedgerError, match="it has schema 99, and this version reads"):
            reader.ask(count)
