"""The bodies of a client's requests: collected, counted, and refused where they are too large or never end.

The half of ``RequestReader`` that reads what follows a head. A chunked body, and one that comes whole with its head, is
collected in pieces; one with a Content-Length that did not come whole is read straight into a buffer of its own
(``incoming_body``). All of it counts in the gateway's budget from the moment at which it is held, and a connection
whose body finds no room there stops reading until there is.

Input that is no body (chunk framing, extensions, trailers) may not be endless either: it is counted against the limit
of heads and what the body has brought. And a body must make progress: ``quiet`` goes on counting while it trickles.
"""

from __future__ import annotations

import asyncio

from lmwarden.gateway import envelope
from lmwarden.gateway.incoming_body import IncomingBody
from lmwarden.gateway.reader_needs import Judge, ReaderEvents
from lmwarden.gateway.request import ClientRequest, body_limit

_FRAMING_PER_BODY_BYTE = 16
"""Most bytes of chunk framing per byte of body, beyond ``max_head_bytes``; chunks of one byte need five."""


class BodyReader(ReaderEvents):
    """Reads the body of the request in ``_reading``. The half that reads heads completes and refuses it."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_budget",
        "_direct",
        "_framing_bytes",
        "_judge",
        "_over_budget",
        "_progress_bytes",
        "_reading",
        "paused_for_budget",
        "quiet",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._budget = judge.budget
        self._reading: ClientRequest | None = None
        """The request whose head is read and whose body is not."""
        self._body: bytes | bytearray = b""
        self._direct: IncomingBody | None = None
        """A body that is being read straight into its own buffer."""
        self._body_bytes = 0
        """Of this read, as far as the parser was given it."""
        self._framing_bytes = 0
        """Bytes that have come in a chunked body's reads, its pieces included."""
        self._progress_bytes = 0
        """Bytes of a body since ``quiet`` was set back."""
        self._over_budget = False
        """The body that is being read had to wait for the budget of all bodies."""
        self.paused_for_budget = False
        self.quiet = 0
        """Sweeps since something happened."""

    # -- the other half's ----------------------------------------------------------------------------------

    def _complete(self, body: bytes | bytearray) -> None:
        """The request whose body is being read is complete."""
        raise RuntimeError("the other half completes requests")

    def _refuse(self, request: ClientRequest) -> None:
        """The request is answered with its problem, and nothing more is read."""
        raise RuntimeError("the other half refuses requests")

    # -- reading -------------------------------------------------------------------------------------------

    def drop_body(self) -> None:
        """The body that is being read is not wanted."""
        if self._direct is not None:
            self._direct.give_up()
            self._direct = None
        elif self._body:
            self._budget.give_back(len(self._body))
        self._body = b""

    def on_body(self, piece: bytes) -> None:
        """A piece of a body."""
        self._body_bytes += len(piece)
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
        limit = body_limit(request, self._judge.settings.max_body_bytes)
        if len(self._body) > limit:
            request.problem = envelope.too_large(limit)
            self._refuse(request)
        elif not within and len(self._body) != request.content_length:
            self._wait_for_budget()

    def _body_follows(self, request: ClientRequest, data: bytes) -> bytes:
        """``data`` begins with the body of the request whose head was just read; returns what is left."""
        length = request.content_length
        assert length is not None
        have = data[:length]
        self._budget.take(len(have))
        if len(have) == length:
            self._complete(have)
        else:
            self._body = have
            self.quiet = self._progress_bytes = 0
            self._read_directly(request)
        return data[length:]

    def _read_directly(self, request: ClientRequest) -> None:
        """Most of the body is still to come: give it a buffer of its own."""
        assert request.content_length is not None
        self._direct = IncomingBody(bytes(self._body), request.content_length, self._budget)
        self._body = b""
        if not self._direct.reserve():
            self._wait_for_budget()

    def _direct_read(self, direct: IncomingBody, nbytes: int) -> None:
        self._progress(nbytes)
        within = direct.take(nbytes)
        if direct.complete:
            self._direct = None
            self._complete(direct.buffer)
        elif not within:
            self._wait_for_budget()

    def _wait_for_budget(self) -> None:
        self.paused_for_budget = True
        self.transport.pause_reading()
        self._budget.wait(self, again=self._over_budget)
        self._over_budget = True

    def _count_framing(self, request: ClientRequest, nbytes: int) -> None:
        self._framing_bytes += nbytes
        most = self._judge.settings.max_head_bytes + _FRAMING_PER_BODY_BYTE * len(self._body)
        if self._framing_bytes > most:
            request.problem = envelope.TOO_MUCH_FRAMING
            self._refuse(request)

    def _progress(self, nbytes: int) -> None:
        """A body must bring so much within its time limit: a trickle is as good as a standstill."""
        self._progress_bytes += nbytes
        if self._progress_bytes >= self._judge.settings.body_progress_bytes:
            self._progress_bytes = 0
            self.quiet = 0
