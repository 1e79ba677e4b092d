"""The usage tap: any shape of usage, bodies, and which answer gets which tap."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmwarden.gateway.heads import ResponseLines
from lmwarden.gateway.routes import Tap
from lmwarden.gateway.stream_taps import ChatTap, MessagesTap, ResponsesTap
from lmwarden.gateway.usage import MAX_BODY_BYTES, BodyTap, NoTap, tap_for
from lmwarden.gateway.usage_counts import EngineAbortedError
from lmwarden.types import Usage


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_a_cancelled_response_was_aborted(kind: str, spaced: bool) -> None:
    separators = None if spaced else (",", ":")
    event = {"type": kind, "response": {"id": "r", "status": "cancelled"}}
    with pytest.raises(EngineAbortedError):
        ResponsesTap().feed(f"event: {kind}\ndata: {json.dumps(event, separators=separators)}\n\n".encode())
    tap = BodyTap(kind=Tap.RESPONSES)
    tap.feed(json.dumps(event["response"], separators=separators).encode())
    with pytest.raises(EngineAbortedError):
        tap.clean_end()


@pytest.mark.parametrize("reason", ["null", '"abort"'])
def test_a_message_in_one_piece_without_a_reason_or_with_that_word_was_aborted(reason: str) -> None:
    tap = BodyTap(kind=Tap.MESSAGES)
    tap.feed(f'{{"type":"message","stop_reason":{reason}}}'.encode())
    with pytest.raises(EngineAbortedError):
        tap.clean_end()
    assert tap.usage().finish_reason == "abort"


def test_a_response_without_usage_ends_too() -> None:
    tap = ResponsesTap()
    tap.feed(b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n')
    assert tap.clean_end()


@pytest.mark.parametrize(
    ("kind", "body", "failed"),
    [
        (Tap.CHAT, b'{"error":{"message":"engine dead","code":500}}', True),
        (Tap.CHAT, b'{"error":null,"choices":[]}', False),
        (Tap.MESSAGES, b'{"type":"error","error":{"type":"api_error","message":"x"}}', True),
        (Tap.MESSAGES, b'{"type":"message","stop_reason":"end_turn"}', False),
        (Tap.RESPONSES, b'{"status":"failed"}', True),
    ],
)
def test_an_error_in_a_body_of_status_200_is_a_failure(kind: Tap, body: bytes, failed: bool) -> None:
    tap = BodyTap(kind=kind)
    tap.feed(body)
    assert tap.clean_end()
    assert tap.failed is failed


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


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": -1, "completion_tokens": 5}, (None, None, 5)),
        ({"prompt_tokens": 10**30, "completion_tokens": -5}, (None, None, None)),
        ({"prompt_tokens": 10**30, "prompt_tokens_details": {"cached_tokens": 10**30}}, (None, None, None)),
        ({"prompt_tokens": 9, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": -1}}, (9, None, 0)),
    ],
)
def test_counts_that_no_engine_can_mean_are_unknown(
    usage: dict[str, Any], expected: tuple[int | None, int | None, int | None]
) -> None:
    tap = BodyTap(kind=Tap.CHAT)
    tap.feed(json.dumps({"usage": usage}).encode())
    tap.clean_end()
    found = tap.usage()
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == expected


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
    start, end = b'{"usage":{"prompt_tokens":7},"pad":"', b'"}'
    for more in (0, 1):
        tap = BodyTap(kind=Tap.CHAT)
        for piece in (start, b"x" * (MAX_BODY_BYTES - len(start) - len(end) + more), end):
            tap.feed(piece)
        assert (tap._pieces is None) is bool(more), "of one that is too long nothing is kept"
        assert tap.clean_end()
        assert tap.usage().prompt_tokens == (None if more else 7)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((Tap.CHAT, 200, b"text/event-stream; charset=utf-8", b""), ChatTap),
        ((Tap.MESSAGES, 200, b"text/event-stream", b"identity"), MessagesTap),
        ((Tap.RESPONSES, 200, b"text/event-stream", b""), ResponsesTap),
        ((Tap.CHAT, 200, b"application/json", b""), BodyTap),
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


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_is_whole(status: int) -> None:
    assert tap_for(Tap.CHAT, status, ResponseLines([], b"application/json")).clean_end()


def test_no_tap_knows_nothing() -> None:
    tap = NoTap()
    assert tap.feed(b'{"usage":{"prompt_tokens":7}}') is False
    assert tap.clean_end()
    assert not tap.between_events()
    assert tap.usage() == Usage()


def test_a_prompt_may_be_cached_to_its_last_token_or_not_at_all() -> None:
    for cached in (0, 10):
        tap = BodyTap(kind=Tap.CHAT)
        tap.feed(b'{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":%d}}}' % cached)
        tap.clean_end()
        assert (tap.usage().prompt_tokens, tap.usage().cached_tokens) == (10, cached)
