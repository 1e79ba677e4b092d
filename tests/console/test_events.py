"""The live stream: one message for all, also for the slow; it ends with its viewer, its session and the server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.console.conftest import serving
from tests.console.scene import Console, Scene
from tests.console.test_session import PASSWORD as PASSWORD
from tests.console.test_session import Locked, basic
from tests.console.test_session import locked as locked
from tests.waiting import PATIENCE_S, turns, until

from lmwarden.console import events, server
from lmwarden.console.app import make_app
from lmwarden.console.server import ConsoleServer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_LEAST_GAP_S", 0.01)
    monkeypatch.setattr(events, "_LOOK_S", 0.01)
    monkeypatch.setattr(events, "_STILL_S", PATIENCE_S)  # on a slow machine a snapshot takes its time


STILL = "event: still\ndata: {}\n\n"


class Stream:
    """One viewer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def block(self) -> str:
        """Up to the next empty line."""
        async with asyncio.timeout(PATIENCE_S):
            return (await self.response.content.readuntil(b"\n\n")).decode()

    async def message(self) -> Any:
        block = STILL
        while block == STILL:
            block = await self.block()
        event, data, *rest = block.rstrip("\n").split("\n")
        assert (event, rest) == ("event: snapshot", [])
        return json.loads(data.removeprefix("data: "))

    async def until(self, in_flight: int) -> Any:
        while True:
            message = await self.message()
            if message["overview"]["models"][0]["in_flight"] == in_flight:
                return message

    async def ends(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.response.content.readany():
                pass


@asynccontextmanager
async def stream(console: Console, **headers: str) -> AsyncIterator[Stream]:
    async with console.session.get(console.url + "/api/events", headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-store"
        viewer = Stream(response)
        assert await viewer.block() == "retry: 2000\n\n"
        yield viewer


async def test_a_viewer_sees_the_state_at_once_and_each_change(console: Console) -> None:
    async with stream(console) as viewer:
        first = await viewer.message()
        assert set(first) == {"taken_at", "counting_since", "overview", "models"}
        assert first["models"] == [await console.get("/api/models/org/model")]
        console.scene.turn(b"c" * 16, finish=False)
        console.scene.refresh()
        assert (await viewer.until(1))["taken_at"] > first["taken_at"]


async def test_the_same_once(console: Console) -> None:
    async with stream(console) as viewer:
        assert await viewer.message() == await console.get("/api/overview")


async def test_twenty_viewers_share_one_message(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async with stream(console) as first:
            before = await first.block()
            for _ in range(19):
                async with stream(console) as other:
                    assert await other.block() == before


async def test_a_slow_viewer_skips_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_UNREAD_MS", int(PATIENCE_S * 1000))  # however long the quick one takes
    messages = 90  # far more than all buffers between the two hold together
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    async with aiohttp.ClientSession() as session, serving(Scene(session), session, listener=listener) as console:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(listener.getsockname())
            slow.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with stream(console) as quick:
                for number in range(1, messages + 1):
                    console.scene.turn(number.to_bytes(16, "big"), finish=False)
                    console.scene.refresh()
                    await quick.until(number)

            def read_to_last() -> int:
                slow.settimeout(PATIENCE_S)
                text = b""
                while b'"in_flight":%d,' % messages not in text:
                    piece = slow.recv(1 << 20)
                    assert piece, "it was dropped"
                    text += piece
                return text.count(b"event: snapshot")

            assert await asyncio.to_thread(read_to_last) < messages


async def test_nothing_is_built_while_nobody_looks() -> None:
    built = 0

    async def build() -> bytes:
        nonlocal built
        built += 1
        return b"{}"

    async with aiohttp.ClientSession() as session:
        scene = Scene(session)
        hub = events.Events(scene.control, build)
        hub.enter()
        hub.enter()
        await scene.until(lambda: built > 0)
        hub.leave()
        assert hub.viewers == 1
        hub.leave()
        await asyncio.sleep(0)
        count = built
        for _ in range(20):
            scene.refresh()
            await turns()
        assert built == count


async def test_no_message_is_older_than_a_command_that_was_answered() -> None:
    """Not even one that was being made meanwhile: the page would show the state before the command once more."""
    made: list[object] = []

    async with aiohttp.ClientSession() as session:
        scene = Scene(session)

        async def build() -> bytes:
            made.append(scene.control.snapshot)
            if len(made) == 1:
                scene.refresh()  # what a command does before it is answered
            return b"%d" % len(made)

        hub = events.Events(scene.control, build)
        hub.enter()
        await until(lambda: hub._message is not None)
        assert hub._message == b"event: snapshot\ndata: 2\n\n"
        assert made[1] is scene.control.snapshot
        hub.leave()


async def test_a_message_that_cannot_be_built_is_skipped() -> None:
    built = 0

    async def build() -> bytes:
        nonlocal built
        built += 1
        if built == 1:
            raise RuntimeError("broken")
        return b"{}"

    async with aiohttp.ClientSession() as session:
        scene = Scene(session)
        hub = events.Events(scene.control, build)
        hub.enter()
        await scene.until(lambda: built > 1)
        hub.leave()


async def test_a_stream_without_news_says_so(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_STILL_S", 0.02)
    async with stream(console) as viewer:
        await viewer.message()
        assert await viewer.block() == STILL
        assert await viewer.block() == STILL


async def test_viewers_are_bounded(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_VIEWERS", 2)
    async with stream(console), stream(console):
        assert "2 pages are open already" in (await console.get("/api/events", 503))["error"]
        async with console.session.get(f"{console.url}/api/events") as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
    # Who goes makes room, as soon as the server noticed.
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with console.session.get(console.url + "/api/events") as response:
                if response.status == 200:
                    break


async def test_a_question_for_the_head_ends(console: Console) -> None:
    async with console.session.head(console.url + "/api/events") as response:
        assert response.status == 200


async def test_streams_end_with_the_server() -> None:
    async with aiohttp.ClientSession() as session:
        scene = Scene(session)
        listener = socket.create_server(("127.0.0.1", 0))
        app = make_app(scene.control, [])
        console_server = ConsoleServer(app, listener, end_streams=app.state.events.close)
        console_server.start()
        console = Console(scene, session, f"http://127.0.0.1:{listener.getsockname()[1]}")
        async with stream(console) as one, stream(console) as other:
            await one.message()
            await console_server.stop()
            await one.ends()
            await other.ends()
        await scene.control.close()


async def test_a_stream_ends_with_its_session(locked: Locked) -> None:
    cookies = await locked.sign_in()
    cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    async with stream(locked, **cookie) as page, stream(locked, Authorization=basic(PASSWORD)) as script:
        await page.message()
        await script.message()
        csrf = {"X-CSRF-Token": await locked.csrf(cookies), "Content-Type": "application/json"}
        assert (await locked.answer("DELETE", "/api/session", cookies=cookies, **csrf))[0] == 204
        locked.scene.refresh()
        await page.ends()
        locked.file.write_text("yet another horse")
        locked.now.s += 2
        locked.scene.refresh()
        await script.ends()
    assert (await locked.answer("GET", "/api/events", cookies=cookies))[0] == 401


async def test_a_peer_that_reads_nothing_is_dropped_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_UNREAD_MS", 300)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    async with aiohttp.ClientSession() as session:
        scene = Scene(session)
        app = make_app(scene.control, [])
        console_server = ConsoleServer(app, listener, end_streams=app.state.events.close)
        console_server.start()
        with socket.socket() as asleep:
            asleep.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asleep.connect(listener.getsockname())
            asleep.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            viewers: set[int] = set()

            def came_and_went() -> bool:
                scene.refresh()
                viewers.add(app.state.events.viewers)
                return viewers == {0, 1} and not app.state.events.viewers

            await until(came_and_went)
        await console_server.stop()
        await scene.control.close()
