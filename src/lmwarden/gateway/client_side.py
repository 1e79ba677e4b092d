"""The client's side of the gateway: one object per client connection.

Theory of operation. ``RequestReader`` turns bytes into requests; this half answers them. A connection reads ahead:
complete requests are queued and answered strictly in order, one at a time; when the queue is full, reading pauses. It
goes on reading while a request is being answered, because that is how one learns that the client left. End of input
counts as leaving, as it does for nginx.

A request that was refused before it was read to its end is answered at once and the connection is closed, but not
before reading on for a moment: closing on unread bytes makes the kernel send a reset, which would destroy the answer
on its way.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from contextlib import suppress
from typing import Protocol, cast

from lmwarden.gateway.connection_limit import ConnectionLimit, Entry, peer_of
from lmwarden.gateway.outbox import Outbox
from lmwarden.gateway.reader_needs import Judge
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.request_reader import RequestReader
from lmwarden.gateway.settings import GatewaySettings

_NO_LINGER = struct.pack("ii", 1, 0)
_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_MOST_UNSENT_BYTES = 128 * 1024
"""In the kernel, for a client that reads slowly: beyond it we keep it, and what we keep pauses the engine. Left alone
Linux takes megabytes for each. What is on its way does not count, so nobody's throughput suffers."""

_LEFT = getattr(select, "POLLRDHUP", 0)
"""Linux tells that the other side has closed although there are bytes to be read before that."""


