"""The content of a request as byte strings: system, tools and turns, without what changes although nothing was said.

Two turns of one conversation do not repeat each other byte for byte: Claude Code moves its ``cache_control`` marks,
writes one text block now as a string and now as a list, and puts a billing line first in ``system``. What is here takes
that away, so that equal bytes mean equal content.

Bodies may be large and hostile: everything here is a bounded number of passes in C over the bytes, and a bounded number
of looks at what they found.
"""

from __future__ import annotations

import re
from itertools import takewhile

import msgspec
from msgspec import Raw

from lmwarden.routing.fields import text_of

_ABSENT = Raw(b"")
_NULL = Raw(b"null")
_MARK = b'"cache_control"'
_CACHE_CONTROL = re.compile(rb'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)')
"""The member. It cannot match inside of a JSON string, where the quotes would be escaped."""
_PLACE = re.compile(rb",\s*\0|\0\s*,?\s*")
"""Where one stood, with its comma."""
_MAX_MARKS = 10_000
"""A value with more marks than this is taken as it is written."""
_HARNESS_LINE = b"x-anthropic-"
_HARNESS_LINES_END = re.compile(rb"\n(?!x-anthropic-)")

MAX_BLOCKS = 1000
"""Content with more blocks than this is taken as it is written."""

_MAX_COMMAS = 500_000
"""A list with more commas than this, those in its texts included, is not taken apart: that could take a second."""


class _Block(msgspec.Struct):
    text: Raw = _ABSENT


_raw_list_decoder = msgspec.json.Decoder(list[Raw])
_block_decoder = msgspec.json.Decoder(_Block)
_first_decoder = msgspec.json.Decoder(
    msgspec.defstruct("First", [(f"element{place}", Raw, _ABSENT) for place in range(MAX_BLOCKS + 1)], array_like=True)
)
"""Reads so many elements of an array, and passes over the others without making anything of them."""


def parts(content: Raw) -> list[bytes]:
    """Content as a list of byte strings; a plain string equals one text block.

    Raises:
        msgspec.DecodeError: it is malformed.
        RecursionError: it is nested too deeply.
    """
    if not content or content == _NULL:
        return []
    text = text_of(content)
    if text is not None:
        return [text.encode()]
    if bytes(memoryview(content)[:1]) != b"[":
        return [as_written(content)]
    blocks = first_elements(content)
    if not 0 < len(blocks) <= MAX_BLOCKS:
        return [as_written(content)]
    found = []
    for block in blocks:
        is_object = bytes(memoryview(block)[:1]) == b"{"
        text = text_of(_block_decoder.decode(block).text) if is_object else None
        found.append(as_written(block) if text is None else text.encode())
    return found


def elements(array: Raw) -> list[Raw]:
    """The elements of a JSON array; none if there are unreasonably many.

    Raises:
        msgspec.DecodeError: it is no array.
        RecursionError: it is nested too deeply.
    """
    if not array or bytes(array).count(b",") > _MAX_COMMAS:
        return []
    return _raw_list_decoder.decode(array)


def first_elements(array: Raw) -> list[Raw]:
    """The first elements of a JSON array, at most one more than ``MAX_BLOCKS``.

    Raises:
        msgspec.DecodeError: it is no array.
        RecursionError: it is nested too deeply.
    """
    if bytes(array).count(b",") < MAX_BLOCKS:
        return _raw_list_decoder.decode(array)
    return list(takewhile(bool, msgspec.structs.astuple(_first_decoder.decode(array))))


def as_written(raw: Raw) -> bytes:
    """A value's bytes, without the ``cache_control`` marks that move between turns."""
    text = bytes(raw)
    if not 0 < text.count(_MARK) <= _MAX_MARKS:
        return text
    # In steps that begin with a fixed text, which the search jumps to: one expression with the comma in front would
    # try every comma, and hold up everybody for milliseconds. JSON has no control characters.
    text = _CACHE_CONTROL.sub(b"\0", text).replace(b",\0", b"").replace(b", \0", b"")
    return _PLACE.sub(b"", text) if b"\0" in text else text


def without_harness_lines(text: bytes) -> bytes:
    """A system text without the ``x-anthropic-*`` lines that change per release, conversation or request."""
    if not text.startswith(_HARNESS_LINE):
        return text
    last = _HARNESS_LINES_END.search(text)
    return b"" if last is None else text[last.end() :]
