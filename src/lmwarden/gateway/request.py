"""A client's request: what its head says, and whether we serve it.

``examine`` judges by the head alone, before a byte of the body is read: framing that two readers could read
differently, paths that are not served, missing or wrong keys, bodies that are too large. llhttp has refused
most ambiguities already (both framings, repeated Content-Length, folded lines); what it lets through
(``gzip, chunked``, chunked in HTTP/1.0, a missing or repeated Host) is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from types import MappingProxyType

import msgspec

from lmwarden.gateway import envelope
from lmwarden.gateway.client_kind import client_of
from lmwarden.gateway.codings import coding_of
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.heads import Lines, bearer, read_request_lines
from lmwarden.gateway.pool import EnginePool
from lmwarden.gateway.routes import ROUTES, Api, Route, api_of, authority_of, find_route, split_target
from lmwarden.gateway.settings import Authenticator
from lmwarden.routing.identity import Asker
from lmwarden.types import KeyIdentity

_HOST_AND_PORT = re.compile(rb"(\[[^]]*\]|[^]\[:]*)(?::[0-9]*)?")
NO_HEADERS: Mapping[bytes, bytes] = MappingProxyType({})


_MAX_LOCAL_BODY_BYTES = 64 * 1024
"""Largest body of a request that we answer ourselves, mostly without a key. It is of no use to anybody."""


def body_limit(request: ClientRequest, max_body_bytes: int) -> int:
    """How large the body of this request may be."""
    if request.route is not None and request.route.local is not None:
        return min(_MAX_LOCAL_BODY_BYTES, max_body_bytes)
    return max_body_bytes


class HeadNotes:
    """What was worked out from a head, for the requests that repeat it."""

    __slots__ = ("asker", "client", "engine_head", "key", "model", "pool", "rank_line")

    def __init__(self, client: str | None) -> None:
        self.client = client
        """See ``client_kind``."""
        self.asker: Asker | None = None
        """Of a request with this head for ``model`` by ``key``."""
        self.model = ""
        self.key: KeyIdentity | None = None
        self.engine_head = b""
        """As it last went to an engine, up to the digits of its Content-Length ..."""
        self.pool: EnginePool | None = None
        """... by this pool ..."""
        self.rank_line = b""
        """... with this line."""


class ClientRequest(msgspec.Struct, eq=False):
    """One request as it came in. ``problem`` set: it is answered with that and goes nowhere."""

    method: bytes
    close: bool
    """The connection ends after the answer. Always so in HTTP/1.0."""
    http10: bool = False
    route: Route | None = None
    api: Api = Api.OPENAI
    query: bytes = b""
    """With its question mark."""
    first: Mapping[bytes, bytes] = NO_HEADERS
    """Lower-case header name to the first value of that name."""
    onward: Sequence[bytes] = ()
    """The header lines that go to the engine, in fragments."""
    repeated: frozenset[bytes] | None = None
    """Header names that came more than once."""
    content_length: int | None = 0
    """None: chunked."""
    expects_continue: bool = False
    credential: bytes | None = None
    """As the client sent it; goes nowhere but to the authenticator."""
    key: KeyIdentity | None = None
    """Whose key the credential is."""
    notes: HeadNotes | None = None
    """Shared by all requests that repeat a head; None: it is not one that may repeat."""
    coding: str = ""
    """Of the body, until it is decoded; empty: none."""
    body: bytes | bytearray = b""
    problem: Problem | None = None
    unread: bool = False
    """The answer goes out before the request was read to its end."""

    @property
    def key_digest(self) -> bytes:
        """Of the API key; empty if there is none or it is not known."""
        return self.key.digest if self.key is not None else b""

    @property
    def rememberable(self) -> bool:
        """Whether the same head with another Content-Length would be judged alike, but for its key and its size."""
        return (
            self.problem is None
            and bool(self.content_length)
            and not self.close
            and not self.expects_continue
            and self.route is not None
            and self.route.local is None
            and b"upgrade" not in self.first
            and b"origin" not in self.first
        )

    @property
    def chunked(self) -> bool:
        """The body has no Content-Length."""
        return self.content_length is None

    def copied(self) -> ClientRequest:
        """The same head for other requests; later changes to this one do not reach it."""
        copy = with_length(self, 0)
        copy.onward = (b"".join(self.onward),)
        copy.notes = HeadNotes(client_of(self.first))
        return copy


def with_length(model: ClientRequest, length: int) -> ClientRequest:
    """A request whose head is that of ``model`` but for its Content-Length; its key is to be checked once more."""
    return ClientRequest(
        model.method,
        False,
        False,
        model.route,
        model.api,
        model.query,
        model.first,
        model.onward,
        model.repeated,
        length,
        False,
        model.credential,
        model.key,
        model.notes,
        model.coding,
    )


def read_head(method: bytes, target: bytes, version: str, lines: Lines, close: bool) -> ClientRequest:
    """Read a head. Ambiguous framing becomes the request's ``problem``."""
    first, onward, repeated = read_request_lines(lines)
    http10 = version == "1.0"
    route, query = ROUTES.get(target), b""
    if route is None:
        path, query = split_target(target)
        route = find_route(path)
        authority = authority_of(target)
        if authority is not None and b"host" in first:
            first[b"host"] = authority
    if route is not None and method == route.method:
        method = route.method  # one for all: thousands of streams are held open
    api = route.api if route is not None else api_of(path)
    if b"anthropic-version" in first:
        api = Api.ANTHROPIC
    length = first.get(b"content-length")
    size = int(length) if length is not None else 0
    request = ClientRequest(method, close or http10, http10, route, api, query, first, onward, repeated, size)
    if length is None or repeated is not None or b"expect" in first or b"host" not in first or version != "1.1":
        request.problem = _unusual_framing(request, version)
    return request


