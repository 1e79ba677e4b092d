"""The roll on which fake engines call in."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.engine.launching import Roll
from tests.waiting import PATIENCE_S


async def test_one_that_ends_before_it_says_who_it_is(tmp_path: Path) -> None:
    """A process that is killed between its call and its name is nobody's failure."""
    roll = Roll()
    async with asyncio.timeout(PATIENCE_S), roll.open(tmp_path):
        host, port = roll.address.split(":")
        for word in (b"", b"mai"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(word)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert not roll.callers
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"main {os.getpid()}\n".encode())
        caller = await roll.next()
        assert caller.process.pid == os.getpid()
        roll.callers.clear()  # not to be waited for: it is we
        writer.close()
        await reader.read()
