"""Reads a client's requests from its bytes: heads, and what is wrong with them.

Heads, small bodies and chunked bodies are read into one buffer that all connections share: reading and parsing happen
in one call, so nobody sees another's bytes. httptools reads the heads and the chunks. A head that came in one piece is
given to it alone, so that its bytes and the request that came of them are at hand together: only there is a head
remembered (``head_memory``), and every other head makes the connection forget. Bodies are the other half's
(``body_reader``).

What a head alone decides (no such path, no key, too large, ambiguous) becomes the request's ``problem``. If the rest of
its body is small, it is read and dropped and the connection lives on; otherwise the request is handed over at once,
``unread``, and all further input is discarded.
"""

from __future__ import annotations

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from lmwarden.gateway import envelope
from lmwarden.gateway.body_reader import BodyReader
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.head_memory import HeadMemory
from lmwarden.gateway.heads import Lines
from lmwarden.gateway.reader_needs import Judge
from lmwarden.gateway.request import ClientRequest, read_head
from lmwarden.gateway.routes import Api

_DROPPABLE_BYTES = 1024 * 1024
"""Up to this size the body of a refused request is read and dropped, so that the connection survives."""
_HEAD_END = b"\r\n\r\n"
_MAX_WHOLE_HEAD_BYTES = 8192
"""Longer heads are read as they come, and not remembered."""


