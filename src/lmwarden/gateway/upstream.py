"""The engine's side of the gateway: connections, and a keep-alive pool per engine.

A connection carries one exchange at a time. httptools frames the answer; the raw bytes of each read go to the
exchange after they were parsed, so that an answer can be passed on as it came, with its own chunk framing. A
connection goes back to the pool only if its answer ended exactly at the end of a read, both sides keep the
connection, and the request was written to its last byte.

The pool hands out the connection that was used last, and closes what has been idle for a few seconds: a shorter
time than the engine's own, because a request that meets the engine's close is lost on the way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from lmwarden.gateway.heads import Lines, ResponseLines, read_response_lines
from lmwarden.gateway.known_heads import MAX_MISSES, KnownHead, remember
from lmwarden.gateway.outbox import Outbox
from lmwarden.gateway.settings import GatewaySettings
from lmwarden.gateway.splice import BodyPart
from lmwarden.gateway.usage_counts import EngineAbortedError
from lmwarden.types import EngineEndpoint

_MAX_HEAD_BYTES = 256 * 1024

OnPiece = Callable[[bytes], object]


class BadAnswerError(Exception):
    """The parser takes it, but it cannot be passed on: a second answer, another protocol, another framing."""


class UpstreamUser(Protocol):
    """An exchange, as its connection sees it."""

    @property
    def wants_connection(self) -> bool:
        """Whether it still waits for the connection that it asked for."""
        ...

    def connected(self, connection: UpstreamConnection) -> None:
        """Here is the connection: send."""
        ...

    def connect_failed(self) -> None:
        """There is none."""
        ...

    def response_head(self, status: int, lines: ResponseLines) -> OnPiece | None:
        """The head is complete. Returns where pieces of the body go, or None if the answer is not wanted."""
        ...

    def response_read(self, raw: bytes, complete: bool) -> None:
        """A read's worth of the body, as it came, after its pieces."""
        ...

    def upstream_lost(self, connection: UpstreamConnection) -> None:
        """The connection ended before the answer did."""
        ...

    def upstream_garbled(self, aborted: bool) -> None:
        """The answer is no valid HTTP, or (``aborted``) says that the engine gave the request up."""
        ...


