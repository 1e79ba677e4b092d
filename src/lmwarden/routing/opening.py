"""How a conversation begins: model, system prompt, tools and the whole first user message, as a keyed hash.

The opening must not change between two turns of one conversation, so what changes although nothing was said is taken
away (content.py), and harness preambles that many conversations share do not count as the first user message.

Bodies may be large and hostile: everything here is a bounded number of passes in C over the bytes, and a bounded number
of looks at what they found. A conversation whose first user message comes later than that has no opening.
"""

from __future__ import annotations

import hashlib
import re

import msgspec
from msgspec import Raw

from lmwarden.routing.content import MAX_BLOCKS, as_written, first_elements, parts, without_harness_lines
from lmwarden.routing.fields import RequestFields, text_of

_ABSENT = Raw(b"")

_MAX_MESSAGES = 100
"""The first user message is looked for among so many, of ``MAX_BLOCKS`` blocks together."""
_MAX_PREAMBLES = 100
"""What stands behind so many in one text was typed."""

_PREAMBLE_ENDS = {
    b"<system-reminder>": b"</system-reminder>",
    b"<environment_context>": b"</environment_context>",
    b"<user_instructions>": b"</user_instructions>",
    b"# AGENTS.md instructions": b"</INSTRUCTIONS>",
    b"<INSTRUCTIONS>": b"</INSTRUCTIONS>",
}
"""How text begins and ends that a harness (Claude Code, Codex) puts in front of what the user typed."""
_BEGINNINGS = tuple(_PREAMBLE_ENDS)
_PREAMBLE = re.compile(rb"\s*(%b)" % b"|".join(map(re.escape, _BEGINNINGS)))


_UNREADABLE = (msgspec.DecodeError, RecursionError)
"""The second: the interpreter allows so much nesting less the calls that are open, so a body that was read may still be
too deep here."""


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
    except _UNREADABLE:
        return None  # malformed messages are the engine's to refuse


def is_resumed(fields: RequestFields) -> bool:
    """Whether the request carries an answer already, so that it is not the first turn of its conversation.

    An answer stands among the first messages; the others are not looked at.
    """
    try:
        for raw in first_elements(fields.messages or fields.input):
            if _message_decoder.decode(raw).role not in ("user", "system", "developer"):
                return True
    except _UNREADABLE:
        pass  # a plain string, or malformed
    return False


def _opening(fields: RequestFields, secret: bytes, model: str) -> bytes | None:
    turns = fields.messages or fields.input
    if not turns:
        return None
    digest = hashlib.blake2b(key=secret[:64], digest_size=16)
    _feed(digest, model.encode())
    _feed(digest, _system_text(parts(fields.system)))
    _feed(digest, _system_text(parts(fields.instructions)))
    tools = as_written(fields.tools)
    _feed(digest, b"" if tools in (b"null", b"[]") else tools)
    text = text_of(turns)
    if text is not None:  # /v1/responses with a plain string
        _feed(digest, text.encode())
        return digest.digest()
    looked_at = 0
    for raw in first_elements(turns)[:_MAX_MESSAGES]:
        message = _message_decoder.decode(raw)
        if message.role not in ("user", "system", "developer"):
            continue
        blocks = parts(message.content)
        if message.role != "user":
            _feed(digest, _system_text(blocks))
        elif said := b"\0".join(filter(None, map(_without_preambles, blocks))):
            _feed(digest, said)
            return digest.digest()
        looked_at += len(blocks)
        if looked_at > MAX_BLOCKS:
            break
    return None


def _feed(digest: hashlib.blake2b, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


def _system_text(blocks: list[bytes]) -> bytes:
    """A system prompt without the ``x-anthropic-*`` lines that change per release, conversation or request."""
    return b"\0".join(filter(None, map(without_harness_lines, blocks)))


def _without_preambles(text: bytes) -> bytes:
    """What the user typed, without what harnesses put in front of it. Empty: nothing but that."""
    if not text.startswith(_BEGINNINGS):
        return text
    start = 0
    for _ in range(_MAX_PREAMBLES):
        begun = _PREAMBLE.match(text, start)
        if begun is None:
            break
        end = _PREAMBLE_ENDS[begun[1]]
        closed = text.find(end, begun.end())
        if closed < 0:
            return b""
        start = closed + len(end)
    return text[start:].lstrip()
