"""What the simulated engine writes: the answers and errors of vLLM's APIs, streamed and whole.

One class per API. A streamed answer is ``begin`` (with the first token), ``tokens`` for every few tokens
(one event per token, as vLLM sends them) and ``end``. The traps of the real thing are kept:

* chat and completions streams carry no usage unless ``stream_options.include_usage``; then one last chunk with
  empty ``choices``. ``continuous_usage_stats`` puts prompt and completion tokens on every chunk, cached tokens only
  on the last.
* messages: ``message_start`` has the whole prompt as ``input_tokens`` and no cache fields, ``message_delta`` has the
  split values, which replace the former. ``input_tokens`` is what was neither read from nor written to the cache.
* without ``--enable-prompt-tokens-details`` nothing is said of the cache.
* an answer that ends in a tool call is text first, then the call, and its reason is ``tool_calls`` or ``tool_use``.

Shapes follow recorded answers of vLLM 0.26.0 and the source of 0.32.0. Generated words need no JSON escapes, so an
event is the concatenation of three byte strings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Literal, Protocol

import msgspec

Api = Literal["chat", "completions", "messages", "responses"]
FinishReason = Literal["length", "stop", "tool_calls"]


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one finished request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    created_cache_tokens: int


class AnswerContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all events of one answer have in common."""

    base_id: str
    """The request's id without the prefix of its API."""
    created: int
    """Unix seconds."""
    model: str
    fingerprint: str
    prompt_tokens: int
    include_usage: bool
    continuous_usage: bool
    cache_details: bool
    """``--enable-prompt-tokens-details``."""
    tool: str = ""
    """The tool that the answer calls, if it ends in a call. The arguments are empty, and the call costs no token."""
    legacy: bool
    """As vLLM 0.26, else as 0.32."""


class Answer(Protocol):
    """One API's answer."""

    def begin(self) -> bytes:
        """What comes before the first token."""
        ...

    def tokens(self, words: Sequence[str], already: int, finish: FinishReason | None) -> bytes:
        """The next tokens, after ``already`` ones; with ``finish`` the last of them ends the answer."""
        ...

    def end(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """What comes after the last token; ``words`` is the whole answer."""
        ...

    def whole(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """The body of an answer that is not streamed."""
        ...


def openai_usage(usage: TokenUsage, *, cache_details: bool, with_created: bool) -> dict[str, object]:
    """``usage`` of chat and completions; vLLM does not fill ``created_cache_tokens`` in the latter."""
    details: dict[str, object] | None = None
    if cache_details:
        created = usage.created_cache_tokens if with_created else None
        details = {"cached_tokens": usage.cached_tokens, "created_cache_tokens": created}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": details,
    }


def anthropic_usage(usage: TokenUsage, *, cache_details: bool) -> dict[str, object]:
    """``usage`` of messages: ``input_tokens + cache_read + cache_creation`` is the whole prompt."""
    if not cache_details:
        return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.created_cache_tokens),
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": usage.created_cache_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
    }


