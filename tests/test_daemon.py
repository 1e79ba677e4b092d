"""The warden as a process: what signals do, and how a start that cannot be ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving

LIMIT_S = 30.0
SOURCES = Path(__file__).parent.parent / "src"


async def command(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lmwarden", *arguments,
        stdout=PIPE, stderr=PIPE, env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )  # fmt: skip


class Daemon:
    """A running ``lmwarden serve``."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.client_url = ""

    async def ready(self) -> None:
        """Read the log until it says where it serves."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while line := await self.process.stderr.readline():
                event = msgspec.json.decode(line)
                if event["event"] == "ready":
                    self.client_url = event["clients"]
                    return
        raise AssertionError("it ended before it was ready")

    async def heard(self, words: str) -> None:
        """Read the log until an event contains the words."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while line := await self.process.stderr.readline():
                if words in msgspec.json.decode(line)["event"]:
                    return
        raise AssertionError(f"the log never said {words!r}")

    async def ended(self) -> int:
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with serving(SimulatedEngineOptions(replicas=1, speed=1.0)) as url:
        process = await command(
            "serve", "--engine", url, "--port", "0", "--console-port", "0", "--data-dir", str(tmp_path)
        )  # fmt: skip
        started = Daemon(process)
        try:
            await started.ready()
            yield started
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def open_stream(session: aiohttp.ClientSession, url: str, tokens: int) -> aiohttp.ClientResponse:
    body = {
        "model": "qwen3-4b",
        "stream": True,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": "hello"}],
    }
    response = await session.post(url + "/v1/messages", json=body)
    await response.content.readany()
    return response


async def test_at_rest_one_signal_ends_it_with_status_0(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.ended() == 0


async def test_an_open_stream_finishes_after_the_first_signal(daemon: Daemon) -> None:
    session = aiohttp.ClientSession()
    async with session, await open_stream(session, daemon.client_url, tokens=40) as stream:
        daemon.process.send_signal(signal.SIGTERM)
        await daemon.heard("stopping")
        assert b"message_stop" in await stream.content.read()
    assert await daemon.ended() == 0


async def test_the_second_signal_cuts_streams(daemon: Daemon) -> None:
    session = aiohttp.ClientSession()
    async with session, await open_stream(session, daemon.client_url, tokens=1000) as stream:
        daemon.process.send_signal(signal.SIGINT)
        await daemon.heard("stopping")
        daemon.process.send_signal(signal.SIGINT)
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream.content.read()
    assert await daemon.ended() == 0


async def test_a_signal_ends_the_wait_for_an_engine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    process = await command(
        "serve", "--engine", f"http://127.0.0.1:{port}", "--port", "0", "--console-port", "0",
        "--data-dir", str(tmp_path),
    )  # fmt: skip
    waiting = Daemon(process)
    await waiting.heard("waiting for an engine")
    process.send_signal(signal.SIGTERM)
    assert await waiting.ended() == 0
    await process.communicate()


async def test_a_port_in_use_is_one_line_and_status_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = await command(
            "serve", "--engine", "http://127.0.0.1:9", "--port", port, "--console-port", "0",
            "--data-dir", str(tmp_path),
        )  # fmt: skip
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode() == (
        f"lmwarden: --port: cannot listen on 127.0.0.1 port {port}: Address already in use; choose another\n"
    )


async def test_a_data_folder_in_use_is_one_line_and_status_2(daemon: Daemon, tmp_path: Path) -> None:
    process = await command(
        "serve", "--engine", "http://127.0.0.1:9", "--port", "0", "--console-port", "0", "--data-dir", str(tmp_path),
    )  # fmt: skip
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode() == (
        f"lmwarden: --data-dir: {tmp_path} is in use by another warden (process {daemon.process.pid});"
        " give each its own folder\n"
    )
