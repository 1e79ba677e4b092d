"""Withholds the one event that we caused: the usage-only chunk of a chat stream whose client did not ask for it.

The filter is fed the body in pieces that may be cut anywhere and returns what may go on. A piece that ends with
an event's end and does not hold ``"usage"`` goes on as it is; otherwise the piece is cut into events, and what
follows the last complete one is held until its end comes. An event ends with an empty line; lines end with LF,
CR or CRLF, mixed as they like. Every byte but the withheld event's goes on, in order.
"""

from __future__ import annotations

import re

import msgspec

MAX_HELD_BYTES = 1024 * 1024
"""An event that is larger is no usage chunk: the filter then lets go and passes the rest of the stream on."""

_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")


class _Chunk(msgspec.Struct, gc=False):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"")


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class UsageEventFilter:
    """One stream's filter."""

    __slots__ = ("_open", "after_cr", "held")

    def __init__(self) -> None:
        self.held = b""
        """The beginning of an event whose end has not come."""
        self.after_cr: bytes | None = None
        """The last event ended with CR at the end of its piece: an LF that follows belongs to it, and becomes this."""
        self._open = False
        """True: nothing is looked at any more."""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece of the body and return the bytes that go on."""
        if self._open or (
            not self.held and self.after_cr is None and b'"usage"' not in piece and piece.endswith(b"\n\n")
        ):
            return piece
        if self.after_cr is None or not piece:
            return self._cut(self.held + piece, max(0, len(self.held) - 2))
        line_feed, self.after_cr = self.after_cr, None
        if not piece.startswith(b"\n"):
            line_feed = b""
        return line_feed + self._cut(piece.removeprefix(b"\n"), 0)

    def end(self) -> bytes:
        """The stream is over: what was still held (an event without its empty line)."""
        held, self.held = self.held, b""
        return b"" if is_usage_only(held) else held

    def _cut(self, data: bytes, search_from: int) -> bytes:
        """Cut off the complete events. Before ``search_from`` no event ends."""
        out = []
        start = 0
        for match in _EVENT_END.finditer(data, search_from):
            event = data[start : match.end()]
            start = match.end()
            withheld = is_usage_only(event)
            if not withheld:
                out.append(event)
            if start == len(data) and event.endswith(b"\r"):
                self.after_cr = b"" if withheld else b"\n"
        self.held = data[start:]
        if len(self.held) > MAX_HELD_BYTES:
            out.append(self.held)
            self.held, self._open = b"", True
        return b"".join(out)


def is_usage_only(event: bytes) -> bool:
    """Whether an event is a chat chunk with usage and without choices."""
    if b'"usage"' not in event:
        return False
    data = b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    try:
        chunk = _decode_chunk(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return chunk.choices == [] and bool(chunk.usage) and bytes(chunk.usage) != b"null"
