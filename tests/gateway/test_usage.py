"""The usage tap: any split, any line ends, any shape of usage."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.gateway.heads import ResponseLines
from lmwarden.gateway.routes import Tap
from lmwarden.gateway.stream_taps import MAX_LINE_BYTES, ChatTap, MessagesTap, ResponsesTap, StreamTap
from lmwarden.gateway.usage import MAX_BODY_BYTES, BodyTap, NoTap, tap_for
from lmwarden.gateway.usage_counts import EngineAbortedError
from lmwarden.types import Usage

CHAT = [
    {"choices": [{"delta": {"content": '"usage": 5 [DONE] finish_reason":"abort"'}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "北京🙂\r\n"}, "finish_reason": None}]},
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


def text_of(api: str, end: str, spaced: bool) -> bytes:
    """A whole stream with these line ends."""
    if api == "chat":
        events = [f"data: {dump(event, spaced)}{end}{end}" for event in CHAT] + [f"data: [DONE]{end}{end}"]
    else:
        events = [
            f"event: {kind}{end}data: {dump({'type': kind, **event}, spaced)}{end}{end}"
            for kind, event in (MESSAGES if api == "messages" else RESPONSES)
        ]
    return f": hello{end}{end}".encode() + "".join(events).encode()


def new_tap(api: str) -> StreamTap:
    taps: dict[str, type[StreamTap]] = {"chat": ChatTap, "messages": MessagesTap, "responses": ResponsesTap}
    return taps[api]()


@given(
    api=st.sampled_from(["chat", "messages", "responses"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    spaced=st.booleans(),
    cuts=st.lists(st.integers(min_value=0, max_value=1500), max_size=40),
)
def test_usage_is_found_however_the_stream_is_cut(api: str, end: str, spaced: bool, cuts: list[int]) -> None:
    text = text_of(api, end, spaced)
    tap = new_tap(api)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, stop in pairwise(edges):
        tap.feed(text[start:stop])
    assert tap.clean_end()
    assert tap.usage() == EXPECTED[api]
    assert not tap.failed


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_single_cut_and_byte_by_byte(api: str, end: str) -> None:
    text = text_of(api, end, spaced=False)
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


def test_a_message_that_stops_without_a_reason_was_aborted() -> None:
    tap = MessagesTap()
    tap.feed(b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":null},"usage":{}}\n\n')
    with pytest.raises(EngineAbortedError):
        tap.feed(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_a_cancelled_response_was_aborted(kind: str, spaced: bool) -> None:
    event = {"type": kind, "response": {"id": "r", "status": "cancelled"}}
    with pytest.raises(EngineAbortedError):
        ResponsesTap().feed(f"event: {kind}\ndata: {dump(event, spaced)}\n\n".encode())
    tap = BodyTap(kind=Tap.RESPONSES)
    tap.feed(dump(event["response"], spaced).encode())
    with pytest.raises(EngineAbortedError):
        tap.clean_end()


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


def test_a_response_without_usage_ends_too() -> None:
    tap = ResponsesTap()
    tap.feed(b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n')
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


@pytest.mark.parametrize(
    "details", [..., None, {}, {"cached_tokens": None}, {"cached_tokens": 0}, {"cached_tokens": 900}]
)
def test_cached_tokens_unknown_is_not_zero(details: Any) -> None:
    usage: dict[str, Any] = {"prompt_tokens": 1000, "completion_tokens": 5}
    if details is not ...:
        usage["prompt_tokens_details"] = details
    tap = BodyTap(kind=Tap.CHAT)
    tap.feed(json.dumps({"usage": usage, "choices": []}).encode())
    assert tap.clean_end()
    expected = details.get("cached_tokens") if isinstance(details, dict) else None
    assert (tap.usage().prompt_tokens, tap.usage().cached_tokens) == (1000, expected)


@pytest.mark.parametrize(
    ("start", "delta", "expected"),
    [
        ({"input_tokens": 100, "cache_read_input_tokens": 900}, {"output_tokens": 5}, (1000, 900)),
        ({"input_tokens": 1000}, {"input_tokens": 100, "cache_read_input_tokens": 900}, (1000, 900)),
        ({"input_tokens": 100, "cache_read_input_tokens": 800}, {"cache_read_input_tokens": 900}, (1000, 900)),
        ({"input_tokens": 20, "cache_creation_input_tokens": 980, "cache_read_input_tokens": 0}, {}, (1000, 0)),
        ({"input_tokens": 1000}, {"output_tokens": 5}, (1000, None)),
        ({}, {}, (None, None)),
    ],
)
def test_message_usage_is_merged_and_not_added(
    start: dict[str, int], delta: dict[str, int], expected: tuple[int | None, int | None]
) -> None:
    tap = MessagesTap()
    for kind, event in (("message_start", {"message": {"usage": start}}), ("message_delta", {"usage": delta})):
        tap.feed(f"event: {kind}\ndata: {json.dumps({'type': kind, **event})}\n\n".encode())
    assert (tap.usage().prompt_tokens, tap.usage().cached_tokens) == expected


def test_both_apis_report_the_same_for_the_same_prompt() -> None:
    chat, messages = BodyTap(kind=Tap.CHAT), BodyTap(kind=Tap.MESSAGES)
    chat.feed(b'{"usage":{"prompt_tokens":1000,"prompt_tokens_details":{"cached_tokens":900}}}')
    messages.feed(
        b'{"type":"message","stop_reason":"end_turn","usage":{"input_tokens":100,"cache_read_input_tokens":900}}'
    )
    assert chat.clean_end()
    assert messages.clean_end()
    for tap in (chat, messages):
        assert (tap.usage().prompt_tokens, tap.usage().cached_tokens) == (1000, 900)


def test_a_cached_part_larger_than_the_prompt_is_unknown() -> None:
    tap = BodyTap(kind=Tap.CHAT)
    tap.feed(b'{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":900}}}')
    tap.clean_end()
    assert tap.usage().cached_tokens is None


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"usage":7}', b'{"usage":{"prompt_tokens":"x"}}', b"\xff", b"[" * 9000]
)
@pytest.mark.parametrize("kind", list(Tap))
def test_unreadable_answers_leave_usage_unknown(kind: Tap, body: bytes) -> None:
    tap = BodyTap(kind=kind)
    tap.feed(body)
    assert tap.clean_end()
    assert tap.usage().prompt_tokens is None


def test_a_body_in_many_pieces_and_one_that_is_too_long() -> None:
    body = json.dumps({"pad": "x" * 5000, "usage": {"prompt_tokens": 7}}).encode()
    tap = BodyTap(kind=Tap.CHAT)
    for at in range(0, len(body), 3):
        tap.feed(body[at : at + 3])
    assert tap.clean_end()
    assert tap.usage().prompt_tokens == 7
    tap = BodyTap(kind=Tap.CHAT)
    for _ in range(MAX_BODY_BYTES // 1_000_000 + 2):
        tap.feed(b" " * 1_000_000)
    assert tap.clean_end()
    assert tap.usage().prompt_tokens is None


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


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((Tap.CHAT, 200, b"text/event-stream; charset=utf-8", b""), ChatTap),
        ((Tap.MESSAGES, 200, b" Text/Event-Stream", b"identity"), MessagesTap),
        ((Tap.RESPONSES, 200, b"text/event-stream", b""), ResponsesTap),
        ((Tap.CHAT, 200, b"application/json", b""), BodyTap),
        ((Tap.CHAT, 200, b"application/json", b"gzip"), NoTap),
        ((Tap.CHAT, 400, b"application/json", b""), NoTap),
        ((None, 200, b"application/json", b""), NoTap),
    ],
)
def test_the_tap_for_an_answer(arguments: tuple[Tap | None, int, bytes, bytes], kind: type) -> None:
    tap, status, content_type, encoding = arguments
    assert type(tap_for(tap, status, ResponseLines([], content_type, encoding, b"5"))) is kind


@pytest.mark.parametrize("kind", [*Tap, None])
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize(
    ("body", "whole"),
    [
        (b'{"id":"x","choices":[]}', True),
        (b'{"usage":"odd","choices":7}', True),
        (b"[1]", True),
        (b'{"id":"x","choices":[', False),
        (b'{"usage":"odd","choices":7,', False),
        (b"", False),
    ],
)
def test_without_framing_a_json_body_must_be_whole(kind: Tap | None, status: int, body: bytes, whole: bool) -> None:
    for lines, clean in (
        (ResponseLines([], b"application/json"), whole),
        (ResponseLines([], b"application/json", b"", b"5"), True),
        (ResponseLines([], b"text/plain"), True),
    ):
        tap = tap_for(kind, status, lines)
        for at in range(0, len(body), 5):
            tap.feed(body[at : at + 5])
        assert tap.clean_end() == clean


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("order", [1, -1])
def test_an_abort_beside_a_choice_that_goes_on(space: str, order: int) -> None:
    choices = [f'{{"index":{at},"finish_reason":{space}{reason}}}' for at, reason in enumerate(["null", '"abort"'])]
    tap = ChatTap()
    with pytest.raises(EngineAbortedError):
        tap.feed(b'data: {"choices":[%b]}\n\n' % ",".join(choices[::order]).encode())
    assert ChatTap().feed(b'data: {"choices":[{"finish_reason":null,"stop_reason":null}]}\n\n'), "still dull"


def test_no_tap_knows_nothing() -> None:
    tap = NoTap()
    assert tap.feed(b'{"usage":{"prompt_tokens":7}}') is False
    assert tap.clean_end()
    assert not tap.between_events()
    assert tap.usage() == Usage()
