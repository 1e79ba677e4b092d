"""Errors of our own, in the form that the caller's client library parses.

Two envelopes, one table. Claude Code retries 408, 409, 429, 5xx and 529, gives up on a Retry-After above 60 s,
and reads other 4xx as a fault of the request; so overload and engine failures are 502 to 504 or 529 with a
Retry-After of 1 to 60 s, and never 400, 404 or 422. A message is one sentence: what, where, what is allowed. It
never repeats text of a prompt. (An engine's own error is put into the same envelopes by ``engine_errors``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from lmwarden.gateway.codings import CODINGS
from lmwarden.gateway.routes import Api
from lmwarden.types import RefuseReason

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

_KINDS = {
    400: "malformed",
    403: "foreign_page",
    417: "unknown_expectation",
    431: "head_too_large",
    505: "unknown_version",
}
"""Of problems that have no code."""

REASON_PHRASES: dict[int, bytes] = {status.value: status.phrase.encode() for status in HTTPStatus} | {
    529: b"Overloaded"
}


@dataclass(frozen=True)
class Problem:
    """An answer of our own to a request that we do not serve."""

    status: int
    message: str
    code: str | None = None
    """OpenAI's ``error.code``; Anthropic has none."""
    retry_after_s: int | None = None
    allow: bytes | None = None
    """For 405: the methods."""
    param: str | None = None
    """OpenAI's ``error.param``: the member that is wrong."""

    @property
    def kind(self) -> str:
        """What it is counted as: one of few words, all of them ours."""
        return self.code if self.code is not None else _KINDS.get(self.status, "invalid_request")

    def body(self, api: Api) -> bytes:
        """The JSON body in the caller's envelope."""
        return error_body(api, self.status, self.message, code=self.code, param=self.param)


def error_body(api: Api, status: int, message: str, *, code: str | None = None, param: str | None = None) -> bytes:
    """An error's JSON body in the envelope of an API, with that API's type for the status."""
    if api is Api.ANTHROPIC:
        fallback = "api_error" if status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(status, fallback)
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    error = {
        "message": message,
        "type": _OPENAI_TYPES.get(status, fallback),
        "param": param,
        "code": code if code is not None else status,
    }
    return msgspec.json.encode({"error": error})


_NOT_AGAIN = b"x-should-retry: false\r\n"
"""The SDKs' header. Without it Claude Code asks ten times, for three minutes, before it shows that a key is wrong."""


_ACCEPTED_CODINGS = f"Accept-Encoding: {', '.join(CODINGS)}\r\n".encode()


def head(status: int, *, content_type: bytes, length: int, close: bool, extra: bytes = b"") -> bytes:
    """A response head of our own. ``extra`` is whole header lines."""
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
        status,
        REASON_PHRASES.get(status, b"Error"),
        content_type,
        length,
        extra,
        b"Connection: close\r\n" if close else b"",
    )


def render(problem: Problem, api: Api, *, close: bool, head_only: bool = False) -> bytes:
    """The whole HTTP response for a problem."""
    body = problem.body(api)
    extra = b""
    if problem.retry_after_s is not None:
        extra += b"Retry-After: %d\r\n" % min(60, max(1, problem.retry_after_s))
    if problem.status == 401:
        extra += _NOT_AGAIN
    elif problem.status == 415:
        extra += _ACCEPTED_CODINGS
    if problem.allow is not None:
        extra += b"Allow: %b\r\n" % problem.allow
    start = head(problem.status, content_type=b"application/json", length=len(body), close=close, extra=extra)
    return start if head_only else start + body


def refusal(reason: RefuseReason, retry_after_s: int, api: Api, *, sent: bool = True) -> Problem:
    """What a client is told when the router will not dispatch its request, which was ``sent`` to an engine or not."""
    if reason is RefuseReason.RESPONSE_LOST:
        return PREVIOUS_RESPONSE_LOST
    if reason is RefuseReason.ROOM_FULL:
        return overloaded("The waiting room of this model is full; try again in a moment.", retry_after_s, api)
    message = {
        RefuseReason.NO_REPLICA: "No replica of this model takes requests now.",
        RefuseReason.PINNED_REPLICA_DOWN: "The replica that this request names is down.",
        RefuseReason.RETRY_EXHAUSTED: (
            "The engines could not take this request, and it is not sent again."
            if sent
            else "The engines of this model take no connections at the moment."
        ),
    }[reason]
    return Problem(503, message, reason.value, retry_after_s)


