"""Runs the console in a thread with an event loop of its own.

The socket is bound by the caller's thread, so that a port in use is one clear error before anything serves.
The thread ends when ``stop`` is called; streams are ended, open requests get a moment, then their connections are
closed.

A peer that takes nothing of what was sent to it for half a minute is dropped by the kernel (``TCP_USER_TIMEOUT``, which
connections inherit from the listening socket): a page on a machine that went to sleep holds its buffer no longer.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from lmwarden.console.connections import BoundedConnection, Turns

_GRACE_S = 2
_JOIN_S = 5.0
_UNREAD_MS = 30_000


class ConsoleServer:
    """One console on one bound socket."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, *, end_streams: Callable[[], None] = lambda: None
    ) -> None:
        """Args:
        app: the console.
        listener: where it listens; closed at the end.
        end_streams: ends answers that have no end; called from another thread than the console's.
        """
        self._listener = listener
        self._end_streams = end_streams
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=cast(type[asyncio.Protocol], partial(BoundedConnection, Turns())),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._thread = threading.Thread(target=self._run, name="lmwarden-console", daemon=True)

    def start(self) -> None:
        """Begin to serve; returns at once (the socket already queues connections)."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread."""
        self._server.should_exit = True
        self._end_streams()
        await asyncio.to_thread(self._thread.join, _JOIN_S)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))
