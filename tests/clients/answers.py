"""What the scripted engine answers, and how vLLM writes it on each of its three generating APIs.

A :class:`Reply` is what the model says: text, then tool calls. The functions here put it into the shapes of
``/v1/messages``, ``/v1/chat/completions`` and ``/v1/responses``, streamed or whole. The Anthropic stream follows a
recording of vLLM: ``message_start`` counts the whole prompt and knows nothing of the cache, ``message_delta`` has
the split values. Chat streams tell their usage only if asked to.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """The model wants a tool used."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class Reply:
    """One answer of the model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    broken_after: int | None = None
    """Reset the connection after so many events; 0: before the head."""
    stalls_after: int | None = None
    """Send so many events and then nothing more, until the connection ends."""

    @property
    def completion_tokens(self) -> int:
        """As many as words, about."""
        return len(self.text.split()) + 10 * len(self.calls) + 1


@dataclass(frozen=True)
class Failure:
    """An error of the engine, in the shape of the API that was called."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Counts:
    """Tokens of one request."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def error_body(path: str, failure: Failure) -> dict[str, object]:
    """As vLLM words an error."""
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": "internal_error", "message": failure.message}}
    return {"error": {"message": failure.message, "type": "Error", "param": None, "code": failure.status}}


def whole_body(path: str, reply: Reply, counts: Counts, model: str) -> dict[str, object]:
    """The answer to a request that is not streamed."""
    if path == "/v1/messages":
        return {
            **_message_head(model),
            "content": [_block(part) for part in _parts(reply)],
            "stop_reason": _stop_reason(reply),
            "usage": _messages_usage(counts),
        }
    if path == "/v1/responses":
        return _response(reply, counts, model, _output_items(reply))
    calls = [_chat_call(call) for call in reply.calls]
    message = {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}
    choice: dict[str, object] = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": 1, "model": model}
    return {**head, "choices": [choice], "usage": _chat_usage(counts)}


def events(path: str, reply: Reply, counts: Counts, model: str, *, include_usage: bool) -> list[bytes]:
    """The answer as server-sent events.

    Args:
        path: of the API.
        reply: what to say.
        counts: its tokens.
        model: the engine's own name for itself.
        include_usage: chat only: ``stream_options.include_usage``.
    """
    if path == "/v1/messages":
        return _messages_events(reply, counts, model)
    if path == "/v1/responses":
        return _responses_events(reply, counts, model)
    return _chat_events(reply, counts, model, include_usage)


def _parts(reply: Reply) -> list[str | ToolCall]:
    return [*([reply.text] if reply.text else []), *reply.calls]


def _call_id() -> str:
    """A new one for each answer: clients take a repeated id for the same call."""
    return f"call_{uuid.uuid4().hex[:20]}"


def _pieces(text: str) -> list[str]:
    """A text as the deltas that carry it."""
    return [text[:3], text[3:]] if len(text) > 3 else [text]


# -- /v1/messages ------------------------------------------------------------------------------------------


def _message_head(model: str) -> dict[str, object]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model}


def _block(part: str | ToolCall) -> dict[str, object]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "tool_use", "id": _call_id(), "name": part.name, "input": part.arguments}


def _stop_reason(reply: Reply) -> str:
    return "tool_use" if reply.calls else "end_turn"


def _messages_usage(counts: Counts) -> dict[str, object]:
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
    }


def _messages_events(reply: Reply, counts: Counts, model: str) -> list[bytes]:
    start_usage = {"input_tokens": counts.prompt_tokens, "output_tokens": 0}
    message = {**_message_head(model), "content": [], "stop_reason": None, "stop_sequence": None, "usage": start_usage}
    sent = [_event("message_start", message=message)]
    for index, part in enumerate(_parts(reply)):
        empty = _block("") if isinstance(part, str) else {**_block(part), "input": {}}
        if isinstance(part, str):
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(part)]
        else:
            deltas = [
                {"type": "input_json_delta", "partial_json": piece} for piece in _pieces(json.dumps(part.arguments))
            ]
        sent.append(_event("content_block_start", content_block=empty, index=index))
        sent += [_event("content_block_delta", delta=delta, index=index) for delta in deltas]
        sent.append(_event("content_block_stop", index=index))
    delta = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    sent.append(_event("message_delta", delta=delta, usage=_messages_usage(counts)))
    sent.append(_event("message_stop"))
    return sent


# -- /v1/responses -----------------------------------------------------------------------------------------


def _output_items(reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for part in _parts(reply):
        if isinstance(part, str):
            content = [{"type": "output_text", "text": part, "annotations": [], "logprobs": []}]
            items.append({"type": "message", "role": "assistant", "status": "completed", "content": content})
        else:
            arguments = json.dumps(part.arguments)
            call = {"type": "function_call", "name": part.name, "arguments": arguments, "call_id": _call_id()}
            items.append({**call, "status": "completed"})
        items[-1]["id"] = f"item_{uuid.uuid4().hex}"
    return items


def _response(reply: Reply, counts: Counts | None, model: str, output: list[dict[str, Any]]) -> dict[str, object]:
    usage: dict[str, object] | None = (
        None
        if counts is None
        else {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": counts.cached_tokens},
            "output_tokens": counts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        }
    )
    status = "completed" if counts else "in_progress"
    head = {"object": "response", "created_at": 1, "model": model, "status": status}
    rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**head, **rest, "id": f"resp_{uuid.uuid4().hex}", "output": output, "usage": usage}


def _responses_events(reply: Reply, counts: Counts, model: str) -> list[bytes]:
    items = _output_items(reply)
    opened = _response(reply, None, model, [])
    closed = {**_response(reply, counts, model, items), "id": opened["id"]}
    bodies: list[tuple[str, dict[str, object]]] = [("response.created", {"response": opened})]
    for index, item in enumerate(items):
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            begun = {**item, "status": "in_progress", "content": []}
            name, pieces, extra = "output_text", _pieces(text), {"content_index": 0, "logprobs": []}
            done: dict[str, object] = {"text": text}
        else:
            begun = {**item, "status": "in_progress", "arguments": ""}
            name, pieces, extra = "function_call_arguments", _pieces(item["arguments"]), {}
            done = {"arguments": item["arguments"], "name": item["name"]}
        bodies.append(("response.output_item.added", {"output_index": index, "item": begun}))
        bodies += [(f"response.{name}.delta", {**place, **extra, "delta": piece}) for piece in pieces]
        bodies.append((f"response.{name}.done", {**place, **extra, **done}))
        bodies.append(("response.output_item.done", {"output_index": index, "item": item}))
    bodies.append(("response.completed", {"response": closed}))
    return [_event(name, **body, sequence_number=number) for number, (name, body) in enumerate(bodies)]


# -- /v1/chat/completions ----------------------------------------------------------------------------------


def _chat_call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": _call_id(), "type": "function", "function": function}


def _chat_usage(counts: Counts) -> dict[str, object]:
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
    }


def _chat_events(reply: Reply, counts: Counts, model: str, include_usage: bool) -> list[bytes]:
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion.chunk", "created": 1, "model": model}
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _pieces(reply.text) if piece]
    deltas += [{"tool_calls": [{"index": index, **_chat_call(call)}]} for index, call in enumerate(reply.calls)]
    ends: list[str | None] = [None] * len(deltas) + ["tool_calls" if reply.calls else "stop"]
    chunks: list[dict[str, object]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in zip([*deltas, {}], ends, strict=True)
    ]
    if include_usage:
        chunks.append({**head, "choices": [], "usage": _chat_usage(counts)})
    return [*(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks), b"data: [DONE]\n\n"]


def _event(name: str, /, **body: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **body})}\n\n".encode()
