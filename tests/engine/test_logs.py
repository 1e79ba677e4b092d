"""Log files of engines: rotation under a writer that keeps the file open, tails, progress lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.engine.logs import EngineLog, cleaned, first_error, tail, why_it_ended


@pytest.fixture
def engine_log(tmp_path: Path) -> EngineLog:
    return EngineLog(tmp_path, "e0", max_bytes=65_536, files=2)


def test_a_run_begins_with_a_line_of_ours_in_a_file_of_the_owner(engine_log: EngineLog) -> None:
    output, offset = engine_log.begin_run("starting e0: vllm serve")
    os.write(output, b"one\n")
    os.close(output)
    assert offset == 0
    assert engine_log.path.stat().st_mode & 0o777 == 0o600
    first, second = tail(engine_log.path, 10)
    assert first.startswith("=== lmwarden: 2")
    assert first.endswith("Z starting e0: vllm serve")
    assert second == "one"
    output, offset = engine_log.begin_run("again")
    os.close(output)
    assert [line[-5:] for line in tail(engine_log.path, 10, offset=offset)] == ["again"]


def test_rotation_keeps_a_writer_s_file(engine_log: EngineLog) -> None:
    output, _ = engine_log.begin_run("first")
    os.write(output, b"x" * 65_536 + b"\n")
    assert engine_log.rotate_if_large()
    os.write(output, b"after\n")
    assert engine_log.path.read_bytes() == b"after\n"
    assert engine_log.path.with_name("e0.log.1").read_bytes().endswith(b"x\n")
    assert engine_log.path.with_name("e0.log.1").stat().st_mode & 0o777 == 0o600
    assert not engine_log.rotate_if_large()
    for number in range(3):
        os.write(output, str(number).encode() * 70_000)
        assert engine_log.rotate_if_large()
    os.close(output)
    kept = sorted(path.name for path in engine_log.path.parent.iterdir())
    assert kept == ["e0.log", "e0.log.1", "e0.log.2"]
    assert engine_log.path.with_name("e0.log.1").read_bytes()[:1] == b"2"
    assert engine_log.path.with_name("e0.log.2").read_bytes()[:1] == b"1"


def test_without_a_file_there_is_nothing(engine_log: EngineLog) -> None:
    assert not engine_log.rotate_if_large()
    assert engine_log.new_lines() == []
    assert tail(engine_log.path, 10) == []


def test_new_lines_are_given_once_and_whole(engine_log: EngineLog) -> None:
    output, _ = engine_log.begin_run("start")
    os.write(output, b"one\ntw")
    assert [line[-5:] for line in engine_log.new_lines()] == ["start", "one"]
    os.write(output, b"o\n 10%|#\r 20%|##\r")
    assert engine_log.new_lines() == ["two", " 10%|#", " 20%|##"]
    assert engine_log.new_lines() == []
    os.truncate(engine_log.path, 0)
    os.write(output, b"new\n")
    os.close(output)
    assert engine_log.new_lines() == ["new"]


def test_a_later_warden_reads_on_from_where_the_run_began(engine_log: EngineLog) -> None:
    engine_log.path.write_bytes(b"old run\nnew run\n")
    engine_log.begin_reading(8)
    assert engine_log.new_lines() == ["new run"]


def test_a_flood_is_read_no_further_than_is_of_use(engine_log: EngineLog) -> None:
    engine_log.path.write_bytes(b"x\n" * 100_000 + b"y" * 100_000 + b"\n")
    lines = engine_log.new_lines()
    assert len(lines) == 1000
    assert lines[-1] == "y" * 300
    assert engine_log.new_lines() == []


def test_rotation_keeps_only_the_end_of_a_flood(engine_log: EngineLog) -> None:
    engine_log.path.write_bytes(b"a" * 1_000_000 + b"b" * 100)
    assert engine_log.rotate_if_large()
    kept = engine_log.path.with_name("e0.log.1").read_bytes()
    assert len(kept) < 300_000
    assert kept.endswith(b"a" + b"b" * 100)


def test_a_command_that_is_no_text_can_be_logged(engine_log: EngineLog) -> None:
    descriptor, _ = engine_log.begin_run("starting /opt/\udcff/vllm")
    os.close(descriptor)
    assert "starting /opt/?/vllm" in engine_log.path.read_text()


def test_tails(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)) + b"\n\nlast")
    assert tail(path, 2) == ["line 999", "last"]
    assert tail(path, 0) == []
    assert tail(path, 100, max_bytes=20) == ["line 999", "last"]
    assert tail(path, 1, offset=10**9) == ["last"]
    assert tail(path, 100, offset=path.stat().st_size - 4) == ["last"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO", "(APIServer pid=1) INFO"),
        ("  0%|   \r 50%|## \r100%|####", "100%|####"),
        ("done\r", "done"),
        ("\x1b]0;title\x07bell\x07 \x00", "bell"),
        ("tab\tstays", "tab\tstays"),
        ("x" * 5000, "x" * 2000),
    ],
)
def test_lines_are_cleaned(line: str, shown: str) -> None:
    assert cleaned(line) == shown


@given(st.binary(max_size=400), st.integers(0, 20), st.integers(1, 50))
def test_any_bytes_make_clean_lines(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, lines: int, most: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data)
    found = tail(path, lines, max_bytes=most)
    assert len(found) <= lines
    assert all(line and not any(character < " " and character != "\t" for character in line) for line in found)


CRASH = [
    "(APIServer pid=1) WARNING 11-29 [system_utils.py:255] can cause errors like `OSError: [Errno 24] Too many` here",
    "(EngineCore pid=2) ERROR 11-29 [core.py:1] Traceback (most recent call last):",
    "(EngineCore pid=2) ERROR 11-29 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
    "nanobind: leaked 64 types!",
    ' - leaked type "ATOMIC_OP"',
]


def test_the_reason_of_an_end_is_found_before_the_noise_after_it() -> None:
    assert why_it_ended(CRASH, 2) == CRASH[2:4]
    assert why_it_ended(CRASH, 20) == CRASH[:4]
    assert why_it_ended(["one", "two", "three"], 2) == ["two", "three"]
    assert why_it_ended([], 2) == []


def test_the_first_exception_is_the_cause() -> None:
    assert first_error(CRASH) == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert first_error(CRASH[3:]) == "RuntimeError: Engine core initialization failed. See root cause above."
    assert first_error(CRASH[:2]) is None
    assert first_error(["INFO ValueError: handled", "FutureWarning: old", "vllm: error: argument --x: invalid"]) is None
    assert first_error(["E" * 10 + "Error: " + "x" * 1000]) == "EEEEEEEEEEError: " + "x" * (300 - 17)