def _has_left(transport: asyncio.Transport) -> bool:
    """Whether a client that is not read from at the moment has closed its side."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), _LEFT)  # resets and hang-ups are always told
    return bool(poll.poll(0))


class Answering(Protocol):
    """Whoever answers the request that a connection is busy with."""

    def client_gone(self) -> None:
        """The client left."""
        ...

    def client_slow(self, slow: bool) -> None:
        """The client takes bytes more slowly than they come, or has caught up."""
        ...


class DataPlane(Judge, Protocol):
    """What a connection needs of the gateway."""

    outbox: Outbox
    connections: set[ClientConnection]
    connection_limit: ConnectionLimit

    def begin(self, connection: ClientConnection, request: ClientRequest) -> None:
        """Answer a complete request, now or later."""
        ...


class ClientConnection(RequestReader, asyncio.BufferedProtocol):
    """One client connection."""

    __slots__ = (
        "_closing",
        "_entry",
        "_in_turn",
        "_paused_for_queue",
        "_peer",
        "_plane",
        "_pumping",
        "_write_stall",
        "answering",
        "busy",
        "write_paused",
    )

    def __init__(self, plane: DataPlane, peer: str = "", entry: Entry | None = None) -> None:
        """
        Args:
            plane: the gateway.
            peer: the address that it was counted under ...
            entry: ... with this result; None: it is counted when it is made.
        """
        RequestReader.__init__(self, plane)
        self._plane = plane
        self._peer = peer
        self._entry = entry
        self.busy = False
        """A request is being answered."""
        self.answering: Answering | None = None
        self._pumping = False
        self._in_turn = False
        """More requests are begun after the other connections had their turn."""
        self._closing = False
        self._paused_for_queue = False
        self.write_paused = False
        self._write_stall = 0
        """Sweeps since the client took something, while it is slow."""

    @property
    def made(self) -> bool:
        """It has, or had, a transport."""
        return hasattr(self, "transport")

    # -- the transport's calls ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        sock = transport.get_extra_info("socket")
        if sock is not None and _NOTSENT_LOWAT is not None:
            with suppress(OSError):  # a client that has left already
                sock.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
        if self._entry is None:
            self._peer = peer_of(transport.get_extra_info("peername"))
            self._entry = self._plane.connection_limit.enter(self._peer)
        self._plane.connections.add(self)
        if self._entry is Entry.CLOSED:
            self._closing = self.discarding = True
            self.transport.abort()
        self.surplus = self._entry is Entry.SURPLUS

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, or we closed."""
        self._closing = self.discarding = True
        self._plane.connections.discard(self)
        if self._entry is not None:
            self._plane.connection_limit.leave(self._peer, self._entry)
        self.forget_input()
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.client_gone()
        self._parser = self._memory = None  # the parser knows us: only the collector would free the two

    def eof_received(self) -> bool:
        """The client sends no more: it left. What it does not take any more is not kept for it."""
        self._plane.outbox.flush()
        self._closing = self.discarding = True
        self.quiet = 0
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.client_gone()
        if self.write_paused:
            self.transport.abort()
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
        elif self.requests and not self.busy:
            self._pump()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        self.take(nbytes)
        if self.requests and not self.busy:
            self._pump()

    # -- the reader's calls ---------------------------------------------------------------------------------

    def queue_full(self) -> None:
        """See ``RequestReader``: reading pauses."""
        self._paused_for_queue = True
        self.transport.pause_reading()

    def continue_wanted(self) -> None:
        """See ``RequestReader``: a 100 must not come between two parts of an earlier answer."""
        if not self.busy and not self.requests:
            self._send_continue()

    def resume_body(self) -> None:
        """See ``RequestReader``."""
        self.paused_for_budget = False
        self.quiet = 0
        if not self._paused_for_queue and not self._closing:
            self.transport.resume_reading()

    # -- answering ------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Begin the next complete request, and the one after if that is answered at once, but not endlessly, and not
        while the client does not take the answers that it has."""
        if self._pumping or self._in_turn:
            return
        self._pumping = True
        turns = self._plane.settings.max_pipelined
        try:
            while self.requests and not self.busy and not self.write_paused and not self._closing:
                if not turns:
                    self._in_turn = True
                    asyncio.get_running_loop().call_soon(self._next_turn)
                    return
                turns -= 1
                request = self.requests.pop(0)
                self.busy = True
                self._plane.begin(self, request)
        finally:
            self._pumping = False
        if self._paused_for_queue and not self.requests and not self._closing:
            self._paused_for_queue = False
            if not self.paused_for_budget:
                self.transport.resume_reading()
        if self._continue_due and not self.busy and not self._closing:
            self._send_continue()

    def _next_turn(self) -> None:
        """The other connections had their turn."""
        self._in_turn = False
        self._pump()

    def _send_continue(self) -> None:
        self._continue_due = False
        self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        self._plane.outbox.write(self.transport, data)

    def answer(self, response: bytes, request: ClientRequest) -> None:
        """Write a whole response of our own and go on with the next request."""
        self.write(response)
        self.done(close=request.close, linger=request.unread)

    def done(self, *, close: bool, linger: bool = False) -> None:
        """The request has been answered."""
        self.answering = None
        self.busy = False
        self.quiet = 0
        if close:
            self._close(linger)
        elif self.requests or self._continue_due or self._paused_for_queue:
            self._pump()

    def _close(self, linger: bool) -> None:
        self._closing = self.discarding = True
        self._plane.outbox.flush()
        self.forget_input()
        if linger and not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()
            if self.paused_for_budget or self._paused_for_queue:
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
        self._closing = self.discarding = True
        self._plane.outbox.flush()
        if reset:
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.transport.abort()
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """The gateway stops: close if idle."""
        if not self.busy and not self.requests:
            self._closing = self.discarding = True
            self._plane.outbox.flush()
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    # -- time -----------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Look at the time limits; called every ``sweep_s``."""
        settings = self._plane.settings
        if (self.paused_for_budget or self._paused_for_queue) and _has_left(self.transport):
            self.transport.abort()
            return
        if self.write_paused:
            self._write_stall += 1
            if self._write_stall * settings.sweep_s >= settings.write_stall_s:
                self.transport.abort()
            return
        if self.busy and not self._closing:
            return
        self.quiet += 1
        quiet_s = self.quiet * settings.sweep_s
        if self._closing:
            if quiet_s >= settings.linger_s:
                self.transport.abort()
        elif self.paused_for_budget:
            if quiet_s >= settings.buffer_wait_s:
                self._budget.forget(self)
                self.refuse_body()
                self._pump()
        elif self.in_body:
            if quiet_s >= settings.body_stall_s:
                self.transport.abort()
        elif quiet_s >= self._idle_limit_s(settings):
            self.transport.close()

    def _idle_limit_s(self, settings: GatewaySettings) -> float:
        """How long nothing may happen between two requests, in a head, or before the first one."""
        if self.surplus:
            return settings.linger_s
        if self.in_head:
            return settings.head_s
        return settings.keep_alive_s if self.begun else min(settings.head_s, settings.keep_alive_s)
