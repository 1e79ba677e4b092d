"""The usage tap: learns token counts and the reason for the end from an answer that passes by.

A tap is fed the answer's body without its chunk framing, in pieces that may be cut anywhere, and changes
nothing. Almost every piece of a stream is *dull*: one whole event of the kind that carries a token or two, known by
its first bytes and its end. What is not is looked at line by line, and a line that holds one of a few words is
decoded; inside a JSON string a quote is escaped, hence ``"usage"`` with bare quotes is a key (or a whole value),
never a part of the text that the model wrote. Lines end with LF, CR or CRLF.

A tap also knows whether an answer ended as it should:

* ``clean_end``: the stream's last event arrived (``[DONE]``, ``message_stop``, ``response.completed`` ...), or
  the JSON body is whole. A stream that stops without it was cut, even if its framing closed properly.
* ``EngineAbortedError`` is raised while feeding when the engine says that it aborted the generation: vLLM does that to the requests
  of healthy ranks when a sibling dies (``finish_reason: "abort"``, or on /v1/messages a ``stop_reason`` that
  stays null). Passing that on would look like a finished answer that is merely short.
* ``failed``: an error event came inside a stream of status 200.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from lmwarden.gateway.routes import Tap
from lmwarden.types import Usage

MAX_LINE_BYTES = 4 * 1024 * 1024
"""A longer line that arrives in parts is skipped: its usage stays unknown, memory stays bounded."""

MAX_BODY_BYTES = 16 * 1024 * 1024
"""A longer JSON answer is relayed without being looked at."""


class EngineAbortedError(Exception):
    """The engine aborted the generation although nobody asked for it."""


class UsageTap(Protocol):
    """What a relay needs of a tap."""

    @property
    def failed(self) -> bool:
        """An error event came by."""
        ...

    def feed(self, piece: bytes) -> bool:
        """Look at the next piece of the body.

        Returns:
            True: the piece is one whole event that tells nothing; False says nothing.

        Raises:
            EngineAbortedError: see the module.
        """
        ...

    def clean_end(self) -> bool:
        """Whether the body that ends here is complete.

        Raises:
            EngineAbortedError: see the module.
        """
        ...

    def between_events(self) -> bool:
        """Whether an event of our own may be put in here."""
        ...

    def usage(self) -> Usage:
        """What is known so far."""
        ...


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    """The members of all three APIs' usage objects. Their names do not overlap in meaning."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None


