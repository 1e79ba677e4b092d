"""What a streamed answer says: first token, text, usage, end. Pure: bytes and times in, facts out.

All APIs stream server-sent events; only the ``data:`` lines matter here, since each names its own kind.
The first *generated token* is the first non-empty piece of text, reasoning or tool input in whatever
channel: a chunk that only names the role, a ping, a comment or a usage-only chunk is none. Token counts come
from the usage that the engine reports; pieces are never counted, because one event may carry several tokens.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from lmwarden.types import Usage

_MAX_LINE_BYTES = 1 << 20


class StreamReader(Protocol):
    """Reads one streamed answer."""

    first_token_s: float | None
    first_content_s: float | None
    complete: bool
    """The API's own end mark came."""
    error: str | None
    """The kind of an error that came inside the stream."""

    def feed(self, data: bytes, now_s: float) -> None:
        """Take the bytes that arrived at ``now_s``; any split is allowed."""
        ...

    def text(self) -> str:
        """The answer without reasoning."""
        ...

    def usage(self) -> Usage:
        """Token counts as reported so far; None where not reported."""
        ...


class _Lines:
    """Cuts a byte stream into the payloads of its ``data:`` lines."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[bytes]:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _MAX_LINE_BYTES:
            raise msgspec.DecodeError("a line of the stream is longer than 1 MiB")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class _Seen:
    """What all readers keep."""

    def __init__(self) -> None:
        self.first_token_s: float | None = None
        self.first_content_s: float | None = None
        self.complete = False
        self.error: str | None = None
        self._lines = _Lines()
        self._text: list[str] = []
        self._finish_reason: str | None = None

    def text(self) -> str:
        """See ``StreamReader.text``."""
        return "".join(self._text)

    def _generated(self, now_s: float, *, content: bool, reasoning: bool) -> None:
        """Note the first token of either kind."""
        if self.first_token_s is None and (content or reasoning):
            self.first_token_s = now_s
        if self.first_content_s is None and content:
            self.first_content_s = now_s


class _ErrorBody(msgspec.Struct):
    type: str | None = None


class _MessageUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _MessageUsage | None = None


class _Block(msgspec.Struct):
    type: str | None = None


class _MessageDelta(msgspec.Struct):
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _MessageEvent(msgspec.Struct):
    type: str
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _MessageDelta | None = None
    usage: _MessageUsage | None = None
    error: _ErrorBody | None = None


class MessagesReader(_Seen):
    """``/v1/messages``. Usage in ``message_delta`` replaces that of ``message_start``, never adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self._usage = _MessageUsage()
        self._decoder = msgspec.json.Decoder(_MessageEvent)

    def feed(self, data: bytes, now_s: float) -> None:
        """See ``StreamReader.feed``."""
        for payload in self._lines.take(data):
            self._event(self._decoder.decode(payload), now_s)

    def usage(self) -> Usage:
        """See ``StreamReader.usage``. The prompt is the sum of its read, newly cached and other parts."""
        seen = self._usage
        prompt_tokens = seen.input_tokens
        if prompt_tokens is not None:
            prompt_tokens += (seen.cache_read_input_tokens or 0) + (seen.cache_creation_input_tokens or 0)
        return Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=seen.cache_read_input_tokens,
            completion_tokens=seen.output_tokens,
            finish_reason=self._finish_reason,
        )

    def _event(self, event: _MessageEvent, now_s: float) -> None:
        if event.type == "content_block_delta" and event.delta is not None:
            delta = event.delta
            if delta.text:
                self._text.append(delta.text)
            content = bool(delta.text or delta.partial_json)
            self._generated(now_s, content=content, reasoning=bool(delta.thinking))
        elif event.type == "content_block_start" and event.content_block is not None:
            self._generated(now_s, content=event.content_block.type == "tool_use", reasoning=False)
        elif event.type == "message_start" and event.message is not None and event.message.usage is not None:
            self._usage = event.message.usage
        elif event.type == "message_delta":
            if event.usage is not None:
                self._usage = _replaced(self._usage, event.usage)
            if event.delta is not None:
                self._finish_reason = event.delta.stop_reason
        elif event.type == "message_stop":
            self.complete = True
        elif event.type == "error":
            self.error = (event.error and event.error.type) or "error event"


def _replaced(old: _MessageUsage, new: _MessageUsage) -> _MessageUsage:
    """A later usage wins; its prompt side as one piece, because the cache fields split ``input_tokens``."""
    prompt = old if new.input_tokens is None else new
    return _MessageUsage(
        input_tokens=prompt.input_tokens,
        cache_read_input_tokens=prompt.cache_read_input_tokens,
        cache_creation_input_tokens=prompt.cache_creation_input_tokens,
        output_tokens=old.output_tokens if new.output_tokens is None else new.output_tokens,
    )


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _ChatDelta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _ChatDelta | None = None
    text: str | None = None
    """In completions, which have no delta."""
    finish_reason: str | None = None


class _ChatChunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _ChatUsage | None = None
    error: _ErrorBody | None = None


class ChatReader(_Seen):
    """``/v1/chat/completions`` and ``/v1/completions``; both end with ``[DONE]``."""

    def __init__(self) -> None:
        super().__init__()
        self._usage = _ChatUsage()
        self._decoder = msgspec.json.Decoder(_ChatChunk)

    def feed(self, data: bytes, now_s: float) -> None:
        """See ``StreamReader.feed``."""
        for payload in self._lines.take(data):
            if payload == b"[DONE]":
                self.complete = True
            else:
                self._chunk(self._decoder.decode(payload), now_s)

    def usage(self) -> Usage:
        """See ``StreamReader.usage``."""
        details = self._usage.prompt_tokens_details
        return Usage(
            prompt_tokens=self._usage.prompt_tokens,
            cached_tokens=details.cached_tokens if details else None,
            completion_tokens=self._usage.completion_tokens,
            finish_reason=self._finish_reason,
        )

    def _chunk(self, chunk: _ChatChunk, now_s: float) -> None:
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.error is not None:
            self.error = chunk.error.type or "error event"
        for choice in chunk.choices:
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.text:
                self._text.append(choice.text)
                self._generated(now_s, content=True, reasoning=False)
            delta = choice.delta
            if delta is None:
                continue
            if delta.content:
                self._text.append(delta.content)
            content = bool(delta.content or delta.tool_calls)
            self._generated(now_s, content=content, reasoning=bool(delta.reasoning or delta.reasoning_content))


def reader_for(api: str) -> StreamReader:
    """Return a fresh reader of one answer of an API: ``messages``, ``chat`` or ``completions``."""
    return MessagesReader() if api == "messages" else ChatReader()
