"""Changes single top-level members of a JSON body and leaves every other byte as it came.

A body is never parsed and written again: that would change numbers, escapes and the order of keys, and with them
the prompt's bytes. Two edits exist: the model's name (an alias becomes the engine's own name) and
``stream_options.include_usage``.

A member that is absent is put right behind the opening brace. One that is present is looked for by its key and
its raw value, which the partial decode gave us. The key may occur inside other values too, so the body is read once
more with a number in the place of each candidate's value: the number that the top-level member then has says which
one it is. JSON with the same key twice is read as its last occurrence, by us as by the engine, and that is the one
that gets replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

Body: TypeAlias = bytes | bytearray
BodyPart: TypeAlias = bytes | bytearray | memoryview

_MAX_CANDIDATES = 1000
"""A body in which the same key stands before the same value more often than this is no honest one."""


class Edit(NamedTuple):
    """Replace ``body[start:end]``."""

    start: int
    end: int
    new: bytes


class CannotSpliceError(Exception):
    """The member is there, but written in an unusual way: escapes in its key, or too many like it."""


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
    key = b'"%b"' % name.encode("ascii")
    candidates: list[Edit] = []
    at = body.find(key)
    while at >= 0:
        start = _value_start(body, at + len(key))
        if start is not None and body[start : start + len(old)] == old:
            if len(candidates) == _MAX_CANDIDATES:
                raise CannotSpliceError(name)
            candidates.append(Edit(start, start + len(old), b"%d" % len(candidates)))
        at = body.find(key, at + len(key))
    shape = msgspec.defstruct("OneMember", [(name, msgspec.Raw, msgspec.Raw(b""))])
    try:
        found = bytes(getattr(msgspec.json.decode(b"".join(apply(body, candidates)), type=shape), name))
    except (msgspec.DecodeError, RecursionError):
        found = b""
    if not candidates or not found.isdigit() or int(found) >= len(candidates):
        raise CannotSpliceError(name)
    return candidates[int(found)]._replace(new=new)


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


def is_true(raw: bytes) -> bool:
    """Whether a JSON value is true to vLLM, whose models (pydantic's) take 1, 1.0, "yes" and the like for true."""
    if raw == b"true":
        return True
    if not raw or raw in (b"false", b"null"):
        return False
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return value.lower() in _TRUE_WORDS if isinstance(value, str) else isinstance(value, int | float) and value == 1
