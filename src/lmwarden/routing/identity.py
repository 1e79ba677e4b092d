"""Who is asking: the conversation behind a request, from what the client already sends.

The first of these that holds a usable value names the session:

1.  the operator's own header list;
2.  ``X-Claude-Code-Session-Id``;
3.  ``metadata.user_id``: a JSON string with ``session_id`` (Claude Code), or ``..._session_<id>`` (older releases);
4.  ``session-id`` / ``session_id`` (Codex), ``X-Session-Id``, ``x-session-affinity``, ``x-opencode-session``,
    ``X-SMG-Routing-Key``, ``X-Dynamo-Session-ID``;
5.  body ``prompt_cache_key``, ``conversation`` (a string or ``{"id": ...}``), an id-shaped ``user``;
6.  only when there is none: a fingerprint of the *opening*: model, system, tools and the whole first user message.

``x-claude-code-agent-id`` makes a subagent a conversation of its own whose parent is the session (or the
agent in ``x-claude-code-parent-agent-id``). Blank values and words that stand for nothing ("null",
"undefined", ...) are absent. Per-request ids (``x-request-id`` and the like) are never read.

Nothing leaves this module but keyed hashes: blake2b under the data folder's secret, 16 bytes, over
(model, API key, session id, agent id) with every part length-prefixed.

The opening must not change between two turns of one conversation, although Claude Code moves its
``cache_control`` marks, writes one text block now as a string and now as a list, and puts a billing line
first in ``system``; so those are normalised away, and harness preambles that many conversations share
do not count as the first user message.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw

_ABSENT = Raw(b"")
_NULL = Raw(b"null")

MAX_ID_BYTES = 256
"""Longer ids are not ids; they count as absent."""

_SESSION_HEADERS: tuple[bytes, ...] = (
    b"session-id",
    b"session_id",
    b"x-session-id",
    b"x-session-affinity",
    b"x-opencode-session",
    b"x-smg-routing-key",
    b"x-dynamo-session-id",
)

_NOTHING = frozenset(
    b"null undefined none nil nan n/a na - 0 1 true false {} [] unknown default anonymous user test session id "
    b"00000000-0000-0000-0000-000000000000".split()
) | {b"", b"[object object]", b'""', b"''"}

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_SPACE = re.compile(rb"\s+")
_OLD_USER_ID = re.compile(r"_session_([A-Za-z0-9-]{8,64})\Z")
_ID_SHAPED = re.compile(r"(?=(?:.*[0-9]){4})(?=.*[A-Za-z])[A-Za-z0-9._:-]{16,256}\Z")

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


class RequestFields(msgspec.Struct, gc=False):
    """The top-level members of a request body that we look at, undecoded. Absent members are empty."""

    model: Raw = _ABSENT
    stream: Raw = _ABSENT
    stream_options: Raw = _ABSENT
    max_tokens: Raw = _ABSENT
    max_completion_tokens: Raw = _ABSENT
    max_output_tokens: Raw = _ABSENT
    metadata: Raw = _ABSENT
    prompt_cache_key: Raw = _ABSENT
    conversation: Raw = _ABSENT
    user: Raw = _ABSENT
    system: Raw = _ABSENT
    instructions: Raw = _ABSENT
    tools: Raw = _ABSENT
    messages: Raw = _ABSENT
    input: Raw = _ABSENT
    output_config: Raw = _ABSENT


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The conversation a request belongs to."""

    conversation: bytes | None
    """16-byte keyed hash; None: none recognised."""
    parent: bytes | None
    """Of a subagent: the conversation that started it."""
    derived: bool
    """From the opening, not from an id."""
    auxiliary: bool
    """A title call or the like."""
    source: str
    """Which of the places above named it, for people; ``none`` otherwise."""
    opening: bytes | None
    """Already computed (derived conversations only)."""


class _Metadata(msgspec.Struct):
    user_id: Raw = _ABSENT


class _UserId(msgspec.Struct):
    session_id: str = ""


class _ConversationObject(msgspec.Struct):
    id: str = ""


class _Message(msgspec.Struct):
    role: str = ""
    content: Raw = _ABSENT


class _Block(msgspec.Struct):
    text: Raw = _ABSENT


class _OutputConfig(msgspec.Struct):
    format: Raw = _ABSENT


_fields_decoder = msgspec.json.Decoder(RequestFields)
_string_decoder = msgspec.json.Decoder(str)
_metadata_decoder = msgspec.json.Decoder(_Metadata)
_user_id_decoder = msgspec.json.Decoder(_UserId)
_conversation_decoder = msgspec.json.Decoder(str | _ConversationObject)
_raw_list_decoder = msgspec.json.Decoder(list[Raw])
_message_decoder = msgspec.json.Decoder(_Message)
_output_config_decoder = msgspec.json.Decoder(_OutputConfig)
_block_decoder = msgspec.json.Decoder(_Block)


def decode_fields(body: bytes | bytearray | memoryview) -> RequestFields:
    """Decode a JSON object's top-level members, leaving every value undecoded.

    Raises:
        msgspec.DecodeError: broken JSON, or not an object (``msgspec.ValidationError`` is one of these).
    """
    try:
        return _fields_decoder.decode(body)
    except msgspec.DecodeError:
        fields = _decode_half_characters(body)
        if fields is None:
            raise
        return fields


def _decode_half_characters(body: bytes | bytearray | memoryview) -> RequestFields | None:
    """Decode a body that escapes half a character (a lone surrogate), as JavaScript does when it cuts an emoji in two.

    Engines accept that, msgspec does not. Rare, so the slow decoder may do it; None if that is not what is wrong.
    """
    text = bytes(body)
    if b"\\ud" not in text and b"\\uD" not in text:
        return None
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, dict):
        return None
    return RequestFields(
        **{
            name: Raw(json.dumps(members[name], ensure_ascii=False).encode("utf-8", "replace"))
            for name in RequestFields.__struct_fields__
            if name in members
        }
    )


