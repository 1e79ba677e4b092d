"""What one connection, and all of them together, may take of the console: nobody here has shown a password."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.waiting import PATIENCE_S, until

from lmwarden.console import connections
from lmwarden.console.answers import read_object
from lmwarden.console.server import ConsoleServer

ASKS = b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n"
ASKS_FOR_MUCH = ASKS.replace(b"small", b"large")
LARGE_BYTES = 32 << 20
"""More than the kernel's buffers on both sides take."""


async def small(request: Request) -> Response:
    return PlainTextResponse("small")


async def large(request: Request) -> Response:
    return PlainTextResponse(b"x" * LARGE_BYTES)


async def waits(request: Request) -> Response:
    """An answer that begins and does not end, as the live stream's."""

    async def lines() -> AsyncIterator[bytes]:
        yield b":"
        await asyncio.Event().wait()

    return StreamingResponse(lines(), media_type="text/plain")


async def takes(request: Request) -> Response:
    return PlainTextResponse(str(len(await read_object(request))))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    app = Starlette(
        routes=[
            Route("/small", small),
            Route("/large", large),
            Route("/waits", waits),
            Route("/takes", takes, methods=["POST"]),
        ]
    )
    server = ConsoleServer(app, listener)
    server.start()
    yield listener.getsockname()[1]
    await server.stop()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def everything(reader: asyncio.StreamReader) -> bytes:
    """What comes until the console closes."""
    taken = b""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while piece := await reader.read(1 << 20):
                taken += piece
        except ConnectionError:
            pass
    return taken


