"""A head that repeats need not be parsed again.

On a connection that is kept alive, one head follows another that differs in nothing but the digits of its
Content-Length: an agent's next call, an engine's next answer. A head that httptools has parsed and that framed its
message by a plain Content-Length is remembered in two parts, before and after those digits. Bytes that begin with the
same two parts around other digits are the same head with another length; there is nothing left in it to judge, and
nothing that two readers could read differently.

Only what the head says is remembered, never a decision: whether the key that it carries is still good is asked anew for
every request. A head is only remembered by the call that gave its bytes, and no others, to the parser.
"""

from __future__ import annotations

import re

import msgspec

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})(?=\r\n)", re.IGNORECASE)
_MAX_HEAD_BYTES = 8192
"""Longer heads are not worth their memory."""
_MAX_DIGITS = 12
MAX_MISSES = 8
"""So many heads in a row that were not known, and a connection stops remembering: its peer never repeats itself."""


class KnownHead(msgspec.Struct, frozen=True, gc=False):
    """A head around the digits of its Content-Length. Slices are compared, because that takes a third of the time of
    ``startswith`` and ``find``."""

    before: bytes
    after: bytes
    """Up to and with the empty line."""
    start: int
    """Where the digits begin."""
    end: int
    """Where they ended in the head that was remembered, and most often do again."""
    after_bytes: int

    def match(self, data: bytes) -> tuple[int, int] | None:
        """If ``data`` begins with this head: the length that it gives, and where the body begins."""
        start, end, size = self.start, self.end, self.after_bytes
        if data[:start] != self.before:
            return None
        if data[end : end + size] != self.after:
            end = data.find(b"\r", start, start + _MAX_DIGITS + 1)
            if end < 0 or data[end : end + size] != self.after:
                return None
        digits = data[start:end]
        return (int(digits), end + size) if digits.isdigit() else None


def remember(data: bytes) -> KnownHead | None:
    """The head at the beginning of ``data``, which httptools has accepted; None if it is not worth it."""
    end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
    if end < 0:
        return None
    found = _LENGTH.search(data, 0, end + 2)
    if found is None:
        return None
    start, digits_end = found.span(1)
    after = data[digits_end : end + 4]
    return KnownHead(data[:start], after, start, digits_end, len(after))
