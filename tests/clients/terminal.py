"""A program on a pseudo-terminal, as a person sits before it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SCREEN_TIMEOUT_S = 60
ROWS, COLUMNS = 50, 160
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_].*?\x1b\\|.)",
    re.DOTALL,
)


class Terminal:
    """Keys in, screen out."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor
        self._written = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    @classmethod
    async def open(cls, arguments: list[str], *, environment: Mapping[str, str], folder: Path) -> Terminal:
        """Start a program on a terminal of its own."""
        descriptor, other_end = pty.openpty()
        fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                env={**environment, "TERM": "xterm-256color"},
                cwd=folder,
                stdin=other_end,
                stdout=other_end,
                stderr=other_end,
                start_new_session=True,
            )
        finally:
            os.close(other_end)
        return cls(process, descriptor)

    def type(self, keys: str) -> None:
        """Press keys; ``\\r`` is Enter."""
        os.write(self._descriptor, keys.encode())

    async def shows(self, text: str) -> None:
        """Wait until ``text`` was written, whatever its spaces and colours.

        Raises:
            AssertionError: not within ``SCREEN_TIMEOUT_S``.
        """
        try:
            async with asyncio.timeout(SCREEN_TIMEOUT_S):
                while _squeezed(text) not in _squeezed(self._text()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"the screen never shows {text!r}: {self._text()[-2000:]!r}") from None

    async def close(self) -> None:
        """Kill the program with all that it started."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        os.close(self._descriptor)

    def _text(self) -> str:
        return _ESCAPES.sub(b"", self._written).decode(errors="replace")

    def _read(self) -> None:
        try:
            self._written += os.read(self._descriptor, 65536)
        except OSError:  # the program ended, and its end of the terminal with it
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._changed.set()


def _squeezed(text: str) -> str:
    return "".join(text.split())
