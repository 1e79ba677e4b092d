"""Changes single top-level members of a JSON body and leaves every other byte as it came.

A body is never parsed and written again: that would change numbers, escapes and the order of keys, and with them
the prompt's bytes. Two edits exist: the model's name (an alias becomes the engine's own name) and
``stream_options.include_usage``.

A member that is absent is put right behind the opening brace. One that is present is looked for by its key and
its raw value, which the partial decode gave us; a key may occur inside other values too, so each candidate is
tried: with the new value in place, the top-level member must read as the new value. JSON with the same key
twice is read as its last occurrence, by us as by the engine, and that is the one that gets replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

Body: TypeAlias = bytes | bytearray
BodyPart: TypeAlias = bytes | bytearray | memoryview

_WHITESPACE = b" \t\r\n"


class Edit(NamedTuple):
    """Replace ``body[start:end]``."""

    start: int
    end: int
    new: bytes


class CannotSpliceError(Exception):
    """The member is there but its key is written in an unusual way (escapes in the key)."""


def insert(body: Body, name: bytes, value: bytes) -> Edit:
    """Add a member that is absent. The body must be a JSON object."""
    brace = body.index(b"{") + 1
    rest = brace
    while body[rest : rest + 1] in (b" ", b"\t", b"\r", b"\n"):
        rest += 1
    comma = b"" if body[rest : rest + 1] == b"}" else b","
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
    decode = msgspec.json.Decoder(msgspec.defstruct("OneMember", [(name, msgspec.Raw, msgspec.Raw(b""))])).decode
    key = b'"%b"' % name.encode("ascii")
    at = body.find(key)
    while at >= 0:
        start = _value_start(body, at + len(key))
        if start is not None and body[start : start + len(old)] == old:
            edit = Edit(start, start + len(old), new)
            if _reads_as(decode, body, edit, name, new):
                return edit
        at = body.find(key, at + 1)
    raise CannotSpliceError(name)


def _value_start(body: Body, at: int) -> int | None:
    """Where the value of the key that ends at ``at`` begins, or None if no colon follows."""
    while body[at : at + 1] in (b" ", b"\t", b"\r", b"\n"):
        at += 1
    if body[at : at + 1] != b":":
        return None
    at += 1
    while body[at : at + 1] in (b" ", b"\t", b"\r", b"\n"):
        at += 1
    return at


def _reads_as(decode: object, body: Body, edit: Edit, name: str, new: bytes) -> bool:
    try:
        decoded = decode(b"".join(apply(body, (edit,))))  # type: ignore[operator]
    except (msgspec.DecodeError, RecursionError):
        return False
    return bytes(getattr(decoded, name)) == new


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
    it, and with ours added it would put usage on every chunk. Other members stay. Options of a wrong type are
    left to the engine to refuse.

    Raises:
        CannotSpliceError: see ``replace``.
    """
    if not stream_options:
        return insert(body, b"stream_options", b'{"include_usage":true}')
    if stream_options == b"null":
        return replace(body, "stream_options", stream_options, b'{"include_usage":true}')
    try:
        options = msgspec.json.decode(stream_options, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    asked = options.get("include_usage")
    if asked is not None and bytes(asked) == b"true":
        return None
    if asked is not None and bytes(asked) not in (b"false", b"null"):
        return None
    options["include_usage"] = msgspec.Raw(b"true")
    options.pop("continuous_usage_stats", None)
    return replace(body, "stream_options", stream_options, msgspec.json.encode(options))
