"""The taps of streams: any split, any line ends, any event."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.gateway.stream_taps import MAX_LINE_BYTES, ChatTap, MessagesTap, ResponsesTap, StreamTap
from lmwarden.gateway.usage_counts import EngineAbortedError
from lmwarden.types import Usage

CHAT = [
    {"choices": [{"delta": {"content": '"usage": 5 [DONE] finish_reason":"abort"'}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "北京🙂\r\n\u2028\u0085"}, "finish_reason": None}]},
    {"choices": [{"delta": {}, "finish_reason": "length"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 398, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 384}},
    },
]


MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("message_start", {"message": {"usage": {"input_tokens": 398, "output_tokens": 0}}}),
    ("content_block_delta", {"delta": {"text": 'say "usage" message_stop'}}),
    ("ping", {}),
    (
        "message_delta",
        {
            "delta": {"stop_reason": "max_tokens"},
            "usage": {
                "input_tokens": 14,
                "output_tokens": 4,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 384,
            },
        },
    ),
    ("message_stop", {}),
]


RESPONSES: list[tuple[str, dict[str, Any]]] = [
    ("response.created", {"response": {"status": "in_progress", "usage": None, "error": None}}),
    ("response.output_text.delta", {"delta": 'a "usage"'}),
    (
        "response.incomplete",
        {
            "response": {
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
                "usage": {"input_tokens": 398, "input_tokens_details": {"cached_tokens": 384}, "output_tokens": 4},
            }
        },
    ),
]


EXPECTED = {
    "chat": Usage(prompt_tokens=398, cached_tokens=384, completion_tokens=4, finish_reason="length"),
    "messages": Usage(prompt_tokens=398, cached_tokens=384, completion_tokens=4, finish_reason="max_tokens"),
    "responses": Usage(prompt_tokens=398, cached_tokens=384, completion_tokens=4, finish_reason="max_output_tokens"),
}


def dump(value: object, spaced: bool) -> str:
    return json.dumps(value, separators=None if spaced else (",", ":"), ensure_ascii=False)


def text_of(api: str, end: str, spaced: bool, *, mark: bool = False, spread: bool = False) -> bytes:
    """A whole stream with these line ends.

    With a byte order ``mark`` in front; with each event's data ``spread`` over many lines. The text of the answer holds
    U+2028 and U+0085, which end lines elsewhere.
    """

    def data(event: object) -> str:
        text = json.dumps(event, indent=1, ensure_ascii=False) if spread else dump(event, spaced)
        return "".join(f"data: {line}{end}" for line in text.split("\n"))

    if api == "chat":
        events = [f"{data(event)}{end}" for event in CHAT] + [f"data: [DONE]{end}{end}"]
    else:
        events = [
            f"event: {kind}{end}{data({'type': kind, **event})}{end}"
            for kind, event in (MESSAGES if api == "messages" else RESPONSES)
        ]
    first = (
        "" if mark else f": hello{end}{end}event: novelty{end}id: 7{end}retry: 10{end}data{end}data: {{broken{end}{end}"
    )
    return ("\ufeff" * mark + first + "".join(events)).encode()


def new_tap(api: str) -> StreamTap:
    taps: dict[str, type[StreamTap]] = {"chat": ChatTap, "messages": MessagesTap, "responses": ResponsesTap}
    return taps[api]()


@given(
    api=st.sampled_from(["chat", "messages", "responses"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    spaced=st.booleans(),
    mark=st.booleans(),
    spread=st.booleans(),
    cuts=st.lists(st.integers(min_value=0, max_value=1500), max_size=40),
)
def test_usage_is_found_however_the_stream_is_cut(
    api: str, end: str, spaced: bool, mark: bool, spread: bool, cuts: list[int]
) -> None:
    text = text_of(api, end, spaced, mark=mark, spread=spread)
    tap = new_tap(api)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, stop in pairwise(edges):
        tap.feed(text[start:stop])
    assert tap.clean_end()
    assert tap.usage() == EXPECTED[api]
    assert not tap.failed


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("spread", [False, True])
def test_every_single_cut_and_byte_by_byte(api: str, end: str, spread: bool) -> None:
    text = text_of(api, end, spaced=False, mark=spread, spread=spread)
    for cut in range(len(text)):
        tap = new_tap(api)
        tap.feed(text[:cut])
        tap.feed(text[cut:])
        assert tap.usage() == EXPECTED[api], cut
    tap = new_tap(api)
    for at in range(len(text)):
        tap.feed(text[at : at + 1])
    assert tap.clean_end()
    assert tap.usage() == EXPECTED[api]


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_a_stream_without_its_last_event_did_not_end_cleanly(api: str) -> None:
    text = text_of(api, "\n", spaced=False)
    last = text.rstrip().rfind(b"\n\n") + 2
    tap = new_tap(api)
    tap.feed(text[:last])
    assert not tap.clean_end()
    assert new_tap(api).clean_end() is False


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_an_abort_is_raised_before_the_end_can_be_passed_on(spaced: bool, whole: bool) -> None:
    event = f"data: {dump({'choices': [{'finish_reason': 'abort'}]}, spaced)}\n\n".encode()
    pieces = [event] if whole else [event[:30], event[30:]]
    tap = ChatTap()
    with pytest.raises(EngineAbortedError):
        for piece in pieces:
            tap.feed(piece)
    assert tap.usage().finish_reason == "abort"


@pytest.mark.parametrize("reason", ["abort", "stop", "length", "tool_calls"])
def test_the_last_chunk_of_a_real_vllm_is_not_dull_although_its_stop_reason_is_null(reason: str) -> None:
    """Taken from vLLM 0.32: ``stop_reason`` stands beside ``finish_reason`` and is null."""
    template = (
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
        '"delta":{"content":""},"logprobs":null,"finish_reason":"REASON","stop_reason":null,"token_ids":null}]}\n\n'
    )
    chunk = template.replace("REASON", reason).encode()
    tap = ChatTap()
    if reason == "abort":
        with pytest.raises(EngineAbortedError):
            tap.feed(chunk)
    else:
        tap.feed(chunk)
    assert tap.usage().finish_reason == reason


@pytest.mark.parametrize("reason", ["null", '"abort"'])
def test_a_message_that_stops_without_a_reason_or_by_that_word_was_aborted(reason: str) -> None:
    tap = MessagesTap()
    delta = f'{{"type":"message_delta","delta":{{"stop_reason":{reason}}},"usage":{{}}}}'
    tap.feed(f"event: message_delta\ndata: {delta}\n\n".encode())
    with pytest.raises(EngineAbortedError):
        tap.feed(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert tap.usage().finish_reason == "abort"


def test_a_reason_that_comes_after_counts_without_one_is_the_reason() -> None:
    """Some servers count as they go."""
    tap = MessagesTap()
    for reason in ("null", '"end_turn"'):
        delta = f'{{"type":"message_delta","delta":{{"stop_reason":{reason}}},"usage":{{"output_tokens":4}}}}'
        tap.feed(f"event: message_delta\ndata: {delta}\n\n".encode())
    tap.feed(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert tap.clean_end()
    assert tap.usage().finish_reason == "end_turn"


@given(cuts=st.lists(st.integers(min_value=0, max_value=800), max_size=20), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_the_id_of_a_response_is_told_as_soon_as_it_is_known(cuts: list[int], end: str) -> None:
    created = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
    text = f"event: response.created{end}data: {dump(created, False)}{end}{end}".encode()
    rest = text_of("responses", end, spaced=False).replace(
        b'"status":"incomplete"', b'"id":"resp_1","status":"incomplete"'
    )
    told: list[str] = []
    tap = ResponsesTap(response_made=told.append)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, stop in pairwise(edges):
        tap.feed(text[start:stop])
    if end != "\r":  # after a lone CR one cannot know
        assert told == ["resp_1"]
    tap.feed(rest)
    assert set(told) == {"resp_1"}
    assert tap.clean_end()


@pytest.mark.parametrize(
    ("tap", "event"),
    [
        (ChatTap(), b'data: {"error":{"message":"dead","code":500}}\n\n'),
        (ChatTap(), b'data: {"choices":[{"finish_reason":"error"}]}\n\n'),
        (MessagesTap(), b'event: error\ndata: {"type":"error","error":{"type":"api_error"}}\n\n'),
        (ResponsesTap(), b'event: error\ndata: {"type":"error","error":{}}\n\n'),
        (ResponsesTap(), b'data: {"type":"response.failed","response":{"status":"failed","error":{}}}\n\n'),
    ],
)
def test_an_error_event_is_a_failure(tap: StreamTap, event: bytes) -> None:
    tap.feed(event)
    assert tap.failed


def test_a_line_that_is_too_long_is_skipped_and_the_next_is_read() -> None:
    tap = ChatTap()
    piece = b"x" * 1_000_000
    tap.feed(b"data: ")
    for _ in range(MAX_LINE_BYTES // len(piece) + 2):
        tap.feed(piece)
    tap.feed(b"tail\r")
    tap.feed(b'\ndata: {"choices":[],"usage":{"prompt_tokens":7}}\n\ndata: [DONE]\n\n')
    assert tap.clean_end()
    assert tap.usage().prompt_tokens == 7


@pytest.mark.parametrize("cut", range(6))
def test_a_byte_order_mark_hides_no_event(cut: int) -> None:
    text = '\ufeffdata: {"choices":[],"usage":{"prompt_tokens":7}}\n\ndata: [DONE]\n\n'.encode()
    tap = ChatTap()
    tap.feed(text[:cut])
    tap.feed(text[cut:])
    assert tap.clean_end()
    assert tap.usage().prompt_tokens == 7


def test_data_that_makes_no_sense_is_kept_for_its_event_only_and_not_without_bound() -> None:
    tap = ChatTap()
    tap.feed(b'data: {"choices":[],\n')
    tap.feed(b"\n")
    tap.feed(b'data: "usage":{"prompt_tokens":7}}\n\n')
    assert tap.usage().prompt_tokens is None
    line = b"data: {%b\n" % (b"x" * 100_000)
    for _ in range(3 * MAX_LINE_BYTES // len(line)):
        tap.feed(line)
    assert tap._unread is not None
    assert MAX_LINE_BYTES < len(tap._unread) < 2 * MAX_LINE_BYTES
    tap.feed(b'\ndata: {"choices":[],"usage":{"prompt_tokens":8}}\n\ndata: [DONE]\n\n')
    assert tap.clean_end()
    assert tap.usage().prompt_tokens == 8


def test_what_a_message_begins_with_is_no_count_of_its_output() -> None:
    tap = MessagesTap()
    tap.feed(
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0}}}'
    )
    tap.feed(b'\n\nevent: content_block_delta\ndata: {"type":"content_block_delta"}\n\n')
    assert not tap.clean_end()
    assert (tap.usage().prompt_tokens, tap.usage().completion_tokens) == (9, None)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_places_for_an_event_of_our_own_with_other_line_ends_and_in_small_pieces(end: bytes) -> None:
    tap = ChatTap()
    event = b'data: {"a":1}' + end + end
    for at in range(len(event)):
        assert not tap.between_events(), at
        tap.feed(event[at : at + 1])
    assert tap.between_events()
    assert tap.last_bytes() == event[-8:]


def test_places_for_an_event_of_our_own() -> None:
    tap = MessagesTap()
    assert not tap.between_events()
    tap.feed(b'event: content_block_delta\ndata: {"a":1}\n\n')
    assert tap.between_events()
    tap.feed(b"event: content_block_del")
    assert not tap.between_events()
    tap.feed(b'ta\ndata: {"a":1}\n')
    assert not tap.between_events()
    tap.feed(b'event: x\ndata: {"type":"message_stop"}\n\n')
    assert not tap.between_events()


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("order", [1, -1])
def test_an_abort_beside_a_choice_that_goes_on(space: str, order: int) -> None:
    choices = [f'{{"index":{at},"finish_reason":{space}{reason}}}' for at, reason in enumerate(["null", '"abort"'])]
    tap = ChatTap()
    with pytest.raises(EngineAbortedError):
        tap.feed(b'data: {"choices":[%b]}\n\n' % ",".join(choices[::order]).encode())
    assert ChatTap().feed(b'data: {"choices":[{"finish_reason":null,"stop_reason":null}]}\n\n'), "still dull"
