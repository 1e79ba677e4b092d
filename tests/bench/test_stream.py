"""First token, usage and end, whatever the splits."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.stub_endpoint import CHAT_STREAM, MESSAGES_STREAM, chat_chunk, event

from lmwarden.bench.stream import ChatReader, MessagesReader, StreamReader
from lmwarden.types import Usage

WHOLE_USAGE = {"prompt_tokens": 1000, "cached_tokens": 900, "completion_tokens": 41}


def test_role_reasoning_content_and_usage_chunks_are_told_apart() -> None:
    reader = ChatReader()
    reader.feed(chat_chunk({"role": "assistant", "content": ""}), 0.0)
    reader.feed(chat_chunk({"reasoning_content": "hm"}), 2.0)
    for moment in range(10):
        reader.feed(chat_chunk({"content": "four words are here"}), 5.0 + moment)
    reader.feed(event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 41}}), 20.0)
    reader.feed(b"data: [DONE]\n\n", 20.0)
    assert (reader.first_token_s, reader.first_content_s) == (2.0, 5.0)
    assert reader.usage() == Usage(prompt_tokens=9, completion_tokens=41)
    assert reader.complete


def test_a_usage_only_chunk_is_no_token() -> None:
    reader = ChatReader()
    reader.feed(CHAT_STREAM[3], 1.0)
    assert reader.first_token_s is None


def test_message_delta_replaces_the_usage_of_message_start() -> None:
    reader = MessagesReader()
    reader.feed(b"".join(MESSAGES_STREAM), 3.0)
    assert reader.usage() == Usage(**WHOLE_USAGE, finish_reason="max_tokens")
    assert reader.text() == "one two."


def test_without_cache_fields_cached_tokens_are_unknown_and_not_zero() -> None:
    reader = MessagesReader()
    reader.feed(MESSAGES_STREAM[0], 0.0)
    reader.feed(event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 4}}), 1.0)
    assert reader.usage() == Usage(prompt_tokens=1000, cached_tokens=None, completion_tokens=4)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_start_ping_and_empty_block_are_no_tokens(index: int) -> None:
    reader = MessagesReader()
    reader.feed(MESSAGES_STREAM[index], 1.0)
    assert reader.first_token_s is None


@pytest.mark.parametrize(
    "data",
    [
        event({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}),
        event({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}),
        event({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "Bash"}}),
    ],
)
def test_thinking_and_tool_input_are_tokens(data: bytes) -> None:
    reader = MessagesReader()
    reader.feed(data, 7.0)
    assert reader.first_token_s == 7.0


def test_an_error_inside_the_stream_is_named() -> None:
    messages = MessagesReader()
    messages.feed(event({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}), 0.0)
    chat = ChatReader()
    chat.feed(event({"error": {"message": "engine dead", "code": 500}}), 0.0)
    assert (messages.error, chat.error) == ("overloaded_error", "error event")
    unnamed = MessagesReader()
    unnamed.feed(event({"type": "error"}), 0.0)
    assert unnamed.error == "error event"


def test_broken_json_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        ChatReader().feed(b"data: {broken\n\n", 0.0)


@pytest.mark.parametrize("reader", [ChatReader(), MessagesReader()])
def test_a_line_without_end_is_no_stream(reader: StreamReader) -> None:
    for _ in range(16):
        reader.feed(b"x" * 65_536, 0.0)
    with pytest.raises(msgspec.DecodeError, match="longer than 1 MiB"):
        reader.feed(b"x", 0.0)


@given(st.data(), st.booleans(), st.booleans())
def test_any_split_reads_the_same(data: st.DataObject, messages: bool, crlf: bool) -> None:
    stream = b": comment\n\n" + b"".join(MESSAGES_STREAM if messages else CHAT_STREAM)
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    reader: StreamReader = MessagesReader() if messages else ChatReader()
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30).map(sorted))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end], 1.0)
    usage = reader.usage()
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (1000, 900, 41)
    assert (reader.text(), reader.complete, reader.first_token_s) == ("one two.", True, 1.0)
