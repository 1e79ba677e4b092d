"""The trace format: what is written is read back, and a bad line is named."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lmwarden.bench.errors import PlanError
from lmwarden.bench.trace import TraceHead, TraceRequest, TraceWriter, load_played, read_trace

HEAD = b'{"lmwarden_trace":1,"unit":"tokens","block":16}\n'


def request(conversation: str = "a", prompt: int = 64, **more: object) -> TraceRequest:
    return TraceRequest(t_s=1.0, conversation=conversation, prompt=prompt, **more)  # type: ignore[arg-type]


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    with (tmp_path / "t.jsonl").open("wb") as file:
        writer = TraceWriter(file, TraceHead(unit="tokens", block=16))
        first = writer.hashes([b"one", b"two"])
        second = writer.hashes([b"one", b"two", b"three"])
        other = writer.hashes([b"one", b"other"])
        writer.add(request(output_tokens=5, finish_reason="stop", ended_s=2.0), first)
        writer.add(request("b"), other)
        writer.add(request(), second)
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.name == "trace:t.jsonl"
    assert trace.hashes == (first, other, second)
    assert [one.same for one in trace.requests] == [0, 0, 2]
    assert trace.requests[0].finish_reason == "stop"


def test_hashes_are_chained_and_keyed() -> None:
    head = TraceHead(unit="tokens", block=16)
    writer, same_key, stranger = (TraceWriter(io.BytesIO(), head, key) for key in (b"k", b"k", None))
    one, two = writer.hashes([b"x", b"y"]), writer.hashes([b"z", b"y"])
    assert len(set(one + two)) == 4
    assert same_key.hashes([b"x", b"y"]) == one
    assert not set(stranger.hashes([b"x", b"y"])) & set(one)


def test_no_text_is_written() -> None:
    file = io.BytesIO()
    writer = TraceWriter(file, TraceHead(unit="bytes", block=8))
    writer.add(request(), writer.hashes([b"MARKER-1", b"MARKER-2"]))
    assert b"MARKER" not in file.getvalue()


def test_bytes_become_tokens_as_the_engine_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with path.open("wb") as file:
        writer = TraceWriter(file, TraceHead(unit="bytes", block=64))
        writer.add(request(prompt=1000, prompt_tokens=200), ())
        writer.add(request(prompt=500), ())
    assert read_trace(path).tokens_per_unit() == 0.2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "line 1"),
        (HEAD, "no request"),
        (b"what\n", "line 1"),
        (HEAD.replace(b":1,", b":2,"), "lmwarden_trace must be 1"),
        (HEAD.replace(b":16", b":0"), "block must be at least 1"),
        (HEAD + b'{"t_s":1,"conversation":"a","prompt":-1}\n', "line 2"),
        (HEAD + b'{"t_s":1,"conversation":"a","prompt":9,"text":"x"}\n', "text"),
        (HEAD + b'{"t_s":1,"conversation":"a","prompt":99,"same":1}\n', "same is 1"),
        (HEAD + b'{"t_s":1,"conversation":"a","prompt":9,"blocks":["aa"]}\n', "line 2: 1 blocks are more"),
    ],
)
def test_a_bad_line_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(PlanError, match=says) as caught:
        read_trace(tmp_path / "t.jsonl")
    assert "--workload trace:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"trace:.*absent: No such file"):
        read_trace(tmp_path / "absent")


def test_the_home_folder_is_expanded_behind_the_word_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t.jsonl").write_bytes(HEAD + b'{"t_s":1,"conversation":"a","prompt":9}\n')
    assert load_played("trace:~/t.jsonl", open_loop="recorded") == read_trace(tmp_path / "t.jsonl")


def test_a_trace_has_its_recorded_gaps(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(HEAD + b'{"t_s":1,"conversation":"a","prompt":9}\n')
    trace = read_trace(tmp_path / "t.jsonl")
    assert (trace.keeps_gaps("recorded"), trace.keeps_gaps("none")) == (True, False)
    with pytest.raises(PlanError, match="none, recorded"):
        trace.think_named("agent")
