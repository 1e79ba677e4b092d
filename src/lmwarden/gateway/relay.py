"""How an engine's answer becomes the client's: which framing, and what is taken out.

Three framings, chosen once per answer:

* **raw**: the bytes of each read go on as they came, chunk framing included. The usual one.
* **chunked**: our own chunks around the body's pieces, one per read. For filtered streams, and for an engine
  that ends its answer by closing.
* **plain**: the pieces alone, and the connection's end ends the answer. For HTTP/1.0 clients.

The head is rebuilt: the engine's lines without hop-by-hop ones, one framing header, and what we add.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from lmwarden.gateway.heads import ResponseLines, status_line
from lmwarden.gateway.sse_filter import UsageEventFilter
from lmwarden.gateway.usage import UsageTap

_CRLF = b"\r\n"
_CHUNKED_LINE = b"Transfer-Encoding: chunked\r\n"
_CLOSE_AND_END = b"Connection: close\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_NO_BODY = frozenset((204, 304))


class Framing(Enum):
    """See the module."""

    RAW = "raw"
    CHUNKED = "chunked"
    PLAIN = "plain"


RAW: Final = Framing.RAW
CHUNKED: Final = Framing.CHUNKED
PLAIN: Final = Framing.PLAIN
"""Under names of their own: a member of an Enum costs ten times as much to look up in its class."""


class Relay(msgspec.Struct, eq=False, gc=False):
    """One answer on its way through."""

    framing: Framing
    tap: UsageTap
    _filter: UsageEventFilter | None
    _out: list[bytes] = []
    _last_raw: bytes = b""

    def piece(self, piece: bytes) -> None:
        """Take a piece of the body (not used when raw: then the tap takes it directly).

        Raises:
            EngineAbortedError: from the tap.
        """
        dull = self.tap.feed(piece)
        usage_filter = self._filter
        if usage_filter is not None and (usage_filter.held or usage_filter.after_cr is not None or not dull):
            piece = usage_filter.feed(piece)
        if piece:
            self._out.append(piece)

    def read(self, raw: bytes) -> bytes:
        """What goes to the client for one read's worth of bytes; may be empty."""
        if self.framing is RAW:
            self._last_raw = raw
            return raw
        return self._drain()

    def end(self, raw: bytes) -> bytes:
        """The same for the read that completes the answer."""
        if self.framing is RAW:
            return raw
        if self._filter is not None:
            rest = self._filter.end()
            if rest:
                self._out.append(rest)
        out = self._drain()
        return out + _LAST_CHUNK if self.framing is CHUNKED else out

    def ping(self, event: bytes) -> bytes | None:
        """An event of our own, framed, if this is a place for one; else None."""
        if not self.tap.between_events() or (self._filter is not None and self._filter.held):
            return None
        if self.framing is PLAIN:
            return event
        # Raw: the tap saw the event's empty line last, and after it came exactly the end of a chunk.
        if self.framing is RAW and not self._last_raw.endswith(b"\n\n\r\n"):
            return None
        return _chunk(event)

    def _drain(self) -> bytes:
        if not self._out:
            return b""
        body = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        return _chunk(body) if self.framing is CHUNKED else body


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def choose_framing(lines: ResponseLines, *, status: int, http10: bool, filtered: bool) -> Framing:
    """The framing of an answer."""
    if lines.content_length is not None and not filtered:
        return RAW
    if status in _NO_BODY:
        return RAW
    if http10:
        return PLAIN
    if filtered or (lines.content_length is None and lines.transfer_encoding is None):
        return CHUNKED
    return RAW


def client_head(status: int, lines: ResponseLines, framing: Framing, ours: bytes, *, close: bool) -> bytes:
    """The response head for the client. ``ours`` is whole header lines."""
    framed_by = b""
    if framing is CHUNKED:
        framed_by = _CHUNKED_LINE
    elif framing is RAW:
        if lines.content_length is not None:
            framed_by = b"Content-Length: %b\r\n" % lines.content_length
        elif lines.transfer_encoding is not None:
            framed_by = _CHUNKED_LINE
    return b"".join((status_line(status), *lines.onward, framed_by, ours, _CLOSE_AND_END if close else _CRLF))
