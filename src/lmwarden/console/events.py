"""``/api/events``: the console's live stream (server-sent events), one message a second for all viewers.

A message is built and serialised once, however many look, and only while somebody looks. Nobody has a queue: a
viewer waits for a message newer than the one it sent last, so a slow one skips messages and holds at most one, besides
what its socket buffers. One that reads nothing any more is dropped by the kernel (``server``). A stream ends when its
viewer is signed out, and all do when the server stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from lmwarden.console.session import viewer_of
from lmwarden.control import Control, Snapshot

log = structlog.get_logger("lmwarden.console")

MOST_VIEWERS = 200
_LOOK_S = 0.2
"""Between two looks for a new snapshot."""
_LEAST_GAP_S = 0.9
"""Between two messages: snapshots are taken once a second, but also after each command, and faster at ``--speed``."""
_STILL_S = 2.0
"""After so long without a new snapshot a message says that there is none: a page tells by it a warden whose figures
stand still from one that does not answer, and no proxy closes the connection."""
_STILL = b"event: still\ndata: {}\n\n"
_RETRY_MS = 2000
_HEADERS = {"X-Accel-Buffering": "no"}
"""nginx would collect messages otherwise."""


class Events:
    """The stream. Lives on the console's loop; ``close`` may be called from any thread."""

    def __init__(self, control: Control, build: Callable[[], Awaitable[bytes]]) -> None:
        """Args:
        control: whose snapshots.
        build: makes the latest one's message, as JSON on one line.
        """
        self._control = control
        self._build = build
        self._of: Snapshot | None = None
        self._message: bytes | None = None
        self._number = 0
        self._news = asyncio.Event()
        self._viewers = 0
        self._producer: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def viewers(self) -> int:
        """Open streams."""
        return self._viewers

    async def stream(self, request: Request) -> Response:
        """One viewer's connection."""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._viewers >= MOST_VIEWERS:
            raise HTTPException(503, f"{MOST_VIEWERS} pages are open already; close one")
        return _Stream(self, self._lines(request))

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._tell)

    def enter(self) -> None:
        """A viewer came."""
        self._viewers += 1
        if self._producer is None:
            self._loop = asyncio.get_running_loop()
            self._producer = self._loop.create_task(self._produce())

    def leave(self) -> None:
        """A viewer went. The last one has the work end."""
        self._viewers -= 1
        if not self._viewers and self._producer is not None:
            self._producer.cancel()
            self._producer = None
            self._of = self._message = None

    async def _lines(self, request: Request) -> AsyncIterator[bytes]:
        viewer, sent = viewer_of(request.scope), 0
        yield b"retry: %d\n\n" % _RETRY_MS
        while not self._closed and (viewer is None or viewer.is_in()):
            if self._message is not None and sent != self._number:
                sent = self._number
                yield self._message
                continue
            try:
                await asyncio.wait_for(self._news.wait(), _STILL_S)
            except TimeoutError:
                yield _STILL

    async def _produce(self) -> None:
        while not self._closed:
            snapshot, began = self._control.snapshot, time.monotonic()
            if snapshot is self._of:
                await asyncio.sleep(_LOOK_S)
                continue
            self._of = snapshot
            try:
                message = await self._build()
                if self._control.snapshot is not snapshot:
                    # Of a command, which may have been answered meanwhile: its page should not show the state before
                    # it. Once only: on a busy host the loop has others to serve.
                    self._of = self._control.snapshot
                    message = await self._build()
                self._message = b"event: snapshot\ndata: %b\n\n" % message
            except Exception:
                log.exception("the message of the live stream could not be built")  # and the next one is tried
            else:
                self._number += 1
                self._tell()
            await asyncio.sleep(max(0.0, _LEAST_GAP_S - (time.monotonic() - began)))

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class _Stream(StreamingResponse):
    """Counts its viewer for as long as the connection is there."""

    def __init__(self, events: Events, lines: AsyncIterator[bytes]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers=_HEADERS)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the viewer goes."""
        self._events.enter()
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._events.leave()
