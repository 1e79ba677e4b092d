"""Writes are gathered, and keep their order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from lmwarden.gateway.outbox import Outbox


class Recorder:
    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        self.log, self.name = log, name
        self.closing = self.aborted = False
        self.error: Exception | None = None
        self.abort_error: Exception | None = None

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True
        if self.abort_error is not None:
            raise self.abort_error

    def write(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
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


CLOSED = RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")


async def test_a_write_that_fails_costs_nobody_else_a_write() -> None:
    log: list[tuple[str, bytes]] = []
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    gone, fine = Recorder(log, "gone"), Recorder(log, "fine")
    gone.closing = True
    outbox = Outbox(loop)
    outbox.write(cast(Any, gone), b"x")
    errors: list[Exception] = [CLOSED, BrokenPipeError(), RuntimeError("broken"), ValueError("odd"), TypeError("odder")]
    bad = []
    for error in errors:
        broken = Recorder(log, "broken")
        broken.error, broken.abort_error = error, CLOSED
        bad.append(broken)
        outbox.write(cast(Any, broken), b"x")
        outbox.write(cast(Any, fine), b"x")
    outbox.flush()
    assert log == [("fine", b"x")] * len(errors)
    assert all(broken.aborted for broken in bad)
    assert not gone.aborted
    assert [str(fault["exception"]) for fault in faults] == ["broken", "odd", "odder"], "a peer that left is no fault"


async def test_much_is_written_at_once() -> None:
    log: list[tuple[str, bytes]] = []
    a = cast(Any, Recorder(log, "a"))
    outbox = Outbox(asyncio.get_running_loop())
    piece = b"x" * 100_000
    outbox.write(a, piece)
    outbox.write(a, piece)
    assert log == []
    outbox.write(a, piece)
    assert len(log) == 3
    outbox.write(a, piece)
    assert len(log) == 3, "the count begins anew"
    await asyncio.sleep(0)
    assert len(log) == 4
