"""Taps for server-sent events, one class per API.

Almost every piece of a stream is *dull*: one whole event of the kind that carries a token or two, known by its first
bytes and its end. What is not is looked at line by line, and a line that holds one of a few words is decoded; inside
a JSON string a quote is escaped, hence ``"usage"`` with bare quotes is a key (or a whole value), never a part of the
text that the model wrote. Lines end with LF, CR or CRLF, and pieces may be cut anywhere.

What the standard allows and no engine is known to do is read too: a byte order mark in front, and an event whose data
is spread over several ``data:`` lines. Data that cannot be read is therefore kept until its event ends, and read again
with the lines that followed.
"""

from __future__ import annotations

from lmwarden.gateway.usage_counts import (
    UNREADABLE,
    Counts,
    EngineAbortedError,
    decode_chat,
    decode_messages,
    decode_responses_event,
    note_response,
    take_choices,
    take_response,
)

MAX_LINE_BYTES = 4 * 1024 * 1024
"""A longer line that arrives in parts is skipped: its usage stays unknown, memory stays bounded. So is the data of an
event that is longer."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
"""An empty line after a line, both ended by LF, by CRLF or by CR. (Where styles are mixed, some ends are missed.)"""
_TAIL_BYTES = 8


class StreamTap(Counts):
    """Taps server-sent events; subclasses know one API's events."""

    _partial: bytearray | None = None
    """The beginning of a line whose end has not come."""
    _skipping: bool = False
    """Inside a line that is too long to keep."""
    _last: bytes = b""
    """The end of the last pieces: tells whether an event is complete. No whole piece, which a stream that rests would
    keep in memory."""
    _inside: bool = False
    """The next piece does not begin a line, or goes on with ``_unread``."""
    _unread: bytearray | None = None
    """Data of the event that we are in which made no sense, and what followed."""
    _after_cr: bool = False
    """The last line ended with CR: an LF that follows belongs to it."""
    _ended: bool = False

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``. Subclasses first ask whether the piece is dull."""
        self._last = (piece if len(piece) >= _TAIL_BYTES else self._last + piece)[-_TAIL_BYTES:]
        if not self._inside and piece.endswith(b"\n"):
            self._lines(piece)
        else:
            self._assemble(piece)
        self._inside = self._partial is not None or self._unread is not None or self._skipping
        return False

    def clean_end(self) -> bool:
        """See ``UsageTap``."""
        if self._partial:
            rest, self._partial = bytes(self._partial), None
            self._lines(rest)
        self._read_again()
        return self._ended

    def between_events(self) -> bool:
        """See ``UsageTap``."""
        return not self._inside and not self._ended and self._last.endswith(_EVENT_ENDS)

    def last_bytes(self) -> bytes:
        """See ``UsageTap``."""
        return self._last

    def _tells(self, lines: bytes) -> bool:
        """Whether there may be something of interest in these lines."""
        raise RuntimeError("a StreamTap is made for one API")

    def _event(self, data: bytes) -> None:
        """Take an event's data.

        Raises:
            UNREADABLE: it is not of this API.
            EngineAbortedError: see ``UsageTap``.
        """
        raise RuntimeError("a StreamTap is made for one API")

    def _lines(self, lines: bytes) -> None:
        """Look at whole lines."""
        if self._after_cr and lines.startswith(b"\n"):
            lines = lines[1:]
        self._after_cr = lines.endswith(b"\r")
        if self._unread is None and not self._tells(lines) and lines.endswith(_EVENT_ENDS):
            return
        for line in lines.splitlines():
            if not line:
                self._read_again()
                continue
            data = _data_of(line)
            if data is None:
                continue
            if self._unread is not None:
                if len(self._unread) <= MAX_LINE_BYTES:
                    self._unread += b"\n" + data
                continue
            try:
                self._event(data)
            except UNREADABLE:
                self._unread = bytearray(data)

    def _read_again(self) -> None:
        """The event ends: does its data make sense as a whole?"""
        unread, self._unread = self._unread, None
        if unread is not None and b"\n" in unread:
            try:
                self._event(bytes(unread))
            except UNREADABLE:
                pass  # it is not for us

    def _assemble(self, piece: bytes) -> None:
        cut = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if self._skipping:
            if not cut:
                return
            first = min(at for at in (piece.find(b"\n"), piece.find(b"\r")) if at >= 0) + 1
            self._skipping = False
            self._after_cr = piece[first - 1 : first] == b"\r"
            piece, cut = piece[first:], cut - first
        whole, rest = piece[:cut], piece[cut:]
        if self._partial is not None:
            if cut:
                whole = bytes(self._partial) + whole
                self._partial = None
            else:
                self._partial += rest
                rest = b""
                if len(self._partial) > MAX_LINE_BYTES:
                    self._partial, self._skipping = None, True
        if rest:
            self._partial = bytearray(rest)
        if whole:
            self._lines(whole)


def _data_of(line: bytes) -> bytes | None:
    """What a ``data:`` line carries, or None for another line."""
    line = line.removeprefix(_BYTE_ORDER_MARK)  # only the first line can have one
    return line[5:].strip() if line.startswith(b"data:") else None


class ChatTap(StreamTap):
    """/v1/chat/completions and /v1/completions, streamed."""

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``. Dull: a chunk whose choices all go on; usage, errors, ends and ``[DONE]`` have none."""
        going_on = piece.count(b'_reason":null')
        if (
            going_on
            and piece.count(b'_reason"') == going_on
            and not self._inside
            and piece.find(b"\n\n") == len(piece) - 2
            and piece.startswith(b"data: {")
        ):
            self._last = piece[-_TAIL_BYTES:]
            return True
        return super().feed(piece)

    def _tells(self, lines: bytes) -> bool:
        return (
            b'"usage"' in lines
            or b"[DONE]" in lines
            or b'"error"' in lines
            or lines.count(b'_reason":null') != lines.count(b'_reason"')
        )

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._ended = True
            return
        event = decode_chat(data)
        if event.usage is not None:
            self.take(event.usage)
        if event.error and bytes(event.error) != b"null":
            self.failed = True
        take_choices(self, event.choices)


