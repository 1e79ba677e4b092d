"""The demo's child: an address without a guess, and no child left."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.waiting import PATIENCE_S, turns

import lmwarden
from lmwarden.bench.errors import BenchError
from lmwarden.cli import engine_process
from lmwarden.cli.engine_process import ChildEngine, simulated_engine


async def pid_of(engine: ChildEngine) -> int:
    """Its process id, once it answers."""
    async with aiohttp.ClientSession() as http, http.get(f"{engine.url}/health") as response:
        assert response.status == 200
    return engine.process.pid


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_it_serves_and_is_gone_afterwards() -> None:
    async with simulated_engine(["--replicas", "2", "--speed", "50"]) as engine:
        pid = await pid_of(engine)
    assert gone(pid)


async def test_its_own_end_is_seen() -> None:
    async with simulated_engine([]) as engine:
        engine.process.kill()
        assert await engine.ended() == -signal.SIGKILL


async def test_it_is_gone_when_the_block_is_cancelled() -> None:
    pids: list[int] = []
    entered = asyncio.Event()

    async def run() -> None:
        async with simulated_engine([]) as engine:
            pids.append(await pid_of(engine))
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(pids[0])


async def test_a_child_that_refuses_its_arguments_is_quoted() -> None:
    with pytest.raises(BenchError, match="abacus") as caught:
        async with simulated_engine(["--hardware", "abacus"]):
            pass
    assert "\n" not in str(caught.value)


async def test_a_child_whose_last_words_come_after_its_end_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    read, start = engine_process._keep_tail, asyncio.create_subprocess_exec
    children: list[asyncio.subprocess.Process] = []

    async def start_and_note(*command: str, **options: Any) -> asyncio.subprocess.Process:
        children.append(await start(*command, **options))
        return children[0]

    async def read_late(stream: asyncio.StreamReader | None, tail: bytearray) -> None:
        await children[0].wait()
        await turns()
        await read(stream, tail)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_note)
    monkeypatch.setattr(engine_process, "_keep_tail", read_late)
    with pytest.raises(BenchError, match="abacus"):
        async with simulated_engine(["--hardware", "abacus"]):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise exists on Linux only")
def test_it_does_not_outlive_a_killed_parent() -> None:
    program = (
        "import asyncio\n"
        "from lmwarden.cli.engine_process import simulated_engine\n"
        "async def main():\n"
        "    async with simulated_engine([]):\n"
        "        children = open('/proc/self/task/%d/children' % __import__('os').getpid()).read()\n"
        "        print(children.split()[0], flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(lmwarden.__file__).parent.parent)}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    watch = os.pidfd_open(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    readable, _, _ = select.select([watch], [], [], PATIENCE_S)
    os.close(watch)
    assert readable, "the child outlived its parent"