def _ignore(piece: bytes) -> None:
    """Where the pieces of an unwanted answer go."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = (
        "_complete",
        "_head",
        "_head_done",
        "_head_raw",
        "_informational",
        "_keep",
        "_known",
        "_lines",
        "_misses",
        "_on_piece",
        "_parser",
        "_pool",
        "_until_close",
        "answered",
        "idle_sweeps",
        "reused",
        "transport",
        "user",
    )

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._parser = HttpResponseParser(self)
        self.user: UpstreamUser | None = None
        self.reused = False
        """It carried an exchange before."""
        self.idle_sweeps = 0
        self._lines: Lines = []
        self._head: tuple[int, ResponseLines] | None = None
        """Status and lines of an answer with a Content-Length."""
        self._known: tuple[KnownHead, int, ResponseLines] | None = None
        """The last such head, if it may repeat."""
        self._misses = 0
        """Heads in a row that were not known."""
        self._head_raw = b""
        self._head_done = False
        self._informational = 0
        self._until_close = False
        self._complete = False
        self._keep = False
        self._on_piece: OnPiece = _ignore
        self.answered = False
        """At least one byte of the answer came."""

    # -- for the exchange -----------------------------------------------------------------------------------

    def send(self, user: UpstreamUser, parts: Sequence[BodyPart]) -> None:
        """Send a request, head first."""
        self.user = user
        for part in parts:
            self._pool.outbox.write(self.transport, part)

    def drop(self) -> None:
        """The exchange is over for this connection, which is closed at once: the engine stops its work."""
        self.user = None
        self._on_piece = _ignore
        self.transport.abort()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading."""
        if self.transport.is_closing():
            return
        if paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # -- the transport's calls ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """The engine answers."""
        user = self.user
        if user is None:
            self.transport.abort()  # it speaks although nothing was asked
            return
        if self._known is not None and not self.answered and self._take_known(user, data, self._known):
            return
        at_once = not self.answered
        self.answered = True
        head_before = self._head_done
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._failed(error)
            return
        if self.user is not user:
            return  # the answer was not wanted
        if head_before:
            raw = data
        elif self._head_done:
            raw, self._head_raw = self._head_raw + data, b""
            head_bytes = self._heads_end(raw)
            if head_bytes > _MAX_HEAD_BYTES:
                self._end(user).upstream_garbled(False)
                return
            raw = raw[head_bytes:]
        else:
            self._head_raw += data
            if len(self._head_raw) > _MAX_HEAD_BYTES:
                self._end(user).upstream_garbled(False)
            return
        if self._complete:
            if at_once and self._keep and self._misses < MAX_MISSES and not self._informational:
                self._remember(data)
            self._release(user, raw)
        else:
            user.response_read(raw, False)

    def eof_received(self) -> bool:
        """The engine closes."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._pool.forget(self)
        user, self.user = self.user, None
        if user is None:
            return
        if self._until_close and self._head_done and exc is None:
            user.response_read(b"", True)
        else:
            user.upstream_lost(self)

    # -- the parser's calls ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; a second one to the same request makes both worthless."""
        if self._complete:
            raise BadAnswerError

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line, or a trailer, which only the raw bytes keep."""
        if not self._head_done:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise BadAnswerError
            return
        lines = read_response_lines(self._lines)
        if lines.transfer_encoding is not None and lines.transfer_encoding.strip().lower() != b"chunked":
            raise BadAnswerError
        self._lines = []
        self._head_done = True
        self._until_close = lines.content_length is None and lines.transfer_encoding is None
        self._head = (status, lines) if lines.content_length is not None else None
        user = self.user
        assert user is not None
        on_piece = user.response_head(status, lines)
        if on_piece is not None:
            self._on_piece = on_piece

    def on_body(self, piece: bytes) -> None:
        """A piece of the body, without chunk framing."""
        self._on_piece(piece)

    def on_message_complete(self) -> None:
        """The answer is complete, or it was an informational one."""
        if self._head_done:
            self._complete = True
            self._keep = self._parser.should_keep_alive()  # only known in this call
        else:
            self._lines = []
            self._informational += 1

    # -- inside ---------------------------------------------------------------------------------------------

    def _take_known(self, user: UpstreamUser, data: bytes, known: tuple[KnownHead, int, ResponseLines]) -> bool:
        """Take a whole answer whose head is known. False: it is not, or there is more to come."""
        head, status, lines = known
        found = head.match(data)
        if found is None or found[1] + found[0] != len(data):
            return False
        self._misses = 0
        self.answered = self._keep = True
        length, at = found
        lines = ResponseLines(lines.onward, lines.content_type, lines.content_encoding, b"%d" % length)
        on_piece = user.response_head(status, lines)
        if on_piece is None:
            return True
        body = data[at:]
        try:
            on_piece(body)
        except EngineAbortedError:
            self._end(user).upstream_garbled(True)
        else:
            self._release(user, body)
        return True

    def _remember(self, data: bytes) -> None:
        """Keep the head of a whole answer, if it may repeat."""
        self._misses += 1
        head = remember(data)
        # 204 and 304 have no body whatever their length says: that is for the parser to judge.
        if head is not None and self._head is not None and self._head[0] not in (204, 304):
            status, lines = self._head
            lines.onward = [b"".join(lines.onward)]
            self._known = (head, status, lines)
        self._head = None

    def _heads_end(self, raw: bytes) -> int:
        """Where the final head ends in the bytes that came so far."""
        at = 0
        for _ in range(self._informational + 1):
            at = raw.index(b"\r\n\r\n", at) + 4
        return at

    def _failed(self, error: HttpParserError | HttpParserUpgrade) -> None:
        cause = error.__context__
        user = self.user
        if user is None:
            return
        if cause is not None and not isinstance(cause, EngineAbortedError | BadAnswerError):
            raise cause  # a fault of ours: the loop reports it and closes the connection
        self._end(user).upstream_garbled(isinstance(cause, EngineAbortedError))

    def _end(self, user: UpstreamUser) -> UpstreamUser:
        self.drop()
        return user

    def _release(self, user: UpstreamUser, raw: bytes) -> None:
        """The answer is complete: free the connection first, so that the next request can have it."""
        keep = self._keep and not self.transport.get_write_buffer_size()
        self.user = None
        self._head_done = self._complete = self.answered = False
        self._informational = 0
        self._on_piece = _ignore
        if keep:
            self.reused = True
            self._pool.put(self)
        else:
            self.transport.close()
        user.response_read(raw, True)


class EnginePool:
    """The connections to one engine."""

    def __init__(
        self, endpoint: EngineEndpoint, settings: GatewaySettings, loop: asyncio.AbstractEventLoop, outbox: Outbox
    ) -> None:
        self.endpoint = endpoint
        self.outbox = outbox
        self._settings = settings
        self._loop = loop
        self._idle: list[UpstreamConnection] = []
        self.connections: set[UpstreamConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context() if endpoint.tls else None
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        key = f"Authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
        self.fixed_lines = f" HTTP/1.1\r\nHost: {host}:{endpoint.port}\r\n{key}".encode()
        """What follows the target in every request to this engine."""
        self.raw_model = msgspec.json.encode(endpoint.model)
        """The model's name as it stands in a request body."""
        self.base_path = endpoint.base_path.encode()
        self.rank_lines = (
            tuple(b"X-data-parallel-rank: %d\r\n" % rank for rank in range(endpoint.ranks))
            if endpoint.ranks > 1
            else ()
        )
        """By rank; empty for a single-rank engine, which gets none."""

    def acquire(self, user: UpstreamUser, *, fresh: bool) -> None:
        """Give the user a connection: an idle one now (unless ``fresh``), else a new one later."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                user.connected(connection)
                return
        task = self._loop.create_task(self._connect(user))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, user: UpstreamUser) -> None:
        endpoint = self.endpoint
        try:
            async with asyncio.timeout(self._settings.connect_s):
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self), endpoint.host, endpoint.port, ssl=self._tls
                )
        except OSError:  # refused, unreachable, no such host, TLS failure, time-out
            if user.wants_connection:
                user.connect_failed()
            return
        if user.wants_connection:
            user.connected(connection)
        else:
            self.put(connection)

    def put(self, connection: UpstreamConnection) -> None:
        """Take a free connection back."""
        if len(self._idle) >= self._settings.max_idle_per_engine:
            connection.transport.close()
        else:
            connection.idle_sweeps = 0
            self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if connection.user is None and connection in self._idle:
            self._idle.remove(connection)

    def sweep(self) -> None:
        """Close connections that have been idle for too long."""
        limit = self._settings.engine_idle_s / self._settings.sweep_s
        for connection in self._idle:
            connection.idle_sweeps += 1
        while self._idle and self._idle[0].idle_sweeps > limit:
            self._idle.pop(0).transport.close()

    def drop_idle(self) -> None:
        """Close all idle connections: the engine restarted or is gone."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.transport.abort()

    async def close(self) -> None:
        """Close everything."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.transport.abort()
