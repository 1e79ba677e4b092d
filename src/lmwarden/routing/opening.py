"""How a conversation begins: model, system prompt, tools and the whole first user message, as a keyed hash.

The opening must not change between two turns of one conversation, so what changes although nothing was said is taken
away (content.py), and harness preambles that many conversations share do not count as the first user message.

Bodies may be large and hostile: everything here is a bounded number of passes in C over the bytes.
"""

from __future__ import annotations

import hashlib
import re

import msgspec
from msgspec import Raw

from lmwarden.routing.content import as_written, elements, parts, without_harness_lines
from lmwarden.routing.fields import RequestFields, text_of

_ABSENT = Raw(b"")
_SPACE = re.compile(rb"\s+")

_PREAMBLES = (
    (b"<system-reminder>", b"</system-reminder>"),
    (b"<environment_context>", b"</environment_context>"),
    (b"<user_instructions>", b"</user_instructions>"),
    (b"# AGENTS.md instructions", b"</INSTRUCTIONS>"),
    (b"<INSTRUCTIONS>", b"</INSTRUCTIONS>"),
)
"""How text begins and ends that a harness (Claude Code, Codex) puts in front of what the user typed."""


class _Message(msgspec.Struct):
    role: str = ""
    content: Raw = _ABSENT


_message_decoder = msgspec.json.Decoder(_Message)


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
        for raw in elements(fields.messages or fields.input):
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
    tools = as_written(fields.tools)
    _feed(digest, b"" if tools in (b"null", b"[]") else tools)
    text = text_of(turns)
    if text is not None:  # /v1/responses with a plain string
        _feed(digest, text.encode())
        return digest.digest()
    for raw in elements(turns):
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
    return b"\0".join(part for part in map(without_harness_lines, parts(system)) if part)


def _user_text(content: Raw) -> bytes:
    """What the user said first, without what harnesses put in front of it. Empty: nothing but that."""
    return b"\0".join(part for part in map(_without_preambles, parts(content)) if part)


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