def _unusual_framing(request: ClientRequest, version: str) -> Problem | None:
    """Everything but a plain HTTP/1.1 request with a Content-Length."""
    first, repeated = request.first, request.repeated or frozenset()
    if version not in ("1.0", "1.1"):
        return envelope.BAD_VERSION
    if b"host" in repeated or (b"host" not in first and not request.http10):
        return envelope.NO_HOST
    encoding = first.get(b"transfer-encoding")
    if encoding is not None:
        if encoding.strip().lower() != b"chunked" or request.http10 or b"transfer-encoding" in repeated:
            return envelope.BAD_TRANSFER_ENCODING
        request.content_length = None
    expect = first.get(b"expect")
    if expect is not None and not request.http10:
        if expect.strip().lower() != b"100-continue":
            return envelope.EXPECTATION
        request.expects_continue = True
    return None


def examine(
    request: ClientRequest, authenticator: Authenticator, max_body_bytes: int, own_host: str = ""
) -> Problem | None:
    """Whether a request with valid framing is served; None: it is.

    Args:
        own_host: the name or address that we listen on.
    """
    route = request.route
    if request.method == b"OPTIONS" or (
        b"origin" in request.first and not authenticator.required and not _own_page(request, own_host)
    ):
        return envelope.FOREIGN_PAGE
    if route is None:
        return envelope.NO_PATH
    if request.method != route.method:
        return Problem(404, f"This path takes {route.method.decode()} only.", "not_found")
    if route.needs_key:
        problem = _authenticate(request, authenticator)
        if problem is not None:
            return problem
    if b"content-encoding" in request.first:
        coding = coding_of(request.first[b"content-encoding"])
        if coding is None or (request.repeated is not None and b"content-encoding" in request.repeated):
            return envelope.UNKNOWN_CODING
        request.coding = coding
    limit = body_limit(request, max_body_bytes)
    if request.content_length is not None and request.content_length > limit:
        return envelope.too_large(limit)
    return None


def _own_page(request: ClientRequest, own_host: str) -> bool:
    """Whether a browser's request comes from a page of this very server.

    Without keys, reaching the port is all it takes, and a page from anywhere can make its visitor's browser reach it:
    across origins, which ``Origin`` tells, or by a name of its own that it has made to point here. That name then
    stands in both lines. An address or ``localhost`` cannot be made to point elsewhere.
    """
    host = request.first.get(b"host", b"").strip().lower()
    _, scheme_end, origin = request.first[b"origin"].strip().lower().partition(b"://")
    if not scheme_end or origin != host or (request.repeated is not None and b"origin" in request.repeated):
        return False
    parts = _HOST_AND_PORT.fullmatch(host)
    if parts is None:
        return False
    name = parts[1].decode("latin-1")
    if name in ("localhost", own_host.lower()) or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _authenticate(request: ClientRequest, authenticator: Authenticator) -> Problem | None:
    """Either form of the key will do; two that differ will not, whether or not keys are required."""
    first = request.first
    credential = bearer(first[b"authorization"]) if b"authorization" in first else None
    if b"x-api-key" in first:
        api_key = first[b"x-api-key"].strip()
        if credential is None:
            credential = api_key or None
        elif api_key and api_key != credential:
            return envelope.TWO_KEYS
    if request.repeated and not request.repeated.isdisjoint((b"authorization", b"x-api-key")):
        return envelope.TWO_KEYS
    request.credential = credential
    return check_key(request, authenticator)


def check_key(request: ClientRequest, authenticator: Authenticator) -> Problem | None:
    """Check the credential that was read from the head, or once more the key that it was found to be."""
    key = request.key
    if key is not None:
        request.key = key = authenticator.still_good(key)
        if key is not None:
            return None
    credential = request.credential
    if credential is None:
        return envelope.NO_KEY if authenticator.required else None
    request.key = authenticator.check(credential)
    if request.key is None and authenticator.required:
        return envelope.UNKNOWN_KEY
    return None