class MessagesTap(StreamTap):
    """/v1/messages, streamed."""

    _no_reason: bool = False
    """A message_delta came whose stop_reason is null."""

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``. Dull: a delta of a content block."""
        if (
            piece.startswith(b"event: content_block_delta\n")
            and not self._inside
            and piece.find(b"\n\n") == len(piece) - 2
        ):
            self._last = piece[-_TAIL_BYTES:]
            return True
        return super().feed(piece)

    def _tells(self, lines: bytes) -> bool:
        return b'"usage"' in lines or b"message_stop" in lines or b'"error"' in lines

    def _event(self, data: bytes) -> None:
        event = decode_messages(data)
        if event.type == "message_start" and event.message is not None and event.message.usage is not None:
            self.take_messages(event.message.usage, begins=True)
        elif event.type == "message_delta":
            if event.usage is not None:
                self.take_messages(event.usage)
            if event.delta is not None and event.delta.stop_reason is not None:
                self.finish_reason = event.delta.stop_reason
                self._no_reason = False
            elif self.finish_reason is None:
                self._no_reason = True
        elif event.type == "message_stop":
            if self._no_reason or self.finish_reason == "abort":
                self.finish_reason = "abort"
                raise EngineAbortedError
            self._ended = True
        elif event.type == "error":
            self.failed = True
            self._ended = True


class ResponsesTap(StreamTap):
    """/v1/responses, streamed."""

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``. Dull: a delta of text; the response itself is in the first events and in the last."""
        if (
            piece.startswith(b"event: response.output_text.delta\n")
            and not self._inside
            and piece.find(b"\n\n") == len(piece) - 2
        ):
            self._last = piece[-_TAIL_BYTES:]
            return True
        return super().feed(piece)

    def _tells(self, lines: bytes) -> bool:
        return b'"response"' in lines or b'"error"' in lines or b"[DONE]" in lines

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._ended = True
            return
        event = decode_responses_event(data)
        if event.type in ("response.completed", "response.incomplete", "response.failed") and event.response:
            self._ended = True
            take_response(self, event.response)
        elif event.type == "response.created" and event.response:
            note_response(self, event.response)
        elif event.type == "error":
            self._ended = self.failed = True
