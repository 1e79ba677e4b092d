"""Framings of a relayed answer."""

from __future__ import annotations

import pytest

from lmwarden.gateway.heads import ResponseLines
from lmwarden.gateway.relay import Framing, Relay, choose_framing, client_head
from lmwarden.gateway.sse_filter import UsageEventFilter
from lmwarden.gateway.stream_taps import ChatTap
from lmwarden.gateway.usage import NO_TAP

DULL = b'data: {"choices":[{"delta":{},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'


@pytest.mark.parametrize(
    ("length", "encoding", "status", "http10", "filtered", "framing"),
    [
        (b"5", None, 200, False, False, Framing.RAW),
        (None, b"chunked", 200, False, False, Framing.RAW),
        (None, b"chunked", 200, False, True, Framing.CHUNKED),
        (b"5", None, 200, False, True, Framing.CHUNKED),
        (None, None, 200, False, False, Framing.CHUNKED),
        (None, None, 204, False, False, Framing.RAW),
        (b"5", None, 200, True, False, Framing.RAW),
        (None, b"chunked", 200, True, False, Framing.PLAIN),
        (b"5", None, 200, True, True, Framing.PLAIN),
    ],
)
def test_choose_framing(
    length: bytes | None, encoding: bytes | None, status: int, http10: bool, filtered: bool, framing: Framing
) -> None:
    lines = ResponseLines([], content_length=length, transfer_encoding=encoding)
    assert choose_framing(lines, status=status, http10=http10, filtered=filtered) is framing
    head = client_head(status, lines, framing, b"X-Ours: 1\r\n", close=http10)
    fields = head.split(b"\r\n")[1:]
    framings = [line for line in fields if line.lower().startswith((b"content-length", b"transfer-encoding"))]
    assert len(framings) == (0 if framing is Framing.PLAIN or status == 204 else 1)
    assert head.endswith(b"\r\n\r\n")
    assert (b"Connection: close" in fields) is http10


def test_raw_passes_bytes_and_allows_a_ping_at_the_end_of_a_chunk() -> None:
    relay = Relay(Framing.RAW, ChatTap(), None)
    relay.tap.feed(DULL)
    assert relay.read(b"36\r\n" + DULL) == b"36\r\n" + DULL
    assert relay.ping(b": p\n\n") is None  # the chunk's own CRLF is still to come
    assert relay.read(b"\r\n") == b"\r\n"
    assert relay.ping(b": p\n\n") is None
    relay.tap.feed(DULL)
    relay.read(b"36\r\n" + DULL + b"\r\n")
    assert relay.ping(b": p\n\n") == b"5\r\n: p\n\n\r\n"
    assert relay.end(b"0\r\n\r\n") == b"0\r\n\r\n"


def test_chunked_withholds_usage_and_ends_itself() -> None:
    relay = Relay(Framing.CHUNKED, ChatTap(), UsageEventFilter())
    relay.piece(DULL)
    relay.piece(DULL)
    assert relay.read(b"ignored") == b"%x\r\n%b\r\n" % (2 * len(DULL), DULL * 2)
    relay.piece(USAGE)
    assert relay.read(b"ignored") == b""
    relay.piece(USAGE[:9])
    assert relay.ping(b": p\n\n") is None
    relay.piece(USAGE[9:])
    relay.piece(b"data: [DONE]\n")
    assert relay.end(b"ignored") == b"d\r\ndata: [DONE]\n\r\n0\r\n\r\n"


def test_plain_has_no_framing() -> None:
    relay = Relay(Framing.PLAIN, ChatTap(), None)
    relay.piece(DULL)
    assert relay.read(b"x") == DULL
    assert relay.ping(b": p\n\n") == b": p\n\n"
    relay = Relay(Framing.PLAIN, NO_TAP, None)
    assert relay.ping(b": p\n\n") is None
    assert relay.end(b"x") == b""
