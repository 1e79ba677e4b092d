"""Writes are gathered, and keep their order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from lmwarden.gateway.outbox import Outbox


class Recorder:
    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        self.log, self.name = log, name
        self.closing = self.broken = self.aborted = False

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: bytes) -> None:
        if self.broken:
            raise RuntimeError("broken")
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


async def test_a_connection_that_is_gone_does_not_cost_the_others_their_writes() -> None:
    log: list[tuple[str, bytes]] = []
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    gone, broken, fine = (Recorder(log, name) for name in ("gone", "broken", "fine"))
    gone.closing = broken.broken = True
    outbox = Outbox(loop)
    for transport in (gone, broken, fine):
        outbox.write(cast(Any, transport), b"x")
    outbox.flush()
    assert log == [("fine", b"x")]
    assert broken.aborted
    assert [str(fault["exception"]) for fault in faults] == ["broken"]
