"""Writing a trace: prompts in pieces, bounded memory, the order of ends. Reading one is tests/bench/test_trace.py's."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from lmwarden import trace_format
from lmwarden.bench.trace import read_trace
from lmwarden.trace_format import BlockHasher, TraceHead, TraceRequest, TraceWriter

HEAD = TraceHead(unit="bytes", block=4)


def request(t_s: float = 0.0, conversation: str = "a", prompt: int = 12) -> TraceRequest:
    return TraceRequest(t_s=t_s, conversation=conversation, prompt=prompt)


@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 5], [8, 11]])
def test_a_prompt_in_pieces_has_the_hashes_of_its_blocks(cuts: list[int]) -> None:
    text, key = b"0123456789abc", b"k" * 32
    hasher = BlockHasher(key, 4)
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        hasher.take(text[start:end])
    assert hasher.hashes == TraceWriter(io.BytesIO(), HEAD, key).hashes([text[:4], text[4:8], text[8:12]])
    assert hasher.length == 13


def test_what_ended_later_stands_later_and_is_read_in_the_order_of_sending(tmp_path: Path) -> None:
    with (tmp_path / "t").open("wb") as file:
        writer = TraceWriter(file, HEAD)
        slow, quick = writer.hashes([b"aaaa", b"bbbb"]), writer.hashes([b"aaaa", b"cccc"])
        writer.add(request(2.0), quick)
        writer.add(request(1.0), slow)
    trace = read_trace(tmp_path / "t")
    assert [one.t_s for one in trace.requests] == [1.0, 2.0]
    assert trace.hashes == (slow, quick)
    assert [one.same for one in trace.requests] == [1, 0]


def test_a_conversation_that_is_forgotten_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_format, "_MOST_REMEMBERED_BYTES", 3 * 8)
    with (tmp_path / "t").open("wb") as file:
        writer = TraceWriter(file, HEAD)
        hashes = writer.hashes([b"aaaa", b"bbbb"])
        for number, name in enumerate("abab"):
            writer.add(request(float(number), name), hashes)
        writer.add(request(4.0, "b"), hashes)
    trace = read_trace(tmp_path / "t")
    assert [one.same for one in trace.requests] == [0, 0, 0, 0, 2]
    assert trace.hashes == (hashes,) * 5


def test_the_writer_counts_what_it_wrote() -> None:
    file = io.BytesIO()
    writer = TraceWriter(file, HEAD)
    writer.add(request(), ())
    assert writer.written_bytes == len(file.getvalue())
    assert msgspec.json.decode(file.getvalue().splitlines()[0]) == {"lmwarden_trace": 1, "unit": "bytes", "block": 4}
