"""Running consoles."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.console.scene import Console, FakeEngine, Scene

from lmwarden.console.app import make_app
from lmwarden.console.server import ConsoleServer


@asynccontextmanager
async def serving(scene: Scene, session: aiohttp.ClientSession) -> AsyncIterator[Console]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = ConsoleServer(make_app(scene.control, ["warden.example"], host="127.0.0.1"), listener)
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
