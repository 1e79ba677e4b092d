"""h11 as the oracle of what a request is: nothing is a request to us that is none to h11, and none is another one.

Where both read a request, it is the same to the last byte of its body. Where only h11 does, our answer is one of
``STRICTER``, each with the rule that lets us refuse it: h11 is lenient where RFC 9112 allows leniency, and we sit in
front of another server that may be lenient in another way.
"""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway import mutated
from tests.gateway.test_request_reader import LoneReader, OneJudge

from lmwarden.gateway import envelope
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.routes import ROUTES, authority_of, find_route, split_target
from lmwarden.types import KeyIdentity

_BOTH_FRAMINGS = "RFC 9112 6.1: a message with both framings may be an attack and can be refused"
_BARE_LF = "RFC 9112 2.2: a line ends with CRLF; a bare LF may be taken for it, and need not"
_FOLDED = "RFC 9112 5.2: a server refuses folded lines with 400, or unfolds them"
_ONE_LENGTH = "RFC 9112 6.3: a length that came twice may be refused, even where it is the same"
_VALUE = "RFC 9110 5.5: a value with control characters (h11 passes DEL) is invalid"
_CHUNK = "RFC 9112 7.1: chunk-size [ chunk-ext ] CRLF, without spaces; bare line ends are no part of an extension"
_TARGET = "RFC 9112 3.2: a target is a path, an absolute URI, an authority (CONNECT only) or an asterisk"
_VERSION = "RFC 9110 15.6.6: a version that is not spoken here"
_METHOD = "RFC 9110 15.6.2: a method that nothing here knows (llhttp has a table of them)"
_TRAILER = "RFC 9110 6.5.1: no framing in trailers"
_MALFORMED = {
    "Content-Length can't be present with Transfer-Encoding": f"{_BOTH_FRAMINGS}; {_TRAILER}",
    "Transfer-Encoding can't be present with Content-Length": _BOTH_FRAMINGS,
    "Content-Length overflow": f"{_BOTH_FRAMINGS}; h11 does not read the length then",
    "Invalid character in Content-Length": f"{_ONE_LENGTH}; {_BOTH_FRAMINGS}",
    "Empty Content-Length": f"{_BOTH_FRAMINGS}; {_TRAILER}",
    "Duplicate Content-Length": _ONE_LENGTH,
    "Invalid Transfer-Encoding header value": _TRAILER,
    "Empty Transfer-Encoding": _TRAILER,
    "Data after Connection: close": "RFC 9110 6.5.1: no Connection in trailers; the parser obeys it",
    "Expected CRLF after version": _BARE_LF,
    "Missing expected CR after header value": _BARE_LF,
    "Missing expected LF after header value": _BARE_LF,
    "Invalid header field char": _BARE_LF,
    "Expected LF after headers": _BARE_LF,
    "Unexpected whitespace after header value": _FOLDED,
    "Unexpected space after start line": _FOLDED,
    "Invalid header value char": _VALUE,
    "Expected LF after chunk size": _CHUNK,
    "Invalid character in chunk size": _CHUNK,
    "Invalid character in chunk extensions": _CHUNK,
    "Invalid character in chunk extensions name": _CHUNK,
    "Invalid character in chunk extensions value": _CHUNK,
    "Invalid character in chunk extensions quote value": _CHUNK,
    "Invalid character in chunk extensions quoted value": _CHUNK,
    "Missing expected CR after chunk size": _CHUNK,
    "Missing expected CR after chunk extension name": _CHUNK,
    "Missing expected CR after chunk extension value": _CHUNK,
    "Unexpected char in url schema": _TARGET,
    "Unexpected char in url server": _TARGET,
    "Unexpected start char in url": _TARGET,
    "Invalid characters in url": _TARGET,
    "Invalid HTTP version": _VERSION,
    "Invalid method encountered": _METHOD,
    "Invalid method for RTSP/x.x request": _METHOD,
    "Expected space after method": _METHOD,
}
"""The parser's words, and the rule."""
STRICTER = {envelope.malformed(words).message: rule for words, rule in _MALFORMED.items()} | {
    envelope.NO_PATH.message: "RFC 9110 9.3.6: CONNECT is for proxies; nothing is tunnelled here",
    envelope.BAD_VERSION.message: _VERSION,
    envelope.EXPECTATION.message: "RFC 9110 10.1.1: an expectation that is not known may get 417",
    envelope.BAD_TRANSFER_ENCODING.message: "RFC 9112 6.1: chunked in HTTP/1.0 is faulty framing; h11 reads it",
}


class Read(NamedTuple):
    """A request as somebody read it."""

    method: bytes
    route: str | None
    query: bytes
    first: dict[bytes, bytes]
    body: bytes
    http10: bool


