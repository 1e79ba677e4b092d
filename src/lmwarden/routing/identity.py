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
agent in ``x-claude-code-parent-agent-id``). So does a ``thread-id`` of Codex that is not its ``session-id``, with the
parent in ``x-codex-parent-thread-id``. Blank values and words that stand for nothing ("null",
"undefined", ...) are absent. Per-request ids (``x-request-id`` and the like) are never read.

Nothing leaves this module but keyed hashes: blake2b under the data folder's secret, 16 bytes, over
(model, API key, session id, agent id) with every part length-prefixed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw

from lmwarden.routing.fields import RequestFields, text_of
from lmwarden.routing.opening import opening

_ABSENT = Raw(b"")

MAX_ID_BYTES = 256
"""Longer ids are not ids; they count as absent."""
_MAX_RAW_BYTES = 8192
"""A longer JSON string holds no id, alone or in an object. It may be as long as a body, so it is not read."""

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
_OLD_USER_ID = re.compile(r"_session_([A-Za-z0-9-]{8,64})\Z")
_ID_CHARACTERS = re.compile(r"[A-Za-z0-9._:-]{16,256}\Z")
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_MIN_DIGITS = 4


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


class _OutputConfig(msgspec.Struct):
    format: Raw = _ABSENT


_UNREADABLE = (msgspec.DecodeError, RecursionError)
_metadata_decoder = msgspec.json.Decoder(_Metadata)
_user_id_decoder = msgspec.json.Decoder(_UserId)
_conversation_decoder = msgspec.json.Decoder(str | _ConversationObject)
_output_config_decoder = msgspec.json.Decoder(_OutputConfig)


class Asker:
    """Whoever sends a head, for one model and with one key: what the head alone says is worked out once, however often
    the head repeats.

    Args:
        headers: Lower-case name to the first value of that name.
        secret: The data folder's key, at most 64 bytes.
        model: The served model's name, after aliases.
        key_digest: Of the caller's API key (``KeyIdentity.digest``), empty where none is required.
        operator_headers: Lower-case names to try first.
    """

    __slots__ = ("_by_head", "_claude", "_headers", "_hinted", "_key_digest", "_metadata_first", "_model", "_secret")

    def __init__(
        self,
        headers: Mapping[bytes, bytes],
        *,
        secret: bytes,
        model: str,
        key_digest: bytes,
        operator_headers: Sequence[bytes] = (),
    ) -> None:
        self._headers = headers
        self._secret = secret
        self._model = model
        self._key_digest = key_digest
        self._hinted = headers.get(b"x-claude-code-request-class", b"").strip().lower() == b"auxiliary"
        session, source = _first_header(headers, (*operator_headers, b"x-claude-code-session-id"))
        self._claude = session is not None and b"x-claude-code-session-id" in headers
        self._metadata_first = session is None
        """What the head says holds only where the body's metadata names no session."""
        if session is None:
            session, source = _first_header(headers, _SESSION_HEADERS)
        self._by_head = None if session is None else self._identity(session, source, self._claude)

    def identify(self, fields: RequestFields) -> Identity:
        """Name the conversation of a request with this head and these members of its body."""
        found, claude = self._by_head, self._claude
        if self._metadata_first and fields.metadata:
            session = _session_of_metadata(fields.metadata)
            if session is not None:
                found, claude = self._identity(session, "metadata.user_id", True), True
        if found is None:
            session, source = _session_of_body(fields)
            if session is None:
                return self._by_opening(fields)
            found = self._identity(session, source, False)
        if claude and found.parent is None and not found.auxiliary and _is_title_call(fields):
            return msgspec.structs.replace(found, auxiliary=True)
        return found

    def _identity(self, session: bytes, source: str, claude: bool) -> Identity:
        agent, parent_agent = _agent(self._headers, session, claude)
        key = self._digest(session, agent or b"")
        parent = None if agent is None else self._digest(session, parent_agent)
        return Identity(key, parent, False, self._hinted, source, None)

    def _by_opening(self, fields: RequestFields) -> Identity:
        found = opening(fields, secret=self._secret, model=self._model)
        if found is None:
            return Identity(None, None, False, False, "none", None)
        return Identity(self._digest(b"opening", found), None, True, self._hinted, "opening", found)

    def _digest(self, *parts: bytes) -> bytes:
        """Keyed hash of the parts, each with its length, so that two different lists never run together alike."""
        digest = _begin_digest(self._secret, self._model, self._key_digest).copy()
        for part in parts:
            digest.update(b"%d:%b" % (len(part), part))
        return digest.digest()


def _agent(headers: Mapping[bytes, bytes], session: bytes, claude: bool) -> tuple[bytes | None, bytes]:
    """(the subagent that asks, its parent); None and nothing where the main conversation asks."""
    if claude:
        return (
            _usable(headers.get(b"x-claude-code-agent-id")),
            _usable(headers.get(b"x-claude-code-parent-agent-id")) or b"",
        )
    # Codex: all threads of a session carry its id, and the main one is named like the session.
    thread = _usable(headers.get(b"thread-id")) if b"session-id" in headers else None
    if thread is None or thread == session:
        return None, b""
    parent = _usable(headers.get(b"x-codex-parent-thread-id")) or b""
    return thread, b"" if parent == session else parent


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
        user_id = _short_text_of(_metadata_decoder.decode(metadata).user_id)
    except _UNREADABLE:
        return None
    if user_id is None:
        return None
    if user_id.lstrip().startswith("{"):
        try:
            return _usable_text(_user_id_decoder.decode(user_id).session_id)
        except _UNREADABLE:
            return None
    found = _OLD_USER_ID.search(user_id)
    return _usable_text(found.group(1)) if found else None


def _first_header(headers: Mapping[bytes, bytes], names: Sequence[bytes]) -> tuple[bytes | None, str]:
    """The first of these headers that holds a usable id: the id, and its name."""
    for name in names:
        session = _usable(headers.get(name))
        if session is not None:
            return session, name.decode("latin-1")
    return None, "none"


def _session_of_body(fields: RequestFields) -> tuple[bytes | None, str]:
    session = _usable_text(_short_text_of(fields.prompt_cache_key))
    if session is not None:
        return session, "prompt_cache_key"
    if fields.conversation and len(fields.conversation) <= _MAX_RAW_BYTES:
        try:
            value = _conversation_decoder.decode(fields.conversation)
        except _UNREADABLE:
            value = ""
        session = _usable_text(value if isinstance(value, str) else value.id)
        if session is not None:
            return session, "conversation"
    user = _short_text_of(fields.user)
    if user is not None and _is_id_shaped(user):
        return _usable_text(user), "user"
    return None, "none"


def _short_text_of(raw: Raw) -> str | None:
    return text_of(raw) if len(raw) <= _MAX_RAW_BYTES else None


def _is_id_shaped(user: str) -> bool:
    """Letters and several digits, and nothing that a name or an address has. Three passes: one expression for all of
    it takes a fourth power of the length."""
    return (
        _ID_CHARACTERS.match(user) is not None
        and len(_DIGIT.findall(user)) >= _MIN_DIGITS
        and _LETTER.search(user) is not None
    )


def _is_title_call(fields: RequestFields) -> bool:
    """No tools and a prescribed output format: Claude Code asks for a title beside the main turn."""
    tools = fields.tools
    if len(tools) > len(b"null") or bytes(tools) not in (b"", b"[]", b"null"):
        return False
    if not fields.output_config:
        return False
    try:
        wanted = _output_config_decoder.decode(fields.output_config).format
    except _UNREADABLE:
        return False
    return bool(wanted) and bytes(memoryview(wanted)) != b"null"
