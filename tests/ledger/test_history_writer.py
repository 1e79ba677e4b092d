"""The writer's half of the history: whatever happens, the file holds each row once, in every resolution."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.counting import by_hand
from tests.ledger.samples import record, settings
from tests.ledger.views import view

from lmwarden.ledger import histogram, schema
from lmwarden.ledger.history_sums import COUNTS, NUMBERS, WHOLE, Sums, Views, add_up
from lmwarden.ledger.history_tables import FINEST_KEPT_S, STEPS_S
from lmwarden.ledger.history_writer import GRACE_S, MOST_WAITING_VIEWS, HistoryWriter
from lmwarden.types import Decision, Outcome, RequestRecord

START = 1_700_000_000.0


class File:
    """A file and the writer's transactions on it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.path = folder / "ledger"
        self.settings = settings(**changes)
        self.open()

    def open(self) -> None:
        """As a warden that starts."""
        self.connection = schema.connect(str(self.path), timeout_s=1.0)
        self.writer = HistoryWriter(self.settings)
        self.writer.opened(self.connection)

    def rows(self, *records: RequestRecord, count_in: float | None = None, commit: bool = True) -> None:
        """One transaction; ``count_in``: the history is written too, at that moment."""
        rows = [schema.to_row(one) for one in records]
        self.connection.execute("BEGIN IMMEDIATE")
        schema.write_all(self.connection, schema.INSERT, rows)
        self.writer.wrote_rows()
        if count_in is not None:
            self.writer.write(self.connection, count_in)
        if commit:
            self.connection.execute("COMMIT")
            if count_in is not None:
                self.writer.written()

    def close(self) -> None:
        """As a warden that is killed: what was not committed is lost."""
        self.connection.close()
        self.writer.closed()

    def sums(self, step_s: int, model: str = "m", replica: str = WHOLE) -> dict[int, Sums]:
        """By begin of the step."""
        found = self.connection.execute(
            f"SELECT t, {', '.join(NUMBERS)}, {COUNTS} FROM history JOIN history_series ON id = series"
            " WHERE step_s = ? AND model = ? AND replica = ?",
            (step_s, model, replica),
        )
        return {
            t: Sums(**dict(zip(NUMBERS, numbers, strict=True)), first_byte_counts=histogram.decoded(counts))
            for t, *numbers, counts in found
        }

    def times(self, step_s: int) -> list[int]:
        return sorted(self.sums(step_s))


