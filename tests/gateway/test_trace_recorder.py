"""The recorder's files: private, of bounded size and number, each complete in itself; a bad disk hurts nobody."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lmwarden.bench.trace import read_trace
from lmwarden.gateway.trace_recorder import FOLDER, TraceRecorder
from lmwarden.trace_format import TraceRequest


def record(recorder: TraceRecorder, text: bytes = b"x" * 1024, t_s: float = 0.0) -> None:
    prompt = recorder.hasher()
    prompt.take(text)
    recorder.add(TraceRequest(t_s=t_s, conversation=recorder.label(b"key"), prompt=prompt.length), prompt)


def files(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).iterdir())


def test_what_is_recorded_can_be_read_while_it_goes_on(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path)
    record(recorder)
    recorder.flush()
    (file,) = files(tmp_path)
    assert len(read_trace(file).requests) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    recorder.close()


def test_a_full_file_is_followed_by_another_and_the_oldest_goes(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path, file_bytes=300, files=3)
    for number in range(10):
        record(recorder, b"%04d" % number * 256, float(number))
    recorder.close()
    traces = [read_trace(file) for file in files(tmp_path)]
    assert len(traces) == 3
    assert [trace.requests[-1].t_s for trace in traces][-1] == 9.0


def test_nothing_is_opened_before_there_is_something_to_write(tmp_path: Path) -> None:
    TraceRecorder(tmp_path).close()
    assert not (tmp_path / FOLDER).exists()


def test_two_recordings_have_no_hash_and_no_id_in_common(tmp_path: Path) -> None:
    one, other = TraceRecorder(tmp_path), TraceRecorder(tmp_path)
    assert one.label(b"key") == one.label(b"key") != other.label(b"key")
    hashes = []
    for recorder in (one, other):
        prompt = recorder.hasher()
        prompt.take(b"x" * 512)
        hashes.append(prompt.hashes)
    assert not set(hashes[0]) & set(hashes[1])


def test_no_text_is_in_the_files(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path)
    record(recorder, b"MARKER-7 " * 500)
    recorder.close()
    assert b"MARKER" not in files(tmp_path)[0].read_bytes()


def test_a_folder_that_cannot_be_written_is_told_once_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    recorder = TraceRecorder(tmp_path)
    with capture_logs() as logs:
        record(recorder)
        record(recorder)
    assert [entry["event"] for entry in logs] == ["a trace cannot be written"]
    assert recorder.lost == 2
    (tmp_path / FOLDER).unlink()
    record(recorder)
    recorder.close()
    assert len(files(tmp_path)) == 1
    assert recorder.lost == 2


def test_a_full_disk_while_writing_ends_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = TraceRecorder(tmp_path)
    record(recorder)
    assert recorder._writer is not None

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder._writer, "add", refuse)
    record(recorder)
    assert recorder.lost == 1
    record(recorder)
    recorder.close()
    assert len(files(tmp_path)) == 2


def test_a_full_disk_while_it_is_written_out_ends_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = TraceRecorder(tmp_path)
    record(recorder)
    (first,) = files(tmp_path)
    assert recorder._file is not None
    recorder._file.close()

    class Full:
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder, "_file", Full())
    with capture_logs() as logs:
        recorder.flush()
        recorder.flush()
    assert [entry["event"] for entry in logs] == ["a trace file could not be completed"]
    record(recorder)
    recorder.close()
    (second,) = set(files(tmp_path)) - {first}
    assert len(read_trace(second).requests) == 1
