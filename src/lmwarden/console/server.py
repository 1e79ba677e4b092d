"""Runs the console in a thread with an event loop of its own.

The socket is bound by the caller's thread, so that a port in use is one clear error before anything serves.
The thread ends when ``stop`` is called; open requests get a moment, then their connections are closed.
"""

from __future__ import annotations

import asyncio
import socket
import threading

import uvicorn
from starlette.types import ASGIApp

_GRACE_S = 2
_JOIN_S = 5.0


class ConsoleServer:
    """One console on one bound socket."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="httptools",
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
        await asyncio.to_thread(self._thread.join, _JOIN_S)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))
