"""The client's side of the gateway: one object per client connection.

Theory of operation. Bytes come in through ``get_buffer``/``buffer_updated``. Heads, small bodies and chunked
bodies are read into one buffer that all connections share (reading and parsing happen in one call, so nobody
sees another's bytes) and are framed by httptools. A body with a Content-Length that did not come whole with its
head is read straight into a buffer of its own size: large bodies are neither joined nor copied.

A connection reads ahead. Complete requests are queued and answered strictly in order, one at a time; when the
queue is full, reading pauses. It goes on reading while a request is being answered, because that is how one
learns that the client left. End of input counts as leaving, as it does for nginx.

What a head alone decides (no such path, no key, too large, ambiguous) becomes the request's ``problem``. If the
rest of its body is small, it is read and dropped and the connection lives on; otherwise the answer goes out at
once and the connection is closed, but not before reading on for a moment: closing on unread bytes makes the
kernel send a reset, which would destroy the answer on its way.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import Protocol, cast

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from lmwarden.gateway import envelope
from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.heads import Lines
from lmwarden.gateway.request import ClientRequest, read_head
from lmwarden.gateway.routes import Api
from lmwarden.gateway.settings import GatewaySettings

_DROPPABLE_BYTES = 1024 * 1024
"""Up to this size the body of a refused request is read and dropped, so that the connection survives."""

_NO_LINGER = struct.pack("ii", 1, 0)


class Answering(Protocol):
    """Whoever answers the request that a connection is busy with."""

    def client_gone(self) -> None:
        """The client left."""
        ...

    def client_slow(self, slow: bool) -> None:
        """The client takes bytes more slowly than they come, or has caught up."""
        ...


class DataPlane(Protocol):
    """What a connection needs of the gateway."""

    settings: GatewaySettings
    budget: BufferBudget
    read_buffer: memoryview
    connections: set[ClientConnection]

    def examine(self, request: ClientRequest) -> Problem | None:
        """Judge a request by its head."""
        ...

    def begin(self, connection: ClientConnection, request: ClientRequest) -> None:
        """Answer a complete request, now or later."""
        ...


class ClientConnection(asyncio.BufferedProtocol):
    """One client connection."""

    __slots__ = (
        "_body",
        "_budget",
        "_closing",
        "_continue_due",
        "_direct",
        "_direct_at",
        "_discarding",
        "_head_bytes",
        "_lines",
        "_parser",
        "_paused_for_budget",
        "_paused_for_queue",
        "_plane",
        "_pumping",
        "_queue",
        "_quiet",
        "_reading",
        "_shared",
        "_synthetic",
        "_target",
        "_upgrading",
        "_write_stall",
        "answering",
        "busy",
        "transport",
        "write",
        "write_paused",
    )

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._budget = plane.budget
        self._shared = plane.read_buffer
        self._parser = HttpRequestParser(self)
        self._lines: Lines = []
        self._target = b""
        self._head_bytes = 0
        self._reading: ClientRequest | None = None
        """The request whose head is read and whose body is not."""
        self._body: bytes | bytearray = b""
        self._direct: memoryview | None = None
        """A body that is being read straight into its own buffer."""
        self._direct_at = 0
        self._queue: deque[ClientRequest] = deque()
        self.busy = False
        """A request is being answered."""
        self.answering: Answering | None = None
        self._pumping = False
        self._continue_due = False
        self._discarding = False
        """Input is read and dropped until the connection closes."""
        self._closing = False
        self._upgrading = False
        self._synthetic = False
        self._paused_for_queue = False
        self._paused_for_budget = False
        self.write_paused = False
        self._write_stall = 0
        self._quiet = 0
        """Sweeps since something happened."""

    # -- the transport's calls ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.write = self.transport.write
        self._plane.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, or we closed."""
        self._closing = True
        self._plane.connections.discard(self)
        self._budget.forget(self)
        if self._direct is not None:
            self._budget.give_back(self._direct_at)
            self._direct = None
        elif self._body:
            self._budget.give_back(len(self._body))
        self._body = b""
        for request in self._queue:
            self._budget.give_back(len(request.body))
        self._queue.clear()
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.client_gone()

    def eof_received(self) -> bool:
        """The client sends no more: it left."""
        return False

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.write_paused = True
        if self.answering is not None:
            self.answering.client_slow(True)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.write_paused = False
        self._write_stall = 0
        if self.answering is not None:
            self.answering.client_slow(False)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        direct = self._direct
        return self._shared if direct is None else direct[self._direct_at :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        if self._direct is not None:
            self._direct_read(nbytes)
        elif not self._discarding:
            self._parse(self._shared[:nbytes])
        if self._queue and not self.busy:
            self._pump()

    # -- reading --------------------------------------------------------------------------------------------

    def _parse(self, data: memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except HttpParserCallbackError as error:
            if error.__context__ is not None:
                raise error.__context__ from None
            raise
        except HttpParserError as error:
            if not self._discarding:
                self._refuse_unread(envelope.malformed(_wording(error)), anthropic=False)
            return
        if self._discarding:
            return
        reading = self._reading
        if reading is not None:
            self._quiet = 0
            if reading.problem is None and reading.content_length and not self._synthetic:
                self._read_directly(reading)
        elif self._target:
            self._head_bytes += len(data)
            if self._head_bytes > self._plane.settings.max_head_bytes:
                self._refuse_unread(envelope.HEAD_TOO_LARGE, anthropic=self._target.startswith(b"/v1/messages"))

    def on_url(self, target: bytes) -> None:
        """The request target: a head begins."""
        if not self._synthetic:
            self._target += target
            self._quiet = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line, or a trailer, which is dropped."""
        if self._reading is None:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: judge it."""
        if self._synthetic or self._discarding:
            return
        parser = self._parser
        lines = self._lines
        request = read_head(
            parser.get_method(), self._target, parser.get_http_version(), lines, not parser.should_keep_alive()
        )
        if len(lines) > self._plane.settings.max_header_lines:
            request.problem = envelope.HEAD_TOO_LARGE
        self._lines = []
        self._target = b""
        self._reading = request
        if b"upgrade" in request.first:
            self._upgrading = parser.should_upgrade()
        problem = request.problem
        if problem is None:
            problem = request.problem = self._plane.examine(request)
        if problem is not None:
            length = request.content_length
            if problem.status in (400, 431, 505) or request.expects_continue or length is None or length > _DROPPABLE_BYTES:
                self._refuse(request)
        elif request.expects_continue and request.content_length != 0:
            self._continue_due = True
            if not self.busy and not self._queue:
                self._send_continue()

    def on_body(self, piece: bytes) -> None:
        """A piece of a body."""
        request = self._reading
        if request is None or request.problem is not None:
            return
        size = len(piece)
        if not self._body:
            self._body = piece
        else:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += piece
        within = self._budget.take(size)
        if len(self._body) > self._plane.settings.max_body_bytes:
            request.problem = envelope.too_large(self._plane.settings.max_body_bytes)
            self._refuse(request)
        elif not within and len(self._body) != request.content_length:
            self._wait_for_budget()

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._upgrading or self._discarding:
            return
        self._synthetic = False
        self._complete(self._body)

    def _complete(self, body: bytes | bytearray) -> None:
        request = self._reading
        assert request is not None
        request.body = body
        self._reading = None
        self._body = b""
        self._head_bytes = 0
        self._continue_due = False
        self._queue.append(request)
        if request.close:
            self._discarding = True
        elif len(self._queue) >= self._plane.settings.max_pipelined:
            self._paused_for_queue = True
            self.transport.pause_reading()

    def _read_directly(self, request: ClientRequest) -> None:
        """Most of the body is still to come: give it a buffer of its own."""
        have = self._body
        length = request.content_length
        assert length is not None
        body = bytearray(length)
        body[: len(have)] = have
        request.body = body
        self._direct = memoryview(body)
        self._direct_at = len(have)
        self._body = b""
        self._parser = HttpRequestParser(self)  # the old one still waits for this body

    def _direct_read(self, nbytes: int) -> None:
        request, direct = self._reading, self._direct
        assert request is not None
        assert direct is not None
        self._quiet = 0
        self._direct_at += nbytes
        within = self._budget.take(nbytes)
        if self._direct_at == len(direct):
            self._direct = None
            direct.release()
            self._complete(request.body)
        elif not within:
            self._wait_for_budget()

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """The client offered another protocol; HTTP lets us go on as if it had not.

        llhttp stops after such a head and leaves the body unread, so a fresh parser gets a head of our own that
        has the same framing, and then the rest.
        """
        self._upgrading = False
        request = self._reading
        self._parser = HttpRequestParser(self)
        if self._discarding or request is None:
            return
        if request.method == b"CONNECT" or (not request.content_length and not request.chunked):
            self._complete(b"")
        else:
            framing = b"Transfer-Encoding: chunked" if request.chunked else b"Content-Length: %d" % (request.content_length or 0)
            self._synthetic = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")
        if len(rest):
            self._parse(rest)

    def _refuse(self, request: ClientRequest) -> None:
        """Answer without reading the rest; the connection does not survive it."""
        if self._body:
            self._budget.give_back(len(self._body))
            self._body = b""
        request.close = request.unread = True
        self._reading = None
        self._discarding = True
        self._queue.append(request)

    def _refuse_unread(self, problem: Problem, *, anthropic: bool) -> None:
        """The same for what is no valid request."""
        request = self._reading
        if request is None:
            request = ClientRequest(b"POST", True, api=Api.ANTHROPIC if anthropic else Api.OPENAI)
        if self._direct is not None:
            self._budget.give_back(self._direct_at)
            self._direct = None
        request.body = b""
        request.problem = problem
        self._refuse(request)

    def _wait_for_budget(self) -> None:
        self._paused_for_budget = True
        self.transport.pause_reading()
        self._budget.wait(self)

    def resume_body(self) -> None:
        """There is room for request bodies again."""
        self._paused_for_budget = False
        self._quiet = 0
        if not self._paused_for_queue and not self._closing:
            self.transport.resume_reading()

    def _send_continue(self) -> None:
        self._continue_due = False
        self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- answering ------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Begin the next complete request, and the one after if that is answered at once."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._queue and not self.busy and not self._closing:
                request = self._queue.popleft()
                self.busy = True
                self._plane.begin(self, request)
        finally:
            self._pumping = False
        if self._paused_for_queue and not self._queue and not self._closing:
            self._paused_for_queue = False
            if not self._paused_for_budget:
                self.transport.resume_reading()
        if self._continue_due and not self.busy and not self._closing:
            self._send_continue()

    def answer(self, response: bytes, request: ClientRequest) -> None:
        """Write a whole response of our own and go on with the next request."""
        self.write(response)
        self.done(close=request.close, linger=request.unread)

    def done(self, *, close: bool, linger: bool = False) -> None:
        """The request has been answered."""
        self.answering = None
        self.busy = False
        self._quiet = 0
        if close:
            self._close(linger)
        elif self._queue or self._continue_due or self._paused_for_queue:
            self._pump()

    def _close(self, linger: bool) -> None:
        self._closing = True
        for request in self._queue:
            self._budget.give_back(len(request.body))
        self._queue.clear()
        if linger and not self.transport.is_closing() and self.transport.can_write_eof():
            self._discarding = True
            self.transport.write_eof()
            if self._paused_for_budget or self._paused_for_queue:
                self.transport.resume_reading()
        else:
            self.transport.close()

    def cut(self, *, reset: bool) -> None:
        """End a response that cannot be completed: without its end, so that the client notices.

        What was relayed before is still delivered, unless the end of the connection is the only framing
        (``reset``): then only a reset tells a cut from an end.
        """
        self.answering = None
        self.busy = False
        self._closing = True
        if reset:
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.transport.abort()
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """The gateway stops: close if idle."""
        if not self.busy and not self._queue:
            self._closing = True
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    # -- time -----------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Look at the time limits; called every ``sweep_s``."""
        settings = self._plane.settings
        if self.write_paused:
            self._write_stall += 1
            if self._write_stall * settings.sweep_s >= settings.write_stall_s:
                self.transport.abort()
            return
        if self.busy and not self._closing:
            return
        self._quiet += 1
        quiet_s = self._quiet * settings.sweep_s
        if self._closing:
            if quiet_s >= settings.linger_s:
                self.transport.abort()
        elif self._paused_for_budget:
            if quiet_s >= settings.buffer_wait_s:
                self._budget.forget(self)
                self._refuse_unread(envelope.NO_BUFFER, anthropic=False)
                self._pump()
        elif self._reading is not None:
            if quiet_s >= settings.body_stall_s:
                self.transport.abort()
        elif quiet_s >= (settings.head_s if self._head_bytes else settings.keep_alive_s):
            self.transport.close()


def _wording(error: HttpParserError) -> str:
    """The parser's own words, without its punctuation. They never hold input."""
    return str(error).replace("`", "").rstrip(".")
