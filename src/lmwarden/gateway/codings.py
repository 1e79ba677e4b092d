"""Content codings: zstd, gzip, deflate and brotli, decoded a piece at a time and with bounded memory.

Theory of operation. A ``Decoder`` is given input piece by piece (``feed``) and asked for output (``decode``), of which
it makes no more in one call than it is told: a few bytes can stand for gigabytes, and whoever decodes must be able to
stop. What a decoder keeps is its window, at most 16 MiB (brotli; zstd's is held to the 8 MiB that RFC 9659 allows on
the web), and the rest of the last piece. The libraries let other threads run while they decode.

gzip and zstd allow several members one after the other, and so do we, up to a number: an empty one costs its sender 20
bytes and us a new decoder. ``deflate`` is the zlib format; the bare format, which some send under that name, is told
apart by its first two bytes. Whatever follows the end is an error, because two readers could disagree about it.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Protocol, TypeAlias

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Piece: TypeAlias = bytes | memoryview

CODINGS = ("zstd", "gzip", "deflate", "br")
"""By their names in Content-Encoding; ``x-gzip`` is gzip."""
_ZSTD_WINDOW_LOG = 23
"""8 MiB, the most that RFC 9659 lets a sender use on the web. The library's own limit is 128 MiB."""
_MAX_MEMBERS = 1024
"""Tools that compress in blocks make one for each 64 KiB and more."""
_IN_MEMBERS = ("zstd", "gzip")
_ZLIB_HEAD_BYTES = 2


class CorruptError(Exception):
    """The data is not what its coding says. The text holds none of it."""


def coding_of(value: bytes) -> str | None:
    """The coding that a Content-Encoding names; empty: none (identity); None: one that is not served, or several."""
    name = value.strip().lower().decode("latin-1")
    if name in ("", "identity"):
        return ""
    if name == "x-gzip":
        return "gzip"
    return name if name in CODINGS else None


class _Member(Protocol):
    """Decodes one member: until its end, and nothing behind it."""

    finished: bool
    hungry: bool
    """It has made all the output that its input is good for."""

    def decode(self, piece: Piece, most_bytes: int) -> bytes:
        """Take input (none, if not ``hungry``) and give output.

        Raises:
            CorruptError: the input is wrong.
        """
        ...

    def rest(self) -> bytes:
        """The input behind the end."""
        ...


class Decoder:
    """One body on its way out of its coding."""

    __slots__ = ("_make", "_member", "_most_members", "_piece", "finished", "hungry", "members", "out_bytes")

    def __init__(self, coding: str) -> None:
        """
        Args:
            coding: one of ``CODINGS``.
        """
        self._make = _MEMBERS[coding]
        self._member = self._make()
        self._most_members = _MAX_MEMBERS if coding in _IN_MEMBERS else 1
        self.members = 1
        """Begun so far."""
        self._piece: Piece = b""
        self.finished = False
        """A member has come to its end and no other has begun: the data may end here."""
        self.hungry = True
        """It needs more input to give more output."""
        self.out_bytes = 0

    def feed(self, piece: Piece) -> None:
        """Give it more input. Call it when it is ``hungry``, with no more at once than may be copied."""
        self._piece = piece
        self.hungry = not len(piece)

    def decode(self, most_bytes: int) -> bytes:
        """More output, ``most_bytes`` at most; brotli: up to four times as much, and 32 KiB in any case.

        May be empty; it goes on until it is ``hungry``.

        Raises:
            CorruptError: the input is wrong. Nothing can be had any more.
        """
        if self.hungry:
            return b""
        if self.finished:
            self._next_member()
        piece, self._piece = self._piece, b""
        member = self._member
        made = member.decode(piece, most_bytes)
        self.out_bytes += len(made)
        if member.finished:
            self.finished = True
            self._piece = member.rest()
            self.hungry = not self._piece
        else:
            self.hungry = member.hungry
        return made

    def _next_member(self) -> None:
        if self.members == self._most_members:
            raise CorruptError("data behind the end")
        self.members += 1
        self._member = self._make()
        self.finished = False


class _Zlib:
    """gzip, and both kinds of deflate."""

    __slots__ = ("_decoder", "_head", "_tail", "finished", "hungry")

    def __init__(self, gzip: bool) -> None:
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 16) if gzip else None
        self._head = b""
        self._tail = b""
        self.finished = False
        self.hungry = True

    def decode(self, piece: Piece, most_bytes: int) -> bytes:
        """See ``_Member``."""
        if self._decoder is None:
            self._head += bytes(piece)
            if len(self._head) < _ZLIB_HEAD_BYTES:
                return b""
            piece = self._head
            wrapped = piece[0] & 15 == zlib.DEFLATED and (piece[0] << 8 | piece[1]) % 31 == 0
            self._decoder = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
        decoder = self._decoder
        try:
            made = decoder.decompress(piece if self.hungry else self._tail, most_bytes)
        except zlib.error as error:
            raise CorruptError("invalid data") from error
        self._tail = decoder.unconsumed_tail
        self.finished = decoder.eof
        # It may hold output back although it has taken all its input.
        self.hungry = not self._tail and len(made) < most_bytes
        return made

    def rest(self) -> bytes:
        """See ``_Member``."""
        assert self._decoder is not None
        return self._decoder.unused_data


class _Zstd:
    """One frame."""

    __slots__ = ("_decoder", "finished", "hungry")

    def __init__(self) -> None:
        self._decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})
        self.finished = False
        self.hungry = True

    def decode(self, piece: Piece, most_bytes: int) -> bytes:
        """See ``_Member``."""
        try:
            made = self._decoder.decompress(piece, most_bytes)
        except zstd.ZstdError as error:
            raise CorruptError("invalid data, or a window of more than 8 MiB") from error
        self.finished = self._decoder.eof
        self.hungry = self._decoder.needs_input
        return made

    def rest(self) -> bytes:
        """See ``_Member``."""
        return self._decoder.unused_data


class _Brotli:
    """The whole stream; it refuses what comes behind its end."""

    __slots__ = ("_decoder", "finished", "hungry")

    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()
        self.finished = False
        self.hungry = True

    def decode(self, piece: Piece, most_bytes: int) -> bytes:
        """See ``_Member``."""
        try:
            made: bytes = self._decoder.process(piece, output_buffer_limit=most_bytes)
        except brotli.error as error:
            raise CorruptError("invalid data") from error
        self.finished = self._decoder.is_finished()
        # It may hold output back although it would take more input.
        self.hungry = self._decoder.can_accept_more_data() and len(made) < most_bytes
        return made

    def rest(self) -> bytes:
        """See ``_Member``."""
        return b""


_MEMBERS: dict[str, Callable[[], _Member]] = {
    "zstd": _Zstd,
    "gzip": lambda: _Zlib(gzip=True),
    "deflate": lambda: _Zlib(gzip=False),
    "br": _Brotli,
}
