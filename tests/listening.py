"""A server of a test that leaves nothing behind.

Python 3.11's ``asyncio.Server`` forgets the connections that it took: ``close`` ends the listener only, and a
connection that was taken in the very moment of the end, or whose handler never closed it, lives until somebody
collects garbage. The warning then falls on whatever test runs. So the connections are kept here and ended with the
server.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from lmwarden.engine.port_hold import PortHold

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]
_TURNS_TO_TAKE = 4
"""So many turns of the loop asyncio needs from the kernel's connection to ours."""


def let_no_server_forget() -> None:
    """asyncio (of Python 3.11 to 3.13 at least) makes half a transport, and never ends it, of a connection that it took
    in the very turn in which its server was closed. From here on it is hung up; of every server in this process."""
    make = BaseSelectorEventLoop._accept_connection2  # type: ignore[attr-defined]

    async def make_or_hang_up(
        loop: Any, factory: Any, taken: socket.socket, extra: Any, tls: Any, server: Any, *limits: float
    ) -> None:
        if server is None or server.is_serving():
            await make(loop, factory, taken, extra, tls, server, *limits)
        else:
            taken.close()

    BaseSelectorEventLoop._accept_connection2 = make_or_hang_up  # type: ignore[attr-defined]


class Listener:
    """A listening port and the connections that it took."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._taken: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Future[None]] = set()
        self._hold: PortHold | None = None

    @property
    def port(self) -> int:
        """Where it listens, or listened: nobody else gets it meanwhile."""
        assert self._hold is not None
        return self._hold.port

    async def listen(self, limit: int = 1 << 16) -> None:
        """Listen on a free port; again: on the same one. ``limit``: the readers', in bytes."""
        if self._hold is None:
            self._hold = PortHold()
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port, limit=limit)

    def refuse(self) -> None:
        """Take no more connections and keep the open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Stop for good."""
        try:
            await self.stop()
        finally:
            if self._hold is not None:
                self._hold.close()

    async def stop(self) -> None:
        """Take no more connections, end the handlers, cut what is open: all at once, as a process that ends."""
        self.refuse()
        for task in self._tasks:
            task.cancel()
        for _ in range(_TURNS_TO_TAKE):
            await asyncio.sleep(0)
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        taken = list(self._taken)
        for writer in taken:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in taken), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._taken.add(writer)
        if self._server is None:  # taken in the very turn of the end
            writer.transport.abort()
            return
        served = self._serve(reader, writer)
        if inspect.isawaitable(served):
            self._tasks.add(asyncio.ensure_future(served))


@asynccontextmanager
async def listening(serve: Serve, limit: int = 1 << 16) -> AsyncIterator[Listener]:
    """A listener on a free port until the block ends."""
    listener = Listener(serve)
    await listener.listen(limit=limit)
    try:
        yield listener
    finally:
        await listener.close()
