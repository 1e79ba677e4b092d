"""The client's connection at the socket: framing, limits, pipelining, odd HTTP."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from tests.gateway.conftest import KEY, SceneMaker, chat, post
from tests.stub_engine import MESSAGE, Peer, Seen, silence, whole
from tests.waiting import turns, until

from lmwarden.types import Outcome

BODY = b'{"model":"m","messages":[],"pad":"%b"}'


def chunked(path: str, body: bytes, size: int, *lines: str) -> bytes:
    head = "\r\n".join(
        (f"POST {path} HTTP/1.1", "Host: g", "Transfer-Encoding: chunked", f"x-api-key: {KEY.decode()}", *lines)
    )
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head.encode() + b"\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("pad", [0, 1000, 70_000, 3_000_000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_bodies_of_all_sizes_arrive_equal_with_one_framing(
    make_scene: SceneMaker, pad: int, framing: str
) -> None:
    async with make_scene() as scene:
        body = BODY % (b"x" * pad)
        request = post("/v1/chat/completions", body)
        if framing == "chunked":
            request = chunked("/v1/chat/completions", body, max(7, pad // 50))
        response = await scene.ask(request)
        assert response.status == 200
        (seen,) = scene.engine.seen
        assert seen.body == body
        assert seen.values("transfer-encoding") == []


@pytest.mark.parametrize("cut", [1, 10, 60, 130, 200, 230])
async def test_a_request_in_two_parts(make_scene: SceneMaker, cut: int) -> None:
    async with make_scene() as scene:
        request = post("/v1/chat/completions", BODY % (b"x" * 50), "X-Session-Id: session-0001")
        client = await scene.connect()
        await client.send(request[:cut])
        await turns()
        await client.send(request[cut:])
        assert (await client.response()).status == 200
        assert scene.engine.seen[0].body == BODY % (b"x" * 50)


async def test_a_request_byte_by_byte(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        request = post("/v1/chat/completions", chat(), "X-Session-Id: session-0001")
        client = await scene.connect()
        for at in range(len(request)):
            await client.send(request[at : at + 1])
            await asyncio.sleep(0)
        assert (await client.response()).status == 200


async def test_the_largest_body_passes_and_one_byte_more_does_not(make_scene: SceneMaker) -> None:
    body = BODY % (b"x" * 1000)
    async with make_scene(max_body_bytes=len(body)) as scene:
        assert (await scene.ask(post("/v1/messages", body))).status == 200
        assert (await scene.ask(chunked("/v1/messages", body, 100))).status == 200
        for request in (post("/v1/messages", body + b" "), chunked("/v1/messages", body + b" ", 100)):
            response = await scene.ask(request)
            assert response.status == 413
            assert response.json()["error"]["type"] == "request_too_large"
        assert len(scene.engine.seen) == 2


async def test_a_body_that_is_too_large_by_its_head_is_refused_before_it_is_sent(make_scene: SceneMaker) -> None:
    async with make_scene(max_body_bytes=2_000_000) as scene:
        client = await scene.connect()
        await client.send(
            b"POST /v1/messages HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\nContent-Length: 2000001\r\n\r\n" % KEY
        )
        assert (await client.response()).status == 413
        await client.rest()


async def test_expect_100_continue(make_scene: SceneMaker) -> None:
    async with make_scene(max_body_bytes=1000) as scene:
        client = await scene.connect()
        request = post("/v1/chat/completions", chat(), "Expect: 100-continue")
        head, body = request.split(b"\r\n\r\n", 1)
        await client.send(head + b"\r\n\r\n")
        await client.until(b"100 Continue\r\n\r\n")
        await client.send(body)
        assert (await client.response()).status == 200
        assert scene.engine.seen[0].values("expect") == []

        client = await scene.connect()
        await client.send(head.replace(b"Content-Length: ", b"Content-Length: 99999") + b"\r\n\r\n")
        assert (await client.response()).status == 413
        assert b"100 Continue" not in client.received

        assert (await scene.ask(post("/v1/messages", chat(), "Expect: tea"))).status == 417


BAD = {
    "CL and TE": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE and CL": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "one length twice": b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": b"Content-Length: +5\r\n\r\nhello",
    "a negative length": b"Content-Length: -5\r\n\r\nhello",
    "a huge length": b"Content-Length: 99999999999999999999999999\r\n\r\nhello",
    "xchunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": b"Transfer-Encoding: identity\r\n\r\n",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded line": b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a space before the colon": b"Content-Length : 0\r\n\r\n",
    "a bare CR": b"X-A: b\rc\r\n\r\n",
    "a NUL": b"X-A: b\0c\r\n\r\n",
    "a bad chunk size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a chunk that is too long": b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
    "two hosts": b"Host: h\r\nContent-Length: 0\r\n\r\n",
    "a folded framing": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a bare LF in the head": b"X-A: b\nContent-Length: 0\r\n\r\n",
    "a bare LF at the end of the head": b"Content-Length: 0\r\n\n",
    "a framing behind a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a framing in a name with a space": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a line that begins with a space": b" Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and identity": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "an empty framing": b"Transfer-Encoding:\r\n\r\n",
    "an empty length": b"Content-Length:\r\n\r\n",
    "a length in hex": b"Content-Length: 0x5\r\n\r\nhello",
    "a length with a space in it": b"Content-Length: 5 5\r\n\r\nhello",
    "a chunk size with a sign": b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "a chunk size in 0x": b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk size behind a space": b"Transfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n",
    "a chunk size before a space": b"Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    "a chunk size of 2**64": b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\nhello\r\n0\r\n\r\n",
    "an empty chunk size": b"Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
    "a bare LF behind a chunk size": b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "a bare LF in a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n",
    "a bare CR in a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
    "a NUL in a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n5;\0\r\nhello\r\n0\r\n\r\n",
    "a bare LF behind a chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    "no line end behind a chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n",
    "a length among the trailers": b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
    "a framing among the trailers": b"Transfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a folded trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-T: a\r\n b\r\n\r\n",
    "a trailer with a bare LF": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-T: a\nX-U: b\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD)
async def test_ambiguous_framing_is_400_and_closed_and_reaches_nobody(make_scene: SceneMaker, name: str) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\n%b" % (KEY, BAD[name]))
        response = await client.response()
        assert response.status == 400
        assert response.json()["error"]["message"]
        await client.rest()  # ends: the connection was closed
        assert scene.engine.seen == []
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /v1/messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),
        (b"POST /v1/messages HTTP/2.0\r\nHost: g\r\nContent-Length: 0\r\n\r\n", 505),
        (b"POST /v1/messages HTTP/1.2\r\nHost: g\r\nContent-Length: 0\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"hello\r\n\r\n", 400),
        (b"POST /a b HTTP/1.1\r\nHost: g\r\n\r\n", 400),
        (b"POST / HTTP/1.1\nHost: g\n\n", 400),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 404),
    ],
)
async def test_what_is_not_our_http(make_scene: SceneMaker, request_bytes: bytes, status: int) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(request_bytes)
        assert (await client.response()).status == status


async def test_heads_are_bounded(make_scene: SceneMaker) -> None:
    async with make_scene(max_head_bytes=10_000) as scene:
        for lines in (["X-Session-Id: " + "s" * 200_000], [f"X-{n}: v" for n in range(300)]):
            client = await scene.connect()
            await client.send(post("/v1/messages", chat(), *lines))
            response = await client.response()
            assert response.status == 431
            assert response.json()["type"] == "error"
        client = await scene.connect()
        await client.send(b"POST /" + b"a" * 200_000)
        assert (await client.response()).status == 431


async def test_requests_on_one_connection(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        for number in range(5):
            await client.send(post("/v1/chat/completions", chat(n=number)))
            assert (await client.response()).status == 200
        assert {seen.connection for seen in scene.engine.seen} == {0}


async def test_pipelined_requests_are_answered_in_order(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:

        async def echo(peer: Peer, seen: Seen) -> None:
            await turns(20 if b'"n":1' in seen.body else 1)
            await whole(seen.body)(peer, seen)

        scene.engine.default = echo
        client = await scene.connect()
        models = b"GET /v1/models HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\n\r\n" % KEY
        sent = [
            post("/v1/chat/completions", chat(n=1)),
            models,
            chunked("/v1/chat/completions", b'{"model":"m","n":2}', 3),
            post("/v1/nothing", b"{}"),
            post("/v1/chat/completions", BODY % (b"x" * 100_000)),
            post("/v1/chat/completions", chat(n=3)),
        ]
        await client.send(b"".join(sent))
        answers = [await client.response() for _ in sent]
        assert [answer.status for answer in answers] == [200, 200, 200, 404, 200, 200]
        assert b'"n":1' in answers[0].body
        assert b'"object":"list"' in answers[1].body
        assert b'"n":2' in answers[2].body
        assert b'"n":3' in answers[5].body


async def test_many_pipelined_requests_pause_reading_and_lose_nothing(make_scene: SceneMaker) -> None:
    async with make_scene(max_pipelined=3) as scene:
        client = await scene.connect()
        await client.send(b"".join(post("/v1/chat/completions", chat(n=number)) for number in range(60)))
        for _ in range(60):
            assert (await client.response()).status == 200
        assert [b'"n":%d}' % number in seen.body for number, seen in enumerate(scene.engine.seen)] == [True] * 60


async def test_a_broken_request_behind_a_good_one_is_answered_after_it(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat()) + b"nonsense\r\n\r\n")
        assert (await client.response()).status == 200
        assert (await client.response()).status == 400
        await client.rest()


async def test_connection_close_is_honoured(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(
            post("/v1/chat/completions", chat(), "Connection: close") + post("/v1/chat/completions", chat())
        )
        response = await client.response()
        assert (response.status, response.header("Connection")) == (200, "close")
        await client.rest()
        assert len(scene.engine.seen) == 1


@pytest.mark.parametrize("framing", ["length", "chunked", "none"])
async def test_an_offer_to_upgrade_is_passed_over(make_scene: SceneMaker, framing: str) -> None:
    lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    async with make_scene() as scene:
        client = await scene.connect()
        if framing == "length":
            request = post("/v1/chat/completions", BODY % (b"x" * 100_000), *lines)
        elif framing == "chunked":
            request = chunked("/v1/chat/completions", BODY % b"", 5, *lines)
        else:
            request = ("\r\n".join(("GET /healthz HTTP/1.1", "Host: g", *lines)) + "\r\n\r\n").encode()
        await client.send(request + post("/v1/chat/completions", chat()))
        assert (await client.response()).status == 200
        assert (await client.response()).status == 200
        assert all(seen.values("upgrade") == seen.values("http2-settings") == [] for seen in scene.engine.seen)
        assert len(scene.engine.seen) == (1 if framing == "none" else 2)


async def test_a_refused_request_with_a_small_body_keeps_the_connection(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(post("/v1/messages", BODY % (b"x" * 100_000), key=b"wrong"))
        assert (await client.response()).status == 401
        await client.send(post("/v1/chat/completions", chat()))
        assert (await client.response()).status == 200


async def test_a_refused_request_with_a_large_body_gets_its_answer(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        request = post("/v1/messages", BODY % (b"x" * 5_000_000), key=b"wrong")
        sending = asyncio.create_task(client.send(request))
        assert (await client.response()).status == 401
        await until(sending.done)
        client.leave()
        await asyncio.gather(sending, return_exceptions=True)


OWN = ["127.0.0.1", "127.0.0.1:8080", "localhost:8080", "LocalHost", "[::1]:8080", "192.168.1.7:80", "a.localhost"]


@pytest.mark.parametrize(
    ("host", "origin", "served"),
    [
        *((host, f"http://{host}", True) for host in OWN),
        *((host, None, True) for host in [*OWN, "evil.example", "warden:8080"]),
        *((host, f"http://{host}", False) for host in ["evil.example:8080", "localhost.evil.example", "127.0.0.1.nip"]),
        *(
            (host, f"http://{host}", False)
            for host in [
                "[::1]evil.test",
                "[::1].evil.test:80",
                "[::1",
                "127.0.0.1:80.evil.test",
                "localhost:80:80",
                "x[::1]",
            ]
        ),
        *((host, "http://evil.example", False) for host in OWN),
        *(("localhost:8080", origin, False) for origin in ["null", "http://localhost:3000", "http://localhost", ""]),
        ("evil.example@127.0.0.1", "http://evil.example@127.0.0.1", False),
    ],
)
@pytest.mark.parametrize("required", [False, True])
async def test_without_keys_pages_of_others_are_refused(
    make_scene: SceneMaker, host: str, origin: str | None, served: bool, required: bool
) -> None:
    lines = () if origin is None else (f"Origin: {origin}",)
    async with make_scene(required=required) as scene:
        client = await scene.connect()
        for path in ("/v1/messages", "/v1/embeddings", "/v1/messages"):
            scene.engine.default = whole(MESSAGE)
            request = post(path, chat(), *lines).replace(b"Host: gateway", f"Host: {host}".encode())
            await client.send(request)
            response = await client.response()
            assert response.status == (200 if served or required else 403)
            if response.status == 403:
                assert ("type" in response.json()) == (path == "/v1/messages"), "the caller's envelope"
        assert bool(scene.engine.seen) == (served or required)


async def test_two_origins_are_refused(make_scene: SceneMaker) -> None:
    async with make_scene(required=False) as scene:
        lines = ("Origin: http://localhost", "Origin: http://evil.example")
        request = post("/v1/messages", chat(), *lines).replace(b"Host: gateway", b"Host: localhost")
        assert (await scene.ask(request)).status == 403


async def test_headers_that_stop_here_and_headers_that_go_on(make_scene: SceneMaker) -> None:
    lines = (
        "Connection: X-Hop, keep-alive", "X-Hop: 1", "Keep-Alive: 5", "TE: trailers", "X-Forwarded-For: 1.2.3.4",
        "X-Gateway-Destination-Endpoint: 10.0.0.9:80", "Forwarded: for=1", "Accept-Encoding: gzip", "Cookie: a=b",
        "anthropic-beta: a,b", "X-Claude-Code-Session-Id: 3e0c1f6a-0000-4000-8000-000000000001", "X-Stainless-Lang: js",
    )  # fmt: skip
    async with make_scene() as scene:
        scene.engine.default = whole(MESSAGE)
        await scene.ask(post("/v1/messages", chat(), *lines))
        (seen,) = scene.engine.seen
        names = sorted(line.split(b":")[0].lower().decode() for line in seen.head.split(b"\r\n")[1:])
        assert names == sorted(
            ["host", "authorization", "accept-encoding", "content-length", "anthropic-beta", "cookie",
             "x-claude-code-session-id", "x-stainless-lang"]
        )  # fmt: skip
        assert seen.values("accept-encoding") == [b"identity"]


async def test_bodies_wait_for_room_and_go_on(make_scene: SceneMaker) -> None:
    async with make_scene(max_buffered_bytes=400_000) as scene:
        scene.engine.default = silence()
        first = await scene.connect()
        await first.send(post("/v1/chat/completions", BODY % (b"a" * 390_000)))
        await scene.engine.requests(1)
        scene.engine.default = whole(b"{}")
        second = await scene.connect()
        sending = asyncio.create_task(second.send(post("/v1/chat/completions", BODY % (b"b" * 300_000))))
        await until(lambda: any(other.paused_for_budget for other in scene.gateway.connections))
        await turns()
        assert len(scene.engine.seen) == 1
        assert scene.gateway.budget.held_bytes < 600_000
        first.leave()
        assert (await second.response()).status == 200
        await sending


@pytest.mark.parametrize("how", ["close", "half", "reset"])
@pytest.mark.parametrize("paused", ["for the budget", "for its queue"])
async def test_a_client_that_leaves_while_it_is_not_read_from_is_noticed(
    make_scene: SceneMaker, how: str, paused: str
) -> None:
    async with make_scene(max_buffered_bytes=400_000, buffer_wait_s=3600, sweep_s=0.02, max_pipelined=2) as scene:
        scene.engine.default = silence()
        first = await scene.connect()
        await first.send(post("/v1/chat/completions", BODY % (b"a" * 390_000)))
        await scene.engine.requests(1)
        client = first
        if paused == "for the budget":
            client = await scene.connect()
            sending = asyncio.create_task(client.send(post("/v1/chat/completions", BODY % (b"b" * 100_000))))
        else:
            sending = asyncio.create_task(client.send(post("/v1/messages", chat()) * 9))
        await until(
            lambda: any(other.paused_for_budget or other._paused_for_queue for other in scene.gateway.connections)
        )
        await sending
        if how == "half":
            client._writer.write_eof()
        elif how == "reset":
            sock = client._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client._writer.transport.abort()
        else:
            client.leave()
        left = 1 if paused == "for the budget" else 0
        await until(lambda: len(scene.gateway.connections) == left, lambda: "not noticed")
        first.leave()


@pytest.mark.parametrize(("path", "status"), [("/v1/messages", 529), ("/v1/chat/completions", 503)])
async def test_bodies_that_find_no_room_are_told_to_come_back(make_scene: SceneMaker, path: str, status: int) -> None:
    async with make_scene(max_buffered_bytes=100_000, buffer_wait_s=0.1, sweep_s=0.02) as scene:
        client = await scene.connect()
        sending = asyncio.create_task(client.send(post(path, BODY % (b"b" * 30_000_000))))
        response = await client.response()
        assert response.status == status
        assert response.header("Retry-After") is not None
        await sending  # the rest of it is read, and dropped
        client.leave()


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"", "keep_alive_s"),
        (b"POST /v1/messages HTTP/1.1\r\nHost:", "head_s"),
        (post("/v1/messages", chat())[:-5], "body_stall_s"),
        (post("/v1/messages", BODY % (b"x" * 100_000))[:-5], "body_stall_s"),
    ],
)
async def test_clients_that_stand_still_are_closed(make_scene: SceneMaker, sent: bytes, limit: str) -> None:
    async with make_scene(sweep_s=0.02, **{limit: 0.1}) as scene:
        client = await scene.connect()
        await client.send(sent)
        assert await client.rest() == b""
        assert scene.gateway.connections == set()


async def test_a_client_that_leaves_in_its_body(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        for size in (10, 200_000):
            client = await scene.connect()
            await client.send(post("/v1/messages", BODY % (b"x" * size))[:-5])
            await until(lambda: scene.gateway.budget.held_bytes > 0)
            client.leave()
            await scene.at_rest()
        assert scene.rows == []


async def test_a_client_that_leaves_with_requests_queued(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.default = silence()
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat()) * 3)
        await scene.engine.requests(1)
        client.leave()
        await scene.at_rest()
        assert [row.outcome for row in scene.rows] == [Outcome.CANCELLED]
