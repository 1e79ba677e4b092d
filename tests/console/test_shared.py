"""The same question within a second is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Scope
from tests.access.clock import Now

from lmwarden.console import shared
from lmwarden.console.shared import KEPT_S, SharedAnswers


class Handler:
    """Answers when it may, with what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def show(self, request: Request) -> Response:
        self.asked.append(request.url.query)
        await self.may_answer.wait()
        if request.url.query == "bad":
            raise HTTPException(400, "bad")
        return PlainTextResponse(request.url.query)


async def ask(app: Starlette, query: str) -> tuple[int, str]:
    """One request without a network."""
    sent: list[Message] = []
    scope: Scope = {
        "type": "http", "method": "GET", "path": "/list", "query_string": query.encode(), "headers": [],
        "server": ("h", 1), "scheme": "http", "root_path": "",
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    """The clock of what is kept."""
    made = Now()
    monkeypatch.setattr(shared, "time", SimpleNamespace(monotonic=made))
    return made


@pytest.fixture
async def handler() -> Handler:
    return Handler()


@pytest.fixture
async def app(handler: Handler) -> AsyncIterator[Starlette]:
    yield Starlette(routes=SharedAnswers().over([Route("/list", handler.show)]))


async def test_all_who_ask_at_once_share_one_answer(app: Starlette, handler: Handler) -> None:
    handler.may_answer.clear()
    asking = [asyncio.ensure_future(ask(app, "a")) for _ in range(20)]
    other = asyncio.ensure_future(ask(app, "b"))
    for _ in range(5):
        await asyncio.sleep(0)
    asking[0].cancel()  # the first one gives up
    handler.may_answer.set()
    assert await asyncio.gather(*asking[1:]) == [(200, "a")] * 19
    assert await other == (200, "b")
    assert sorted(handler.asked) == ["a", "b"]


async def test_an_answer_is_kept_for_a_second(app: Starlette, handler: Handler, now: Now) -> None:
    await ask(app, "a")
    now.s += KEPT_S - 0.01
    await ask(app, "a")
    assert handler.asked == ["a"]
    now.s += 0.02
    await ask(app, "a")
    assert handler.asked == ["a", "a"]


async def test_an_answer_that_takes_longer_is_waited_for_by_all(app: Starlette, handler: Handler, now: Now) -> None:
    handler.may_answer.clear()
    asking = []
    for _ in range(3):
        asking.append(asyncio.ensure_future(ask(app, "a")))
        await asyncio.sleep(0)
        now.s += KEPT_S
    handler.may_answer.set()
    assert await asyncio.gather(*asking) == [(200, "a")] * 3
    assert handler.asked == ["a"]


async def test_errors_are_shared_too(app: Starlette, handler: Handler) -> None:
    answers = await asyncio.gather(*(ask(app, "bad") for _ in range(3)))
    assert answers == [(400, "bad")] * 3
    assert handler.asked == ["bad"]


async def test_memory_is_bounded(app: Starlette, handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_MOST_KEPT", 3)
    for query in ("a", "b", "c", "d", "d", "a"):
        assert await ask(app, query) == (200, query)
    assert handler.asked == ["a", "b", "c", "d", "d"]