BAD_JSON = Problem(400, "The request body must be one JSON object.", "invalid_json")
NO_KEY = Problem(
    401, "An API key is required: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'.", "invalid_api_key"
)
UNKNOWN_KEY = Problem(401, "The API key is not known here.", "invalid_api_key")
TWO_KEYS = Problem(401, "The request carries two different API keys; send one.", "invalid_api_key")
UNKNOWN_CODING = Problem(
    415, f"The Content-Encoding of the request body must be one of {', '.join(CODINGS)}, or none.", "unsupported_coding"
)
FOREIGN_PAGE = Problem(403, "Calls from web pages of another origin are not served.")
EXPECTATION = Problem(417, "The only expectation that is understood is 'Expect: 100-continue'.")
NO_PATH = Problem(404, "This path is not served here.", "not_found")
NO_HOST = Problem(400, "An HTTP/1.1 request needs exactly one Host header.")
BAD_VERSION = Problem(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
BAD_TRANSFER_ENCODING = Problem(400, "The only Transfer-Encoding that is understood is 'chunked', in HTTP/1.1.")
HEAD_TOO_LARGE = Problem(431, "The request head is too large.")
TOO_MUCH_FRAMING = Problem(431, "The chunk extensions and trailers of the request body are too large.")
DRAINING = Problem(503, "The server is shutting down.", "shutting_down", 5)
OUR_FAULT = Problem(500, "The request met a fault of the server's own, which is in its log.")
ENGINE_BROKE = Problem(502, "The engine broke off before it answered.", "engine_failed", 1)
ENGINE_GARBLED = Problem(502, "The engine's answer is not valid HTTP.", "engine_failed", 1)
ENGINE_ABORTED = Problem(502, "The engine aborted the generation.", "engine_failed", 1)
PREVIOUS_RESPONSE_UNKNOWN = Problem(
    404,
    "The response that 'previous_response_id' names is not known here, or not to this API key;"
    " send the whole conversation instead.",
    "previous_response_not_found",
    param="previous_response_id",
)
PREVIOUS_RESPONSE_LOST = Problem(
    404,
    "The engine that kept the response that 'previous_response_id' names is down or was restarted, and no other has"
    " it; send the whole conversation instead.",
    "previous_response_not_found",
    param="previous_response_id",
)
PREVIOUS_RESPONSE_ELSEWHERE = Problem(
    400,
    "The response that 'previous_response_id' names is kept by another engine than that of the replica that the"
    " request names.",
    "invalid_replica",
    param="previous_response_id",
)
ENGINE_SILENT = Problem(504, "The engine did not answer in time.", "engine_timeout", 1)


def overloaded(message: str, retry_after_s: int, api: Api) -> Problem:
    """Too much at once, in the status of the caller's API."""
    return Problem(529 if api is Api.ANTHROPIC else 503, message, "overloaded", retry_after_s)


def too_many_connections(api: Api) -> Problem:
    """For a connection beyond the limit."""
    return overloaded("The server has too many connections at the moment.", 2, api)


def no_buffer(api: Api) -> Problem:
    """For a body that found no room."""
    return overloaded("The server holds too many request bodies at the moment.", 2, api)


def no_connection(api: Api) -> Problem:
    """For a request for which we have no connection left."""
    return overloaded("The server has no connection left to an engine at the moment.", 2, api)


def too_large(limit_bytes: int) -> Problem:
    """413, with the limit."""
    return Problem(413, f"The request body is larger than {limit_bytes} bytes.", "request_too_large")


def expands_too_much(ratio: int) -> Problem:
    """413 for a body that is nothing but its compression."""
    return Problem(413, f"The request body expands to more than {ratio} times its size.", "request_too_large")


def undecodable(coding: str) -> Problem:
    """400 for a compressed body that is not what its header says."""
    return Problem(400, f"The request body is not valid {coding} data, or is cut off.", "invalid_coding")


def malformed(detail: str) -> Problem:
    """400 for a head or body that is not valid HTTP. ``detail`` is the parser's own wording, no input."""
    return Problem(400, f"The request is not valid HTTP/1.1: {detail}.")
