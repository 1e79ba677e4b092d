"""What all routes of the console share: bodies read within a bound, answers as JSON, errors as one sentence."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

T = TypeVar("T")

MAX_BODY_BYTES = 65536
"""Of a change; the largest legal one is below 2,000 bytes."""
CHANGE_TIMEOUT_S = 10.0
"""The data loop answers within milliseconds; beyond this it is stuck, and we say so."""
MAX_ITEMS = 500
"""On one page of a list."""


class Page(msgspec.Struct, frozen=True):
    """One page of a list."""

    items: list[Any]
    next: str | None
    """For ``before``; null: that was the last page."""


async def result_of(change: Future[T]) -> T:
    """What the data loop answers.

    Raises:
        HTTPException: (503) it did not in time.
    """
    try:
        return await asyncio.wait_for(asyncio.wrap_future(change), CHANGE_TIMEOUT_S)
    except TimeoutError:
        raise HTTPException(503, "the data loop did not answer; a change may still happen") from None


async def read_object(request: Request, *, may_be_empty: bool = False) -> dict[str, Any]:
    """The JSON object that is a request's body.

    Raises:
        HTTPException: (400, 413) it is none, or too long, or its sender left.
    """
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body may have at most {MAX_BODY_BYTES} bytes")
    except ClientDisconnect:  # no fault of ours: a traceback for each would let anybody fill the log
        raise HTTPException(400, "the body did not come to its end") from None
    if may_be_empty and not body:
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except RecursionError:
        raise HTTPException(400, "the body must be a JSON object that is not nested deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise HTTPException(400, "the body must be a JSON object in UTF-8; NaN and Infinity are no JSON") from None


def text_of(body: dict[str, Any], key: str) -> str:
    """The one key of a body, a text.

    Raises:
        HTTPException: (400) the body is another one.
    """
    value = body.get(key)
    if set(body) != {key} or not isinstance(value, str):
        raise HTTPException(400, f'the body must be {{"{key}": "…"}}, a text')
    return value


def number_of(request: Request, name: str, least: int, most: int, usual: int) -> int:
    """An integer of the query.

    Raises:
        HTTPException: (400) it is none, or outside of what is allowed.
    """
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and least <= int(text) <= most):
        raise HTTPException(400, f"{name}: must be an integer from {least} to {most}, not {text!r:.40}")
    return int(text)


def encode(thing: msgspec.Struct) -> bytes:
    """A public shape as JSON."""
    return msgspec.json.encode(thing)


def json_answer(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON that is there already."""
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def error_answer(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """An error for a person."""
    return json_answer(msgspec.json.encode({"error": sentence}), status, headers)
