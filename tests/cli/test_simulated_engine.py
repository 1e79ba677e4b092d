"""``lmwarden simulated-engine`` as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import aiohttp
import pytest
from tests.cli.refusing import refusal
from tests.waiting import PATIENCE_S

from lmwarden.cli import main

SOURCES = Path(__file__).parents[2] / "src"


async def test_it_says_where_it_listens_and_ends_on_a_signal() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lmwarden", "simulated-engine", "--port", "0", "--replicas", "3", "--model", "m",
        stdout=PIPE, env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        url = line.decode().removeprefix("listening on ").strip()
        async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as response:
            metrics = await response.text()
        assert 'vllm:num_requests_running{engine="2",model_name="m"}' in metrics
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--port is missing"),
        (["--port", "-1"], "--port: must be from 0 to 65535, not -1"),
        (["--port", "0", "--hardware", "abacus"], "--hardware: unknown hardware 'abacus'"),
        (["--port", "0", "--hardware", "absent.toml"], "--hardware: cannot read the hardware profile absent.toml"),
        (["--port", "0", "--replicas", "0"], "--replicas must be above 0, got 0"),
        (["--port", "0", "--replicas", "2000000"], "--replicas must be from 1 to 1024, got 2000000"),
        (["--port", "0", "--speed", "-2"], "--speed must be above 0, got -2"),
        (["--port", "0", "--speed", "nan"], "--speed must be above 0, got nan"),
        (["--port", "0", "--kv-cache-tokens", "0"], "--kv-cache-tokens must be above 0, got 0"),
        (["--port", "0", "--kv-cache-tokens", "17"], "--kv-cache-tokens must hold at least two blocks"),
        (["--port", "0", "--cpu-cache-tokens", "-1"], "--cpu-cache-tokens must be 0 or more, got -1"),
        (["--port", "0", "--model", ""], "--model: must be a name, not ''"),
        (["--port", "0", "--balancer", "0.1"], 'Invalid value "0.1" for --balancer. Choose from: "0.26"'),
    ],
)
def test_mistakes(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(capsys, "simulated-engine", *arguments)


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["simulated-engine", "--port", str(port)]) == 2
    says = f"--port: cannot listen on 127.0.0.1 port {port}: Address already in use; choose another"
    assert says in capsys.readouterr().err
