"""An engine's error, said in the envelope that its caller's client library parses.

An answer of status 400 and above may come in another shape than its caller knows: vLLM refuses a body on /v1/messages
before it knows that it is Anthropic's and answers in OpenAI's, its web framework answers ``{"detail": ...}``, a proxy
before it answers with a page. Clients recover by the *words* of an error (Claude Code does: context length, thinking,
role), after they have found them. So the words stay as they are and only their wrapping is changed:

* A body that is in the caller's envelope goes on byte for byte, with its head.
* Any other JSON object with a message gets the caller's envelope around that message.
* What has no message is its own message, if it is short plain text; else one sentence of ours stands for it.

The status is the engine's, and so are its header lines, without those that described the body that was replaced.
Nothing is added: above all no Retry-After.

For this the body is held until it is whole (``HeldError``), and with it the head: until then nothing has reached the
client, as with any other answer before its first byte. What is longer than ``MAX_HELD_BYTES``, cannot be decoded or has
a coding that we do not know goes on as it came. None of it is kept, logged or counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from lmwarden.gateway.codings import CorruptError, Decoder, coding_of
from lmwarden.gateway.envelope import error_body
from lmwarden.gateway.heads import ResponseLines
from lmwarden.gateway.relay import RAW, Relay, client_head
from lmwarden.gateway.routes import Api

MAX_HELD_BYTES = 64 * 1024
"""Of a body as it came, framing included, and of what it decodes to."""
MAX_TEXT_BYTES = 2048
"""A longer text without a message in it is no message."""
_STEP_BYTES = 64 * 1024
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]")
_OF_THE_BODY = frozenset(
    (b"content-type", b"content-encoding", b"content-md5", b"content-digest", b"repr-digest", b"digest", b"etag")
)
"""Header lines that are true of one body only."""


class HeldError(Relay, eq=False, gc=False, kw_only=True):
    """An error on its way through: held, then let go as it came or in the caller's envelope."""

    as_it_comes: Relay
    """What it would go through if nobody held it."""
    head: bytes
    """The client's response head for that."""
    status: int
    lines: ResponseLines
    """The engine's head."""
    api: Api
    ours: Sequence[bytes]
    """Our header lines."""
    close: bool
    _held: bytearray | None = msgspec.field(default_factory=bytearray)
    """What would have gone to the client behind its head. None: it was let go."""
    _body: bytearray | None = msgspec.field(default_factory=bytearray)
    """The body without its framing. None: too long."""

    def piece(self, piece: bytes) -> None:
        """See ``Relay``. Takes the pieces of raw answers too."""
        if self.framing is RAW:
            self.tap.feed(piece)
        else:
            self.as_it_comes.piece(piece)
        body = self._body
        if body is not None:
            if len(body) + len(piece) > MAX_HELD_BYTES:
                self._body = None
            else:
                body += piece

    def read(self, raw: bytes) -> bytes:
        """See ``Relay``. Empty as long as it is held; what comes first begins with the head."""
        out = self.as_it_comes.read(raw)
        held = self._held
        if held is None:
            return out
        if self._body is not None and len(held) + len(out) <= MAX_HELD_BYTES:
            held += out
            return b""
        self._body = None
        return self._let_go(out)

    def end(self, raw: bytes) -> bytes:
        """See ``Relay``. If it is still held: the whole response."""
        out = self.as_it_comes.end(raw)
        body, self._body = self._body, None
        if body is not None:
            text = _decoded(bytes(body), self.lines.content_encoding)
            said = None if text is None else in_envelope(self.status, text, self.lines.content_type, self.api)
            if said is not None:
                lines = ResponseLines(_without_the_body(self.lines.onward), content_length=b"%d" % len(said))
                return client_head(self.status, lines, RAW, self.ours, close=self.close) + said
        return self._let_go(out)

    def _let_go(self, out: bytes) -> bytes:
        held, self._held = self._held, None
        return out if held is None else self.head + held + out


def in_envelope(status: int, body: bytes, content_type: bytes, api: Api) -> bytes | None:
    """An error's body in the caller's envelope; None: it is in it already.

    Args:
        status: The answer's, 400 or above.
        body: Without its coding.
        content_type: The engine's header, to tell a page from a text.
        api: The caller's.
    """
    text = body.decode("utf-8-sig", "replace")
    try:
        value = json.loads(text)  # takes half characters, which msgspec does not
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and _is_envelope(value, api):
        return None
    found = _said(value)
    message = found.message.encode("utf-8", "replace").decode()
    if not message.strip():
        message = _as_text(text, len(body), content_type) if value not in ({}, [], "") else ""
    if not message:
        message = f"The engine, or a proxy before it, answered with status {status} and no readable reason."
    return error_body(api, status, message, code=found.code, param=found.param)


class _Said(NamedTuple):
    message: str = ""
    code: str | None = None
    """OpenAI's ``error.code``, if it is a word and no number."""
    param: str | None = None


def _is_envelope(value: dict[str, Any], api: Api) -> bool:
    error = value.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return False
    anthropics = value.get("type") == "error"
    return anthropics and isinstance(error.get("type"), str) if api is Api.ANTHROPIC else not anthropics


def _said(value: object) -> _Said:
    """The words of an error, wherever its kind has them: ``error.message``, ``error``, ``message`` (older vLLMs),
    ``detail`` (FastAPI; a list of objects with a ``msg`` if it is about the body)."""
    if isinstance(value, str):
        return _Said(value)
    if not isinstance(value, dict):
        return _Said()
    inner = value.get("error")
    error = inner if isinstance(inner, dict) else value
    detail = value.get("detail")
    if isinstance(detail, list):
        detail = "; ".join(word for word in map(_msg, detail) if word)
    words = (error.get("message"), inner, value.get("message"), detail)
    message = next((word for word in words if isinstance(word, str) and word.strip()), "")
    return _Said(message, _word(error.get("code")), _word(error.get("param")))


def _msg(part: object) -> str | None:
    return _word(part.get("msg")) if isinstance(part, dict) else None


def _word(value: object) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _as_text(text: str, size_bytes: int, content_type: bytes) -> str:
    """The text itself, if somebody can read it as a message; else empty."""
    text = text.strip()
    page = text.startswith("<") or b"html" in content_type.lower()
    return "" if page or size_bytes > MAX_TEXT_BYTES or _UNPRINTABLE.search(text) else text


def _decoded(body: bytes, content_encoding: bytes) -> bytes | None:
    """A body without its coding; None: it cannot be had, or is too long."""
    if not body:
        return body
    coding = coding_of(content_encoding)
    if not coding:
        return body if coding == "" else None
    decoder = Decoder(coding)
    decoder.feed(body)
    text = b""
    try:
        while not decoder.hungry:
            text += decoder.decode(_STEP_BYTES)
            if len(text) > MAX_HELD_BYTES:
                return None
    except CorruptError:
        return None
    return text  # whole: its tap was asked before (``clean_end``)


def _without_the_body(onward: list[bytes]) -> list[bytes]:
    """Header lines for another body, which is JSON. Those of a known head come as one text."""
    lines = b"".join(onward).split(b"\r\n")
    kept = [line + b"\r\n" for line in lines if line and line.partition(b":")[0].lower() not in _OF_THE_BODY]
    return [*kept, b"Content-Type: application/json\r\n"]
