"""Taps for server-sent events, one class per API.

Almost every piece of a stream is *dull*: one whole event of the kind that carries a token or two, known by its first
bytes and its end. What is not is looked at line by line, and a line that holds one of a few words is decoded; inside
a JSON string a quote is escaped, hence ``"usage"`` with bare quotes is a key (or a whole value), never a part of the
text that the model wrote. Lines end with LF, CR or CRLF, and pieces may be cut anywhere.
"""

from __future__ import annotations

from lmwarden.gateway.usage_counts import (
    UNREADABLE,
    Counts,
    EngineAbortedError,
    MessagesShape,
    decode_chat,
    decode_messages,
    decode_responses_event,
    note_response,
    take_choices,
    take_response,
)

MAX_LINE_BYTES = 4 * 1024 * 1024
"""A longer line that arrives in parts is skipped: its usage stays unknown, memory stays bounded."""


class StreamTap(Counts):
    """Taps server-sent events; subclasses know one API's events."""

    _partial: bytearray | None = None
    """The beginning of a line whose end has not come."""
    _skipping: bool = False
    """Inside a line that is too long to keep."""
    _last: bytes = b""
    """The last piece: tells whether an event is complete."""
    _mid_line: bool = False
    """The next piece does not begin a line."""
    _ended: bool = False

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``. Subclasses first ask whether the piece is dull."""
        self._last = piece
        if not self._mid_line and piece.endswith(b"\n"):
            self._lines(piece)
        else:
            self._assemble(piece)
            self._mid_line = self._skipping or self._partial is not None
        return False

    def clean_end(self) -> bool:
        """See ``UsageTap``."""
        if self._partial:
            rest, self._partial = bytes(self._partial), None
            self._lines(rest)
        return self._ended

    def between_events(self) -> bool:
        """See ``UsageTap``. Only for streams that end their lines with LF, as vLLM's do."""
        return not self._mid_line and not self._ended and self._last.endswith(b"\n\n")

    def _lines(self, lines: bytes) -> None:
        """Look at whole lines."""
        raise RuntimeError("a StreamTap is made for one API")

    def _assemble(self, piece: bytes) -> None:
        cut = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if self._skipping:
            if not cut:
                return
            first = min(at for at in (piece.find(b"\n"), piece.find(b"\r")) if at >= 0) + 1
            self._skipping = False
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
    return line[5:].strip() if line.startswith(b"data:") else None


class ChatTap(StreamTap):
    """/v1/chat/completions and /v1/completions, streamed."""

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``. Dull: a chunk whose choices all go on; usage, errors, ends and ``[DONE]`` have none."""
        going_on = piece.count(b'_reason":null')
        if (
            going_on
            and piece.count(b'_reason"') == going_on
            and not self._mid_line
            and piece.find(b"\n\n") == len(piece) - 2
            and piece.startswith(b"data: {")
        ):
            self._last = piece
            return True
        return super().feed(piece)

    def _lines(self, lines: bytes) -> None:
        if (
            b'"usage"' not in lines
            and b"[DONE]" not in lines
            and b'"error"' not in lines
            and lines.count(b'_reason":null') == lines.count(b'_reason"')
        ):
            return
        for line in lines.splitlines():
            data = _data_of(line)
            if data is None:
                continue
            if data == b"[DONE]":
                self._ended = True
                continue
            try:
                event = decode_chat(data)
            except UNREADABLE:
                continue
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
            and not self._mid_line
            and piece.find(b"\n\n") == len(piece) - 2
        ):
            self._last = piece
            return True
        return super().feed(piece)

    def _lines(self, lines: bytes) -> None:
        if b'"usage"' not in lines and b"message_stop" not in lines and b'"error"' not in lines:
            return
        for line in lines.splitlines():
            data = _data_of(line)
            if data is None:
                continue
            try:
                event = decode_messages(data)
            except UNREADABLE:
                continue
            self._event(event)

    def _event(self, event: MessagesShape) -> None:
        if event.type == "message_start" and event.message is not None and event.message.usage is not None:
            self.take_messages(event.message.usage)
        elif event.type == "message_delta":
            if event.usage is not None:
                self.take_messages(event.usage)
            if event.delta is not None and event.delta.stop_reason is not None:
                self.finish_reason = event.delta.stop_reason
                self._no_reason = False
            elif self.finish_reason is None:
                self._no_reason = True
        elif event.type == "message_stop":
            if self._no_reason:
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
            and not self._mid_line
            and piece.find(b"\n\n") == len(piece) - 2
        ):
            self._last = piece
            return True
        return super().feed(piece)

    def _lines(self, lines: bytes) -> None:
        if b'"response"' not in lines and b'"error"' not in lines and b"[DONE]" not in lines:
            return
        for line in lines.splitlines():
            data = _data_of(line)
            if data is None:
                continue
            if data == b"[DONE]":
                self._ended = True
                continue
            try:
                event = decode_responses_event(data)
            except UNREADABLE:
                continue
            if event.type in ("response.completed", "response.incomplete", "response.failed") and event.response:
                self._ended = True
                take_response(self, event.response)
            elif event.type == "response.created" and event.response:
                note_response(self, event.response)
            elif event.type == "error":
                self._ended = self.failed = True
