"""How an engine's answer becomes the client's: which framing, and what is taken out.

Three framings, chosen once per answer:

* **raw**: the bytes of each read go on as they came, chunk framing included. The usual one.
* **chunked**: our own chunks around the body's pieces, one per read. For filtered streams, and for an engine
  that ends its answer by closing.
* **plain**: the pieces alone, and the connection's end ends the answer. For HTTP/1.0 clients.

The head is rebuilt: the engine's lines without hop-by-hop ones, one framing header, and what we add.

An answer that came compressed goes on as it came if its client said that it takes that coding; else it goes on decoded,
and so does a stream from which an event is to be withheld. An unknown coding is passed on and not looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

from lmwarden.gateway.coded_tap import CodedTap, accepts
from lmwarden.gateway.codings import Decoder, coding_of
from lmwarden.gateway.heads import STATUS_LINES, ResponseLines, decoded_lines
from lmwarden.gateway.routes import Tap
from lmwarden.gateway.sse_filter import UsageEventFilter
from lmwarden.gateway.stream_taps import ChatTap
from lmwarden.gateway.usage import NO_TAP, UsageTap, tap_for
from lmwarden.gateway.usage_counts import Counts

_CRLF = b"\r\n"
_CHUNKED_LINE = b"Transfer-Encoding: chunked\r\n"
_CLOSE_AND_END = b"Connection: close\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_NO_BODY = frozenset((204, 304))
_TAIL_BYTES = 16


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
    _filter: UsageEventFilter | None = None
    _decoding: CodedTap | None = None
    """The tap, if the client gets what it decodes."""
    _out: list[bytes] = []
    _last_raw: bytes = b""
    """The end of the last reads."""

    def piece(self, piece: bytes) -> None:
        """Take a piece of the body (not used when raw: then the tap takes it directly).

        Raises:
            EngineAbortedError: from the tap.
            CorruptError: what is to be decoded for the client cannot be.
        """
        if self._decoding is None:
            self._take(piece, self.tap.feed(piece))
        else:
            for part, dull in self._decoding.parts(piece):
                self._take(part, dull)

    def _take(self, piece: bytes, dull: bool) -> None:
        usage_filter = self._filter
        if usage_filter is not None and (usage_filter.held or usage_filter.after_cr is not None or not dull):
            piece = usage_filter.feed(piece)
        if piece:
            self._out.append(piece)

    def read(self, raw: bytes) -> bytes:
        """What goes to the client for one read's worth of bytes; may be empty."""
        if self.framing is RAW:
            self._last_raw = (raw if len(raw) >= _TAIL_BYTES else self._last_raw + raw)[-_TAIL_BYTES:]
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
        if self.framing is RAW:
            # It is the end of a chunk if behind the body's last bytes comes exactly the line end that closes one. With
            # a letter among those bytes they cannot be mistaken for the line ends of the framing around them.
            tail = self.tap.last_bytes()
            if not tail.strip(b"\r\n") or not self._last_raw.endswith(tail + _CRLF):
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


def relay_for(
    kind: Tap | None,
    status: int,
    lines: ResponseLines,
    *,
    http10: bool,
    accept_encoding: bytes | None,
    usage_hidden: bool,
    response_made: Callable[[str], None] | None = None,
) -> tuple[Relay, ResponseLines]:
    """What an answer goes through, and its head as the client gets to see it.

    Args:
        kind: Of what the request asked for; None: no generation.
        status: The answer's.
        lines: Its head.
        http10: The client knows no chunks.
        accept_encoding: The client's header, if it sent one.
        usage_hidden: A chat stream's usage chunk was not asked for.
        response_made: See ``Counts``.
    """
    tap = tap_for(kind, status, lines)
    if response_made is not None and isinstance(tap, Counts):
        tap.response_made = response_made
    if not lines.content_encoding and not usage_hidden:
        return Relay(choose_framing(lines, status=status, http10=http10, filtered=False), tap), lines
    usage_filter = UsageEventFilter() if usage_hidden and type(tap) is ChatTap else None
    decoding = None
    if lines.content_encoding and status not in _NO_BODY:
        coding = coding_of(lines.content_encoding)
        if coding is None:
            tap, usage_filter = NO_TAP, None
        elif coding:
            passed_on = usage_filter is not None or not accepts(accept_encoding, coding)
            tap = coded = CodedTap(tap, Decoder(coding), passed_on=passed_on)
            if passed_on:
                decoding = coded
                lines = decoded_lines(lines)
    changed = usage_filter is not None or decoding is not None
    framing = choose_framing(lines, status=status, http10=http10, filtered=changed)
    return Relay(framing, tap, usage_filter, decoding), lines


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


def client_head(status: int, lines: ResponseLines, framing: Framing, ours: Sequence[bytes], *, close: bool) -> bytes:
    """The response head for the client. ``ours`` is whole header lines, in fragments."""
    fragments = [STATUS_LINES[status], *lines.onward]
    if framing is RAW and lines.content_length is not None:
        fragments += (b"Content-Length: ", lines.content_length, _CRLF)
    elif framing is CHUNKED or (framing is RAW and lines.transfer_encoding is not None):
        fragments.append(_CHUNKED_LINE)
    fragments += ours
    fragments.append(_CLOSE_AND_END if close else _CRLF)
    return b"".join(fragments)
