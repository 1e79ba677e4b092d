"""Framings of a relayed answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    head = client_head(status, lines, framing, (b"X-Ours: ", b"1\r\n"), close=http10)
    fields = head.split(b"\r\n")[1:]
    framings = [line for line in fields if line.lower().startswith((b"content-length", b"transfer-encoding"))]
    assert len(framings) == (0 if framing is Framing.PLAIN or status == 204 else 1)
    assert head.endswith(b"\r\n\r\n")
    assert (b"Connection: close" in fields) is http10


PING = b": p\n\n"


def chunks(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def body_of(framed: bytes) -> tuple[bytes, bytes]:
    """The body in complete chunks, and what is left over."""
    body = b""
    while b"\r\n" in framed:
        size, _, rest = framed.partition(b"\r\n")
        length = int(size, 16)
        if len(rest) < length + 2:
            break
        assert rest[length : length + 2] == b"\r\n"
        body, framed = body + rest[:length], rest[length + 2 :]
    return body, framed


@given(
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    sizes=st.lists(st.integers(min_value=1, max_value=70), min_size=1, max_size=30),
    reads=st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=200),
    text=st.sampled_from([b"data: x", b"event: a\ndata: 4", b": c", b"data: 2\ndata: 2", b"id: 1\r\n1"]),
)
def test_a_ping_comes_between_two_events_and_two_chunks_or_not_at_all(
    end: bytes, sizes: list[int], reads: list[int], text: bytes
) -> None:
    """Whatever the engine's chunks and the network's pieces are, also where a body looks like framing."""
    # What has CRLF stays: CR CRLF would be the end of an event.
    event = (text if b"\r\n" in text else text.replace(b"\n", end)) + end + end
    body = event * 6
    pieces, at = [], 0
    for size in sizes * len(body):
        if at >= len(body):
            break
        pieces.append(body[at : at + size])
        at += size
    framed = chunks(pieces)
    relay = Relay(Framing.RAW, ChatTap())
    sent, at, fed, pinged = b"", 0, 0, 0
    for read in reads * len(framed):
        if at >= len(framed):
            break
        raw = framed[at : at + read]
        at += read
        # As the parser does: the pieces of the body of this read, complete or not.
        seen = _body_so_far(framed[:at])
        if len(seen) > fed:
            relay.tap.feed(seen[fed:])
            fed = len(seen)
        sent += relay.read(raw)
        ping = relay.ping(PING)
        if ping is not None:
            assert body_of(framed[:at])[1] == b"", "inside of a chunk"
            assert fed % len(event) == 0, "inside of an event"
            sent += ping
            pinged += 1
    received, rest = body_of(sent)
    assert rest == b""
    assert received.replace(PING, b"") == body
    assert received.count(PING) == pinged


def _body_so_far(framed: bytes) -> bytes:
    body, rest = body_of(framed)
    size, line_end, piece = rest.partition(b"\r\n")
    return body + piece[: int(size, 16)] if line_end else body


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_whole_event_in_a_whole_chunk_is_a_place_for_a_ping(end: bytes) -> None:
    dull = DULL.replace(b"\n", end)
    relay = Relay(Framing.RAW, ChatTap())
    framed = b"%x\r\n%b" % (len(dull), dull)
    relay.tap.feed(dull)
    assert relay.read(framed) == framed
    assert relay.ping(PING) is None  # the chunk's own line end is still to come
    assert relay.read(b"\r\n") == b"\r\n"
    assert relay.ping(PING) == b"5\r\n: p\n\n\r\n"
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
