"""The members of a request body that are looked at, read once and left undecoded."""

from __future__ import annotations

import json

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
