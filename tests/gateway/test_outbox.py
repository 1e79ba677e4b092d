"""Writes are gathered, and keep their order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from lmwarden.gateway.outbox import Outbox


class Recorder:
    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        self.log, self.name = log, name

    def write(self, data: bytes) -> None:
        self.log.append((self.name, data))


async def test_one_burst_per_turn_in_order() -> None:
    log: list[tuple[str, bytes]] = []
    a, b = (cast(Any, Recorder(log, name)) for name in "ab")
    outbox = Outbox(asyncio.get_running_loop())
    outbox.write(a, b"1")
    outbox.write(b, b"2")
    outbox.write(a, b"3")
    assert log == []
    await asyncio.sleep(0)
    assert log == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    outbox.write(a, b"4")
    outbox.flush()
    assert log[-1] == ("a", b"4")
    await asyncio.sleep(0)
    assert len(log) == 4
