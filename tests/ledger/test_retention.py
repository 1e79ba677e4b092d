"""What the ledger forgets, and that forgetting does not hold up writing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.ledger.samples import LIMIT_S, record, settings

from lmwarden.ledger import retention, schema
from lmwarden.ledger.history_rows import uncounted
from lmwarden.ledger.history_writer import HistoryWriter
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.retention import Retention


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(schema.connect(str(tmp_path / "ledger"), timeout_s=1.0)) as connection:
        yield connection


def fill(connection: sqlite3.Connection, rows: int, finished_at: float | None = None) -> None:
    row = schema.to_row(record(finished_at=time.time() if finished_at is None else finished_at))
    connection.execute("BEGIN")
    schema.write_all(connection, schema.INSERT, [row] * rows)
    connection.execute("COMMIT")


def ids(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT id FROM requests ORDER BY id")]


def history(connection: sqlite3.Connection) -> HistoryWriter:
    writer = HistoryWriter(settings())
    writer.opened(connection)
    return writer


def test_it_is_due_at_the_start_and_every_ten_minutes(file: sqlite3.Connection) -> None:
    clock = Clock()
    kept = Retention(settings(), clock)
    assert kept.due()
    kept.forget(file, history(file))
    assert not kept.due()
    clock.now_s += 599
    assert not kept.due()
    clock.now_s += 1
    assert kept.due()


def test_surplus_goes_as_soon_as_a_twentieth_was_written(
    file: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LEAST_ROWS", 1)
    clock = Clock()
    kept = Retention(settings(max_rows=400), clock)
    writer = history(file)
    kept.forget(file, writer)
    fill(file, 419)
    kept.wrote(19)
    assert not kept.due()
    kept.wrote(1)
    assert kept.due()
    kept.forget(file, writer)
    assert not kept.due()
    assert (ids(file)[0], len(ids(file))) == (20, 400)


def test_a_small_table_is_not_looked_at_for_every_row() -> None:
    kept = Retention(settings(max_rows=1), Clock())
    kept._due_s = float("inf")
    kept.wrote(999)
    assert not kept.due()
    kept.wrote(1)
    assert kept.due()


@pytest.mark.parametrize("old", [False, True])
def test_what_is_much_goes_in_steps(file: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    monkeypatch.setattr(retention, "MOST_AT_ONCE", 50)
    clock = Clock()
    kept = Retention(settings(max_rows=3_000_000 if old else 10, retention_days=1.0), clock)
    writer = history(file)
    fill(file, 100, time.time() - (2 * 86_400 if old else 0))
    fill(file, 10)
    left = []
    while kept.due():
        kept.forget(file, writer)
        left.append(len(ids(file)))
    assert left == [60, 10, 10]
    assert ids(file) == list(range(101, 111))


def test_rows_are_written_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_AT_ONCE", 50)
    ledger = Ledger(tmp_path, settings(max_rows=100))
    for _ in range(1000):
        ledger.record(record())
    ledger.start()
    assert ledger.flush(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    with closing(sqlite3.connect(f"{ledger.path.as_uri()}?mode=ro", uri=True)) as reader:
        while reader.execute("SELECT count(*) FROM requests").fetchone()[0] > 100:
            assert time.monotonic() < deadline
            ledger.record(record())
            assert ledger.flush(LIMIT_S)  # wakes the writer: a step each
        ledger.stop()
        assert reader.execute("SELECT count(*) FROM requests").fetchone()[0] <= 100 + 1
    assert ledger.dropped_rows == 0


def test_a_file_that_refuses_is_tried_again(file: sqlite3.Connection, tmp_path: Path) -> None:
    clock = Clock()
    kept = Retention(settings(max_rows=10), clock)
    writer = history(file)
    fill(file, 20)
    with closing(sqlite3.connect(tmp_path / "ledger", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError):
            kept.forget(file, writer)
        blocker.execute("ROLLBACK")
    clock.now_s += 600
    assert kept.due()
    kept.forget(file, writer)
    assert len(ids(file)) == 10


@pytest.mark.parametrize("everything", [False, True])
def test_rows_that_go_were_counted_before(file: sqlite3.Connection, everything: bool) -> None:
    clock = Clock()
    kept = Retention(settings(max_rows=10), clock)
    writer = history(file)
    if not everything:
        kept.forget(file, writer)
    fill(file, 100)
    writer.wrote_rows()
    kept.forget(file, writer)
    assert len(ids(file)) == 10
    assert file.execute("SELECT sum(ok) FROM history WHERE step_s = 600").fetchone() == (200,), "model and replica"
    assert uncounted(file) == {}
    assert not writer.due(time.time() + 3600)