class ChatAnswer:
    """``/v1/chat/completions``."""

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._id = f"chatcmpl-{context.base_id}"
        head = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": context.created,
            "model": context.model,
        }
        self._head = b"data: " + _json(head)[:-1]
        self._before_word = self._head + b',"choices":[{"index":0,"delta":{"content":"'
        self._after_word = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'

    def begin(self) -> bytes:
        """The chunk with the role."""
        delta = b'{"role":"assistant","content":""}'
        choices = b',"choices":[{"index":0,"delta":' + delta + b',"logprobs":null,"finish_reason":null}]'
        return self._head + choices + b',"prompt_token_ids":null,"prompt_text":null' + self._usage(0) + b"}\n\n"

    def tokens(self, words: Sequence[str], already: int, finish: FinishReason | None) -> bytes:
        """One chunk per token."""
        events = []
        last = len(words) - 1
        for index, word in enumerate(words):
            after = self._after_word
            if finish and finish != "tool_calls" and index == last:
                after = (
                    b'"},"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]' % finish.encode()
                )
                if not self._context.include_usage:
                    after += b',"system_fingerprint":' + _json(self._context.fingerprint)
            events.append(self._before_word + word.encode() + after + self._usage(already + index + 1) + b"}\n\n")
        return b"".join(events)

    def end(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """The tool call, if it ends in one; the usage-only chunk, if wanted; and ``[DONE]``."""
        call = self._tool_call(usage.completion_tokens) if finish == "tool_calls" else b""
        if not self._context.include_usage:
            return call + b"data: [DONE]\n\n"
        counts = _without_none(openai_usage(usage, cache_details=self._context.cache_details, with_created=True))
        return (
            call
            + self._head
            + b',"choices":[],"usage":'
            + _json(counts)
            + b',"system_fingerprint":'
            + _json(self._context.fingerprint)
            + b"}\n\ndata: [DONE]\n\n"
        )

    def whole(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """A ``chat.completion`` object."""
        choice = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "".join(words),
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
                **({"tool_calls": [self._call()]} if finish == "tool_calls" else {}),
            },
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None,
        }
        return _json(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._context.created,
                "model": self._context.model,
                "choices": [choice],
                "service_tier": None,
                "system_fingerprint": self._context.fingerprint,
                "usage": openai_usage(usage, cache_details=self._context.cache_details, with_created=True),
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "prompt_text": None,
                "kv_transfer_params": None,
            }
        )

    def _tool_call(self, completion_tokens: int) -> bytes:
        """A chunk with the call, and the one that ends the choice."""
        chunks = []
        for delta, reason in (({"tool_calls": [{**self._call(), "index": 0}]}, None), ({"content": ""}, "tool_calls")):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "token_ids": None}
            chunks.append(self._head + b',"choices":' + _json([choice]) + self._usage(completion_tokens) + b"}\n\n")
        return b"".join(chunks)

    def _call(self) -> dict[str, object]:
        context = self._context
        function = {"name": context.tool, "arguments": "{}"}
        return {"id": f"chatcmpl-tool-{context.base_id}", "type": "function", "function": function}

    def _usage(self, completion_tokens: int) -> bytes:
        return _continuous_usage(self._context, completion_tokens)


