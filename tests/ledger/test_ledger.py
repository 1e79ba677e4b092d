"""The ledger: rows come back as they went in, and a bad disk hurts nobody."""

from __future__ import annotations

import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.ledger.samples import LIMIT_S, changed, compared, forgotten, home, record, settings

from lmwarden.ledger import schema
from lmwarden.ledger.ledger import FILE, Ledger
from lmwarden.ledger.retention import HOME_KEPT_S, Retention
from lmwarden.routing.conversations import DORMANT_S
from lmwarden.types import HomeChanges, Outcome, PrefixChange


def test_rows_come_back_as_they_went_in_newest_first(ledger: Ledger) -> None:
    full = record(
        conversation_key=b"k" * 16,
        parent=b"p" * 16,
        client="claude-code",
        kind="subagent",
        body_bytes=50_000,
        why="least_loaded",
        home="e0/1",
        home_in_flight=3,
        spill_threshold=8,
        candidates=(compared("e0/0"), compared("e0/1", kv_used_ratio=0.5)),
        prefix_change=PrefixChange.COMPACTION,
        prefix_shared_ratio=0.25,
        recomputed_tokens=7,
    )
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


def test_rows_that_come_while_others_are_written_wait_for_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host some always do: each would have a transaction of its own, and the writer no end."""
    ledger, commit, commits = Ledger(tmp_path, settings()), Ledger._commit, 0

    def commit_meanwhile(self: Ledger, connection: sqlite3.Connection) -> None:
        nonlocal commits
        commits += 1
        commit(self, connection)
        if commits < 10:
            self.record(record())

    monkeypatch.setattr(Ledger, "_commit", commit_meanwhile)
    ledger.record(record())
    ledger._write_all()
    assert (commits, ledger.written_rows) == (1, 1)
    ledger._write_all()
    assert (commits, ledger.written_rows) == (2, 2)
    ledger._disconnect()


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


@pytest.mark.parametrize(("what", "why"), [("newer", "it has schema 99, and"), ("folder", "it cannot be opened")])
def test_an_unusable_file_costs_the_rows_and_nothing_else(tmp_path: Path, what: str, why: str) -> None:
    path = tmp_path / FILE
    if what == "folder":
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
    ledger.save_homes("m", changed(home(1), home(2)), 0.0, 0.0)
    assert not ledger.flush(0.05)
    assert ledger.trouble is not None
    assert ledger.trouble.startswith(f"The ledger cannot write {path}: {why}")
    assert "1 request rows and 2 homes wait in memory, 0 rows are lost." in ledger.trouble
    assert ledger.load_homes("m", 0.0) == []
    assert ledger.settings("m") == {}
    ledger.stop()
    assert (ledger.written_rows, ledger.dropped_rows) == (0, 1)
    assert path.is_dir() or path.read_bytes() == before


class TestHomes:
    def test_they_come_back_on_the_clock_of_another_run(self, ledger: Ledger) -> None:
        now = time.time()
        ledger.save_homes("m", changed(home(1), home(2, last_used=160.0)), 200.0, now)
        ledger.save_homes("other", changed(home(3)), 200.0, now)
        assert ledger.flush(LIMIT_S)
        found = ledger.load_homes("m", 5000.0, now + 10.0)
        assert [(row.conversation, row.replica, row.boot_id, row.context_tokens) for row in found] == [
            (home(number).conversation, home(number).replica, "boot1", 1000 + number) for number in (1, 2)
        ]
        assert [row.last_used for row in found] == pytest.approx([5000.0 - 110.0, 5000.0 - 50.0], abs=1e-3)
        assert len(ledger.load_homes("other", 0.0)) == 1
        assert ledger.load_homes("unknown", 0.0) == []

    def test_the_latest_counts(self, ledger: Ledger) -> None:
        now = time.time()
        ledger.save_homes("m", changed(home(1), home(2)), 100.0, now)
        assert ledger.flush(LIMIT_S)
        ledger.save_homes("m", changed(home(1, context_tokens=7)), 100.0, now)
        ledger.save_homes("m", forgotten(home(2), home(9)), 100.0, now)
        assert ledger.flush(LIMIT_S)
        assert [row.context_tokens for row in ledger.load_homes("m", 100.0)] == [7]
        ledger.save_homes("m", changed(home(1, boot_id="boot2", context_tokens=-1)), 100.0, now)
        assert ledger.flush(LIMIT_S)
        assert [(row.boot_id, row.context_tokens) for row in ledger.load_homes("m", 100.0)] == [("boot2", 0)]

    def test_they_do_not_wait_for_the_next_look(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lmwarden.ledger.ledger._PAUSE_S", 3600.0)
        ledger = Ledger(tmp_path, settings())
        ledger.start()
        ledger.save_homes("m", changed(home(1)), 100.0, time.time())
        with ledger._idle:  # without flush, which wakes the writer itself
            assert ledger._idle.wait_for(lambda: ledger._homes.settled == 1, LIMIT_S)
        assert len(ledger.load_homes("m", 100.0)) == 1
        ledger.stop()

    def test_nothing_changed_wakes_nobody(self, ledger: Ledger) -> None:
        ledger.save_homes("m", HomeChanges([], []), 0.0, 0.0)
        assert ledger._homes.accepted == 0

    def test_those_unused_for_a_day_are_neither_loaded_nor_kept(self, tmp_path: Path) -> None:
        now = time.time()
        for keeps in (True, False):
            ledger = Ledger(tmp_path, settings())
            ledger.start()  # deletes what is old
            if keeps:
                ledger.save_homes("m", changed(home(1)), 100.0 + HOME_KEPT_S, now)
                ledger.save_homes("m", changed(home(2)), 40.0 + HOME_KEPT_S, now)
                assert ledger.flush(LIMIT_S)
            assert [row.conversation for row in ledger.load_homes("m", 100.0)] == [home(2).conversation]
            ledger.stop()
            with sqlite3.connect(tmp_path / FILE) as connection:
                assert connection.execute("SELECT count(*) FROM homes").fetchone() == (2 if keeps else 1,)
            connection.close()

    def test_a_day_is_what_the_router_keeps_too(self) -> None:
        assert HOME_KEPT_S == DORMANT_S

    def test_a_row_that_is_no_home_is_left_out(self, ledger: Ledger, tmp_path: Path) -> None:
        ledger.save_homes("m", changed(home(1)), 100.0, time.time())
        assert ledger.flush(LIMIT_S)
        with sqlite3.connect(tmp_path / FILE) as connection:
            schema.write_all(connection, schema.SAVE_HOME, [("m", b"x" * 16, "nowhere", "b", 1, time.time())])
        connection.close()
        assert len(ledger.load_homes("m", 100.0)) == 1


class TestSettings:
    def test_they_come_back_with_what_the_file_said(self, ledger: Ledger) -> None:
        ledger.save_settings("m", "affinity", False, True)
        ledger.save_settings("m", "spill_threshold", 4, None)
        ledger.save_settings("m", "placement", "hash", "least-loaded")
        ledger.save_settings("other", "affinity", False, True)
        assert ledger.flush(LIMIT_S)
        assert ledger.settings("m") == {
            "affinity": (False, True),
            "spill_threshold": (4, None),
            "placement": ("hash", "least-loaded"),
        }

    def test_a_row_that_cannot_be_read_is_left_out(self, ledger: Ledger, tmp_path: Path) -> None:
        ledger.save_settings("m", "affinity", False, True)
        assert ledger.flush(LIMIT_S)
        with sqlite3.connect(tmp_path / FILE) as connection:
            connection.execute(schema.SAVE_SETTING, ("m", "placement", "hash, by hand", "null"))
        connection.close()
        assert ledger.settings("m") == {"affinity": (False, True)}

    def test_what_the_file_says_is_no_change(self, ledger: Ledger) -> None:
        ledger.save_settings("m", "affinity", False, True)
        assert ledger.flush(LIMIT_S)
        ledger.save_settings("m", "affinity", True, True)
        assert ledger.flush(LIMIT_S)
        assert ledger.settings("m") == {}


class TestFullDisk:
    @pytest.fixture
    def disk(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
        """``pages`` is all that a file may have; SQLite says of more what it says on a full disk."""
        room = {"pages": 1_000_000}
        connect = schema.connect

        def connect_with_little_room(path: str, *, timeout_s: float) -> sqlite3.Connection:
            connection = connect(path, timeout_s=timeout_s)
            connection.execute(f"PRAGMA max_page_count = {room['pages']}")
            return connection

        monkeypatch.setattr(schema, "connect", connect_with_little_room)
        return room

    def test_serving_goes_on_and_what_waited_is_written_when_there_is_room(
        self, disk: dict[str, int], tmp_path: Path
    ) -> None:
        disk["pages"] = 1  # less than the file has: not one page more
        ledger = Ledger(tmp_path, settings(max_queued_rows=500))
        ledger.start()
        ledger.record(record(status=0))
        now = time.time()
        count = 0

        def trouble() -> str | None:
            return ledger.trouble

        while trouble() is None:
            count += 1
            ledger.save_homes("m", changed(*(home(count * 100 + number) for number in range(100))), 100.0, now)
            ledger.record(record(status=count))
            ledger.flush(0.05)
            assert count < 1000
        assert "the disk is full" in str(trouble())
        ledger.save_homes("m", changed(home(1, context_tokens=5)), 100.0, now)
        ledger.save_settings("m", "affinity", False, True)
        assert not ledger.flush(0.05)
        sound = sqlite3.connect(tmp_path / FILE)
        assert sound.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        sound.close()
        disk["pages"] = 1_000_000
        assert ledger.flush(LIMIT_S)
        assert trouble() is None
        assert len(ledger.load_homes("m", 100.0)) == 100 * count + 1
        assert ledger.settings("m") == {"affinity": (False, True)}
        assert [row.status for row in ledger.recent()] == list(range(count, -1, -1))
        assert ledger.dropped_rows == 0
        ledger.stop()

    def test_what_does_not_fit_into_memory_is_dropped_and_counted(
        self, disk: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lmwarden.ledger.ledger.MOST_WAITING_HOMES", 3)
        ledger = Ledger(tmp_path, settings())
        ledger.save_homes("m", changed(*map(home, range(10))), 100.0, time.time())
        assert ledger._homes.dropped == 7
        ledger.start()
        assert ledger.flush(LIMIT_S)
        assert len(ledger.load_homes("m", 100.0)) == 3
        ledger.stop()


class TestDamage:
    def damage(self, path: Path, what: str) -> bytes:
        """A file that is no database, or one whose homes cannot be read."""
        if what == "no database":
            path.write_bytes(b"not a database" * 1000)
            return path.read_bytes()
        ledger = Ledger(path.parent, settings())
        ledger.start()
        ledger.record(record(status=7))
        ledger.save_homes("m", changed(*map(home, range(2000))), 100.0, time.time())
        assert ledger.flush(LIMIT_S)
        ledger.stop()
        content = bytearray(path.read_bytes())
        page_bytes = int.from_bytes(content[16:18], "big")
        with sqlite3.connect(path) as connection:
            root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'homes'").fetchone()[0]
        connection.close()
        content[(root - 1) * page_bytes : root * page_bytes] = b"\xff" * page_bytes
        path.write_bytes(content)
        return bytes(content)

    @pytest.mark.parametrize("what", ["no database", "homes"])
    def test_it_is_moved_aside_and_a_new_file_begun(self, tmp_path: Path, what: str) -> None:
        path = tmp_path / FILE
        damaged = self.damage(path, what)
        ledger = Ledger(tmp_path, settings())
        ledger.start()
        assert ledger.load_homes("m", 100.0) == []
        ledger.save_homes("m", changed(home(1)), 100.0, time.time())
        ledger.record(record(status=1))
        assert ledger.flush(LIMIT_S)
        assert [row.status for row in ledger.recent()] == [1]
        assert len(ledger.load_homes("m", 100.0)) == 1
        aside = tmp_path / f"{FILE}.damaged-1"
        assert aside.read_bytes() == damaged
        assert ledger.trouble is not None
        assert f"moved aside to {aside}; a new one was begun" in ledger.trouble
        assert (ledger.written_rows, ledger.dropped_rows) == (1, 0)
        ledger.stop()

    def test_what_only_a_reader_meets_is_moved_aside_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The writer has nothing to do with the damaged part of it, until it forgets old homes."""
        monkeypatch.setattr(Retention, "due", lambda self: False)
        self.damage(tmp_path / FILE, "homes")
        ledger = Ledger(tmp_path, settings())
        ledger.start()
        assert ledger.load_homes("m", 100.0) == []
        ledger.record(record(status=1))
        assert ledger.flush(LIMIT_S)
        assert (tmp_path / f"{FILE}.damaged-1").exists()
        assert [row.status for row in ledger.recent()] == [1]
        ledger.stop()

    def test_it_is_told_for_a_while_only(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lmwarden.ledger.ledger._NOTICE_S", 0.0)
        self.damage(tmp_path / FILE, "no database")
        ledger = Ledger(tmp_path, settings())
        ledger.start()
        assert ledger.flush(LIMIT_S)
        assert ledger.trouble is None
        ledger.stop()
        assert (tmp_path / f"{FILE}.damaged-1").exists()

    def test_a_disk_that_damages_everything_is_not_written_to_any_more(self, tmp_path: Path) -> None:
        for number in range(1, 9):
            (tmp_path / f"{FILE}.damaged-{number}").touch()
        damaged = self.damage(tmp_path / FILE, "no database")
        ledger = Ledger(tmp_path, settings())
        ledger.start()
        assert ledger.trouble is not None
        assert "8 damaged ones lie beside it: check the disk" in ledger.trouble
        ledger.stop()
        assert (tmp_path / FILE).read_bytes() == damaged

    def test_what_a_reader_takes_for_damage_is_looked_at_first(self, ledger: Ledger, tmp_path: Path) -> None:
        ledger.record(record())
        assert ledger.flush(LIMIT_S)
        damage = sqlite3.DatabaseError("as a reader saw it while a file was being moved")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        ledger._damage = damage
        ledger.record(record())
        assert ledger.flush(LIMIT_S)
        assert not list(tmp_path.glob("*damaged*"))
        assert len(ledger.recent()) == 2


class TestWhatNoDiskWouldTake:
    """A mistake of ours in one row must not hold up what follows it."""

    @pytest.mark.parametrize(
        "wrong", [{"key_name": "\ud800"}, {"status": 2**70}, {"duration_s": float("nan")}, {"decision": object()}]
    )
    def test_a_row_is_lost_and_counted_and_the_writer_goes_on(self, ledger: Ledger, wrong: dict[str, Any]) -> None:
        ledger.record(record(**wrong))
        ledger.save_homes("m", changed(home(1)), 0.0, time.time())
        assert ledger.flush(LIMIT_S)
        ledger.record(record(status=201))
        assert ledger.flush(LIMIT_S)
        assert [row.status for row in ledger.recent()] == [201]
        assert len(ledger.load_homes("m", 0.0)) == 1
        assert (ledger.trouble, ledger.dropped_rows) == (None, 1)

    @pytest.mark.parametrize(
        "wrong", [{"key_name": "\ud800"}, {"duration_s": float("nan")}, {"candidates": (object(),)}]
    )
    def test_it_takes_no_other_with_it(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        ledger = Ledger(tmp_path, settings())
        for number in range(40):
            ledger.record(record(status=number, **(wrong if number in (7, 31) else {})))
        ledger.save_homes("m", changed(home(1)), 0.0, time.time())
        ledger.start()
        assert ledger.flush(LIMIT_S)
        assert [row.status for row in ledger.recent()] == [n for n in range(39, -1, -1) if n not in (7, 31)]
        assert (ledger.dropped_rows, ledger.written_rows, ledger.trouble) == (2, 38, None)
        assert len(ledger.load_homes("m", 0.0)) == 1
        ledger.stop()

    def test_it_is_found_by_halves(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One by one the rows of a busy host would come faster than they go."""
        commits, commit = 0, Ledger._commit

        def count(self: Ledger, connection: sqlite3.Connection) -> None:
            nonlocal commits
            commits += 1
            commit(self, connection)

        monkeypatch.setattr(Ledger, "_commit", count)
        ledger = Ledger(tmp_path, settings())
        for number in range(2000):
            ledger.record(record(status=number, **({"key_name": "\ud800"} if number == 1234 else {})))
        ledger.start()
        assert ledger.flush(LIMIT_S)
        ledger.stop()
        assert (ledger.dropped_rows, ledger.written_rows) == (1, 1999)
        assert commits < 100

    def test_nor_does_a_home_take_rows_with_it(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path, settings())
        ledger.save_homes("m", changed(home(1, boot_id="\ud800")), 0.0, time.time())
        for number in range(5):
            ledger.record(record(status=number))
        ledger.start()
        assert ledger.flush(LIMIT_S)
        assert [row.status for row in ledger.recent()] == [4, 3, 2, 1, 0]
        assert (ledger.dropped_rows, ledger.trouble) == (0, None)
        ledger.stop()

    def test_what_it_says_has_nothing_of_the_row(self, ledger: Ledger) -> None:
        with structlog.testing.capture_logs() as said:
            ledger.record(record(key_name="typed-by-somebody\ud800"))
            assert ledger.flush(LIMIT_S)
        (line,) = said
        assert (line["rows"], line["reason"]) == (1, "UnicodeEncodeError")
        assert "typed" not in str(said)

    def test_a_home_is_lost_and_the_writer_goes_on(self, ledger: Ledger) -> None:
        ledger.save_homes("m", changed(home(1, boot_id="\ud800")), 0.0, time.time())
        assert ledger.flush(LIMIT_S)
        ledger.save_homes("m", changed(home(2)), 0.0, time.time())
        assert ledger.flush(LIMIT_S)
        assert [kept.conversation for kept in ledger.load_homes("m", 0.0)] == [home(2).conversation]
        assert ledger.trouble is None
