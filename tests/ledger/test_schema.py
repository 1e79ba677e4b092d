"""The tables: a file of the first version is brought up, rows come back as they went in."""

from __future__ import annotations

import math
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.samples import LIMIT_S, changed, home, record, settings

from lmwarden.ledger import history_tables, schema
from lmwarden.ledger.history import Question
from lmwarden.ledger.ledger import FILE, Ledger
from lmwarden.types import Decision, PrefixChange, RequestRecord

VERSION_1 = """
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY,
    finished_at REAL NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL, key_name TEXT,
    conversation TEXT, derived INTEGER NOT NULL, decision TEXT, replica TEXT, outcome TEXT NOT NULL,
    status INTEGER NOT NULL, streamed INTEGER NOT NULL, retried INTEGER NOT NULL, waited_s REAL NOT NULL,
    first_byte_s REAL, duration_s REAL NOT NULL, prompt_tokens INTEGER, cached_tokens INTEGER,
    completion_tokens INTEGER, finish_reason TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS requests_by_time ON requests (finished_at);
"""
"""As version 1 wrote it."""

VERSION_2 = (
    VERSION_1
    + """
CREATE TABLE IF NOT EXISTS homes (
    model TEXT NOT NULL, conversation BLOB NOT NULL, replica TEXT NOT NULL, boot_id TEXT NOT NULL,
    context_tokens INTEGER NOT NULL, last_used REAL NOT NULL,
    PRIMARY KEY (model, conversation)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (
    model TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, configured TEXT NOT NULL,
    PRIMARY KEY (model, key)
) STRICT, WITHOUT ROWID;
"""
)

UNTOLD = "unknown_tokens INTEGER NOT NULL DEFAULT 0,"
"""What version 4 added to the history."""

OLD_FIELDS = schema.FIELDS[: schema.FIELDS.index("conversation_key")]
"""The columns of both."""


def old_file(path: Path, kept: RequestRecord, version: int = 1) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(VERSION_1 if version == 1 else VERSION_2)
    connection.execute(f"PRAGMA user_version = {version}")
    places = ", ".join("?" * len(OLD_FIELDS))
    row = schema.to_row(kept)[: len(OLD_FIELDS)]
    connection.execute(f"INSERT INTO requests ({', '.join(OLD_FIELDS)}) VALUES ({places})", row)
    connection.commit()
    connection.close()


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return schema.version_of(connection)
    finally:
        connection.close()


@pytest.mark.parametrize("old", [1, 2])
def test_a_file_of_an_earlier_version_is_brought_up_and_keeps_its_rows(old: int, tmp_path: Path) -> None:
    kept = record(status=418)
    old_file(tmp_path / FILE, kept, old)
    ledger = Ledger(tmp_path, settings())
    ledger.start()
    assert ledger.trouble is None
    assert ledger.load_homes("m", 0.0) == []
    ledger.save_homes("m", changed(home(1)), 100.0, time.time())
    new = record(conversation_key=b"k" * 16, prefix_change=PrefixChange.EVICTED)
    ledger.record(new)
    assert ledger.flush(LIMIT_S)
    assert ledger.recent() == [new, kept]
    assert len(ledger.load_homes("m", 100.0)) == 1
    ledger.stop()
    assert version(tmp_path / FILE) == schema.SCHEMA_VERSION == 4


def test_a_file_of_version_3_keeps_its_rows_and_its_history(tmp_path: Path) -> None:
    now = time.time()
    connection = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    for statement in schema.CREATE:
        connection.execute(statement.replace(UNTOLD, ""))
    kept = record(finished_at=now - 600)
    places = ", ".join("?" * len(schema.FIELDS))
    connection.execute(f"INSERT INTO requests ({', '.join(schema.FIELDS)}) VALUES ({places})", schema.to_row(kept))
    connection.execute("INSERT INTO history_series VALUES (1, 'm', '')")
    columns = [row[1] for row in connection.execute("PRAGMA table_info(history)")]
    assert "unknown_tokens" not in columns
    sums = {"step_s": 0, "series": 1, "cached_tokens": 300, "computed_tokens": 100, "ok": 4, "first_byte_counts": None}
    for step_s in history_tables.STEPS_S:
        at = int(now - 1200) // 600 * 600
        values = [{**sums, "step_s": step_s, "t": at}.get(name, 0) for name in columns]
        connection.execute(f"INSERT INTO history VALUES ({', '.join('?' * len(columns))})", values)
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    ledger = Ledger(tmp_path, settings())
    ledger.start()
    assert ledger.trouble is None
    ledger.record(record(finished_at=now - 60, cached_tokens=None))
    assert ledger.flush(LIMIT_S)
    totals = ledger.history.stretch(Question(begin_s=now - 7200, end_s=now, model="m"), now).totals
    ledger.stop()
    assert (totals.ok, totals.cached_tokens, totals.computed_tokens) == (6, 1200, 1200)
    assert totals.unknown_tokens == 1000
    assert totals.cached_ratio == 1200 / 1400, "what was counted before is taken as told"
    assert version(tmp_path / FILE) == 4


