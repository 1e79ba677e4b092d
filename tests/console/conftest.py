"""A running console."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.console.scene import Console, Scene

from lmwarden.console.app import make_app
from lmwarden.console.server import ConsoleServer


@pytest.fixture
async def console() -> AsyncIterator[Console]:
    listener = socket.create_server(("127.0.0.1", 0))
    async with aiohttp.ClientSession() as session:
        scene = Scene(session)
        server = ConsoleServer(make_app(scene.control, ["warden.example"]), listener)
        server.start()
        yield Console(scene, session, f"http://127.0.0.1:{listener.getsockname()[1]}")
    await server.stop()
