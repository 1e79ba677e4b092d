"""The ledger: rows come back as they went in, and a bad disk hurts nobody."""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.config import Flag, StorageConfig, load
from lmwarden.ledger.ledger import FILE, Ledger
from lmwarden.ledger.schema import CREATE, INSERT, to_row
from lmwarden.types import Decision, Outcome, RequestRecord

LIMIT_S = 20.0


def settings(**changes: Any) -> StorageConfig:
    flags = [Flag("--engine", ("models",), [{"engine": {"attach": ["http://e"]}}])]
    return msgspec.structs.replace(load(None, flags).storage, **changes)


def record(**changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "finished_at": time.time(),
        "model": "m",
        "endpoint": "/v1/messages",
        "key_name": "anna",
        "conversation": "0a1b2c3d",
        "derived": False,
        "decision": Decision.STICKY,
        "replica": "e0/1",
        "outcome": Outcome.OK,
        "status": 200,
        "streamed": True,
        "retried": False,
        "waited_s": 0.0,
        "first_byte_s": 0.25,
        "duration_s": 1.5,
        "prompt_tokens": 1000,
        "cached_tokens": 900,
        "completion_tokens": 50,
        "finish_reason": "end_turn",
    }
    return RequestRecord(**(values | changes))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path, settings())
    made.start()
    yield made
    made.stop()


def test_rows_come_back_as_they_went_in_newest_first(ledger: Ledger) -> None:
    full = record()
    bare = record(
        key_name=None, conversation=None, decision=None, replica=None, outcome=Outcome.REFUSED, first_byte_s=None,
        prompt_tokens=None, cached_tokens=None, completion_tokens=None, finish_reason=None, derived=True,
    )  # fmt: skip
    ledger.record(full)
    ledger.record(bare)
    assert ledger.flush(LIMIT_S)
    assert ledger.recent() == [bare, full]
    assert ledger.recent(limit=1) == [bare]
    assert (ledger.written_rows, ledger.dropped_rows) == (2, 0)


@given(st.integers() | st.none(), st.text(max_size=80))
def test_whatever_an_engine_reports_the_writer_lives(tokens: int | None, reason: str) -> None:
    row = to_row(record(prompt_tokens=tokens, cached_tokens=tokens, completion_tokens=tokens, finish_reason=reason))
    connection = sqlite3.connect(":memory:")
    connection.executescript(CREATE)
    connection.execute(INSERT, row)
    connection.close()


def test_counts_that_no_engine_can_mean_are_not_kept(ledger: Ledger) -> None:
    ledger.record(record(prompt_tokens=2**70, cached_tokens=-1, completion_tokens=2**53, finish_reason="x" * 41))
    ledger.record(record())
    assert ledger.flush(LIMIT_S)
    kept = ledger.recent()[1]
    assert (kept.prompt_tokens, kept.cached_tokens, kept.completion_tokens) == (None, None, 2**53)
    assert kept.finish_reason is None


def test_the_file_is_private_and_survives(tmp_path: Path) -> None:
    for _ in range(2):
        ledger = Ledger(tmp_path, settings())
        ledger.start()
        ledger.record(record())
        ledger.stop()
    assert len(Ledger(tmp_path, settings()).recent()) == 2
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_more_than_a_batch(ledger: Ledger) -> None:
    for number in range(5000):
        ledger.record(record(status=number))
    assert ledger.flush(LIMIT_S)
    assert [row.status for row in ledger.recent(3)] == [4999, 4998, 4997]
    assert ledger.written_rows == 5000


def test_a_full_queue_drops_and_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, settings(max_queued_rows=10))
    for _ in range(25):
        ledger.record(record())
    assert ledger.dropped_rows == 15
    ledger.start()
    assert ledger.flush(LIMIT_S)
    ledger.stop()
    assert (ledger.written_rows, ledger.dropped_rows) == (10, 15)


def test_old_and_surplus_rows_go(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, settings(retention_days=1.0, max_rows=3))
    ledger.record(record(finished_at=time.time() - 2 * 86400, status=1))
    for status in (2, 3, 4, 5):
        ledger.record(record(status=status))
    ledger.start()
    assert ledger.flush(LIMIT_S)
    ledger.stop()
    assert [row.status for row in ledger.recent()] == [5, 4, 3]


def test_a_locked_file_delays_and_loses_nothing(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record(record(status=1))
    assert ledger.flush(LIMIT_S)
    blocker = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")
        ledger.record(record(status=2))
        assert not ledger.flush(0.05)
        blocker.execute("ROLLBACK")
    finally:
        blocker.close()
    assert ledger.flush(LIMIT_S)
    assert [row.status for row in ledger.recent()] == [2, 1]
    assert ledger.dropped_rows == 0


@pytest.mark.parametrize("damage", ["garbage", "newer", "folder"])
def test_an_unusable_file_costs_the_rows_and_nothing_else(tmp_path: Path, damage: str) -> None:
    path = tmp_path / FILE
    if damage == "garbage":
        path.write_bytes(b"not a database" * 1000)
    elif damage == "folder":
        path.mkdir()
    else:
        newer = sqlite3.connect(path)
        newer.execute("PRAGMA user_version = 99")
        newer.commit()
        newer.close()
    before = path.read_bytes() if path.is_file() else b""
    ledger = Ledger(tmp_path, settings())
    ledger.start()
    ledger.record(record())
    assert not ledger.flush(0.05)
    ledger.stop()
    assert (ledger.written_rows, ledger.dropped_rows) == (0, 1)
    if damage == "garbage":
        assert path.read_bytes() == before
