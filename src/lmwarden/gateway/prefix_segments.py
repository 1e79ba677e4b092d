"""A prompt as a list of segments, each known by keyed hashes and its length: enough to say what changed, and no text.

A segment is a block of the system prompt, a tool, a part of a turn, or a piece of a plain prompt, in the order in which
chat templates write them: system, tools, turns. What changes between two turns although nothing was said is taken away
first (routing/content.py); the lines that Claude Code puts before its system prompt (its *billing line*) are kept
apart.

Each segment has two hashes, keyed with the installation's secret: of its bytes, and of its bytes without digits, so
that a time stamp that moved on can be told from any other change. Segments are not chained: two prompts share what
their lists have in common from the start, and a segment that only moved is found again.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw

from lmwarden.routing import content
from lmwarden.routing.fields import RequestFields, text_of

HASH_BYTES = 8
_NONE = bytes(HASH_BYTES)
_MASKED_TURNS = 16
_MASK_UP_TO_BYTES = 64 * 1024
"""Only of system segments and of the first turns it is asked whether they differ in digits alone, and not of long ones:
time stamps stand at the beginning of a prompt, and for the rest of it this would cost as much as its hashes."""
_PIECE_BYTES = 1024
"""A plain prompt has no parts, so it is cut into these."""
MOST_SEGMENTS = 20_000
"""A prompt of more segments is not looked at: it would take the worker a second."""

SYSTEM, TOOL, TURN, SYSTEM_TURN, REST = b"s", b"t", b"m", b"y", b"r"
"""Kinds. A system turn stands among the turns (Claude Code sends reminders so). The rest of a plain prompt is no
segment: the next prompt may go on in the middle of it."""

_SYSTEM_ROLES = ("system", "developer")
_NOT_ANSWERS = ("user", *_SYSTEM_ROLES)

_DIGITS = b"0123456789"
_ABSENT = Raw(b"")
NULL = Raw(b"null")


class _Message(msgspec.Struct):
    role: str = ""
    content: Raw = _ABSENT
    tool_calls: Raw = _ABSENT


_message_decoder = msgspec.json.Decoder(_Message)


class TooManySegmentsError(Exception):
    """A prompt of so many segments is not looked at."""


UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, TooManySegmentsError)


class Piece(NamedTuple):
    """One segment's content, on its way to its hashes."""

    kind: bytes
    text: bytes
    answer: bool = False
    """Part of an answer that the model gave before."""


class Segments(msgspec.Struct, frozen=True):
    """One prompt. Entry ``i`` of each list belongs to segment ``i``."""

    kinds: bytes
    hashes: bytes
    """``HASH_BYTES`` for each segment, as in the next one."""
    masked: bytes
    """Hashes of the bytes without digits; zeros: not known."""
    sizes: array[int]
    """In bytes."""
    billing: bytes
    """Hash of the lines that were taken away from the system prompt."""
    answered: bool
    """It carries an answer already."""

    def __len__(self) -> int:
        return len(self.kinds)

    def hash_of(self, index: int) -> bytes:
        """Of one segment."""
        return self.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]

    def masked_of(self, index: int) -> bytes:
        """Of one segment."""
        return self.masked[index * HASH_BYTES : (index + 1) * HASH_BYTES]

    def common(self, other: Segments) -> int:
        """How many segments both begin with."""
        low, high = 0, min(len(self), len(other))
        while low < high:  # equal up to low, and not known to be beyond
            middle = (low + high + 1) // 2
            if (
                self.hashes[low * HASH_BYTES : middle * HASH_BYTES]
                == other.hashes[low * HASH_BYTES : middle * HASH_BYTES]
            ):
                low = middle
            else:
                high = middle - 1
        return low