class CompletionAnswer:
    """``/v1/completions``."""

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._id = f"cmpl-{context.base_id}"
        head = {
            "id": self._id,
            "object": "text_completion",
            "created": context.created,
            "model": context.model,
        }
        self._head = b"data: " + _json(head)[:-1]

    def begin(self) -> bytes:
        """Nothing comes before the first token."""
        return b""

    def tokens(self, words: Sequence[str], already: int, finish: FinishReason | None) -> bytes:
        """One chunk per token."""
        events = []
        last = len(words) - 1
        for index, word in enumerate(words):
            after = b'","logprobs":null,"finish_reason":' + _json(finish if index == last else None)
            after += b',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            if finish and index == last and not self._context.include_usage:
                after += b',"system_fingerprint":' + _json(self._context.fingerprint)
            usage = _continuous_usage(self._context, already + index + 1)
            events.append(self._head + b',"choices":[{"index":0,"text":"' + word.encode() + after + usage + b"}\n\n")
        return b"".join(events)

    def end(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """The usage-only chunk, if wanted, and ``[DONE]``."""
        if not self._context.include_usage:
            return b"data: [DONE]\n\n"
        counts = _without_none(openai_usage(usage, cache_details=self._context.cache_details, with_created=False))
        chunk = b',"choices":[],"system_fingerprint":' + _json(self._context.fingerprint) + b',"usage":' + _json(counts)
        return self._head + chunk + b"}\n\ndata: [DONE]\n\n"

    def whole(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """A ``text_completion`` object."""
        choice = {
            "index": 0,
            "text": "".join(words),
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
        }
        return _json(
            {
                "id": self._id,
                "object": "text_completion",
                "created": self._context.created,
                "model": self._context.model,
                "choices": [choice],
                "service_tier": None,
                "system_fingerprint": self._context.fingerprint,
                "usage": openai_usage(usage, cache_details=self._context.cache_details, with_created=False),
                "kv_transfer_params": None,
            }
        )


class MessagesAnswer:
    """``/v1/messages``."""

    _before_word = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"'
    )
    _after_word = b'"},"index":0}\n\n'

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._id = f"chatcmpl-{context.base_id}"

    def begin(self) -> bytes:
        """``message_start`` and ``content_block_start``."""
        message: dict[str, object] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._context.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self._context.prompt_tokens, "output_tokens": 0},
        }
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        return _event("message_start", {"type": "message_start", "message": message}) + _event(
            "content_block_start", block
        )

    def tokens(self, words: Sequence[str], already: int, finish: FinishReason | None) -> bytes:
        """One ``content_block_delta`` per token."""
        before, after = self._before_word, self._after_word
        return b"".join([before + word.encode() + after for word in words])

    def end(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """``content_block_stop``, ``message_delta`` with the usage, ``message_stop``."""
        delta: dict[str, object] = {"stop_reason": _stop_reason(finish)}
        if not self._context.legacy:
            delta["stop_sequence"] = None
        counts = anthropic_usage(usage, cache_details=self._context.cache_details)
        return (
            _event("content_block_stop", {"type": "content_block_stop", "index": 0})
            + (self._tool_use_events() if finish == "tool_calls" else b"")
            + _event("message_delta", {"type": "message_delta", "delta": delta, "usage": counts})
            + _event("message_stop", {"type": "message_stop"})
        )

    def whole(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """A ``message`` object."""
        return _json(
            {
                "id": self._id,
                "type": "message",
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "".join(words)},
                    *([self._tool_use()] if finish == "tool_calls" else []),
                ],
                "model": self._context.model,
                "stop_reason": _stop_reason(finish),
                "usage": anthropic_usage(usage, cache_details=self._context.cache_details),
            }
        )

    def _tool_use_events(self) -> bytes:
        delta = {"type": "input_json_delta", "partial_json": "{}"}
        start = {"type": "content_block_start", "content_block": self._tool_use(), "index": 1}
        return (
            _event("content_block_start", start)
            + _event("content_block_delta", {"type": "content_block_delta", "delta": delta, "index": 1})
            + _event("content_block_stop", {"type": "content_block_stop", "index": 1})
        )

    def _tool_use(self) -> dict[str, object]:
        context = self._context
        return {"type": "tool_use", "id": f"chatcmpl-tool-{context.base_id}", "name": context.tool, "input": {}}


def error_body(api: Api, status: int, message: str, *, kind: str | None = None, param: str | None = None) -> bytes:
    """An error in the shape of the API.

    Args:
        api: whose shape.
        status: HTTP status.
        message: for a person.
        kind: the error's type; None: what vLLM says for the status.
        param: the parameter that was wrong; Anthropic's shape has no place for it.
    """
    name = kind or {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    if api == "messages":
        return _json({"type": "error", "error": {"type": name, "message": message}})
    return _json({"error": {"message": message, "type": name, "param": param, "code": HTTPStatus(status).value}})


def _continuous_usage(context: AnswerContext, completion_tokens: int) -> bytes:
    if not context.continuous_usage:
        return b""
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
        context.prompt_tokens,
        context.prompt_tokens + completion_tokens,
        completion_tokens,
    )


def _stop_reason(finish: FinishReason) -> str:
    return {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}[finish]


def _event(name: str, data: dict[str, object]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _json(data) + b"\n\n"


def _without_none(value: dict[str, object]) -> dict[str, object]:
    return {
        key: _without_none(item) if isinstance(item, dict) else item for key, item in value.items() if item is not None
    }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
