"""A log that nobody reads: no line waits, none raises, and what was lost is said."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest
from tests.waiting import PATIENCE_S

from lmwarden.log_stream import LogStream

LINE = json.dumps({"event": "something happened", "detail": "x" * 900}) + "\n"


class Pipe:
    """A pipe whose reader reads when told to."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self.writer: TextIO = os.fdopen(writer, "w")
        os.set_blocking(self._reader, False)
        self.taken = b""

    def read(self) -> list[str]:
        """Everything so far, in lines."""
        with suppress(BlockingIOError):
            while data := os.read(self._reader, 1 << 16):
                self.taken += data
        return self.taken.decode().splitlines()

    def leave(self) -> None:
        """The reader ends."""
        os.close(self._reader)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._reader)
        with suppress(OSError):
            self.writer.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A write that waits would wait for ever."""

    def waited(number: int, frame: object) -> None:
        raise AssertionError("a write waited")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(int(PATIENCE_S))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_lines_arrive_whole_and_in_order(pipe: Pipe) -> None:
    stream = LogStream(pipe.writer)
    for number in range(20):
        assert stream.write(f'{{"n": {number}}}\n') > 0
    assert [json.loads(line)["n"] for line in pipe.read()] == list(range(20))


@pytest.mark.parametrize("line", [LINE, json.dumps({"event": "y" * 30_000}) + "\n", "n\n"])
def test_a_reader_that_stands_still_costs_lines_and_no_time(pipe: Pipe, line: str) -> None:
    stream = LogStream(pipe.writer)
    count = 1 + 3 * fcntl.fcntl(pipe.writer, fcntl.F_GETPIPE_SZ) // len(line)
    for _ in range(count):
        stream.write(line)
    lost = stream.lost_lines
    assert lost > 0
    before = pipe.read()
    stream.write('{"event": "after"}\n')
    after = pipe.read()[len(before) - (not pipe.taken.endswith(b"\n")) :]
    told = [json.loads(text) for text in pipe.read() if text.startswith('{"event": "log lines are missing')]
    assert told == [{"event": "log lines are missing: nobody read them", "lines": lost}]
    assert json.loads(after[-1]) == {"event": "after"}
    whole = sum(text == line.rstrip("\n") for text in pipe.read())
    assert whole + lost == count
    assert stream.lost_lines == 0


def test_a_reader_that_has_gone_is_no_error(pipe: Pipe) -> None:
    stream = LogStream(pipe.writer)
    pipe.leave()
    for _ in range(3):
        stream.write(LINE)
    assert stream.lost_lines == 3


def test_a_full_disk_is_no_error() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        stream = LogStream(full)
        stream.write(LINE)
        assert stream.lost_lines == 1


def test_a_stream_without_a_descriptor_is_written_to_as_it_is() -> None:
    text = io.StringIO()
    stream = LogStream(text)
    stream.write("one\n")
    stream.write("two\n")
    stream.flush()
    assert text.getvalue() == "one\ntwo\n"


def test_text_that_no_encoding_knows_is_written_all_the_same(pipe: Pipe) -> None:
    LogStream(pipe.writer).write("half a character: \ud800\n")
    assert pipe.read() == ["half a character: \\ud800"]


def test_threads_do_not_mix_their_lines(pipe: Pipe) -> None:
    stream = LogStream(pipe.writer)
    lines = {f"{name * 1500}\n" for name in "abcd"}
    threads = [threading.Thread(target=lambda text=line: [stream.write(text) for _ in range(8)]) for line in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"{line}\n" for line in pipe.read()} == lines


def test_a_pipe_that_is_read_again_and_again(pipe: Pipe) -> None:
    """However often it stands still and goes on, each line is there or counted."""
    stream = LogStream(pipe.writer)
    written = 0
    for _ in range(5):
        for _ in range(200):
            stream.write(LINE)
            written += 1
        pipe.read()
    stream.write('{"event": "end"}\n')
    events = [json.loads(line) for line in pipe.read()]
    lost = sum(event.get("lines", 0) for event in events)
    assert sum(event["event"] == "something happened" for event in events) + lost == written
