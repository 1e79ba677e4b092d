"""Which header lines go on and which stop."""

from __future__ import annotations

import pytest

from lmwarden.gateway.heads import STATUS_LINES, NameTable, bearer, read_request_lines, read_response_lines


def text(fragments: list[bytes]) -> bytes:
    return b"".join(fragments)


def test_request_lines_keep_order_spelling_and_repetition() -> None:
    lines = [(b"X-A", b"1"), (b"Host", b"h"), (b"x-a", b"2"), (b"Anthropic-Beta", b"b"), (b"X-LMWarden-Decision", b"x")]
    first, onward, repeated = read_request_lines(lines)
    assert text(onward) == b"X-A: 1\r\nx-a: 2\r\nAnthropic-Beta: b\r\n"
    assert first[b"x-a"] == b"1"
    assert first[b"x-lmwarden-decision"] == b"x"
    assert repeated == frozenset((b"x-a",))
    assert read_request_lines(lines[:2])[2] is None


def test_connection_names_headers_of_this_hop_wherever_it_stands() -> None:
    lines = [
        (b"X-Hop", b"1"),
        (b"Connection", b"x-hop , X-Other"),
        (b"connection", b"X-Third"),
        (b"X-OTHER", b"2"),
        (b"X-Third", b"3"),
    ]
    lines.append((b"X-Kept", b"4"))
    assert text(read_request_lines(lines)[1]) == b"X-Kept: 4\r\n"
    assert text(read_response_lines(lines).onward) == b"X-Kept: 4\r\n"


def test_connection_cannot_name_what_the_engine_needs() -> None:
    lines = [(b"Connection", b"content-type, anthropic-version"), (b"Content-Type", b"application/json")]
    assert text(read_request_lines(lines)[1]) == b"Content-Type: application/json\r\n"


def test_response_lines() -> None:
    head = read_response_lines(
        [
            (b"Content-Type", b" Text/Plain "),
            (b"Content-Length", b"5"),
            (b"Server", b"uvicorn"),
            (b"Content-Encoding", b"gzip"),
            (b"TE", b"x"),
        ]
    )
    assert (head.content_type, head.content_length, head.transfer_encoding, head.content_encoding) == (
        b"text/plain",
        b"5",
        None,
        b"gzip",
    )
    assert text(head.onward) == b"Content-Type:  Text/Plain \r\nServer: uvicorn\r\nContent-Encoding: gzip\r\n"
    assert read_response_lines([(b"Transfer-Encoding", b"chunked")]).transfer_encoding == b"chunked"


def test_the_table_of_names_is_bounded() -> None:
    table = NameTable(frozenset((b"stop",)), (b"x-stop-",))
    for number in range(10_000):
        assert table.learn(b"X-%d" % number) == (b"x-%d" % number, True)
    assert len(table.known) <= 2048
    fresh = NameTable(frozenset(), ())
    for size in (64, 65, 8_000):
        assert fresh.learn(b"X" * size) == (b"x" * size, True)
    assert list(fresh.known) == [b"X" * 64]
    assert table.learn(b"STOP") == (b"stop", False)
    assert table.learn(b"X-Stop-It") == (b"x-stop-it", False)


@pytest.mark.parametrize(
    ("value", "credential"),
    [
        (b"Bearer a", b"a"),
        (b"bearer  a ", b"a"),
        (b"Basic a", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"", None),
    ],
)
def test_bearer(value: bytes, credential: bytes | None) -> None:
    assert bearer(value) == credential


def test_status_lines() -> None:
    assert STATUS_LINES[200] == b"HTTP/1.1 200 OK\r\n"
    assert STATUS_LINES[529] == b"HTTP/1.1 529 Overloaded\r\n"
    assert STATUS_LINES[299].startswith(b"HTTP/1.1 299 ")
