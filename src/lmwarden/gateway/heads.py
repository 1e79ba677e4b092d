"""Request and response heads: which header lines go on, which stop here, and what we add.

A message head is read once into a list of (name, value) by httptools, which already refuses everything ambiguous
that llhttp knows (two framings, folded lines, bare LF, spaces before the colon). This module classifies each line
by its name. Names repeat endlessly, so their class is remembered in a bounded table, keyed by the spelling that
came in; the usual cost of a line is one dictionary look-up.

Client to engine: everything goes on, unknown names too (``anthropic-*`` and ``x-claude-code-*`` are open lists),
except hop-by-hop headers and those that ``Connection`` names, the client's credentials, framing, the coding of the
body (it goes on decoded), what would make the engine compress a generation, ranks (we set the only one), and names by
which a client could pretend to be a proxy in front of us. Engine to client: everything but hop-by-hop headers, framing
and our own names.
"""

from __future__ import annotations

import msgspec

from lmwarden.gateway.envelope import REASON_PHRASES

Lines = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
_NOT_TO_ENGINE = _HOP_BY_HOP | frozenset(
    (
        b"host",
        b"content-length",
        b"content-encoding",
        b"expect",
        b"authorization",
        b"x-api-key",
        b"accept-encoding",
        b"x-data-parallel-rank",
        b"forwarded",
        b"x-real-ip",
    )
)
_NOT_TO_ENGINE_PREFIXES = (b"x-lmwarden-", b"x-forwarded-", b"x-gateway-", b"x-envoy-")
_NOT_TO_CLIENT = _HOP_BY_HOP | {b"content-length"}
_NOT_TO_CLIENT_PREFIXES = (b"x-lmwarden-",)

_MAX_REMEMBERED = 2048


class NameTable:
    """Remembers per spelling of a header name: its lower-case form, and whether the line goes on."""

    __slots__ = ("_prefixes", "_stop", "known")

    def __init__(self, stop: frozenset[bytes], prefixes: tuple[bytes, ...]) -> None:
        self._stop = stop
        self._prefixes = prefixes
        self.known: dict[bytes, tuple[bytes, bool]] = {}

    def learn(self, name: bytes) -> tuple[bytes, bool]:
        """Classify a name that is not known yet."""
        lower = name.lower()
        entry = (lower, lower not in self._stop and not lower.startswith(self._prefixes))
        if len(self.known) < _MAX_REMEMBERED and len(name) <= 64:
            self.known[name] = entry
        return entry


_REQUEST_NAMES = NameTable(_NOT_TO_ENGINE, _NOT_TO_ENGINE_PREFIXES)
_RESPONSE_NAMES = NameTable(_NOT_TO_CLIENT, _NOT_TO_CLIENT_PREFIXES)


def read_request_lines(lines: Lines) -> tuple[dict[bytes, bytes], list[bytes], frozenset[bytes] | None]:
    """Sort out a request's header lines.

    Returns:
        The first value of each lower-case name; the text that goes to the engine, in fragments; and the names
        that came more than once (None: none did).
    """
    known = _REQUEST_NAMES.known
    first: dict[bytes, bytes] = {}
    onward: list[bytes] = []
    repeated: set[bytes] | None = None
    for name, value in lines:
        try:
            lower, goes_on = known[name]
        except KeyError:
            lower, goes_on = _REQUEST_NAMES.learn(name)
        if lower in first:
            repeated = repeated or set()
            repeated.add(lower)
        else:
            first[lower] = value
        if goes_on:
            onward += (name, b": ", value, b"\r\n")
    if b"connection" in first:
        nominated = _nominated(lines)
        if nominated:
            onward = _without(onward, nominated)
    return first, onward, None if repeated is None else frozenset(repeated)


_USUAL_OPTIONS = frozenset((b"keep-alive", b"close", b"upgrade", b"te", b"http2-settings", b""))
_END_TO_END = frozenset(
    (b"content-type", b"content-encoding", b"cache-control", b"anthropic-version", b"anthropic-beta")
)
"""Naming these in Connection is an attack (or a mistake) that would change what the engine understands."""


def _nominated(lines: Lines) -> set[bytes]:
    """The header names that ``Connection`` declares to be for this hop only."""
    names: set[bytes] = set()
    for name, value in lines:
        if name.lower() == b"connection":
            names.update(option.strip().lower() for option in value.split(b","))
    return names - _USUAL_OPTIONS - _END_TO_END


def _without(fragments: list[bytes], names: set[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    for at in range(0, len(fragments), 4):
        if fragments[at].lower() not in names:
            kept += fragments[at : at + 4]
    return kept


class ResponseLines(msgspec.Struct, gc=False):
    """An engine's response head, sorted out."""

    onward: list[bytes]
    """The text that goes to the client, in fragments."""
    content_type: bytes = b""
    """In lower case, without white space around it."""
    content_encoding: bytes = b""
    content_length: bytes | None = None
    transfer_encoding: bytes | None = None


def read_response_lines(lines: Lines) -> ResponseLines:
    """Sort out an engine's header lines."""
    known = _RESPONSE_NAMES.known
    onward: list[bytes] = []
    head = ResponseLines(onward)
    nominating = False
    for name, value in lines:
        try:
            lower, goes_on = known[name]
        except KeyError:
            lower, goes_on = _RESPONSE_NAMES.learn(name)
        if goes_on:
            onward += (name, b": ", value, b"\r\n")
        if lower in _LOOKED_AT:
            if lower == b"content-type":
                head.content_type = value.strip().lower()
            elif lower == b"content-length":
                head.content_length = value
            elif lower == b"transfer-encoding":
                earlier = head.transfer_encoding
                head.transfer_encoding = value if earlier is None else earlier + b", " + value
            elif lower == b"content-encoding":
                head.content_encoding += b", " + value if head.content_encoding else value
            else:
                nominating = True
    if nominating:
        nominated = _nominated(lines)
        if nominated:
            head.onward = _without(onward, nominated)
    return head


def decoded_lines(head: ResponseLines) -> ResponseLines:
    """The head of the same answer without its content coding, whose length is then not known."""
    onward = _without(head.onward, {b"content-encoding"})
    return ResponseLines(onward, head.content_type, b"", None, head.transfer_encoding)


_LOOKED_AT = frozenset((b"content-type", b"content-length", b"transfer-encoding", b"content-encoding", b"connection"))


class _StatusLines(dict[int, bytes]):
    """``HTTP/1.1 200 OK`` with its line end, by status."""

    def __missing__(self, status: int) -> bytes:
        return b"HTTP/1.1 %d Status\r\n" % status


STATUS_LINES = _StatusLines({named[0]: b"HTTP/1.1 %d %b\r\n" % named for named in REASON_PHRASES.items()})


def bearer(value: bytes) -> bytes | None:
    """The credential of an Authorization header, or None if it has another scheme or is empty."""
    scheme, _, credential = value.strip().partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    return credential.strip() or None
