"""How a conversation begins: model, system prompt, tools and the whole first user message, as a keyed hash.

The opening must not change between two turns of one conversation, although Claude Code moves its ``cache_control``
marks, writes one text block now as a string and now as a list, and puts a billing line first in ``system``; so those
are normalised away, and harness preambles that many conversations share do not count as the first user message.

Bodies may be large and hostile: everything here is a bounded number of passes in C over the bytes.
"""

from __future__ import annotations

import hashlib
import re

import msgspec
from msgspec import Raw

from lmwarden.routing.fields import RequestFields, text_of

_ABSENT = Raw(b"")
_NULL = Raw(b"null")
_SPACE = re.compile(rb"\s+")

_PREAMBLES = (
    (b"<system-reminder>", b"</system-reminder>"),
    (b"<environment_context>", b"</environment_context>"),
    (b"<user_instructions>", b"</user_instructions>"),
    (b"# AGENTS.md instructions", b"</INSTRUCTIONS>"),
    (b"<INSTRUCTIONS>", b"</INSTRUCTIONS>"),
)
"""How text begins and ends that a harness (Claude Code, Codex) puts in front of what the user typed."""

_CACHE_CONTROL = re.compile(
    rb',\s*"cache_control"\s*:\s*(?:\{[^{}]*\}|null)|"cache_control"\s*:\s*(?:\{[^{}]*\}|null)\s*,?\s*'
)
"""The member, with its comma. It cannot match inside of a JSON string, where the quotes would be escaped."""

_MAX_BLOCKS = 1000
"""Content with more blocks than this is hashed as it is written."""

_MAX_COMMAS = 500_000
"""A list with more commas than this, those in its texts included, is not taken apart: that could take a second."""


class _Message(msgspec.Struct):
    role: str = ""
    content: Raw = _ABSENT


class _Block(msgspec.Struct):
    text: Raw = _ABSENT


_raw_list_decoder = msgspec.json.Decoder(list[Raw])
_message_decoder = msgspec.json.Decoder(_Message)
_block_decoder = msgspec.json.Decoder(_Block)


def opening(fields: RequestFields, *, secret: bytes, model: str) -> bytes | None:
    """Keyed hash (16 bytes) of how the conversation begins, or None where there is no user message.

    Costs a pass over system, tools and the first user message; call it only when it is needed.
    """
    try:
        return _opening(fields, secret, model)
    except msgspec.DecodeError:
        return None  # malformed messages are the engine's to refuse


def is_resumed(fields: RequestFields) -> bool:
    """Whether the request carries an answer already, so that it is not the first turn of its conversation."""
    try:
        for raw in _elements(fields.messages or fields.input):
            if _message_decoder.decode(raw).role not in ("user", "system", "developer"):
                return True
    except msgspec.DecodeError:
        pass  # a plain string, or malformed
    return False


def _opening(fields: RequestFields, secret: bytes, model: str) -> bytes | None:
    turns = fields.messages or fields.input
    if not turns:
        return None
    digest = hashlib.blake2b(key=secret[:64], digest_size=16)
    _feed(digest, model.encode())
    _feed(digest, _system_text(fields.system))
    _feed(digest, _system_text(fields.instructions))
    tools = _as_written(fields.tools)
    _feed(digest, b"" if tools in (b"null", b"[]") else tools)
    text = text_of(turns)
    if text is not None:  # /v1/responses with a plain string
        _feed(digest, text.encode())
        return digest.digest()
    for raw in _elements(turns):
        message = _message_decoder.decode(raw)
        if message.role == "user":
            said = _user_text(message.content)
            if said:
                _feed(digest, said)
                return digest.digest()
        elif message.role in ("system", "developer"):
            _feed(digest, _system_text(message.content))
    return None


def _feed(digest: hashlib.blake2b, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


def _system_text(system: Raw) -> bytes:
    """``system`` without the ``x-anthropic-*`` lines that change per release, conversation or request."""
    return b"\0".join(part for part in map(_without_harness_lines, _parts(system)) if part)


def _without_harness_lines(text: bytes) -> bytes:
    start = 0
    while text.startswith(b"x-anthropic-", start):
        start = text.find(b"\n", start) + 1
        if not start:
            return b""
    return text[start:]


def _user_text(content: Raw) -> bytes:
    """What the user said first, without what harnesses put in front of it. Empty: nothing but that."""
    return b"\0".join(part for part in map(_without_preambles, _parts(content)) if part)


def _without_preambles(text: bytes) -> bytes:
    start = 0
    while True:
        for begin, end in _PREAMBLES:
            if text.startswith(begin, start):
                closed = text.find(end, start)
                if closed < 0:
                    return b""
                start = _after_space(text, closed + len(end))
                break
        else:
            return text[start:]


def _after_space(text: bytes, start: int) -> int:
    found = _SPACE.match(text, start)  # in place: texts may be large, and preambles many
    return start if found is None else found.end()


def _parts(content: Raw) -> list[bytes]:
    """Content as a list of byte strings; a plain string equals one text block."""
    if not content or content == _NULL:
        return []
    text = text_of(content)
    if text is not None:
        return [text.encode()]
    if bytes(memoryview(content)[:1]) != b"[":
        return [_as_written(content)]
    blocks = _elements(content)
    if not 0 < len(blocks) <= _MAX_BLOCKS:
        return [_as_written(content)]
    parts = []
    for block in blocks:
        is_object = bytes(memoryview(block)[:1]) == b"{"
        text = text_of(_block_decoder.decode(block).text) if is_object else None
        parts.append(_as_written(block) if text is None else text.encode())
    return parts


def _elements(array: Raw) -> list[Raw]:
    """The elements of a JSON array; none if there are unreasonably many.

    Raises:
        msgspec.DecodeError: it is no array.
    """
    if not array or bytes(array).count(b",") > _MAX_COMMAS:
        return []
    return _raw_list_decoder.decode(array)


def _as_written(raw: Raw) -> bytes:
    """A value's bytes, without the ``cache_control`` marks that move between turns."""
    return _CACHE_CONTROL.sub(b"", bytes(raw))
