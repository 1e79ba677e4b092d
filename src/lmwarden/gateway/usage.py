"""The usage tap: learns token counts and the reason for the end from an answer that passes by.

A tap is fed the answer's body without its chunk framing, in pieces that may be cut anywhere, and changes nothing. It
also knows whether an answer ended as it should:

* ``clean_end``: the stream's last event arrived (``[DONE]``, ``message_stop``, ``response.completed`` ...), or
  the JSON body is whole. A stream that stops without it was cut, even if its framing closed properly. A JSON body is
  whole if its framing says so; where only the end of the connection ends it, it must read as JSON.
* ``EngineAbortedError`` is raised while feeding when the engine says that it aborted the generation: vLLM does
  that to the requests of healthy ranks when a sibling dies (``finish_reason: "abort"``, on /v1/messages the
  same word or a ``stop_reason`` that stays null, on /v1/responses a status ``cancelled``). Passing that on would look
  like a finished answer that is merely short. (For models whose answers need no parser of their own, vLLM says
  ``completed`` on /v1/responses: that abort cannot be seen.)
* ``failed``: an error came inside an answer of status 200.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from lmwarden.gateway.heads import ResponseLines
from lmwarden.gateway.routes import Tap
from lmwarden.gateway.stream_taps import ChatTap, MessagesTap, ResponsesTap
from lmwarden.gateway.usage_counts import (
    UNREADABLE,
    Counts,
    EngineAbortedError,
    decode_chat,
    decode_messages,
    decode_response,
    take_choices,
    take_response,
)
from lmwarden.types import Usage

_CHAT: Final = Tap.CHAT
MAX_BODY_BYTES = 16 * 1024 * 1024
"""A longer JSON answer is relayed without being looked at."""


class UsageTap(Protocol):
    """What a relay needs of a tap."""

    @property
    def failed(self) -> bool:
        """An error came by."""
        ...

    def feed(self, piece: bytes) -> bool:
        """Look at the next piece of the body.

        Returns:
            True: the piece is one whole event that tells nothing; False says nothing.

        Raises:
            EngineAbortedError: see the module.
        """
        ...

    def clean_end(self) -> bool:
        """Whether the body that ends here is complete.

        Raises:
            EngineAbortedError: see the module.
        """
        ...

    def between_events(self) -> bool:
        """Whether an event of our own may be put in here."""
        ...

    def last_bytes(self) -> bytes:
        """The end of what was fed, for who has to find it in the bytes on the wire."""
        ...

    def usage(self) -> Usage:
        """What is known so far."""
        ...


class BodyTap(Counts):
    """An answer that is one JSON object."""

    kind: Tap | None = _CHAT
    """None: not a generation; the body is only checked."""
    framed: bool = True
    """The body's end is told by its framing."""
    _pieces: list[bytes] | None = msgspec.field(default_factory=list)
    """None: too long to look at."""
    _size: int = 0

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``."""
        pieces = self._pieces
        if pieces is None:
            return False
        pieces.append(piece)
        self._size = size = self._size + len(piece)
        if size > MAX_BODY_BYTES:
            self._pieces = None
        elif len(pieces) > 256:
            self._pieces = [b"".join(pieces)]
        return False

    def between_events(self) -> bool:
        """See ``UsageTap``: there are no events."""
        return False

    def last_bytes(self) -> bytes:
        """See ``UsageTap``."""
        return b""

    def clean_end(self) -> bool:
        """See ``UsageTap``. Here the usage is read; a body that makes no sense is relayed all the same."""
        if self._pieces is None:
            return True  # too long to look at
        body = b"".join(self._pieces)
        try:
            self._read(body)
        except UNREADABLE:
            return self.framed or _is_json(body)
        return True

    def _read(self, body: bytes) -> None:
        if self.kind is _CHAT:
            chat = decode_chat(body)
            if chat.usage is not None:
                self.take(chat.usage)
            self.failed = bool(chat.error) and bytes(chat.error) != b"null"
            take_choices(self, chat.choices)
        elif self.kind is Tap.MESSAGES:
            message = decode_messages(body)
            self.failed = message.type == "error"
            if message.usage is not None:
                self.take_messages(message.usage)
            self.finish_reason = message.stop_reason
            if message.type == "message" and message.stop_reason in (None, "abort"):
                self.finish_reason = "abort"
                raise EngineAbortedError
        elif self.kind is Tap.RESPONSES:
            take_response(self, decode_response(body))
        elif not self.framed:
            decode_chat(body)  # whatever it is, is it whole?


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except UNREADABLE:
        return False
    return True


class NoTap:
    """For answers that are not generations, and for errors."""

    __slots__ = ()
    failed = False

    def feed(self, piece: bytes) -> bool:
        """Look away."""
        return False

    def clean_end(self) -> bool:
        """The framing alone decides."""
        return True

    def between_events(self) -> bool:
        """See ``UsageTap``."""
        return False

    def last_bytes(self) -> bytes:
        """See ``UsageTap``."""
        return b""

    def usage(self) -> Usage:
        """Nothing is known."""
        return Usage()


NO_TAP = NoTap()
"""One is enough: it remembers nothing."""


def tap_for(kind: Tap | None, status: int, lines: ResponseLines) -> UsageTap:
    """The tap for an answer's text. Errors are not looked into for usage."""
    if status in (204, 304):
        return NO_TAP  # whatever its head says: there is no body
    content_type = lines.content_type
    framed = lines.content_length is not None or lines.transfer_encoding is not None
    if kind is None or status >= 400:
        json = content_type.startswith(b"application/json")
        return NO_TAP if framed or not json else BodyTap(kind=None, framed=False)
    if not content_type.startswith(b"text/event-stream"):
        return BodyTap(kind=kind, framed=framed or not content_type.startswith(b"application/json"))
    if kind is _CHAT:
        return ChatTap()
    return MessagesTap() if kind is Tap.MESSAGES else ResponsesTap()
