"""The tests' own servers end with their test, and a test that forgets something is told so itself."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from tests.listening import Listener, listening
from tests.waiting import PATIENCE_S, turns

ROOT = Path(__file__).parent.parent

FORGETFUL = """
import asyncio

async def test_one_that_forgets():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    server.close()

def test_the_next():
    pass
"""


async def test_no_connection_outlives_its_listener() -> None:
    """Neither one whose handler waits, nor one that was taken as it ended."""
    begun = asyncio.Event()
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with listening(wait) as listener:
        first = await asyncio.open_connection("127.0.0.1", listener.port)
        await begun.wait()
        late = await asyncio.open_connection("127.0.0.1", listener.port)
    assert ended.is_set()
    for reader, writer in (first, late):
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass  # cut off
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def a_listener() -> Listener:
    return Listener(lambda reader, writer: None)


class OfAiohttp:
    """What else serves in tests: the same calls."""

    async def listen(self) -> None:
        self._runner = web.AppRunner(web.Application(), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        await self._runner.cleanup()


@pytest.mark.parametrize("make", [a_listener, OfAiohttp])
@pytest.mark.parametrize("turns_before", range(7))
async def test_whoever_calls_as_it_closes_is_hung_up_on(
    make: Callable[[], Listener | OfAiohttp], turns_before: int
) -> None:
    """However far the loop had come with the connection. One that is forgotten warns when this test ends."""
    server = make()
    await server.listen()
    with socket.create_connection(("127.0.0.1", server.port)) as caller:
        await turns(turns_before)
        await server.close()
        caller.setblocking(False)
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert await asyncio.get_running_loop().sock_recv(caller, 1) == b""
        except ConnectionResetError:
            pass


async def test_it_listens_again_on_its_port() -> None:
    listener = Listener(lambda reader, writer: writer.close())
    await listener.listen()
    port = listener.port
    await listener.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await listener.listen()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    await listener.close()


async def test_what_a_handler_raises_is_raised() -> None:
    called = asyncio.Event()

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        raise RuntimeError("it fails")

    with pytest.raises(RuntimeError, match="it fails"):
        async with listening(fail) as listener:
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            await asyncio.wait_for(called.wait(), PATIENCE_S)
            writer.close()
            await writer.wait_closed()


def test_what_a_test_forgot_is_its_own_fault(tmp_path: Path) -> None:
    """And not that of the test that runs when garbage is collected."""
    (tmp_path / "test_forgetful.py").write_text(FORGETFUL)
    options = ["-v", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "--confcutdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "ERROR at teardown of test_one_that_forgets" in done.stdout, done.stdout
    assert "test_the_next PASSED" in done.stdout, done.stdout
