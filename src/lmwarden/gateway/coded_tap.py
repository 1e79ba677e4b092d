"""A tap for an answer that came compressed although we asked for none.

It decodes beside what is passed on, for another tap that reads the text: so tokens are counted, an abort is seen, and a
body that breaks off inside of its coding is broken off, whatever its framing says. Where the client cannot read the
coding, or where an event has to be withheld from the text, the decoded pieces themselves go on (``parts``).

An answer that stands for too much more than itself is not looked into; one that would have to be decoded for the
client is no answer then.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmwarden.gateway.codings import CorruptError, Decoder
from lmwarden.gateway.usage import UsageTap
from lmwarden.types import Usage

_STEP_BYTES = 64 * 1024
MAX_DECODED_BYTES = 16 * 1024 * 1024
"""What one read of at most some 256 KB may stand for."""


class CodedTap:
    """Implements ``UsageTap`` for encoded bytes."""

    __slots__ = ("_begun", "_decoder", "_lost", "_passed_on", "_text")

    def __init__(self, text: UsageTap, decoder: Decoder, *, passed_on: bool) -> None:
        """
        Args:
            text: Reads what was decoded.
            passed_on: The client gets the decoded pieces; else it gets the encoded ones.
        """
        self._text = text
        self._decoder = decoder
        self._passed_on = passed_on
        self._begun = False
        self._lost = False
        """It cannot be decoded: the framing alone decides."""

    @property
    def failed(self) -> bool:
        """See ``UsageTap``."""
        return self._text.failed

    def feed(self, piece: bytes) -> bool:
        """See ``UsageTap``."""
        if not self._lost:
            try:
                for _ in self.parts(piece):
                    pass
            except CorruptError:
                self._lost = True
        return False

    def parts(self, piece: bytes) -> Iterator[tuple[bytes, bool]]:
        """Decode a piece of the body.

        Returns:
            Pieces of the text, and of each whether it is dull, see ``UsageTap.feed``.

        Raises:
            CorruptError: it is damaged, or stands for too much.
            EngineAbortedError: see ``UsageTap``.
        """
        self._begun = self._begun or bool(piece)
        decoder = self._decoder
        decoder.feed(piece)
        most = decoder.out_bytes + MAX_DECODED_BYTES
        while not decoder.hungry:
            part = decoder.decode(_STEP_BYTES)
            if decoder.out_bytes > most:
                raise CorruptError("too much for its size")
            if part:
                yield part, self._text.feed(part)

    def clean_end(self) -> bool:
        """See ``UsageTap``."""
        if self._lost:
            return True
        return self._text.clean_end() and (self._decoder.finished or not self._begun)

    def between_events(self) -> bool:
        """See ``UsageTap``: not inside of an encoded body."""
        return self._passed_on and self._text.between_events()

    def last_bytes(self) -> bytes:
        """See ``UsageTap``."""
        return self._text.last_bytes()

    def usage(self) -> Usage:
        """See ``UsageTap``."""
        return self._text.usage()


def accepts(accept_encoding: bytes | None, coding: str) -> bool:
    """Whether a client said that it takes this coding. Who says nothing is taken to know none.

    Args:
        accept_encoding: the value of its header, or None.
        coding: one of ``codings.CODINGS``.
    """
    any_other = False
    for entry in (accept_encoding or b"").lower().decode("latin-1").split(","):
        name, _, parameters = entry.partition(";")
        name = name.strip().removeprefix("x-")
        key, _, weight = parameters.replace(" ", "").partition("=")
        refused = key == "q" and not weight.strip("0.")
        if name == coding:
            return not refused
        if name == "*":
            any_other = not refused
    return any_other
