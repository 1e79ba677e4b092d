"""Running consoles."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.console.scene import Console, FakeEngine, Scene

from lmwarden.access.keys import KeyStore
from lmwarden.config import Flag, load
from lmwarden.console.app import Parts, make_app
from lmwarden.console.server import ConsoleServer
from lmwarden.ledger.ledger import Ledger

ENGINE = [{"engine": {"attach": ["http://h:1"]}}]


@asynccontextmanager
async def serving(
    scene: Scene, session: aiohttp.ClientSession, *, listener: socket.socket | None = None, **more: Any
) -> AsyncIterator[Console]:
    """``more`` goes to ``make_app``."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    app = make_app(scene.control, ["warden.example"], host="127.0.0.1", **more)
    server = ConsoleServer(app, listener, end_streams=app.state.events.close)
    server.start()
    try:
        yield Console(scene, session, f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        await server.stop()
        await scene.control.close()


@pytest.fixture
async def console() -> AsyncIterator[Console]:
    async with aiohttp.ClientSession() as session, serving(Scene(session), session) as console:
        yield console


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A running one, with an empty file."""
    ledger = Ledger(tmp_path, load(None, [Flag("--engine", ("models",), ENGINE)]).storage)
    ledger.start()
    yield ledger
    ledger.stop()


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path, b"s" * 32)


@pytest.fixture
async def whole_console(ledger: Ledger, keys: KeyStore) -> AsyncIterator[Console]:
    """The console with everything that it can show, without a password."""
    flags = [Flag("--engine", ("models",), ENGINE), Flag("--port", ("client", "port"), 0)]
    parts = Parts(load(None, flags), 8080, ledger, keys)
    async with aiohttp.ClientSession() as session, serving(Scene(session), session, parts=parts) as console:
        yield console


class LaunchedConsole(Console):
    """The console of a model with two launched engines of one rank, ``e0`` and ``e1``."""

    engines: dict[str, FakeEngine]
    log: Path


@pytest.fixture
async def launched_console(tmp_path: Path) -> AsyncIterator[LaunchedConsole]:
    log = tmp_path / "e0.log"
    engines = {"e0": FakeEngine("e0", log), "e1": FakeEngine("e1", tmp_path / "absent.log")}
    async with aiohttp.ClientSession() as session:
        scene = Scene(session, engines={"e0": 1, "e1": 1}, handles=tuple(engines.values()))
        async with serving(scene, session) as plain:
            console = LaunchedConsole(scene, session, plain.url)
            console.engines, console.log = engines, log
            yield console