async def test_a_head_without_end_is_refused_and_not_kept(port: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(b"GET /small HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        sent = 0
        try:
            while sent < 64 << 20 and not reader.at_eof():
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass
        assert sent < 64 << 20
        answer = await everything(reader)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("begin", [b"GET /" + b"a" * 100_000, b"GET /small HTTP/1.1\r\nX: " + b"b" * 100_000])
async def test_a_head_that_is_too_large_gets_431(port: int, begin: bytes) -> None:
    async with connected(port) as (reader, writer):
        writer.write(begin)
        assert (await everything(reader)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /small?" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /small HTTP/1.1\r\nX: " + b"b" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_a_complete_head_that_is_too_large_gets_431_however_it_arrives(port: int, head: bytes) -> None:
    """Also in one piece, where nothing of it is ever incomplete."""
    for piece in (len(head), 4_000):
        async with connected(port) as (reader, writer):
            for begin in range(0, len(head), piece):
                writer.write(head[begin : begin + piece])
            assert (await everything(reader)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"identity", b"chunked, chunked", b"chunked;a=b"])
async def test_a_body_that_another_reader_may_frame_otherwise_is_refused(port: int, coding: bytes) -> None:
    async with connected(port) as (reader, writer):
        writer.write(b"POST /takes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n")
        assert (await everything(reader)).startswith(b"HTTP/1.1 400 ")


async def test_a_head_of_many_lines_gets_431(port: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(b"GET /small HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n")
        assert (await everything(reader)).startswith(b"HTTP/1.1 431 ")


async def test_usual_heads_are_counted_each_by_itself(port: int) -> None:
    async with connected(port) as (reader, writer):
        for _ in range(6):
            writer.write(b"GET /small HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 200 + b"X: " + b"c" * 15_000)
            writer.write(b"\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                assert b" 200 " in await reader.readuntil(b"small")


@pytest.mark.parametrize("begin", [b"", b"GET", b"GET /small HTTP/1.1\r\nHost:"])
async def test_who_does_not_complete_a_head_is_closed(port: int, monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    async with connected(port) as (reader, writer):
        writer.write(begin)
        assert await everything(reader) == b""


async def test_who_does_not_complete_a_body_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_S", 0.05)
    for path in (b"/takes", b"/nowhere"):
        async with connected(port) as (reader, writer):
            writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
            answer = await everything(reader)
            assert answer == b"" if path == b"/takes" else b" 404 " in answer


async def test_a_body_is_read(port: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(b'POST /takes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 7\r\n\r\n{"a')
        await writer.drain()
        writer.write(b'":1}')
        assert (await everything(reader)).endswith(b"\r\n\r\n1")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"a": NaN}', b"the body must be a JSON object in UTF-8; NaN and Infinity are no JSON"),
        (b"[]", b"the body must be a JSON object in UTF-8"),
        (b'{"a": "\xff"}', b"the body must be a JSON object in UTF-8"),
        (b'{"a": ' + 5000 * b"[" + 5000 * b"]" + b"}", b"the body must be a JSON object that is not nested deeply"),
    ],
)
async def test_a_body_that_is_none_is_told_what_it_has_to_be(port: int, body: bytes, sentence: bytes) -> None:
    async with connected(port) as (reader, writer):
        head = f"POST /takes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await everything(reader)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert sentence in answer


async def test_who_leaves_in_the_middle_of_a_body_makes_no_line_in_the_log(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        async with connected(port) as (_, writer):
            writer.write(b"POST /takes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
            await writer.drain()
    async with connected(port) as (reader, writer):  # the console's loop has seen the others leave
        writer.write(ASKS)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"small")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_garbage_gets_400_and_no_line_in_the_log(port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for garbage in (b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\nA B: c\r\n\r\n"):
        async with connected(port) as (reader, writer):
            writer.write(garbage)
            assert (await everything(reader)).startswith(b"HTTP/1.1 400 ")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_another_protocol_is_not_spoken(port: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(ASKS.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"))
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readuntil(b"small")).startswith(b"HTTP/1.1 200 ")


async def test_of_too_many_connections_the_one_that_asks_nothing_goes(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    stays = b"GET /waits HTTP/1.1\r\nHost: localhost\r\n\r\n"
    half = b"POST /takes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc"
    async with connected(port) as (busy, ask), connected(port) as (silent, _), connected(port) as (halfway, begin):
        ask.write(stays)
        async with asyncio.timeout(PATIENCE_S):
            await busy.readuntil(b"\r\n\r\n")
        begin.write(half)
        async with AsyncExitStack() as newcomers:
            for gone in (silent, halfway):
                reader, writer = await newcomers.enter_async_context(connected(port))
                writer.write(stays)
                async with asyncio.timeout(PATIENCE_S):
                    await reader.readuntil(b"\r\n\r\n")
                assert await everything(gone) == b""
        assert not busy.at_eof()


async def test_where_all_ask_something_a_newcomer_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 1)
    async with connected(port) as (busy, ask):
        ask.write(ASKS.replace(b"small", b"waits"))
        async with asyncio.timeout(PATIENCE_S):
            await busy.readuntil(b"\r\n\r\n")
        async with connected(port) as (reader, _):
            assert await everything(reader) == b""
        assert not busy.at_eof()


async def test_few_requests_may_be_sent_ahead(port: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(ASKS * (connections.MOST_PIPELINED + 1))
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(connections.MOST_PIPELINED + 1):
                await reader.readuntil(b"small")
    async with connected(port) as (reader, writer):
        writer.write(ASKS * 5000)
        assert (await everything(reader)).count(b"small") < 5000


async def test_beyond_so_many_a_second_requests_wait_their_turn(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUESTS_AT_ONCE", 1)
    async with connected(port) as (reader, writer):
        writer.write(ASKS * 3)
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                await reader.readuntil(b"small")


class Line:
    """Requests that wait for their turns on a loop whose clock the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.turns = connections.Turns()
        self.begun: list[str] = []
        self.asked = 0
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, call: Callable[..., None], *given: Any) -> object:
        self.timers.append((when_s, call, given))
        return object()

    def ask(self, name: str) -> SimpleNamespace:
        cycle = SimpleNamespace(disconnected=False)
        self.turns.ask(cast(Any, self), cast(Any, cycle), lambda: self.begun.append(name))
        return cycle

    def next_timer(self) -> None:
        ((when_s, call, given),) = self.timers
        self.timers.clear()
        self.now_s = when_s
        call(*given)

    def ask_many(self) -> int:
        """Ask until somebody has to wait; how many did not have to."""
        while len(self.begun) == self.asked:
            self.ask("one of many")
            self.asked += 1
            assert self.asked < 2 * connections.REQUESTS_AT_ONCE
        return len(self.begun)


def test_turns_come_in_order_and_those_who_left_take_none() -> None:
    line = Line()
    assert line.ask_many() == pytest.approx(connections.REQUESTS_AT_ONCE, abs=1)
    line.next_timer()
    line.begun.clear()
    waiting = {name: line.ask(name) for name in ("first", "left", "left too", "second")}
    assert line.begun == []
    waiting["left"].disconnected = waiting["left too"].disconnected = True
    began_s = line.now_s
    line.next_timer()
    line.next_timer()
    assert line.begun == ["first", "second"]
    assert line.now_s - began_s == pytest.approx(2 / connections.REQUESTS_PER_S)
    assert line.timers == []


def test_turns_that_nobody_took_do_not_add_up() -> None:
    line = Line()
    line.ask("one")
    line.now_s += 1000.0
    line.begun.clear()
    assert line.ask_many() == pytest.approx(connections.REQUESTS_AT_ONCE, abs=1)


async def test_one_address_may_not_have_all(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_OF_ONE_ADDRESS", 1)
    async with connected(port) as (reader, writer), connected(port) as (reader_too, writer_too):
        writer.write(ASKS)  # this machine may
        writer_too.write(ASKS)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"small")
            await reader_too.readuntil(b"small")
        monkeypatch.setattr(connections, "is_loopback", lambda host: False)
        async with connected(port) as (third, _):
            assert await everything(third) == b""


async def test_who_does_not_take_an_answer_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.05)
    async with connected(port) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a socket's
        writer.write(ASKS_FOR_MUCH)
        await closed_by_the_other_side(writer)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await everything(reader)) < LARGE_BYTES


async def test_answers_that_nobody_takes_are_bounded_together(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_UNREAD_BYTES", LARGE_BYTES // 2)
    async with connected(port) as (reader, writer):
        writer.write(ASKS_FOR_MUCH)
        assert len(await everything(reader)) < LARGE_BYTES
    monkeypatch.setattr(connections, "MOST_UNREAD_BYTES", 2 * LARGE_BYTES)
    async with connected(port) as (reader, writer):
        writer.write(ASKS_FOR_MUCH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert len(await everything(reader)) > LARGE_BYTES


async def closed_by_the_other_side(writer: asyncio.StreamWriter) -> None:
    """Wait until a socket that is not read from was reset: then a write to it fails."""

    def is_closed() -> bool:
        writer.write(b"x")
        return writer.transport.is_closing()

    await until(is_closed)
