"""The content of a request as byte strings: system, tools and turns, without what changes although nothing was said.

Two turns of one conversation do not repeat each other byte for byte: Claude Code moves its ``cache_control`` marks,
writes one text block now as a string and now as a list, and puts a billing line first in ``system``. What is here takes
that away, so that equal bytes mean equal content.

Bodies may be large and hostile: everything here is a bounded number of passes in C over the bytes.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from lmwarden.routing.fields import text_of

_ABSENT = Raw(b"")
_NULL = Raw(b"null")
_SPACE = b" \t\r\n"
_MARK = b'"cache_control"'
_CACHE_CONTROL = re.compile(
    rb',\s*"cache_control"\s*:\s*(?:\{[^{}]*\}|null)|"cache_control"\s*:\s*(?:\{[^{}]*\}|null)\s*,?\s*'
)
"""The member, with its comma. It cannot match inside of a JSON string, where the quotes would be escaped."""

_MAX_BLOCKS = 1000
"""Content with more blocks than this is taken as it is written."""

_MAX_COMMAS = 500_000
"""A list with more commas than this, those in its texts included, is not taken apart: that could take a second."""


class _Block(msgspec.Struct):
    text: Raw = _ABSENT


_raw_list_decoder = msgspec.json.Decoder(list[Raw])
_block_decoder = msgspec.json.Decoder(_Block)


def parts(content: Raw) -> list[bytes]:
    """Content as a list of byte strings; a plain string equals one text block.

    Raises:
        msgspec.DecodeError: it is malformed.
    """
    if not content or content == _NULL:
        return []
    text = text_of(content)
    if text is not None:
        return [text.encode()]
    if bytes(memoryview(content)[:1]) != b"[":
        return [as_written(content)]
    blocks = elements(content)
    if not 0 < len(blocks) <= _MAX_BLOCKS:
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
    """
    if not array or bytes(array).count(b",") > _MAX_COMMAS:
        return []
    return _raw_list_decoder.decode(array)


def as_written(raw: Raw) -> bytes:
    """A value's bytes, without the ``cache_control`` marks that move between turns."""
    text = bytes(raw)
    at = text.find(_MARK)
    if at < 0:
        return text
    kept, done = [], 0
    while at >= 0:
        # Only around the marks: a regular expression over all of a long text would hold up everybody for milliseconds.
        comma = at - 1
        while comma >= done and text[comma] in _SPACE:
            comma -= 1
        found = _CACHE_CONTROL.match(text, comma if comma >= done and text[comma] == ord(",") else at)
        if found is not None:
            kept.append(text[done : found.start()])
            done = found.end()
        at = text.find(_MARK, max(done, at + 1))
    kept.append(text[done:])
    return b"".join(kept)


def without_harness_lines(text: bytes) -> bytes:
    """A system text without the ``x-anthropic-*`` lines that change per release, conversation or request."""
    start = 0
    while text.startswith(b"x-anthropic-", start):
        start = text.find(b"\n", start) + 1
        if not start:
            return b""
    return text[start:]