class SegmentReader:
    """Makes the segments of one prompt, piece by piece, so that whoever drives it can pause in between.

    Args:
        secret: keys the hashes, at most 64 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._digest = hashlib.blake2b(key=secret[:64], digest_size=HASH_BYTES)
        self._kinds = bytearray()
        self._hashes = bytearray()
        self._masked = bytearray()
        self._sizes = array("I")
        self._turns = 0
        self._billing = self._digest.copy()
        self._answered = False

    def pieces(self, fields: RequestFields) -> Iterator[Piece]:
        """The pieces of a prompt, in order; each is to be ``taken``. The billing lines are noted on the way.

        Raises:
            UNREADABLE: the body is not as its API has it.
        """
        for raw in (fields.system, fields.instructions):
            yield from self._system(raw)
        turns = fields.messages or fields.input
        if not turns:
            yield from _plain(fields.prompt)
            return
        text = text_of(turns)
        messages = [] if text is not None else content.elements(turns)
        first_turn = 0
        for raw in messages:
            message = _message_decoder.decode(raw)
            if message.role not in _SYSTEM_ROLES:
                break
            first_turn += 1
            yield from self._system(message.content)
        if fields.tools and bytes(memoryview(fields.tools)[:1]) == b"[":
            for raw in content.elements(fields.tools):
                yield Piece(TOOL, content.as_written(raw))
        if text is not None:
            yield Piece(TURN, b"user\0" + text.encode())
        for raw in messages[first_turn:]:
            yield from _turn(raw)

    def take(self, piece: Piece) -> None:
        """Add a piece.

        Raises:
            TooManySegmentsError: there are too many.
        """
        if piece.kind is REST:
            return
        if len(self._kinds) == MOST_SEGMENTS:
            raise TooManySegmentsError
        text = piece.text
        digest = self._digest.copy()
        digest.update(text)
        self._kinds += piece.kind
        self._hashes += digest.digest()
        self._sizes.append(len(text))
        self._answered = self._answered or piece.answer
        masked = _NONE
        self._turns += piece.kind is TURN
        stamped = piece.kind in (SYSTEM, SYSTEM_TURN) or (piece.kind is TURN and self._turns <= _MASKED_TURNS)
        if stamped and len(text) <= _MASK_UP_TO_BYTES:
            digest = self._digest.copy()
            digest.update(text.translate(None, _DIGITS))
            masked = digest.digest()
        self._masked += masked

    def segments(self) -> Segments:
        """What was taken."""
        return Segments(
            bytes(self._kinds),
            bytes(self._hashes),
            bytes(self._masked),
            self._sizes,
            self._billing.digest(),
            self._answered,
        )

    def _system(self, raw: Raw) -> Iterator[Piece]:
        for part in content.parts(raw):
            text = content.without_harness_lines(part)
            self._billing.update(part[: len(part) - len(text)])
            if text:
                yield Piece(SYSTEM, text)


def _turn(raw: Raw) -> Iterator[Piece]:
    """A message, or another item of a history."""
    if bytes(memoryview(raw)[:1]) != b"{":
        yield Piece(TURN, content.as_written(raw))
        return
    message = _message_decoder.decode(raw)
    role = message.role
    if not role:  # an item of /v1/responses that is no message: a call of a tool, its result, reasoning
        yield Piece(TURN, content.as_written(raw), answer=True)
        return
    kind = SYSTEM_TURN if role in _SYSTEM_ROLES else TURN
    answer = role not in _NOT_ANSWERS
    begin = role.encode() + b"\0"
    for part in content.parts(message.content):
        yield Piece(kind, begin + part, answer)
    if message.tool_calls and message.tool_calls != NULL:
        yield Piece(kind, begin + content.as_written(message.tool_calls), answer)


def _plain(prompt: Raw) -> Iterator[Piece]:
    """The prompt of /v1/completions: a text, or tokens, or a list of either."""
    text = text_of(prompt)
    data = bytes(prompt) if text is None else text.encode()
    whole = len(data) // _PIECE_BYTES * _PIECE_BYTES
    for start in range(0, whole, _PIECE_BYTES):
        yield Piece(TURN, data[start : start + _PIECE_BYTES])
    if whole < len(data):
        yield Piece(REST, data[whole:])