def expected(records: list[RequestRecord], step_s: int, replica: str) -> dict[int, Sums]:
    """What the file must hold, counted in one go."""
    found: dict[int, list[Sums]] = {}
    for spot, sums in by_hand(records).items():
        if spot.replica == replica:
            found.setdefault(spot.t // step_s * step_s, []).append(sums)
    return {t: add_up(parts) for t, parts in found.items()}


def some_records(count: int, spread_s: float) -> list[RequestRecord]:
    chance = random.Random(5)
    return [
        record(
            finished_at=START + chance.uniform(0, spread_s),
            decision=chance.choice([*Decision, None]),
            outcome=chance.choice(list(Outcome)),
            replica=chance.choice(["e0/0", "e0/1", "e0", None]),
            first_byte_s=chance.choice([None, chance.lognormvariate(0, 1) // 0.125 * 0.125]),  # exact in binary
            prompt_tokens=chance.choice([None, chance.randrange(100_000)]),
            cached_tokens=chance.choice([None, chance.randrange(100_000)]),
            completion_tokens=chance.choice([None, chance.randrange(1000)]),
        )
        for _ in range(count)
    ]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = File(tmp_path)
    yield made
    made.close()


def assert_exact(file: File, records: list[RequestRecord]) -> None:
    for step_s in STEPS_S:
        for replica in (WHOLE, "e0/0", "e0/1", "e0"):
            assert file.sums(step_s, replica=replica) == expected(records, step_s, replica)


def test_over_hours_in_any_order_every_resolution_is_exact(file: File) -> None:
    records = some_records(400, 2 * 3600.0)  # in no order: rows may wait for a disk
    chance = random.Random(6)
    rest = list(records)
    while rest:
        batch, rest = rest[: (size := chance.randrange(1, 40))], rest[size:]
        file.rows(*batch, count_in=chance.choice([None, START]))
    file.rows(count_in=START)
    assert_exact(file, records)


def test_a_warden_that_is_killed_at_any_moment_counts_each_row_once(file: File) -> None:
    records = some_records(300, 1800.0)
    chance = random.Random(7)
    written: list[RequestRecord] = []
    rest = list(records)
    while rest:
        batch, rest = rest[: (size := chance.randrange(1, 20))], rest[size:]
        committed = chance.random() < 0.7
        file.rows(*batch, count_in=chance.choice([None, START]), commit=committed)
        if committed:
            written += batch
        if not committed or chance.random() < 0.3:
            file.close()
            file.open()
    file.rows(count_in=START)
    assert len(written) > 100
    assert_exact(file, written)


def test_rows_of_a_file_that_had_no_history_are_not_counted(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.rows(record())
    for table in ("history", "history_series", "history_upto"):
        file.connection.execute(f"DROP TABLE {table}")
    for statement in schema.CREATE:
        file.connection.execute(statement)
    file.close()
    file.open()
    file.rows(record(finished_at=START), count_in=START)
    assert file.times(10) == [START]
    file.close()


class TestGauges:
    def observe(self, file: File, *seconds: float) -> None:
        for second in seconds:
            file.writer.observe(Views({"m": view()}, 100.0, START + second))
        file.writer.take_views()

    def test_a_look_a_second_adds_up(self, file: File) -> None:
        self.observe(file, *range(20))
        file.rows(count_in=START)
        assert {t: sums.samples for t, sums in file.sums(10).items()} == {START: 10, START + 10: 10}
        assert [sums.in_flight_sum for sums in file.sums(60, replica="e0/0").values()] == [60]

    def test_a_disk_that_refuses_delays_them(self, file: File) -> None:
        self.observe(file, 0, 1)
        file.rows(record(finished_at=START), count_in=START, commit=False)
        file.connection.close()
        file.writer.closed()
        self.observe(file, 2)
        file.connection = schema.connect(str(file.path), timeout_s=1.0)
        file.writer.opened(file.connection)
        file.rows(count_in=START)
        (sums,) = file.sums(600).values()
        assert (sums.samples, sums.ok) == (3, 0)

    def test_beyond_the_bound_there_is_a_gap(self, file: File, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lmwarden.ledger.history_writer.MOST_WAITING_SPOTS", 4)
        self.observe(file, *range(0, 100, 10))
        file.rows(count_in=START)
        assert file.times(10) == [START, START + 10]

    def test_views_that_nobody_takes_give_way_to_new_ones(self, file: File) -> None:
        for second in range(MOST_WAITING_VIEWS + 5):
            file.writer.observe(Views({"m": view()}, 100.0, START + second))
        file.writer.take_views()
        file.rows(count_in=START)
        assert sum(sums.samples for sums in file.sums(600).values()) == MOST_WAITING_VIEWS
        assert next(iter(file.sums(10).values())).samples == 5


class TestDue:
    def test_once_a_tick_and_at_the_end(self, file: File) -> None:
        writer = file.writer
        assert not writer.due(START)
        file.rows(record(finished_at=START))
        assert writer.due(START)
        file.rows(count_in=START)
        assert not writer.due(START + 10)  # nothing waits
        file.rows(record(finished_at=START))
        assert not writer.due(START + 9.9)
        assert writer.due(START + 10)
        writer.end()
        assert writer.due(START)

    def test_also_when_the_clock_was_set_back(self, file: File) -> None:
        file.rows(record(finished_at=START), count_in=START)
        file.rows(record(finished_at=START - 3600))
        assert file.writer.due(START - 3600)


class TestForget:
    def forget(self, file: File, now: float) -> None:
        file.connection.execute("BEGIN IMMEDIATE")
        file.writer.forget(file.connection, now)
        file.connection.execute("COMMIT")
        file.writer.written()

    def test_each_resolution_is_kept_for_its_time(self, tmp_path: Path) -> None:
        file = File(tmp_path, history_days=2.0)
        file.rows(*(record(finished_at=START + hours * 3600) for hours in range(60)), count_in=START)
        now = START + 60 * 3600
        self.forget(file, now)
        for step_s, kept_s in ((10, FINEST_KEPT_S), (60, 2 * 86_400), (600, 2 * 86_400)):
            times = file.times(step_s)
            assert times == [t for t in times if t + step_s > now - kept_s - GRACE_S]
            assert len(times) == pytest.approx((kept_s + GRACE_S) / 3600, abs=1)
        file.close()

    def test_the_size_bound_takes_fine_points_first(self, tmp_path: Path) -> None:
        file = File(tmp_path, history_days=1.0, history_max_bytes=200_000)
        file.rows(*(record(finished_at=START + minutes * 600) for minutes in range(144)), count_in=START)
        self.forget(file, START + 86_400)
        assert len(file.times(600)) > len(file.times(60)) > 0
        assert len(file.times(10)) <= GRACE_S / 600 + 1
        file.close()

    def test_a_series_without_points_is_forgotten_and_comes_back(self, file: File) -> None:
        file.rows(record(finished_at=START, model="gone"), record(finished_at=START + 30 * 86_400), count_in=START)
        self.forget(file, START + 30 * 86_400)
        models = {model for (model,) in file.connection.execute("SELECT model FROM history_series")}
        assert models == {"m"}
        file.rows(record(finished_at=START + 30 * 86_400, model="gone"), count_in=START)
        assert len(file.sums(600, "gone")) == 1
        assert len(file.sums(600, "m")) == 1

    def test_rows_that_wait_are_counted_in_although_they_go(self, file: File) -> None:
        now = START + 600
        file.rows(record(finished_at=now), record(finished_at=now))
        file.connection.execute("BEGIN IMMEDIATE")
        file.writer.write(file.connection, now)
        file.connection.execute("DELETE FROM requests")  # as retention does; numbers begin anew
        file.writer.forget(file.connection, now)
        file.connection.execute("COMMIT")
        file.writer.written()
        file.rows(record(finished_at=now))
        file.close()
        file.open()  # reads what has a higher number than what was counted
        file.rows(count_in=now)
        assert [sums.ok for sums in file.sums(600).values()] == [3]


def test_sums_beyond_what_a_column_holds_cannot_come_up(file: File) -> None:
    for _ in range(3):
        file.rows(*[record(finished_at=START, prompt_tokens=2**53, completion_tokens=2**40)] * 100, count_in=START)
    (sums,) = file.sums(600).values()
    assert (sums.completion_tokens, sums.computed_tokens, sums.ok) == (300 * 2**40, 0, 300)


def test_a_file_that_cannot_be_written_raises(file: File) -> None:
    file.rows(record(finished_at=START))
    file.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError):
        file.writer.write(file.connection, START)
    file.connection.execute("PRAGMA query_only = OFF")