class RequestReader(BodyReader):
    """The reading half of a client connection. The other half says what becomes of the requests."""

    __slots__ = (
        "_continue_due",
        "_head_bytes",
        "_heads",
        "_lines",
        "_memory",
        "_parser",
        "_shared",
        "_synthetic",
        "_target",
        "_upgrading",
        "begun",
        "discarding",
        "requests",
        "surplus",
    )

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._shared = judge.read_buffer
        self._parser: HttpRequestParser | None = None
        """Made when it is needed, dropped while a stream is sent: 5,000 open streams need no parsers."""
        self._lines: Lines | None = None
        """Of the head that is being read."""
        self._target = b""
        self._head_bytes = 0
        """Bytes of a head that is not complete; above 0 a request has begun."""
        self._heads = 0
        """Heads that the parser has completed."""
        self._memory: HeadMemory | None = None
        self._upgrading = False
        self._synthetic = False
        """The parser was given a head of our own."""
        self._continue_due = False
        """The client waits for a 100 before it sends its body."""
        self.requests: list[ClientRequest] = []
        """Complete requests, in order."""
        self.discarding = False
        """Input is read and dropped until the connection closes."""
        self.surplus = False
        """Beyond the limit of connections: its first request is the last."""
        self.begun = False
        """A request has begun on this connection, now or before."""

    # -- for the connection ---------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        direct = self._direct
        return self._shared if direct is None else direct.space()

    def take(self, nbytes: int) -> None:
        """Bytes have arrived in the buffer."""
        if self._direct is not None:
            self._direct_read(self._direct, nbytes)
            return
        data = self._shared[:nbytes].tobytes()  # slices of these are cheaper than those of a view
        while data and not self.discarding:
            begun = self._head_bytes or self._reading is not None
            data = self._parse(data) if begun else self._begin(data)

    def stream_begins(self) -> None:
        """A long answer begins: keep no memory that the next request can make anew."""
        if not self._head_bytes and self._reading is None:
            self._parser = self._memory = None

    def forget_input(self) -> None:
        """The connection is gone: nothing is held any more."""
        self.drop_body()
        for request in self.requests:
            self._budget.give_back(len(request.body))
        self.requests.clear()
        self._budget.forget(self)

    @property
    def in_head(self) -> bool:
        """A head has begun and is not complete."""
        return self._head_bytes > 0 and self._reading is None

    @property
    def in_body(self) -> bool:
        """A head was read, and its body is to come."""
        return self._reading is not None

    def refuse_body(self) -> None:
        """There is no room for the body that is being read: hand its request over, and read no further."""
        request = self._reading
        assert request is not None
        self.refuse_unread(envelope.no_buffer(request.api))

    def refuse_unread(self, problem: Problem, *, anthropic: bool = False) -> None:
        """Hand over what is no valid request, or the one whose body is being read, and read no further."""
        request = self._reading
        if request is None:
            request = ClientRequest(b"POST", True, api=Api.ANTHROPIC if anthropic else Api.OPENAI)
        request.problem = problem
        self._refuse(request)

    # -- heads ----------------------------------------------------------------------------------------------

    def _begin(self, data: bytes) -> bytes:
        """Read the head at the beginning of ``data``, and its body if that is easy; returns what is left."""
        memory = self._memory
        if memory is None:
            memory = self._memory = HeadMemory()
        recalled = memory.recall(data, self._judge.settings.max_body_bytes)
        if recalled is not None:
            request, at = recalled
            if self._judge.check_key(request) is None:
                self._reading = request
                self._parser = None  # it waits for this body
                return self._body_follows(request, data[at:])
        memory.forget()
        end = data.find(_HEAD_END, 0, _MAX_WHOLE_HEAD_BYTES) + len(_HEAD_END)
        if end < len(_HEAD_END) or not memory.useful:
            return self._parse(data)
        heads = self._heads
        end -= len(self._feed(data[:end]))
        head, data = data[:end], data[end:]
        request_begun = self._reading
        if request_begun is None or self._heads != heads + 1 or self._synthetic or self._body:
            return data
        memory.keep(head, request_begun)
        if request_begun.problem is None and request_begun.content_length:
            self._parser = None  # it waits for this body
            return self._body_follows(request_begun, data)
        return data

    def _feed(self, data: bytes) -> bytes:
        """Give bytes to the parser; returns what it does not want."""
        parser = self._parser
        if parser is None:
            parser = self._parser = HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            return data[upgrade.args[0] :]
        except HttpParserCallbackError as error:
            if error.__context__ is not None:
                raise error.__context__ from None
            raise
        except HttpParserError as error:
            if not self.discarding:
                self.refuse_unread(envelope.malformed(_wording(error)))
        return b""

    def _parse(self, data: bytes) -> bytes:
        """Read on in what has begun, or read a head that did not come whole; returns what is left."""
        began = self._reading
        self._body_bytes = 0
        rest = self._feed(data)
        reading = self._reading
        if self.discarding or rest:
            return rest
        if reading is None:
            if self._head_bytes:
                # Bytes of a body before it are none of this head's, nor is what stands before a blank line.
                blank_line = data.rfind(_HEAD_END)
                before = 0 if blank_line < 0 else blank_line + len(_HEAD_END)
                self._count_head(len(data) - max(before, self._body_bytes))
        elif reading.problem is None and reading.content_length and not self._synthetic:
            self._parser = None  # it waits for this body
            self._read_directly(reading)
        elif reading is began:
            self._progress(len(data))
            if reading.chunked:
                self._count_framing(reading, len(data))
        return rest

    def _count_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > self._judge.settings.max_head_bytes:
            self.refuse_unread(envelope.HEAD_TOO_LARGE, anthropic=self._target.startswith(b"/v1/messages"))

    def on_message_begin(self) -> None:
        """A head begins."""
        if not self._synthetic:
            self._lines = []
            self._head_bytes = 1
            self.quiet = 0
            self.begun = True

    def on_url(self, target: bytes) -> None:
        """The request target, maybe in parts."""
        if not self._synthetic:
            self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line, or a trailer, which is dropped."""
        if self._lines is not None:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: judge it."""
        if self._synthetic or self.discarding:
            return
        parser = self._parser
        assert parser is not None
        self._heads += 1
        self.quiet = self._progress_bytes = self._framing_bytes = 0
        lines, self._lines = self._lines, None
        assert lines is not None
        target, self._target = self._target, b""
        request = read_head(
            parser.get_method(), target, parser.get_http_version(), lines, not parser.should_keep_alive()
        )
        self._reading = request
        if request.method == b"CONNECT":  # what follows would not be HTTP
            request.problem = envelope.NO_PATH
            self._refuse(request)
            return
        if b"upgrade" in request.first:
            self._upgrading = parser.should_upgrade()
        problem = request.problem
        if problem is None:
            problem = self._judge.examine(request)
        if len(lines) > self._judge.settings.max_header_lines:
            problem = envelope.HEAD_TOO_LARGE
        if self.surplus:
            request.close = True
            if request.route is None or request.route.local is None:
                problem = envelope.too_many_connections(request.api)
        if problem is not None:
            request.problem = problem
            length = request.content_length
            framed = problem.status not in (400, 431, 505) and length is not None
            if self.surplus or not framed or request.expects_continue or (length or 0) > _DROPPABLE_BYTES:
                self._refuse(request)
        elif request.expects_continue and request.content_length != 0:
            self._continue_due = True
            self.continue_wanted()

    # -- bodies ---------------------------------------------------------------------------------------------

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
        self._over_budget = False
        self._head_bytes = 0
        self._continue_due = False
        if request.close:
            self.discarding = True
        self.requests.append(request)
        if len(self.requests) >= self._judge.settings.max_pipelined and not self.discarding:
            self.queue_full()

    # -- oddities -------------------------------------------------------------------------------------------

    def _ignore_upgrade(self) -> None:
        """The client offered another protocol; HTTP lets us go on as if it had not.

        llhttp stops after such a head and leaves the body unread, so a fresh parser gets a head of our own that
        has the same framing, and then what follows.
        """
        self._upgrading = False
        request = self._reading
        self._parser = None
        if self.discarding or request is None:
            return
        if not request.content_length and not request.chunked:
            self._complete(b"")
        else:
            length = request.content_length
            framing = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
            self._synthetic = True
            self._feed(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")

    def _refuse(self, request: ClientRequest) -> None:
        """Hand a request over with its problem and its body unread."""
        self.drop_body()
        request.body = b""
        request.close = request.unread = True
        self._reading = None
        self.discarding = True
        self.requests.append(request)


def _wording(error: HttpParserError) -> str:
    """The parser's own words, without its punctuation. They never hold input."""
    return str(error).replace("`", "").rstrip(".")
