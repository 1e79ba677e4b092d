"""Request bodies to token sequences: what the chat template and the tokenizer do in vLLM.

Every API is brought to the same form, a list of messages of (role, segments), and rendered in the order
system, tools, messages::

    <system> segment... <end> <tools> tool... <end> <user> segment... <end> <assistant>

Words in angle brackets are single marker tokens. What vLLM drops is dropped: ``cache_control``, empty text blocks,
thinking blocks of earlier turns, and system blocks that begin with Claude Code's billing header. A string is the
same as one text block. ``role: system`` messages stay where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from lmwarden.simulation.tokens import FIRST_MARKER, text_tokens

Json: TypeAlias = Mapping[str, object]

_BILLING_HEADER = "x-anthropic-billing-header"


class BadRequestError(Exception):
    """The body has a shape that vLLM refuses; ``str()`` is the message for the client."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        """The parameter that was wrong, where vLLM names it beside the message."""


class Marker(IntEnum):
    """Tokens that text cannot produce."""

    SYSTEM = FIRST_MARKER
    DEVELOPER = FIRST_MARKER + 1
    USER = FIRST_MARKER + 2
    ASSISTANT = FIRST_MARKER + 3
    TOOL = FIRST_MARKER + 4
    TOOLS = FIRST_MARKER + 5
    END = FIRST_MARKER + 6
    IMAGE = FIRST_MARKER + 7


_ROLES = {
    "system": Marker.SYSTEM,
    "developer": Marker.DEVELOPER,
    "user": Marker.USER,
    "assistant": Marker.ASSISTANT,
    "tool": Marker.TOOL,
    "function": Marker.TOOL,
}


class _Message(NamedTuple):
    role: Marker
    segments: list[list[int]]


def chat_prompt(body: Json) -> list[int]:
    """Tokens of an OpenAI chat request (also ``/tokenize`` with messages)."""
    messages = []
    for message in _objects(body.get("messages"), "messages"):
        segments = _segments(message.get("content"))
        segments += [_json_tokens(call.get("function")) for call in _objects_or_none(message.get("tool_calls"))]
        messages.append(_Message(_role(message), segments))
    if not messages:
        raise BadRequestError("messages must hold at least one message")
    return _render(messages, _objects_or_none(body.get("tools")))


def anthropic_prompt(body: Json) -> list[int]:
    """Tokens of an Anthropic messages request (also ``count_tokens``)."""
    messages = []
    system = _system_segments(body.get("system"))
    if system:
        messages.append(_Message(Marker.SYSTEM, system))
    for message in _objects(body.get("messages"), "messages"):
        role = _role(message)
        if role is not Marker.SYSTEM:
            messages += _anthropic_messages(role, message.get("content"))
        elif segments := _system_segments(message.get("content")):
            messages.append(_Message(role, segments))
    return _render(messages, _objects_or_none(body.get("tools")))


def responses_prompt(body: Json) -> list[int]:
    """Tokens of an OpenAI responses request."""
    messages = []
    if body.get("instructions"):
        messages.append(_Message(Marker.SYSTEM, _segments(body.get("instructions"))))
    given = body.get("input")
    if isinstance(given, str):
        messages.append(_Message(Marker.USER, [text_tokens(given)]))
    else:
        for item in _objects(given, "input"):
            kind = item.get("type", "message")
            if kind == "message":
                messages.append(_Message(_role(item), _segments(item.get("content"))))
            elif kind == "function_call_output":
                messages.append(_Message(Marker.TOOL, _segments(item.get("output"))))
            elif kind != "reasoning":
                messages.append(_Message(Marker.ASSISTANT, [_json_tokens(item)]))
    return _render(messages, _objects_or_none(body.get("tools")))


def completion_prompt(body: Json) -> list[int]:
    """Tokens of a completions request: one string, or token ids."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        tokens = text_tokens(prompt)
    elif isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt):
        tokens = list(prompt)
    else:
        raise BadRequestError("prompt must be one string or one list of token ids")
    if not tokens:
        raise BadRequestError("The decoder prompt cannot be empty")
    return tokens


def _render(messages: Sequence[_Message], tools: Iterable[Json]) -> list[int]:
    tokens: list[int] = []
    rest = list(messages)
    if rest and rest[0].role is Marker.SYSTEM:
        _append(tokens, rest.pop(0))
    tool_segments = [_json_tokens(tool) for tool in tools]
    if tool_segments:
        _append(tokens, _Message(Marker.TOOLS, tool_segments))
    for message in rest:
        _append(tokens, message)
    tokens.append(Marker.ASSISTANT)
    return tokens


def _append(tokens: list[int], message: _Message) -> None:
    tokens.append(int(message.role))
    for segment in message.segments:
        tokens += segment
    tokens.append(int(Marker.END))


def _anthropic_messages(role: Marker, content: object) -> list[_Message]:
    """One Anthropic message; tool results become messages of their own before it, as in vLLM."""
    if not isinstance(content, list):
        return [_Message(role, _segments(content))]
    results: list[_Message] = []
    segments: list[list[int]] = []
    for block in _objects(content, "content"):
        if block.get("type") == "tool_result":
            results.append(_Message(Marker.TOOL, _segments(block.get("content"))))
        else:
            segments += _segments([block])
    if segments or not results:
        results.append(_Message(role, segments))
    return results


def _system_segments(content: object) -> list[list[int]]:
    """Segments of a system prompt, without the line that Claude Code uses for its own accounting."""
    blocks = [{"text": content}] if isinstance(content, str) else _objects(content or [], "system")
    return _segments([block for block in blocks if not str(block.get("text")).startswith(_BILLING_HEADER)])


def _segments(content: object) -> list[list[int]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [text_tokens(content)]
    return [segment for block in _objects(content, "content") for segment in [_block(block)] if segment]


def _block(block: Json) -> list[int]:
    kind = block.get("type")
    if kind in ("text", "input_text", "output_text", None):
        text = block.get("text")
        if not isinstance(text, str):
            raise BadRequestError(f"a block of type {kind} needs a text")
        return text_tokens(text)
    if kind in ("thinking", "redacted_thinking", "tool_reference"):
        return []
    if kind in ("image", "image_url", "input_image"):
        return [int(Marker.IMAGE), *text_tokens(_digest(block))]
    return _json_tokens({key: value for key, value in block.items() if key != "id"})


def _json_tokens(value: object) -> list[int]:
    if isinstance(value, Mapping):
        value = {key: item for key, item in value.items() if key != "cache_control"}
    return text_tokens(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _digest(block: Json) -> str:
    return blake2b(json.dumps(block, sort_keys=True).encode(), digest_size=32).hexdigest()


def _role(message: Json) -> Marker:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequestError(f"role must be one of {', '.join(_ROLES)}")
    return _ROLES[role]


def _objects(value: object, name: str) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise BadRequestError(f"{name} must be a list of objects")
    return value


def _objects_or_none(value: object) -> list[Json]:
    return [] if value is None else _objects(value, "tools")
