"""Reads a client's requests from its bytes: heads, bodies, and what is wrong with them.

Heads, small bodies and chunked bodies are read into one buffer that all connections share (reading and parsing happen
in one call, so nobody sees another's bytes) and are framed by httptools. A body with a Content-Length that did not
come whole with its head is read straight into a buffer of its own size: large bodies are neither joined nor copied. A
head that repeats but for its length is recognised without parsing (``known_heads``).

What a head alone decides (no such path, no key, too large, ambiguous) becomes the request's ``problem``. If the rest of
its body is small, it is read and dropped and the connection lives on; otherwise the request is handed over at once,
``unread``, and all further input is discarded.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from lmwarden.gateway import envelope
from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.heads import Lines
from lmwarden.gateway.known_heads import MAX_MISSES, KnownHead, remember
from lmwarden.gateway.request import ClientRequest, read_head, with_length
from lmwarden.gateway.routes import Api
from lmwarden.gateway.settings import GatewaySettings

_DROPPABLE_BYTES = 1024 * 1024
"""Up to this size the body of a refused request is read and dropped, so that the connection survives."""


class Judge(Protocol):
    """What reading needs of the gateway."""

    settings: GatewaySettings
    budget: BufferBudget
    read_buffer: memoryview

    def examine(self, request: ClientRequest) -> Problem | None:
        """Judge a request by its head."""
        ...

    def check_key(self, request: ClientRequest) -> Problem | None:
        """Check the key of a request whose head was judged before."""
        ...


class RequestReader:
    """The reading half of a client connection. The other half says what becomes of the requests."""

    __slots__ = (
        "_body",
        "_budget",
        "_continue_due",
        "_direct",
        "_direct_at",
        "_first_head",
        "_head_bytes",
        "_judge",
        "_known",
        "_lines",
        "_misses",
        "_model",
        "_parser",
        "_reading",
        "_shared",
        "_synthetic",
        "_target",
        "_upgrading",
        "discarding",
        "paused_for_budget",
        "quiet",
        "requests",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._budget = judge.budget
        self._shared = judge.read_buffer
        self._parser: HttpRequestParser | None = None
        """Made when it is needed, dropped while a stream is sent: 5,000 open streams need no parsers."""
        self._lines: Lines = []
        self._target = b""
        self._head_bytes = 0
        """Bytes of a head that is not complete; above 0 a request has begun."""
        self._reading: ClientRequest | None = None
        """The request whose head is read and whose body is not."""
        self._body: bytes | bytearray = b""
        self._direct: memoryview | None = None
        """A body that is being read straight into its own buffer."""
        self._direct_at = 0
        self._known: KnownHead | None = None
        """The last head, if it may repeat, and the request that was read from it."""
        self._model: ClientRequest | None = None
        self._misses = 0
        """Heads in a row that were not known."""
        self._first_head: ClientRequest | None = None
        """The request whose head stands at the beginning of what is being parsed."""
        self._upgrading = False
        self._synthetic = False
        """The parser was given a head of our own."""
        self._continue_due = False
        """The client waits for a 100 before it sends its body."""
        self.requests: list[ClientRequest] = []
        """Complete requests, in order."""
        self.discarding = False
        """Input is read and dropped until the connection closes."""
        self.paused_for_budget = False
        self.quiet = 0
        """Sweeps since something happened."""

    # -- for the connection ---------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        direct = self._direct
        return self._shared if direct is None else direct[self._direct_at :]

    def take(self, nbytes: int) -> None:
        """Bytes have arrived in the buffer."""
        if self._direct is not None:
            self._direct_read(nbytes)
        elif not self.discarding:
            data = self._shared[:nbytes]
            if self._known is None or self._head_bytes or self._reading is not None or not self._take_known(data):
                self._parse(data)

    def stream_begins(self) -> None:
        """A long answer begins: keep no memory that the next request can make anew."""
        if not self._head_bytes and self._reading is None:
            self._parser = self._known = self._model = None

    def forget_input(self) -> None:
        """The connection is gone: nothing is held any more."""
        self.drop_body()
        for request in self.requests:
            self._budget.give_back(len(request.body))
        self.requests.clear()
        self._budget.forget(self)

    def drop_body(self) -> None:
        """The body that is being read is not wanted."""
        if self._direct is not None:
            self._budget.give_back(self._direct_at)
            self._direct = None
        elif self._body:
            self._budget.give_back(len(self._body))
        self._body = b""

    @property
    def in_head(self) -> bool:
        """A head has begun and is not complete."""
        return self._head_bytes > 0 and self._reading is None

    @property
    def in_body(self) -> bool:
        """A head was read, and its body is to come."""
        return self._reading is not None

    def resume_body(self) -> None:
        """There is room for request bodies again."""
        raise RuntimeError("a reader is one half of a connection")

    def request_queued(self) -> None:
        """A request was added to ``requests``."""
        raise RuntimeError("a reader is one half of a connection")

    def continue_wanted(self) -> None:
        """The client waits for a 100."""
        raise RuntimeError("a reader is one half of a connection")

    def refuse_unread(self, problem: Problem, *, anthropic: bool = False) -> None:
        """Hand over what is no valid request, or the one whose body is being read, and read no further."""
        request = self._reading
        if request is None:
            request = ClientRequest(b"POST", True, api=Api.ANTHROPIC if anthropic else Api.OPENAI)
        request.problem = problem
        self._refuse(request)

    # -- heads ----------------------------------------------------------------------------------------------

    def _take_known(self, data: memoryview) -> bool:
        """Take a request whose head is known. False: it is not."""
        known, model = self._known, self._model
        assert known is not None
        assert model is not None
        found = known.match(bytes(data[: len(known.before) + len(known.after) + 16]))
        if found is None or found[0] > self._judge.settings.max_body_bytes:
            return False
        self._misses = 0
        length, at = found
        request = with_length(model, length)
        problem = self._judge.check_key(request)
        if problem is not None:
            return False  # the long way says it all
        self.quiet = 0
        self._reading = request
        rest = len(data) - at
        if rest < length:
            self._body = bytes(data[at:])
            self._budget.take(rest)
            self._read_directly(request)
            return True
        self._budget.take(length)
        self._complete(bytes(data[at : at + length]))
        if rest > length and not self.discarding:
            self._parse(data[at + length :])
        return True

    def _parse(self, data: memoryview) -> None:
        parser = self._parser
        if parser is None:
            parser = self._parser = HttpRequestParser(self)
        begins = not self._head_bytes and self._reading is None
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except HttpParserCallbackError as error:
            if error.__context__ is not None:
                raise error.__context__ from None
            raise
        except HttpParserError as error:
            if not self.discarding:
                self.refuse_unread(envelope.malformed(_wording(error)))
            return
        if self.discarding:
            return
        first_head, self._first_head = self._first_head, None
        if begins and first_head is not None and self._misses < MAX_MISSES:
            self._remember(first_head, data)
        reading = self._reading
        if reading is not None:
            self.quiet = 0
            if reading.problem is None and reading.content_length and not self._synthetic:
                self._read_directly(reading)
        elif self._head_bytes:
            self._head_bytes += len(data)
            if self._head_bytes > self._judge.settings.max_head_bytes:
                self.refuse_unread(envelope.HEAD_TOO_LARGE, anthropic=self._target.startswith(b"/v1/messages"))

    def _remember(self, request: ClientRequest, data: memoryview) -> None:
        """Keep a head that may repeat."""
        self._misses += 1
        if request.problem is None and request.content_length and not request.close and not request.expects_continue:
            self._known = remember(bytes(data[:8192]))
            self._model = request.copied() if self._known is not None else None

    def on_message_begin(self) -> None:
        """A head begins."""
        if not self._synthetic:
            self._head_bytes = 1
            self.quiet = 0

    def on_url(self, target: bytes) -> None:
        """The request target, maybe in parts."""
        if not self._synthetic:
            self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line, or a trailer, which is dropped."""
        if self._reading is None:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: judge it."""
        if self._synthetic or self.discarding:
            return
        parser = self._parser
        assert parser is not None
        lines, self._lines = self._lines, []
        target, self._target = self._target, b""
        request = read_head(
            parser.get_method(), target, parser.get_http_version(), lines, not parser.should_keep_alive()
        )
        self._reading = request
        if b"upgrade" in request.first:
            self._upgrading = parser.should_upgrade()
        elif not self.requests and self._first_head is None:
            self._first_head = request
        problem = request.problem
        if problem is None:
            problem = self._judge.examine(request)
        if len(lines) > self._judge.settings.max_header_lines:
            problem = envelope.HEAD_TOO_LARGE
        if problem is not None:
            request.problem = problem
            length = request.content_length
            framed = problem.status not in (400, 431, 505) and length is not None
            if not framed or request.expects_continue or (length or 0) > _DROPPABLE_BYTES:
                self._refuse(request)
        elif request.expects_continue and request.content_length != 0:
            self._continue_due = True
            self.continue_wanted()

    # -- bodies ---------------------------------------------------------------------------------------------

    def on_body(self, piece: bytes) -> None:
        """A piece of a body."""
        request = self._reading
        if request is None or request.problem is not None:
            return
        if not self._body:
            self._body = piece
        else:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += piece
        within = self._budget.take(len(piece))
        if len(self._body) > self._judge.settings.max_body_bytes:
            request.problem = envelope.too_large(self._judge.settings.max_body_bytes)
            self._refuse(request)
        elif not within and len(self._body) != request.content_length:
            self._wait_for_budget()

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._upgrading or self.discarding:
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
        if request.close:
            self.discarding = True
        self.requests.append(request)
        self.request_queued()

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
        self._parser = None  # it may still wait for this body

    def _direct_read(self, nbytes: int) -> None:
        request, direct = self._reading, self._direct
        assert request is not None
        assert direct is not None
        self.quiet = 0
        self._direct_at += nbytes
        within = self._budget.take(nbytes)
        if self._direct_at == len(direct):
            self._direct = None
            direct.release()
            self._complete(request.body)
        elif not within:
            self._wait_for_budget()

    def _wait_for_budget(self) -> None:
        self.paused_for_budget = True
        self.transport.pause_reading()
        self._budget.wait(self)

    # -- oddities -------------------------------------------------------------------------------------------

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """The client offered another protocol; HTTP lets us go on as if it had not.

        llhttp stops after such a head and leaves the body unread, so a fresh parser gets a head of our own that
        has the same framing, and then the rest.
        """
        self._upgrading = False
        request = self._reading
        self._parser = None
        if self.discarding or request is None:
            return
        if request.method == b"CONNECT" or (not request.content_length and not request.chunked):
            self._complete(b"")
        else:
            length = request.content_length
            framing = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
            self._synthetic = True
            self._parse(memoryview(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n"))
        if len(rest):
            self._parse(rest)

    def _refuse(self, request: ClientRequest) -> None:
        """Hand a request over with its problem and its body unread."""
        self.drop_body()
        request.body = b""
        request.close = request.unread = True
        self._reading = None
        self.discarding = True
        self.requests.append(request)
        self.request_queued()


def _wording(error: HttpParserError) -> str:
    """The parser's own words, without its punctuation. They never hold input."""
    return str(error).replace("`", "").rstrip(".")
