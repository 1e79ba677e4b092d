"""The members of a request body that are looked at, read once and left undecoded.

JavaScript clients that cut an emoji in two escape half a character (a lone surrogate), and Python clients do the like
for bytes that are no text. Engines accept that; our JSON library does not, and Python's own would turn all of a body
into objects: seconds, and many times its size, while everybody waits. So such a body is made readable first: the escape
of each half is overwritten with that of U+FFFD, which is as long. All else stays, and stays where it was, so that what
is read stands in the body as it came, unless it holds such a half itself.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

_ABSENT = Raw(b"")


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
    prompt: Raw = _ABSENT
    previous_response_id: Raw = _ABSENT


_fields_decoder = msgspec.json.Decoder(RequestFields)
_string_decoder = msgspec.json.Decoder(str)

_HALF = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
"""The escape of half a character without its other half, where every backslash begins an escape."""
_MOST_HALVES = 10_000
"""Escapes of halves, with and without their other halves, that are looked at one by one: three milliseconds."""


def decode_fields(body: bytes | bytearray) -> RequestFields:
    """Decode a JSON object's top-level members, leaving every value undecoded.

    Raises:
        msgspec.DecodeError: broken JSON, or not an object (``msgspec.ValidationError`` is one of these).
        RecursionError: nested too deeply.
    """
    try:
        return _fields_decoder.decode(body)
    except msgspec.DecodeError:
        return _fields_decoder.decode(readable(body))


def readable(body: bytes | bytearray) -> bytes | bytearray:
    """A body in which no half of a character stands alone: the same one if it has none, else another of its length.

    A handful of passes in C, whatever the body is. Beyond ``_MOST_HALVES`` it is read, if not to the letter.
    """
    halves = body.count(b"\\ud") + body.count(b"\\uD")
    if not halves:
        return body
    if halves > _MOST_HALVES:
        return without_halves(body)
    # JSON has no control characters: they stand for escaped backslashes, and then every backslash begins an escape.
    text = bytes(body).replace(b"\\\\", b"\0\0")
    return _HALF.sub(rb"\\ufffd", text).replace(b"\0\0", b"\\\\")


def without_halves(body: bytes | bytearray) -> bytes | bytearray:
    """A body of the same shape for whom its texts do not matter: every escape of a half, alone or not, is changed into
    one in the private use area."""
    return body.replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\uE")


def text_of(raw: Raw) -> str | None:
    """The value if it is a JSON string, else None."""
    if not raw or bytes(memoryview(raw)[:1]) != b'"':
        return None
    try:
        return _string_decoder.decode(raw)
    except msgspec.DecodeError:  # not UTF-8
        return None
