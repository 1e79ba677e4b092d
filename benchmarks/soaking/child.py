"""A Python process of a benchmark's, spoken to in lines of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Child:
    """One process. ``start``, then ``tell`` and ``line``, then ``end``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: str) -> Child:
        """Run a module."""
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *arguments, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
            )
        )  # fmt: skip

    def tell(self, message: object, *, last: bool = False) -> None:
        """Send it a line; ``last``: there will be no more."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        if last:
            self._process.stdin.write_eof()

    async def line(self) -> Any:
        """What it says next.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a child ended with {await self._process.wait()}")
        return json.loads(line)

    async def end(self) -> None:
        """End it."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
