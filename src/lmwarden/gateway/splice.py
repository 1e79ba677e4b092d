"""Changes single top-level members of a JSON body and leaves every other byte as it came.

A body is never parsed and written again: that would change numbers, escapes and the order of keys, and with them
the prompt's bytes. Two edits exist: the model's name (an alias becomes the engine's own name) and
``stream_options.include_usage``.

A member that is absent is put right behind the opening brace. One that is present is looked for by its key and
its raw value, which the partial decode gave us. The key may occur inside other values too, so the body is read once
more with a number in the place of each candidate's value: the number that the top-level member then has says which
one it is. JSON with the same key twice is read as its last occurrence, by us as by the engine, and that is the one
that gets replaced.

Bodies may be large and hostile: everything here is a bounded number of passes in C over the bytes, and a bounded number
of looks at what they found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from lmwarden.routing.fields import without_halves

Body: TypeAlias = bytes | bytearray
BodyPart: TypeAlias = bytes | bytearray | memoryview

_BLANKS = re.compile(rb"[ \t\r\n]*")

_MAX_KEYS = 5000
"""A body in which the same key stands more often than this is no honest one ..."""
_MAX_COMPARED_BYTES = 64 * 1024 * 1024
"""... nor is one with so many that comparing the value with what stands behind each could take longer than this."""
_MAX_OPTIONS_BYTES = 64 * 1024
"""Larger ``stream_options`` are none."""


class Edit(NamedTuple):
    """Replace ``body[start:end]``."""

    start: int
    end: int
    new: bytes


class CannotSpliceError(Exception):
    """The member is there, but written in an unusual way: escapes in its key, or too many like it, or too large."""


def insert(body: Body, name: bytes, value: bytes) -> Edit:
    """Add a member that is absent. The body must be a JSON object."""
    brace = body.index(b"{") + 1
    rest = _BLANKS.match(body, brace)
    comma = b"" if rest is not None and body.startswith(b"}", rest.end()) else b","
    return Edit(brace, brace, b'"%b":%b%b' % (name, value, comma))


def replace(body: Body, name: str, old: bytes, new: bytes) -> Edit:
    """Replace the value of a member that is present.

    Args:
        body: The whole JSON object.
        name: The member, a plain identifier.
        old: Its value exactly as it stands in the body.
        new: The value to put there, JSON.

    Raises:
        CannotSpliceError: no occurrence of the plain key does it.
    """
    key, decoder = _reading(name)
    most = min(_MAX_KEYS, 1 + _MAX_COMPARED_BYTES // len(old))
    candidates: list[Edit] = []
    for number, found in enumerate(key.finditer(body)):
        if number == most:
            raise CannotSpliceError(name)
        start = found.end()
        if body.startswith(old, start):
            candidates.append(Edit(start, start + len(old), b"%d" % len(candidates)))
    numbered = b"".join(apply(body, candidates))
    try:
        chosen = bytes(_value(decoder, numbered, name))
    except (msgspec.DecodeError, RecursionError):
        chosen = b""
    if not candidates or not chosen.isdigit() or int(chosen) >= len(candidates):
        raise CannotSpliceError(name)
    return candidates[int(chosen)]._replace(new=new)


@cache
def _reading(name: str) -> tuple[re.Pattern[bytes], msgspec.json.Decoder[Any]]:
    """What finds the member's key up to its value, and what reads the member alone. We name four."""
    key = re.compile(rb'"%b"[ \t\r\n]*:[ \t\r\n]*' % name.encode("ascii"))
    return key, msgspec.json.Decoder(msgspec.defstruct("OneMember", [(name, msgspec.Raw, msgspec.Raw(b""))]))


def _value(decoder: msgspec.json.Decoder[Any], body: bytes, name: str) -> msgspec.Raw:
    try:
        member = decoder.decode(body)
    except msgspec.DecodeError:  # half a character somewhere
        member = decoder.decode(without_halves(body))
    value: msgspec.Raw = getattr(member, name)
    return value


def apply(body: Body, edits: Sequence[Edit]) -> list[BodyPart]:
    """The edited body in parts, without copying what stays. Edits must not overlap."""
    if not edits:
        return [body]
    view = memoryview(body)
    parts: list[BodyPart] = []
    done = 0
    for edit in sorted(edits):
        if edit.start > done:
            parts.append(view[done : edit.start])
        parts.append(edit.new)
        done = edit.end
    if done < len(view):
        parts.append(view[done:])
    return parts


def include_usage(body: Body, stream_options: bytes) -> Edit | None:
    """The edit that makes a stream report its usage, or None where the client asked for that itself.

    ``continuous_usage_stats`` goes on only if the client asked for ``include_usage``: without that vLLM ignores
    it, and with ours added it would put usage on every chunk. Other members stay. Whatever does not read as true
    becomes true, for nobody may leave the count by a typing error; options that are no object are left to the engine
    to refuse.

    Raises:
        CannotSpliceError: see ``replace``.
    """
    if not stream_options:
        return insert(body, b"stream_options", b'{"include_usage":true}')
    if stream_options == b"null":
        return replace(body, "stream_options", stream_options, b'{"include_usage":true}')
    if len(stream_options) > _MAX_OPTIONS_BYTES:
        raise CannotSpliceError("stream_options")
    try:
        options = msgspec.json.decode(stream_options, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    asked = options.get("include_usage")
    if asked is not None and is_true(bytes(asked)):
        return None
    options["include_usage"] = msgspec.Raw(b"true")
    options.pop("continuous_usage_stats", None)
    return replace(body, "stream_options", stream_options, msgspec.json.encode(options))


_TRUE_WORDS = frozenset(("1", "true", "t", "yes", "y", "on"))
_scalar_decoder = msgspec.json.Decoder(bool | int | float | str)
"""Lists and objects are refused at their first byte, however large."""


def is_true(raw: bytes) -> bool:
    """Whether a JSON value is true to vLLM, whose models (pydantic's) take 1, 1.0, "yes" and the like for true."""
    if raw == b"true":
        return True
    if not raw or raw in (b"false", b"null"):
        return False
    try:
        value = _scalar_decoder.decode(raw)
    except msgspec.DecodeError:
        return False
    return value.lower() in _TRUE_WORDS if isinstance(value, str) else value == 1
