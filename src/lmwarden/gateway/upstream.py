"""A connection to an engine.

It carries one exchange at a time. httptools frames the answer; the raw bytes of each read go to the exchange after
they were parsed, so that an answer can be passed on as it came, with its own chunk framing. A connection goes back to
its pool (``pool``) only if its answer ended exactly at the end of a read, both sides keep the connection, and the
request was written to its last byte.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from lmwarden.gateway.codings import CorruptError
from lmwarden.gateway.heads import Lines, ResponseLines, read_response_lines
from lmwarden.gateway.known_heads import MAX_MISSES, KnownHead, remember
from lmwarden.gateway.outbox import Outbox
from lmwarden.gateway.splice import BodyPart
from lmwarden.gateway.usage_counts import EngineAbortedError

_MAX_HEAD_BYTES = 256 * 1024
_RECEIVE_BYTES = 128 * 1024
"""Of an engine's answer in the kernel, while its client reads slowly. Left alone Linux lets it grow to megabytes; a
stream of tokens needs a thousandth of that."""

OnPiece = Callable[[bytes], object]


class BadAnswerError(Exception):
    """The parser takes it, but it cannot be passed on: a second answer, another protocol, another framing."""


class ConnectionHome(Protocol):
    """The pool, as its connections see it."""

    outbox: Outbox
    connections: set[UpstreamConnection]
    heard: bool
    """An answer came to its end since this was set back, or its exchange saw bytes of it."""

    def put(self, connection: UpstreamConnection) -> None:
        """Take a free connection back."""
        ...

    def forget(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        ...


class UpstreamUser(Protocol):
    """An exchange, as its connection sees it."""

    def response_head(self, status: int, lines: ResponseLines) -> OnPiece | None:
        """The head is complete. Returns where pieces of the body go, or None if the answer is not wanted."""
        ...

    def response_read(self, raw: bytes) -> None:
        """A read's worth of the body, as it came, after its pieces; more is to come."""
        ...

    def response_complete(self, raw: bytes) -> None:
        """The last of the body, as it came, after its pieces. The connection is free already."""
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

    def __init__(self, pool: ConnectionHome) -> None:
        self._pool = pool
        self._parser = HttpResponseParser(self)
        self.user: UpstreamUser | None = None
        self.reused = False
        """It carried an exchange before."""
        self.idle_sweeps = 0
        self._lines: Lines | None = None
        """Of the head that is being read."""
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
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)

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
            user.response_read(raw)

    def eof_received(self) -> bool:
        """The engine closes."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._pool.forget(self)
        user, self.user = self.user, None
        if user is not None:
            if self._until_close and self._head_done and exc is None:
                user.response_complete(b"")
            else:
                user.upstream_lost(self)
        del self._parser  # it knows us: only the collector would free the two, and that looks next to never

    # -- the parser's calls ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; a second one to the same request makes both worthless."""
        if self._complete:
            raise BadAnswerError
        self._lines = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line, or a trailer, which only the raw bytes keep."""
        if self._lines is not None:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise BadAnswerError
            return
        assert self._lines is not None
        lines = read_response_lines(self._lines)
        if lines.transfer_encoding is not None and lines.transfer_encoding.strip().lower() != b"chunked":
            raise BadAnswerError
        self._lines = None
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
            self._informational += 1

    # -- inside ---------------------------------------------------------------------------------------------

    def _take_known(self, user: UpstreamUser, data: bytes, known: tuple[KnownHead, int, ResponseLines]) -> bool:
        """Take a whole answer whose head is known. False: it is not, or there is more to come."""
        head, status, lines = known
        found = head.match(data)
        if found is None:
            return False
        length, at = found
        if at + length != len(data):
            return False
        self._misses = 0
        self.answered = self._keep = True
        digits = data[head.start : at - head.after_bytes]
        lines = ResponseLines(lines.onward, lines.content_type, lines.content_encoding, digits)
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
        # A line of an encoded answer may have to be taken out again.
        if (
            head is not None
            and self._head is not None
            and self._head[0] not in (204, 304)
            and not self._head[1].content_encoding
        ):
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
        if cause is not None and not isinstance(cause, EngineAbortedError | BadAnswerError | CorruptError):
            raise cause  # a fault of ours: the loop reports it and closes the connection
        self._end(user).upstream_garbled(isinstance(cause, EngineAbortedError))

    def _end(self, user: UpstreamUser) -> UpstreamUser:
        self.drop()
        return user

    def _release(self, user: UpstreamUser, raw: bytes) -> None:
        """The answer is complete: free the connection first, so that the next request can have it."""
        keep = self._keep and not self.transport.get_write_buffer_size()
        self.user = None
        self._pool.heard = True
        self._head_done = self._complete = self.answered = False
        self._informational = 0
        self._on_piece = _ignore
        if keep:
            self.reused = True
            self._pool.put(self)
        else:
            self.transport.close()
        user.response_complete(raw)
