"""HTTP that is allowed and seldom seen: trailers, absolute targets, expectations, HTTP/1.0, half-closed connections."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.conftest import KEY, SceneMaker, chat, post
from tests.stub_engine import MESSAGE, silence, whole
from tests.waiting import PATIENCE_S

from lmwarden.types import Outcome

HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\n" % KEY
BODY = b'{"model":"m"}'
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    "trailer",
    [
        b"x-api-key: other",
        b"Authorization: Bearer other",
        b"X-Data-Parallel-Rank: 1",
        b"X-LMWarden-Replica: e0/1",
        b"X-Claude-Code-Session-Id: 3e0c1f6a-0000-4000-8000-000000000001",
        b"Host: evil.test",
        b"Expect: 100-continue",
        b"Content-Encoding: gzip",
        b"X-New: 1",
    ],
)
async def test_a_trailer_says_nothing(make_scene: SceneMaker, trailer: bytes) -> None:
    async with make_scene(ranks=2) as scene:
        scene.engine.default = whole(MESSAGE)
        client = await scene.connect()
        await client.send((HEAD + CHUNKED + trailer + b"\r\n\r\n") * 2 + HEAD + CHUNKED + b"\r\n")
        for _ in range(3):
            assert (await client.response()).status == 200
        first, second, plain = scene.engine.seen
        assert first.head == second.head == plain.head
        assert first.body == BODY
        assert scene.router.offered[0] == scene.router.offered[2]


async def test_a_trailer_that_ends_the_connection_ends_it(make_scene: SceneMaker) -> None:
    """It must not stand there, and the parser obeys it: what follows is refused and reaches nobody."""
    async with make_scene() as scene:
        scene.engine.default = whole(MESSAGE)
        client = await scene.connect()
        await client.send((HEAD + CHUNKED + b"Connection: close\r\n\r\n") * 2)
        assert [(await client.response()).status for _ in range(2)] == [200, 400]
        await client.rest()
        assert len(scene.engine.seen) == 1


@pytest.mark.parametrize(
    "target",
    [b"http://g/v1/messages?beta=true", b"HTTP://G:80/v1/messages?beta=true", b"x://y//v1//messages/?beta=true"],
)
async def test_a_target_in_absolute_form(make_scene: SceneMaker, target: bytes) -> None:
    async with make_scene() as scene:
        scene.engine.default = whole(MESSAGE)
        response = await scene.ask(post("/v1/messages", chat()).replace(b"/v1/messages", target, 1))
        assert response.status == 200
        (seen,) = scene.engine.seen
        assert seen.line == b"POST /v1/messages?beta=true HTTP/1.1"
        assert seen.values("host") == [b"127.0.0.1:%d" % scene.engine.port]


@pytest.mark.parametrize(
    ("target", "host", "served"),
    [
        (b"/v1/messages", b"localhost", True),
        (b"http://localhost/v1/messages", b"localhost", True),
        (b"http://localhost/v1/messages", b"evil.test", True),
        (b"http://evil.test/v1/messages", b"localhost", False),
        (b"http://localhost.evil.test/v1/messages", b"localhost", False),
        (b"http://evil.test?/v1/messages", b"localhost", False),
    ],
)
async def test_the_authority_of_an_absolute_target_counts_for_a_browser(
    make_scene: SceneMaker, target: bytes, host: bytes, served: bool
) -> None:
    async with make_scene(required=False) as scene:
        scene.engine.default = whole(MESSAGE)
        request = post("/v1/messages", chat(), "Origin: http://localhost", key=b"")
        request = request.replace(b"/v1/messages", target, 1).replace(b"Host: gateway", b"Host: " + host)
        assert (await scene.ask(request)).status == (200 if served else 403)


async def test_a_100_waits_for_the_answer_before_it(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        go_on = asyncio.Event()

        async def slowly(peer: object, seen: object) -> None:
            await go_on.wait()
            await whole(MESSAGE)(peer, seen)  # type: ignore[arg-type]

        scene.engine.default = whole(MESSAGE)
        scene.engine.script.append(slowly)
        client = await scene.connect()
        first = post("/v1/messages", chat())
        head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        await client.send(first + head)
        await scene.engine.requests(1)
        go_on.set()
        assert (await client.response()).status == 200
        await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert client.received.index(b"HTTP/1.1 200") < client.received.index(b"HTTP/1.1 100")
        await client.send(BODY)
        assert (await client.response()).status == 200


async def test_a_chunked_body_may_be_expected_too(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.default = whole(MESSAGE)
        client = await scene.connect()
        head, body = (HEAD + b"Expect: 100-Continue\r\n" + CHUNKED + b"\r\n").split(b"\r\n\r\n", 1)
        await client.send(head + b"\r\n\r\n")
        await client.until(b"100 Continue\r\n\r\n")
        await client.send(body)
        assert (await client.response()).status == 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Expect: 100-continue\r\nContent-Encoding: foo\r\nContent-Length: 13\r\n\r\n", 415),
        (b"Expect: 100-continue\r\nx-api-key: other\r\nContent-Length: 13\r\n\r\n", 401),
        (b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"Expect: 100-continue\r\nHost: h\r\nContent-Length: 13\r\n\r\n", 400),
    ],
)
async def test_who_is_refused_need_not_send_the_body(make_scene: SceneMaker, lines: bytes, status: int) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(HEAD + lines)
        response = await client.response()
        assert (response.status, response.header("Connection")) == (status, "close")
        await client.rest()
        assert b"100 Continue" not in client.received


async def test_http_1_0_knows_no_expectation_and_no_chunks(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.default = whole(MESSAGE)
        client = await scene.connect()
        await client.send(post("/v1/messages", BODY, "Expect: 100-continue", "Connection: keep-alive", version="1.0"))
        response = await client.response()
        assert (response.status, response.header("Connection")) == (200, "close")
        await client.rest()
        assert b"100 Continue" not in client.received
        assert scene.engine.seen[0].line.endswith(b"HTTP/1.1")
        assert (await scene.ask((HEAD + CHUNKED + b"\r\n").replace(b"HTTP/1.1", b"HTTP/1.0", 1))).status == 400


async def test_a_client_that_closes_its_half_has_left(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.default = silence()
        client = await scene.connect()
        await client.send(post("/v1/messages", chat()))
        (seen,) = await scene.engine.requests(1)
        client._writer.write_eof()
        await asyncio.wait_for(seen.dropped.wait(), PATIENCE_S)
        await client.rest()
        await scene.at_rest()
        assert [row.outcome for row in scene.rows] == [Outcome.CANCELLED]


@pytest.mark.parametrize(
    "line",
    [
        "Connection: content-length",
        "Connection: host, transfer-encoding",
        "Connection: x-api-key",
        "Connection: authorization",
    ],
)
async def test_framing_and_keys_cannot_be_nominated_away(make_scene: SceneMaker, line: str) -> None:
    async with make_scene() as scene:
        scene.engine.default = whole(MESSAGE)
        client = await scene.connect()
        await client.send(post("/v1/messages", chat(), line) * 2)
        for _ in range(2):
            assert (await client.response()).status == 200
        for seen in scene.engine.seen:
            assert [len(seen.values(name)) for name in ("host", "content-length", "authorization")] == [1, 1, 1]
            assert seen.values("connection") == seen.values("transfer-encoding") == []


async def test_line_ends_between_requests_are_passed_over(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.default = whole(MESSAGE)
        client = await scene.connect()
        await client.send(b"\r\n" + post("/v1/messages", chat()) + b"\r\n\r\n" + post("/v1/messages", chat()))
        assert [(await client.response()).status for _ in range(2)] == [200, 200]


async def test_line_ends_without_a_request_do_not_keep_a_connection(make_scene: SceneMaker) -> None:
    async with make_scene(keep_alive_s=0.1, head_s=0.1, sweep_s=0.02) as scene:
        client = await scene.connect()
        with pytest.raises((ConnectionError, AssertionError)):
            for _ in range(500):
                await client.send(b"\r\n")
                await asyncio.sleep(0.01)
                assert scene.gateway.connections