class _Chat(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    choices: list[_Choice] | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


class _Delta(msgspec.Struct, gc=False):
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _MessagesEvent(msgspec.Struct, gc=False):
    type: str = ""
    usage: _Usage | None = None
    message: _Message | None = None
    delta: _Delta | None = None
    stop_reason: str | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    status: str | None = None
    incomplete_details: _Incomplete | None = None


class _ResponsesEvent(msgspec.Struct, gc=False):
    type: str = ""
    response: _Response | None = None


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_messages = msgspec.json.Decoder(_MessagesEvent).decode
_decode_responses_event = msgspec.json.Decoder(_ResponsesEvent).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Counts(msgspec.Struct, eq=False, gc=False):
    """What has been learned; later values replace earlier ones, and absent ones replace nothing."""

    prompt: int | None = None
    uncached_input: int | None = None
    """Anthropic's ``input_tokens``: the prompt without what the two cache fields count."""
    cached: int | None = None
    cache_creation: int | None = None
    completion: int | None = None
    finish_reason: str | None = None
    failed: bool = False

    def take(self, usage: _Usage) -> None:
        """OpenAI's shapes: the prompt's count includes its cached part."""
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
        if prompt is not None:
            self.prompt = prompt
        completion = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
        if completion is not None:
            self.completion = completion
        details = usage.prompt_tokens_details or usage.input_tokens_details
        if details is not None and details.cached_tokens is not None:
            self.cached = details.cached_tokens

    def take_messages(self, usage: _Usage) -> None:
        """Anthropic's shape: the prompt is the sum of three parts, given in one event or spread over two.

        vLLM's ``message_start`` has the whole prompt as ``input_tokens`` and ``message_delta`` the split, so
        the later values replace the earlier ones and are not added to them.
        """
        if usage.input_tokens is not None:
            self.uncached_input = usage.input_tokens
        if usage.cache_read_input_tokens is not None:
            self.cached = usage.cache_read_input_tokens
        if usage.cache_creation_input_tokens is not None:
            self.cache_creation = usage.cache_creation_input_tokens
        if usage.output_tokens is not None:
            self.completion = usage.output_tokens
        if self.uncached_input is not None:
            self.prompt = self.uncached_input + (self.cached or 0) + (self.cache_creation or 0)

    def usage(self) -> Usage:
        """The counts; a cached part larger than the prompt or below 0 is a reporting fault and counts as unknown."""
        cached = self.cached
        if cached is not None and not 0 <= cached <= (self.prompt if self.prompt is not None else cached):
            cached = None
        return Usage(
            prompt_tokens=self.prompt,
            cached_tokens=cached,
            completion_tokens=self.completion,
            finish_reason=self.finish_reason,
        )


class StreamTap(_Counts):
    """Taps server-sent events; subclasses know one API's events."""

    _partial: bytearray | None = None
    """The beginning of a line whose end has not come."""
    _skipping: bool = False
    """Inside a line that is too long to keep."""
    _last: bytes = b""
    """The last piece: tells whether an event is complete."""
    _ended: bool = False

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``."""
        self._last = piece
        if self._partial is None:
            if self.dull(piece):
                return True
            if piece.endswith(b"\n"):
                self._lines(piece)
                return False
        self._assemble(piece)
        return False

    def dull(self, piece: bytes) -> bool:
        """Whether a piece that begins an event is one whole event that tells nothing."""
        raise RuntimeError("a StreamTap is made for one API")

    def clean_end(self) -> bool:
        """See ``UsageTap``."""
        if self._partial:
            rest, self._partial = bytes(self._partial), None
            self._lines(rest)
        return self._ended

    def between_events(self) -> bool:
        """See ``UsageTap``. Only for streams that end their lines with LF, as vLLM's do."""
        return self._partial is None and not self._ended and self._last.endswith(b"\n\n")

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

    def dull(self, piece: bytes) -> bool:
        """A chunk with a choice that goes on. Usage-only chunks, errors, ends and ``[DONE]`` have none."""
        return (
            b'_reason":null' in piece and piece.find(b"\n\n") == len(piece) - 2 and piece.startswith(b"data: {")
        )

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
                event = _decode_chat(data)
            except _UNREADABLE:
                continue
            if event.usage is not None:
                self.take(event.usage)
            if event.error and bytes(event.error) != b"null":
                self.failed = True
            _take_choices(self, event.choices)


def _take_choices(counts: _Counts, choices: list[_Choice] | None) -> None:
    for choice in choices or ():
        if choice.finish_reason is not None:
            counts.finish_reason = choice.finish_reason
            if choice.finish_reason == "abort":
                raise EngineAbortedError
            if choice.finish_reason == "error":
                counts.failed = True


class MessagesTap(StreamTap):
    """/v1/messages, streamed."""

    _no_reason: bool = False
    """A message_delta came whose stop_reason is null."""

    def dull(self, piece: bytes) -> bool:
        """A delta of a content block."""
        return piece.startswith(b"event: content_block_delta\n") and piece.find(b"\n\n") == len(piece) - 2

    def _lines(self, lines: bytes) -> None:
        if b'"usage"' not in lines and b"message_stop" not in lines and b'"error"' not in lines:
            return
        for line in lines.splitlines():
            data = _data_of(line)
            if data is None:
                continue
            try:
                event = _decode_messages(data)
            except _UNREADABLE:
                continue
            self._event(event)

    def _event(self, event: _MessagesEvent) -> None:
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

    def dull(self, piece: bytes) -> bool:
        """A delta of text; only the last event has usage."""
        return piece.startswith(b"event: response.output_text.delta\n") and piece.find(b"\n\n") == len(piece) - 2

    def _lines(self, lines: bytes) -> None:
        if b'"usage"' not in lines and b'"error"' not in lines and b"[DONE]" not in lines:
            return
        for line in lines.splitlines():
            data = _data_of(line)
            if data is None:
                continue
            if data == b"[DONE]":
                self._ended = True
                continue
            try:
                event = _decode_responses_event(data)
            except _UNREADABLE:
                continue
            if event.type in ("response.completed", "response.incomplete", "response.failed") and event.response:
                self._ended = True
                _take_response(self, event.response)
            elif event.type == "error":
                self._ended = self.failed = True


def _take_response(counts: _Counts, response: _Response) -> None:
    if response.usage is not None:
        counts.take(response.usage)
    counts.finish_reason = response.status
    if response.incomplete_details is not None and response.incomplete_details.reason is not None:
        counts.finish_reason = response.incomplete_details.reason
    if response.status == "failed":
        counts.failed = True


class BodyTap(_Counts):
    """An answer that is one JSON object."""

    kind: Tap = Tap.CHAT
    _pieces: list[bytes] | None = []  # noqa: RUF012  (msgspec copies an empty default)
    """None: too long to look at."""
    _size: int = 0

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``."""
        if self._pieces is None:
            return False
        self._size += len(piece)
        self._pieces.append(piece)
        if self._size > MAX_BODY_BYTES:
            self._pieces = None
        elif len(self._pieces) > 256:
            self._pieces = [b"".join(self._pieces)]
        return False

    def between_events(self) -> bool:
        """See ``UsageTap``: there are no events."""
        return False

    def clean_end(self) -> bool:
        """See ``UsageTap``. The framing says that the body is whole; here its usage is read."""
        pieces, self._pieces = self._pieces, None
        if pieces:
            try:
                self._read(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            except _UNREADABLE:
                pass  # relayed all the same; its usage is unknown
        return True

    def _read(self, body: bytes) -> None:
        if self.kind is Tap.CHAT:
            chat = _decode_chat(body)
            if chat.usage is not None:
                self.take(chat.usage)
            _take_choices(self, chat.choices)
        elif self.kind is Tap.MESSAGES:
            message = _decode_messages(body)
            if message.usage is not None:
                self.take_messages(message.usage)
            self.finish_reason = message.stop_reason
            if message.type == "message" and message.stop_reason is None:
                self.finish_reason = "abort"
                raise EngineAbortedError
        else:
            _take_response(self, _decode_response(body))


class NoTap:
    """For answers that are not generations, and for errors."""

    __slots__ = ()
    failed = False

    def feed(self, piece: bytes) -> bool:
        """Look away."""
        return False

    def clean_end(self) -> bool:
        """The framing alone decides."""
        return True

    def between_events(self) -> bool:
        """See ``UsageTap``."""
        return False

    def usage(self) -> Usage:
        """Nothing is known."""
        return Usage()


NO_TAP = NoTap()
"""One is enough: it remembers nothing."""


def tap_for(kind: Tap | None, status: int, content_type: bytes, content_encoding: bytes) -> UsageTap:
    """The tap for an answer. Compressed answers (we ask for none) and errors are not looked into."""
    if kind is None or status >= 400 or (content_encoding and content_encoding.strip().lower() != b"identity"):
        return NO_TAP
    if not content_type.lstrip().lower().startswith(b"text/event-stream"):
        return BodyTap(kind=kind)
    if kind is Tap.CHAT:
        return ChatTap()
    return MessagesTap() if kind is Tap.MESSAGES else ResponsesTap()