def test_the_change_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / FILE
    old_file(path, record())
    monkeypatch.setattr(schema, "CREATE", (*schema.CREATE, "CREATE nonsense"))
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        schema.connect(str(path), timeout_s=1.0)
    assert version(path) == 1
    connection = sqlite3.connect(path)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    assert tables == {"requests"}


@pytest.mark.parametrize("other", [5, 99, -1])
def test_another_version_is_not_touched(tmp_path: Path, other: int) -> None:
    path = tmp_path / FILE
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {other}")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(schema.LedgerError, match=f"schema {other}, and this version of LM Warden writes 4"):
        schema.connect(str(path), timeout_s=1.0)
    assert path.read_bytes() == before


def test_opened_again_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / FILE
    schema.connect(str(path), timeout_s=1.0).close()
    before = path.read_bytes()
    schema.connect(str(path), timeout_s=1.0).close()
    assert path.read_bytes() == before


def test_a_file_that_was_brought_up_has_the_columns_of_a_new_one(tmp_path: Path) -> None:
    old_file(tmp_path / "old", record())
    columns = []
    for name in ("old", "new"):
        connection = schema.connect(str(tmp_path / name), timeout_s=1.0)
        columns.append([row[1:] for row in connection.execute("PRAGMA table_info(requests)")])
        connection.close()
    assert columns[0] == columns[1]
    assert [name for name, *_ in columns[0]] == ["id", *schema.FIELDS]


@given(st.integers() | st.none(), st.text(max_size=80))
def test_whatever_an_engine_reports_the_writer_lives(tokens: int | None, reason: str) -> None:
    row = schema.to_row(
        record(
            prompt_tokens=tokens,
            cached_tokens=tokens,
            completion_tokens=tokens,
            recomputed_tokens=tokens,
            finish_reason=reason,
        )
    )
    connection = sqlite3.connect(":memory:")
    for statement in schema.CREATE:
        connection.execute(statement)
    schema.write_all(connection, schema.INSERT, [row])
    schema.write_all(connection, schema.SAVE_HOME, [schema.to_home_row("m", home(1, context_tokens=tokens or 0), 0.0)])
    connection.close()


@pytest.mark.parametrize("rows", [0, 1, 2, 16, 17, 256, 300])
def test_many_rows_are_few_statements(rows: int) -> None:
    """Each statement waits for the interpreter's lock, which the data loop holds."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in schema.CREATE:
            connection.execute(statement)
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        schema.write_all(connection, schema.INSERT, [schema.to_row(record(status=n)) for n in range(rows)])
        connection.set_trace_callback(None)
        assert [row[0] for row in connection.execute("SELECT status FROM requests ORDER BY id")] == list(range(rows))
        assert len(statements) == math.ceil(rows / schema.ROWS_AT_ONCE[-1])


def test_homes_are_forgotten_by_model() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in schema.CREATE:
            connection.execute(statement)
        homes = [schema.to_home_row(model, home(number), 0.0) for model in ("m", "other") for number in range(40)]
        schema.write_all(connection, schema.SAVE_HOME, homes)
        keys = [(home(number).conversation,) for number in range(3, 60)]
        schema.write_all(connection, schema.FORGET_HOMES, keys, of=("m",))
        left = connection.execute("SELECT model, count(*) FROM homes GROUP BY model ORDER BY model").fetchall()
        assert left == [("m", 3), ("other", 40)]


def test_a_row_has_plain_values_only() -> None:
    """What only derives from a plain type costs more than all the rest of the row."""
    full = record(decision=Decision.SPILLED, prefix_change=PrefixChange.MOVED, retried=True, parent=b"p" * 16)
    row = schema.to_row(full)
    assert {type(value) for value in row} <= {int, float, str, bytes, type(None)}
    found = schema.from_row(row)
    assert found == full
    types = [[type(value) for value in msgspec.structs.astuple(one)] for one in (found, full)]
    assert types[0] == types[1], "a word, and not its text"