def by_h11(data: bytes) -> list[Read]:
    """The requests that h11 reads, each by a connection of its own."""
    read: list[Read] = []
    while True:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(without_leniencies(data))
        head: h11.Request | None = None
        body = bytearray()
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    return read
        except h11.RemoteProtocolError:
            return read
        assert head is not None
        read.append(_read(head, bytes(body)))
        if read[-1].http10 or connection.their_state is h11.MUST_CLOSE or b"close" in _options(head):
            return read  # h11 does not say so itself where another protocol is offered
        data = connection.trailing_data[0]


def _options(head: h11.Request) -> set[bytes]:
    values = (value for name, value in head.headers if name == b"connection")
    return {option.strip().lower() for value in values for option in value.split(b",")}


_START = re.compile(rb"([^ \r\n]+) +([^ \r\n]+) +(?:HTTP|RTSP|ICE)(?=/1\.[01]\r\n)")


def without_leniencies(data: bytes) -> bytes:
    """What h11 gets to see of the beginning of a request where llhttp, our parser, is the more lenient one.

    None has to do with where a request ends, and nothing of it goes on to an engine.

    * Line ends before a request line are skipped in any form, a single CR too (RFC 9112 2.2 asks for it with CRLF).
    * There may be several spaces around the target (RFC 9112 3 allows to parse so).
    * It takes the names of two protocols like HTTP (RTSP, ICE) for that of HTTP.
    """
    data = data.lstrip(b"\r\n")
    found = _START.match(data)
    return data if found is None else b"%b %b HTTP%b" % (found[1], found[2], data[found.end() :])


def _read(head: h11.Request, body: bytes) -> Read:
    path, query = split_target(head.target)
    route = ROUTES.get(head.target) or find_route(path)
    first: dict[bytes, bytes] = {}
    for name, value in head.headers:
        first.setdefault(name, value)
    authority = authority_of(head.target)
    if authority is not None and b"host" in first:
        first[b"host"] = authority  # RFC 9112 3.2.2
    first.pop(b"content-length", None)  # its text: the bodies are compared
    served = route.name if route is not None else None
    return Read(head.method, served, query, first, body, head.http_version == b"1.0")


class Anybody(OneJudge):
    """Takes every request."""

    def examine(self, client_request: ClientRequest) -> Problem | None:
        return None

    def check_key(self, client_request: ClientRequest) -> Problem | None:
        client_request.key = KeyIdentity("k", b"d" * 16)
        return None


def by_us(data: bytes, pieces: int) -> tuple[list[Read], Problem | None]:
    """The requests that we read, and the problem that ended them."""
    reader = LoneReader(Anybody())
    size = max(1, len(data) // pieces)
    for at in range(0, len(data), size):
        reader.give(data[at : at + size])
    read: list[Read] = []
    for request in reader.requests:
        if request.problem is not None:
            return read, request.problem
        first = {name: value.strip(b" \t") for name, value in request.first.items() if name != b"content-length"}
        if request.chunked:
            first[b"transfer-encoding"] = first[b"transfer-encoding"].lower()  # as h11 does
        route = request.route.name if request.route is not None else None
        read.append(Read(request.method, route, request.query, first, bytes(request.body), request.http10))
    return read, None


def compare(data: bytes, pieces: int = 1) -> None:
    """Fail where we read what h11 does not, or refuse without a reason that is listed."""
    theirs = by_h11(data)
    ours, problem = by_us(data, pieces)
    assert ours == theirs[: len(ours)], "another request, or one where there is none"
    if len(theirs) > len(ours):
        assert problem is not None, "we wait for more of a request that is complete"
        assert problem.message in STRICTER


@settings(max_examples=300, deadline=None)
@given(rng=st.randoms(use_true_random=False), pieces=st.sampled_from([1, 1, 2, 5, 1000]))
def test_no_request_to_us_that_is_none_to_h11(rng: Random, pieces: int) -> None:
    compare(mutated.requests(rng), pieces)


@pytest.mark.parametrize("seed", range(0, 4000, 1000))
def test_seeds(seed: int) -> None:
    for number in range(seed, seed + 1000):
        compare(mutated.requests(Random(number)), 1 + number % 4)


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_the_corpus(pieces: int) -> None:
    for data in mutated.corpus():
        compare(data, pieces)


def test_the_comparison_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"POST /v1/messages HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\nab"
    compare(data)
    monkeypatch.setattr("tests.gateway.test_against_h11.by_us", lambda data, pieces: ([], None))
    with pytest.raises(AssertionError, match="complete"):
        compare(data)
    monkeypatch.setattr("tests.gateway.test_against_h11.by_us", lambda data, pieces: ([], envelope.NO_HOST))
    with pytest.raises(AssertionError):
        compare(data)
    monkeypatch.setattr("tests.gateway.test_against_h11.by_us", lambda data, pieces: (by_h11(data) * 2, None))
    with pytest.raises(AssertionError, match="another"):
        compare(data)