def text_of(raw: Raw) -> str | None:
    """The value if it is a JSON string, else None."""
    if not raw or bytes(memoryview(raw)[:1]) != b'"':
        return None
    try:
        return _string_decoder.decode(raw)
    except msgspec.DecodeError:  # not UTF-8
        return None


def identify(
    headers: Mapping[bytes, bytes],
    fields: RequestFields,
    *,
    secret: bytes,
    model: str,
    key_digest: bytes,
    operator_headers: Sequence[bytes] = (),
) -> Identity:
    """Name the conversation of a request.

    Args:
        headers: Lower-case name to the first value of that name.
        fields: The body's members.
        secret: The data folder's key, at most 64 bytes.
        model: The served model's name, after aliases.
        key_digest: Of the caller's API key (``KeyIdentity.digest``), empty where none is required.
        operator_headers: Lower-case names to try first.
    """
    session: bytes | None = None
    source = "none"
    claude = False
    for name in operator_headers:
        session = _usable(headers.get(name))
        if session is not None:
            source = name.decode("latin-1")
            break
    if session is None:
        session = _usable(headers.get(b"x-claude-code-session-id"))
        if session is not None:
            source, claude = "x-claude-code-session-id", True
        elif fields.metadata:
            session = _session_of_metadata(fields.metadata)
            if session is not None:
                source, claude = "metadata.user_id", True
    else:
        claude = b"x-claude-code-session-id" in headers
    if session is None:
        session, source = _other_session(headers, fields)
    if session is None:
        found = opening(fields, secret=secret, model=model)
        if found is None:
            return Identity(None, None, False, False, "none", None)
        key = _digest(secret, model, key_digest, b"opening", found)
        return Identity(key, None, True, _is_hinted_auxiliary(headers), "opening", found)

    agent = _usable(headers.get(b"x-claude-code-agent-id")) if claude else None
    key = _digest(secret, model, key_digest, session, agent or b"")
    parent = None
    if agent is not None:
        parent_agent = _usable(headers.get(b"x-claude-code-parent-agent-id")) or b""
        parent = _digest(secret, model, key_digest, session, parent_agent)
    auxiliary = _is_hinted_auxiliary(headers) or (claude and agent is None and _is_title_call(fields))
    return Identity(key, parent, False, auxiliary, source, None)


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


def _digest(secret: bytes, model: str, key_digest: bytes, *parts: bytes) -> bytes:
    """Keyed hash of the parts, each with its length, so that two different lists never run together alike."""
    digest = _begin_digest(secret, model, key_digest).copy()
    for part in parts:
        digest.update(b"%d:%b" % (len(part), part))
    return digest.digest()


@lru_cache(maxsize=1024)
def _begin_digest(secret: bytes, model: str, key_digest: bytes) -> hashlib.blake2b:
    """What all conversations of one key with one model have in common."""
    name = model.encode()
    begin = b"%d:%b%d:%b" % (len(name), name, len(key_digest), key_digest)
    return hashlib.blake2b(begin, key=secret[:64], digest_size=16)


def _usable(value: bytes | None) -> bytes | None:
    """The id if it can be one: 1 to 256 printable bytes that do not spell "nothing"."""
    if value is None:
        return None
    value = value.strip()
    if not 0 < len(value) <= MAX_ID_BYTES or value.lower() in _NOTHING:
        return None
    return None if _CONTROL.search(value) else value


def _usable_text(text: str | None) -> bytes | None:
    return None if text is None else _usable(text.encode())


def _session_of_metadata(metadata: Raw) -> bytes | None:
    try:
        user_id = text_of(_metadata_decoder.decode(metadata).user_id)
    except msgspec.DecodeError:
        return None
    if user_id is None:
        return None
    if user_id.lstrip().startswith("{"):
        try:
            return _usable_text(_user_id_decoder.decode(user_id).session_id)
        except msgspec.DecodeError:
            return None
    found = _OLD_USER_ID.search(user_id)
    return _usable_text(found.group(1)) if found else None


def _other_session(headers: Mapping[bytes, bytes], fields: RequestFields) -> tuple[bytes | None, str]:
    for name in _SESSION_HEADERS:
        session = _usable(headers.get(name))
        if session is not None:
            return session, name.decode()
    session = _usable_text(text_of(fields.prompt_cache_key))
    if session is not None:
        return session, "prompt_cache_key"
    if fields.conversation:
        try:
            value = _conversation_decoder.decode(fields.conversation)
        except msgspec.DecodeError:
            value = ""
        session = _usable_text(value if isinstance(value, str) else value.id)
        if session is not None:
            return session, "conversation"
    user = text_of(fields.user)
    if user is not None and len(user) <= MAX_ID_BYTES and _ID_SHAPED.match(user):
        return _usable_text(user), "user"
    return None, "none"


def _is_hinted_auxiliary(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"x-claude-code-request-class", b"").strip().lower() == b"auxiliary"


def _is_title_call(fields: RequestFields) -> bool:
    """No tools and a prescribed output format: Claude Code asks for a title beside the main turn."""
    if fields.tools and bytes(memoryview(fields.tools)).strip() not in (b"[]", b"null"):
        return False
    if not fields.output_config:
        return False
    try:
        wanted = _output_config_decoder.decode(fields.output_config).format
    except msgspec.DecodeError:
        return False
    return bool(wanted) and bytes(memoryview(wanted)) != b"null"


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
