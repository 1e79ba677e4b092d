"""A simulated engine as a child process, for the demo.

The child binds port 0 and prints the address when it listens, so no port is guessed and none can be lost to
somebody else between guess and bind. It lives in a session of its own: Ctrl-C on the terminal reaches only
the parent, which then ends the child in order. If the parent is killed, Linux ends the child.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import lmwarden
from lmwarden.bench.errors import BenchError

_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 5.0
_KEPT_STDERR_BYTES = 4096
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:\d+")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ChildEngine:
    """A simulated engine that listens."""

    url: str
    process: asyncio.subprocess.Process

    async def ended(self) -> int:
        """Wait until the child ends by itself; returns its exit status."""
        return await self.process.wait()


@asynccontextmanager
async def simulated_engine(arguments: Sequence[str]) -> AsyncIterator[ChildEngine]:
    """Run ``lmwarden simulated-engine`` with these arguments, on a free port; it is ended on exit.

    Raises:
        BenchError: it ended, or did not say its address in time.
    """
    command = [sys.executable, "-m", "lmwarden", "simulated-engine", "--port", "0", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env=_environment(),
        preexec_fn=_end_with_parent() if sys.platform == "linux" else None,
    )
    stderr = bytearray()
    complaints = asyncio.create_task(_keep_tail(process.stderr, stderr))
    readers = [complaints]
    try:
        url = await _address(process, complaints, stderr)
        # Later output must be read, or a full pipe would stop the child.
        readers.append(asyncio.create_task(_keep_tail(process.stdout, bytearray())))
        yield ChildEngine(url, process)
    finally:
        await _end(process)
        await asyncio.gather(*readers)


def _environment() -> dict[str, str]:
    """Ours, such that the child imports this very package, installed or not."""
    source = str(Path(lmwarden.__file__).parent.parent)
    others = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{others}" if others else source}


async def _address(process: asyncio.subprocess.Process, complaints: asyncio.Task[None], stderr: bytearray) -> str:
    if process.stdout is None:
        raise BenchError("the simulated engine has no output to read")
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while line := await process.stdout.readline():
                found = _ADDRESS.search(line)
                if found:
                    return found.group().decode()
            await process.wait()
            await asyncio.wait((complaints,))  # its end is often known before its last words are read
    except TimeoutError:
        raise BenchError(f"the simulated engine did not start within {_START_LIMIT_S:.0f} s") from None
    last = stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
    raise BenchError(f"the simulated engine ended with status {process.returncode}: {last[0]}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask, then insist. The child is gone when this returns."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise


async def _keep_tail(stream: asyncio.StreamReader | None, tail: bytearray) -> None:
    while stream is not None and (data := await stream.read(65_536)):
        tail += data
        del tail[:-_KEPT_STDERR_BYTES]


def _end_with_parent() -> Callable[[], None]:
    """Return what runs in the child before the program: the kernel shall end it when its parent dies."""
    prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec as little as possible may happen

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return in_child
