"""What one connection, and all of them together, may take of the console.

uvicorn's protocol reads heads of any size for any time, on any number of connections, before anybody is asked who they
are; and the console lives in the process that relays the requests, so memory and file descriptors that it gives away
are missing there. Hence these bounds, all of them far beyond what browsers and scripts need:

* connections: so many in all, and so many from one address (of an IPv6 address its /64). This machine's own addresses
  may have all of them: a proxy in front is one address for everybody. What is too much is closed without an answer.
  Where there are too many in all, it is the one that has been idle the longest that goes: who asks something is in;
* requests: so many a second, whoever asks. Beyond that they wait their turn. The console's thread shares the
  interpreter with the data loop, so what it computes is time that streams wait;
* requests that are sent ahead: a few;
* a head: bytes, lines, and time. The time limit also ends a connection on which nobody says anything;
* a body: time. (Its size is for the handlers: what they do not read waits in the kernel.)
* an answer that is complete and was not taken: time, and bytes over all connections. A stream has no end; of it at most
  one message waits (``events``).

Input that is no HTTP gets 400 and no line in the log: whoever sends it could fill the disk with such lines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lmwarden.access.throttle import source_of
from lmwarden.config import is_loopback

MOST_CONNECTIONS = 512
MOST_OF_ONE_ADDRESS = 128
REQUESTS_PER_S = 200.0
"""Twenty open pages ask for less than a tenth of it."""
REQUESTS_AT_ONCE = 400
MOST_PIPELINED = 8
MOST_HEAD_BYTES = 64 * 1024
"""Of a line that is not complete, what the read brings in which the head begins may come on top, at most 256 KiB."""
MOST_HEAD_LINES = 256
HEAD_S = 15.0
BODY_S = 30.0
LINGER_S, MOST_LINGER_BYTES = 1.0, 1 << 20
"""So long, and so much, a peer that was refused is read on: closed at once, it might never see why."""
UNREAD_S = 60.0
"""Most time that a complete answer lies here, its last byte not taken."""
MOST_UNREAD_BYTES = 64 << 20
"""Of complete answers, all connections together."""
_SMALL_ANSWER_BYTES = 64 * 1024
"""Below this nobody counts: all connections together cannot hold much of it."""

_STATUS_LINES = {400: b"HTTP/1.1 400 Bad Request", 431: b"HTTP/1.1 431 Request Header Fields Too Large"}


class Turns:
    """Who may begin when: ``REQUESTS_AT_ONCE`` at once, after that one each ``1 / REQUESTS_PER_S`` seconds.

    Who waits stands in one line, a connection at most once, and loses no time to those who have left.
    """

    def __init__(self) -> None:
        self._next_s = float("-inf")
        self._waiting: deque[tuple[RequestResponseCycle, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, loop: asyncio.AbstractEventLoop, cycle: RequestResponseCycle, begin: Callable[[], None]) -> None:
        """Call ``begin`` when it is this request's turn: now, later, or never if it was given up before."""
        self._waiting.append((cycle, begin))
        if self._timer is None:
            self._go_on(loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._waiting:
            cycle, begin = self._waiting[0]
            if cycle.disconnected:
                self._waiting.popleft()
                continue
            now_s = loop.time()
            turn_s = max(self._next_s, now_s - REQUESTS_AT_ONCE / REQUESTS_PER_S)
            if turn_s > now_s:
                self._timer = loop.call_at(turn_s, self._go_on, loop)
                return
            self._next_s = turn_s + 1 / REQUESTS_PER_S
            self._waiting.popleft()
            begin()


class BoundedConnection(HttpToolsProtocol):
    """One connection of the console."""

    _idle_since_s = 0.0
    _unanswered = 0
    """Requests that came whole and have no answer yet; below 0 one was answered before it came whole."""
    _deadline: asyncio.TimerHandle | None = None
    """When what is being read must be complete."""
    _taking: asyncio.TimerHandle | None = None
    """When what was answered must have been taken."""
    _head_bytes = 0
    """Of a head that is not complete; 0: none has begun. The read that it begins in does not count: what is complete
    of that counts by line."""
    _head_lines = 0
    _head_line_bytes = 0
    _refused = False
    _refused_bytes = 0
    """Read and thrown away since."""

    def __init__(self, turns: Turns, **given: Any) -> None:
        """Args:
        turns: of all connections.
        given: uvicorn's own.
        """
        super().__init__(**given)
        self._turns = turns

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer connected."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._idle_since_s = self.loop.time()
        if self._has_too_many() or not self._finds_room():
            self.transport.abort()
        else:
            self._wait_until(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._read_in_time()
        if self._taking is not None:
            self._taking.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        if self._refused:
            self._refused_bytes += len(data)
            if self._refused_bytes > MOST_LINGER_BYTES:
                self.transport.abort()
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # another protocol was offered; the request is served as if it had not been
        except httptools.HttpParserError:
            self._refuse(431 if self._head_is_too_large() else 400)
            return
        if self._head_bytes:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(431)

    def on_message_begin(self) -> None:
        """A head begins.

        Raises:
            ValueError: too many requests are sent ahead; the parser gives up.
        """
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests")
        super().on_message_begin()
        self._head_bytes, self._head_lines, self._head_line_bytes = 1, 0, 0
        self._wait_until(HEAD_S)

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._head_line_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of a head, or of a trailer.

        Raises:
            ValueError: there are too many, or it frames the body in a way that another reader may not see; the parser
                gives up.
        """
        self._head_lines += 1
        self._head_line_bytes += len(name) + len(value)
        if self._head_is_too_large():
            raise ValueError("too large a head")
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise ValueError("an encoding besides chunked")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._head_bytes = 0
        self._wait_until(BODY_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._read_in_time()
        self._unanswered += 1
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._turns.ask(self.loop, cycle, partial(super()._start_asgi_task, cycle, app))

    def on_response_complete(self) -> None:
        """Everything was answered; the transport may still hold some of it."""
        self._idle_since_s = self.loop.time()
        self._unanswered -= 1
        super().on_response_complete()
        unread_bytes = self.transport.get_write_buffer_size()
        if not unread_bytes:
            return
        if unread_bytes > _SMALL_ANSWER_BYTES and self._all_unread_bytes() > MOST_UNREAD_BYTES:
            self.transport.abort()
        elif self._taking is None:
            self._taking = self.loop.call_later(UNREAD_S, self._is_not_taken)

    def _head_is_too_large(self) -> bool:
        return self._head_lines > MOST_HEAD_LINES or self._head_line_bytes > MOST_HEAD_BYTES

    # -- limits -------------------------------------------------------------------------------------------------

    def _finds_room(self) -> bool:
        """Whether there is room for this connection, or one that asks nothing and can go for it."""
        there = [other for other in self._all() if not other.transport.is_closing()]
        if len(there) <= MOST_CONNECTIONS:
            return True
        idle = [other for other in there if other is not self and other._unanswered <= 0]
        if not idle:
            return False
        min(idle, key=lambda other: other._idle_since_s).transport.abort()
        return True

    def _has_too_many(self) -> bool:
        address = self.client[0] if self.client is not None else ""
        if is_loopback(address):
            return False
        source = source_of(address)
        clients = [other.client for other in self._all()]
        return sum(client is not None and source_of(client[0]) == source for client in clients) > MOST_OF_ONE_ADDRESS

    def _all_unread_bytes(self) -> int:
        return sum(other.transport.get_write_buffer_size() for other in self._all())

    def _all(self) -> set[BoundedConnection]:
        return cast(set[BoundedConnection], self.connections)  # the server makes no others

    def _is_not_taken(self) -> None:
        self._taking = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _wait_until(self, limit_s: float) -> None:
        self._read_in_time()
        self._deadline = self.loop.call_later(limit_s, self._is_late)

    def _read_in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _is_late(self) -> None:
        self._deadline = None
        self.transport.abort()

    def _refuse(self, status: int) -> None:
        self.transport.write(_STATUS_LINES[status] + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        cycle = cast(RequestResponseCycle | None, self.cycle)  # none yet: its type does not say so
        answered = (cycle is None or cycle.response_complete) and not self.pipeline
        if answered and self.transport.can_write_eof():
            self._refused = True
            self.transport.write_eof()
            self._wait_until(LINGER_S)
        else:
            self.transport.close()
