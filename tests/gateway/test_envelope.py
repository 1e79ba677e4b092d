"""Errors of our own, in both envelopes."""

from __future__ import annotations

import msgspec
import pytest

from lmwarden.gateway import envelope
from lmwarden.gateway.envelope import Problem, refusal, render
from lmwarden.gateway.routes import Api
from lmwarden.types import RefuseReason


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (403, "permission_error", "permission_error"),
        (404, "not_found_error", "not_found_error"),
        (413, "invalid_request_error", "request_too_large"),
        (415, "invalid_request_error", "invalid_request_error"),
        (502, "server_error", "api_error"),
        (503, "server_error", "api_error"),
        (504, "server_error", "timeout_error"),
        (529, "server_error", "overloaded_error"),
    ],
)
def test_types(status: int, openai: str, anthropic: str) -> None:
    problem = Problem(status, "Why.", "code")
    assert msgspec.json.decode(problem.body(Api.OPENAI)) == {
        "error": {"message": "Why.", "type": openai, "param": None, "code": "code"}
    }
    assert msgspec.json.decode(problem.body(Api.ANTHROPIC)) == {
        "type": "error",
        "error": {"type": anthropic, "message": "Why."},
    }


@pytest.mark.parametrize(("given", "sent"), [(0, 1), (7, 7), (61, 60), (3600, 60)])
def test_retry_after_is_1_to_60_whole_seconds(given: int, sent: int) -> None:
    assert b"\r\nRetry-After: %d\r\n" % sent in render(Problem(503, "x", retry_after_s=given), Api.OPENAI, close=False)


def test_render() -> None:
    response = render(Problem(404, "No."), Api.OPENAI, close=True)
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert head.endswith(b"Connection: close")
    assert render(Problem(404, "No."), Api.OPENAI, close=True, head_only=True) == head + b"\r\n\r\n"


@pytest.mark.parametrize("reason", [reason for reason in RefuseReason if reason is not RefuseReason.RESPONSE_LOST])
@pytest.mark.parametrize("api", list(Api))
def test_overload_and_engine_failures_are_never_the_clients_fault(reason: RefuseReason, api: Api) -> None:
    problem = refusal(reason, 5, api)
    assert problem.status in (503, 529)
    assert problem.retry_after_s == 5


def test_every_engine_failure_of_ours_says_when_to_come_back() -> None:
    problems = [value for value in vars(envelope).values() if isinstance(value, Problem)]
    assert len(problems) > 10
    for problem in problems:
        assert (problem.retry_after_s is not None) == (problem.status in (502, 503, 504)), problem
        assert problem.message.endswith(".")


def test_what_was_never_sent_is_not_said_to_have_been() -> None:
    never, sent = (refusal(RefuseReason.RETRY_EXHAUSTED, 5, Api.OPENAI, sent=sent).message for sent in (False, True))
    assert "sent" not in never
    assert never != sent


def test_a_wrong_key_is_not_worth_another_try() -> None:
    """Else Claude Code asks ten times, for three minutes, before it shows the message."""
    for problem in (envelope.NO_KEY, envelope.UNKNOWN_KEY, envelope.TWO_KEYS):
        assert b"\r\nx-should-retry: false\r\n" in envelope.render(problem, Api.ANTHROPIC, close=False)
    assert b"x-should-retry" not in envelope.render(envelope.DRAINING, Api.ANTHROPIC, close=False)
