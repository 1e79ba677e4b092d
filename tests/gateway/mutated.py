"""Requests as a client might write them, and as an attacker would: made by a grammar, then changed a little.

Everything is drawn from one ``random.Random``, so that a seed names an input and hypothesis can shrink one. The parts
that are put in are those with which servers were led to disagree about where a request ends: two framings, folded
lines, bare line ends, odd chunk sizes, extensions, trailers, names and values with forbidden bytes.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.gateway.coded import ENCODERS
from tests.gateway.conftest import KEY

METHODS = [b"POST"] * 40 + [b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"CONNECT", b"PATCH", b"post", b"FOO"]
TARGETS = [
    *[b"/v1/chat/completions", b"/v1/messages", b"/v1/messages?beta=true"] * 30,
    b"/v1/responses",
    b"/v1/embeddings",
    b"/v1/models",
    b"/healthz",
    b"/readyz",
    b"/",
    b"/sleep",
    b"/v1/../sleep",
    b"//v1//messages/",
    b"http://gateway/v1/messages",
    b"HTTP://other:80/healthz?x",
    b"*",
    b"g:443",
    b"/v1/messages#x",
    b"/v1/messages?a b",
    b"/v1/messages\x00",
    b"/v1/messages\t",
    b"/\xff",
    b"/\x7f",
    b"/v1/%6dessages",
    b"http://",
    b"?x",
    b"/" + b"a" * 300,
    b"//",
    b"///evil/",
    b"/v1/messages;x",
    b"https://h/v1/messages\xe9",
]
VERSIONS = (
    [b"HTTP/1.1"] * 70
    + [b"HTTP/1.0"] * 6
    + [
        b"HTTP/0.9",
        b"HTTP/1.2",
        b"HTTP/2.0",
        b"http/1.1",
        b"HTTP/11",
        b"HTTP/1.1 ",
        b"",
        b"RTSP/1.0",
    ]
)
BODIES = [
    b"",
    b'{"model":"m"}',
    b'{"model":"m","messages":[{"role":"user","content":"hello"}]}',
    b'{"model":"m","stream":true,"messages":[]}',
    b'{"model":"other"}',
    b"{" * 40,
    b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n",
    b"0\r\n\r\n",
    b"\r\n\r\n",
    b"x" * 700,
]
CODED = [(coding.encode(), encode(body)) for coding, encode in ENCODERS.values() for body in BODIES]
"""Compressed bodies with their codings."""
LINES = [
    b"Host: gateway",
    b"host: other",
    b"Host:",
    b"Host: a, b",
    b"Host: gateway:80",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"content-length: 13",
    b"Content-Length: 5, 5",
    b"Content-Length: 5, 6",
    b"Content-Length: +5",
    b"Content-Length: -1",
    b"Content-Length: 0x5",
    b"Content-Length: 5 5",
    b"Content-Length:",
    b"Content-Length: 00005",
    b"Content-Length: 99999999999999999999",
    b"Content-Length : 5",
    b"Content-Length\t: 5",
    b"Content-Length: 5\t",
    b"Content-Length: \x0b5",
    b"Content-Length: 5;",
    b"Content_Length: 5",
    b"Content-Length: 1_0",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: CHUNKED",
    b"transfer-encoding:chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: x",
    b"Transfer-Encoding:",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: chunked;q=1",
    b'Transfer-Encoding: "chunked"',
    b"Transfer-Encoding: chunked\x00",
    b"Transfer-Encoding: ,chunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer\xadEncoding: chunked",
    b" Transfer-Encoding: chunked",
    b"X-A: b\r\n folded",
    b"X-A: b\r\n\tContent-Length: 5",
    b"X-A: b\nTransfer-Encoding: chunked",
    b"X-A: b\rContent-Length: 9",
    b"X-A: b\x00c",
    b"X-A: b\x01c",
    b"X-A: \x7f",
    b"X-A: \xff\xfe",
    b"X A: b",
    b"X-A",
    b": b",
    b"X-A:",
    b"X-A:\t b \t",
    b"(x): y",
    b"X-A\x00: b",
    b"X-A\x7f: b",
    b"X-\xe9: b",
    b"X-A:b:c",
    b"X[0]: b",
    b"X-A: " + b"v" * 400,
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: upgrade",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Connection: Content-Length",
    b"Connection: transfer-encoding, x-a",
    b"Connection: close, keep-alive",
    b"Connection: ,",
    b"Proxy-Connection: keep-alive",
    b"Keep-Alive: timeout=5",
    b"TE: trailers",
    b"Trailer: X-T",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"Expect: 100-Continue ",
    b"Content-Encoding: gzip",
    b"Content-Encoding: zstd",
    b"Content-Encoding: identity",
    b"Content-Encoding: foo",
    b"x-api-key: " + KEY,
    b"x-api-key: wrong",
    b"Authorization: Bearer " + KEY,
    b"Authorization: Basic eA==",
    b"X-Data-Parallel-Rank: 0",
    b"X-Data-Parallel-Rank: 7",
    b"X-LMWarden-Replica: e0/1",
    b"X-LMWarden-Decision: sticky",
    b"X-Session-Id: session-0001",
    b"X-Claude-Code-Session-Id: 3e0c1f6a-0000-4000-8000-000000000001",
    b"anthropic-version: 2023-06-01",
    b"Origin: http://evil.test",
    b"Cookie: a=b",
    b"X-Forwarded-For: 1.2.3.4",
]
CHUNK_SIZES = [
    b"0",
    b"00",
    b"0000000000",
    b"5;a=b",
    b"5 ;a",
    b"5; a",
    b'5;a="b"',
    b"5\t",
    b" 5",
    b"5 ",
    b"0x5",
    b"+5",
    b"-5",
    b"5\n",
    b"5;\n",
    b"5;a\rb",
    b"ffffffffffffffff",
    b"fffffffffffffffff",
    b"10000000000000000",
    b"A",
    b"g",
    b"",
    b"5;\x00",
    b"5;a\xffb",
    b"5_0",
    b"5.",
    b"5;a=b;c=d",
    b'5;a="b\r\n"',
]
TRAILERS = [
    b"X-T: 1",
    b"Content-Length: 5",
    b"Transfer-Encoding: chunked",
    b"x-api-key: wrong",
    b"X T: 1",
    b"X-T: 1\r\n folded",
    b"X-T",
    b"Host: other",
    b"Connection: close",
    b"X-T: a\x00b",
    b"X-T: a\nX-U: b",
]
LINE_ENDS = [b"\r\n"] * 100 + [b"\n", b"\r", b"\r\r\n", b"\n\r", b" \r\n", b"\r\n\r\n", b""]
BYTES = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\x00",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"0",
    b"\x0b",
    b"\x85",
    b"\xff",
    b'"',
    b"/",
]


def corpus() -> list[bytes]:
    """The inputs that are kept: one for each way in which they ended, and every one that found something."""
    text = (Path(__file__).parent.parent / "data" / "http_corpus.txt").read_text("ascii")
    return [line.encode("ascii").decode("unicode_escape").encode("latin-1") for line in text.splitlines()]


def chunks(rng: Random, body: bytes) -> bytes:
    """A chunked body, mostly a proper one."""
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        size = rng.randint(1, max(1, len(body) - at))
        piece = body[at : at + size]
        at += size
        text = b"%x" % size if rng.random() < 0.9 else b"%X;a=b" % size
        if rng.random() < 0.06:
            text = rng.choice(CHUNK_SIZES)
        parts += (text, rng.choice(LINE_ENDS), piece, rng.choice(LINE_ENDS))
    parts += (b"0", rng.choice(LINE_ENDS))
    if rng.random() < 0.2:
        parts += (rng.choice(TRAILERS), rng.choice(LINE_ENDS))
    parts.append(rng.choice(LINE_ENDS))
    return b"".join(parts)


def request(rng: Random) -> bytes:
    """One request: mostly a proper one, with some lines that are not usual."""
    body = rng.choice(BODIES)
    lines = [b"Host: gateway", b"x-api-key: " + KEY]
    if rng.random() < 0.06:
        coding, body = rng.choice(CODED)
        lines.append(b"Content-Encoding: " + coding)
    if rng.random() < 0.25:
        text = chunks(rng, body)
        lines.append(b"Transfer-Encoding: chunked")
    else:
        text = body
        lines.append(b"Content-Length: %d" % len(body))
    for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 1, 2, 4))):
        lines.insert(rng.randint(0, len(lines)), rng.choice(LINES))
    if rng.random() < 0.1:
        del lines[rng.randrange(len(lines))]
    start = b" ".join((rng.choice(METHODS), rng.choice(TARGETS), rng.choice(VERSIONS)))
    end = b"\r\n"
    parts = [start, end]
    for line in lines:
        parts += (line, rng.choice(LINE_ENDS) if rng.random() < 0.1 else end)
    return b"".join((*parts, end, text))


def changed(rng: Random, data: bytes) -> bytes:
    """One small change somewhere."""
    at = rng.randint(0, len(data))
    kind = rng.randrange(7)
    if kind == 0:
        return data[:at] + rng.choice(BYTES) + data[at:]
    if kind == 1:
        return data[:at] + data[at + 1 :]
    if kind == 2:
        return data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]
    if kind == 3:
        end = min(len(data), at + rng.randint(1, 40))
        return data[:end] + data[at:]
    if kind == 4:
        return data[:at] + rng.choice(LINES) + b"\r\n" + data[at:]
    if kind == 5:
        return data[:at]
    return data.replace(b"\r\n", b"\n", rng.randint(1, 3))


def requests(rng: Random) -> bytes:
    """What one client sends: a few requests one after the other, changed here and there."""
    data = b"".join(request(rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        data = changed(rng, data)
    return data
