"""Writes to sockets, gathered: all that one turn of the loop produced goes out in one burst.

A write to a peer that sleeps costs a wake-up, which is dearer than the write itself, above all on a virtual machine.
Written at once, each answer wakes its reader, which reads and sleeps again long before the next write. Written in a
burst at the end of the turn, the first write wakes the reader and the others find it awake. Measured in
docs/measurements.md; with one connection there is nothing to gather and the delay is one empty turn of the loop.

Everything that a connection writes goes through here, so its order is kept; whoever closes a transport or looks at its
buffer calls ``flush`` first.
"""

from __future__ import annotations

import asyncio

from lmwarden.gateway.splice import BodyPart


class Outbox:
    """The writes of one event loop."""

    __slots__ = ("_loop", "_pending")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: list[tuple[asyncio.Transport, BodyPart]] = []

    def write(self, transport: asyncio.Transport, data: BodyPart) -> None:
        """Write at the end of this turn."""
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append((transport, data))

    def flush(self) -> None:
        """Write now."""
        pending, self._pending = self._pending, []
        for transport, data in pending:
            if transport.is_closing():
                continue  # its peer left within this turn; uvloop would raise
            try:
                transport.write(data)
            except Exception as error:  # the other connections' writes must not suffer
                self._loop.call_exception_handler({"message": "a write failed", "exception": error})
                transport.abort()
