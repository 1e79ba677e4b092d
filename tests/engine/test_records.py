"""What a warden leaves for the next one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from lmwarden.engine.processes import ProcessId, read_process, words_of
from lmwarden.engine.records import EngineRecord, EngineRecords, digest_of

RECORD = EngineRecord(
    engine="e0",
    identity="m",
    fingerprint="f",
    access="a",
    port=8000,
    argv_digest="d",
    argv_words=3,
    started_at=1.5,
    log_offset=0,
    process=ProcessId(1, "b:2"),
)


def test_a_record_comes_back_and_goes(tmp_path: Path) -> None:
    records = EngineRecords(tmp_path)
    assert records.load("e0") is None
    records.save(RECORD)
    assert EngineRecords(tmp_path).load("e0") == RECORD
    assert records.names() == ["e0"]
    path = tmp_path / "engines" / "e0.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["e0.json", "id"]
    records.forget("e0")
    records.forget("e0")
    assert records.load("e0") is None


@given(st.data())
def test_a_torn_or_strange_file_counts_as_none_and_is_said(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    records = EngineRecords(tmp_path_factory.getbasetemp() / "torn")
    whole = msgspec.json.encode(RECORD)
    torn = st.integers(0, len(whole) - 1).map(lambda end: whole[:end])
    strange = st.binary(max_size=60)
    flipped = st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 255)).map(
        lambda flip: whole[: flip[0]] + bytes([whole[flip[0]] ^ flip[1]]) + whole[flip[0] + 1 :]
    )
    (records.folder / "e0.json").write_bytes(data.draw(st.one_of(torn, strange, flipped)))
    with capture_logs() as said:
        found = records.load("e0")
    # A flipped bit may leave a record that can be read; what it names is compared with the process all the same.
    assert found is None or found.engine == "e0"
    if found is None and said:
        assert said[0]["event"] == "the record of an engine cannot be used"


def test_a_torn_file_is_said(tmp_path: Path) -> None:
    records = EngineRecords(tmp_path)
    (records.folder / "e0.json").write_bytes(msgspec.json.encode(RECORD)[:40])
    with capture_logs() as said:
        assert records.load("e0") is None
    assert [(line["log_level"], line["engine"]) for line in said] == [("warning", "e0")]


@pytest.mark.parametrize("change", [{"port": 70_000}, {"port": 0}, {"argv_words": 0}, {"log_offset": -1}])
def test_numbers_that_cannot_be_meant_make_it_none(tmp_path: Path, change: dict[str, int]) -> None:
    records = EngineRecords(tmp_path)
    records.save(msgspec.structs.replace(RECORD, **change))
    assert records.load("e0") is None


def test_a_record_under_another_name_is_none(tmp_path: Path) -> None:
    records = EngineRecords(tmp_path)
    records.save(RECORD)
    (records.folder / "e0.json").rename(records.folder / "e1.json")
    assert records.load("e1") is None


def test_a_disk_that_refuses_is_said_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = EngineRecords(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with capture_logs() as said:
        records.save(RECORD)
    assert said[0]["reason"] == "No space left on device"
    assert sorted(entry.name for entry in records.folder.iterdir()) == ["id"]


def test_the_mark_names_the_folder_by_id_and_path(tmp_path: Path) -> None:
    first = EngineRecords(tmp_path / "a")
    assert EngineRecords(tmp_path / "a").mark("e0") == first.mark("e0") == f"{first.mark_prefix}e0"
    (tmp_path / "a").rename(tmp_path / "b")
    assert EngineRecords(tmp_path / "b").mark("e0") != first.mark("e0")


def test_a_damaged_id_is_made_anew(tmp_path: Path) -> None:
    before = EngineRecords(tmp_path).mark("e0")
    (tmp_path / "engines" / "id").write_bytes(b"short")
    with capture_logs() as said:
        after = EngineRecords(tmp_path)
    assert after.mark("e0") != before
    assert "damaged" in said[0]["event"]
    assert EngineRecords(tmp_path).secret == after.secret


def test_a_process_without_a_mark_is_recognised_by_its_words(tmp_path: Path) -> None:
    records = EngineRecords(tmp_path)
    info, words = read_process(os.getpid()), words_of(os.getpid())
    assert info is not None
    here = msgspec.structs.replace(RECORD, process=info.id, argv_digest=digest_of(words), argv_words=len(words))
    assert records.is_ours(here)
    # An interpreter before our words, as the kernel shows a script.
    assert records.is_ours(msgspec.structs.replace(here, argv_digest=digest_of(words[1:]), argv_words=len(words) - 1))
    assert not records.is_ours(msgspec.structs.replace(here, argv_digest="other"))
    assert not records.is_ours(msgspec.structs.replace(here, process=ProcessId(os.getpid(), "0:1")))
    assert not records.is_ours(msgspec.structs.replace(here, process=None))


def test_words_are_told_apart_whatever_they_hold() -> None:
    assert digest_of(["a b"]) != digest_of(["a", "b"])
    assert digest_of(["\udcff"]) != digest_of(["?"])
