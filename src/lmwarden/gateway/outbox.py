"""Writes to sockets, gathered: all that one turn of the loop produced goes out in one burst.

A write to a peer that sleeps costs a wake-up, which is dearer than the write itself, above all on a virtual machine.
Written at once, each answer wakes its reader, which reads and sleeps again long before the next write. Written in a
burst at the end of the turn, the first write wakes the reader and the others find it awake. Measured in
docs/decisions.md; with one connection there is nothing to gather and the delay is one empty turn of the loop.

Everything that a connection writes goes through here, so its order is kept; whoever closes a transport or looks at its
buffer calls ``flush`` first. What waits here is in no transport's buffer, where it would slow its sender down, so not
much of it may wait.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from lmwarden.gateway.splice import BodyPart

_MAX_GATHERED_BYTES = 256 * 1024
"""More than this is written at once."""


class Outbox:
    """The writes of one event loop."""

    __slots__ = ("_gathered_bytes", "_loop", "_pending")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: list[tuple[asyncio.Transport, BodyPart]] = []
        self._gathered_bytes = 0

    def write(self, transport: asyncio.Transport, data: BodyPart) -> None:
        """Write at the end of this turn."""
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append((transport, data))
        self._gathered_bytes += len(data)
        if self._gathered_bytes > _MAX_GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write now."""
        pending, self._pending = self._pending, []
        self._gathered_bytes = 0
        for transport, data in pending:
            try:
                if not transport.is_closing():
                    transport.write(data)
            except Exception as error:  # whatever it is, the other connections' writes must not suffer
                self._failed(transport, error)

    def _failed(self, transport: asyncio.Transport, error: Exception) -> None:
        """One write failed: its connection is given up.

        uvloop raises RuntimeError for a handle that it closed within this turn, which may happen before
        ``is_closing`` says so. That is a peer that left, no fault.
        """
        if not isinstance(error, OSError) and "handler is closed" not in str(error):
            self._loop.call_exception_handler({"message": "a write failed", "exception": error})
        with suppress(Exception):
            transport.abort()
