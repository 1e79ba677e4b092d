"""Bodies as they come in: nothing is held that was only announced, framing ends, and a trickle is a standstill."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.conftest import KEY, SceneMaker, post
from tests.gateway.test_request_reader import ask
from tests.stub_engine import whole


async def test_an_announced_length_is_not_held(make_scene: SceneMaker) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\nContent-Length: 60000000\r\n\r\n{" % KEY
    async with make_scene() as scene:
        clients = [await scene.connect() for _ in range(10)]
        for client in clients:
            await client.send(head)
            await client.send(b'"a":1')
            await client.send(b"," * 100)
        await scene.ask(ask(b"/healthz", b"", method=b"GET"))  # by then the others have been read
        assert 0 < scene.gateway.budget.held_bytes <= 10 * 65536
        for client in clients:
            client.leave()


@pytest.mark.parametrize(
    ("first", "piece", "ends"),
    [
        (b"0\r\nX: ", b"a" * 1000, b" 431 "),
        (b"0\r\n", b"X-Y: abc\r\n" * 100, b" 431 "),
        (b"5;", b"a" * 1000, b" 431 "),
        (b"", b"1;%b\r\na\r\n" % (b"e" * 1000), b" 431 "),
    ],
)
@pytest.mark.parametrize("line", [b"HEAD /", b"POST /v1/messages"])
async def test_chunk_framing_without_end(
    make_scene: SceneMaker, line: bytes, first: bytes, piece: bytes, ends: bytes
) -> None:
    head = line + b" HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % KEY
    async with make_scene(max_head_bytes=20_000) as scene:
        client = await scene.connect()
        await client.send(head + first)
        for _ in range(100):
            await client.send(piece)
            await asyncio.sleep(0)
        await client.until(b"HTTP/1.1" + ends)


async def test_small_chunks_and_a_trailer_are_no_flood(make_scene: SceneMaker) -> None:
    async with make_scene(max_head_bytes=1000) as scene:
        scene.engine.default = whole(b"{}")
        body = b'{"model":"m","pad":"%b"}' % (b"x" * 20_000)
        client = await scene.connect()
        await client.send(b"POST /v1/embeddings HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\n" % KEY)
        await client.send(b"Transfer-Encoding: chunked\r\n\r\n")
        text = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nX-T: 1\r\n\r\n"
        for at in range(0, len(text), 5000):
            await client.send(text[at : at + 5000])
            await asyncio.sleep(0)
        assert (await client.response()).status == 200
        assert scene.engine.seen[0].body == body


@pytest.mark.parametrize(
    ("framing", "drop"),
    [
        ("Content-Length: 60000\r\n\r\n", b"a"),
        ("Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        ("Transfer-Encoding: chunked\r\n\r\n5;", b"a"),
        ("Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"a"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/nothing"])
async def test_a_trickle_is_a_standstill(make_scene: SceneMaker, path: str, framing: str, drop: bytes) -> None:
    async with make_scene(body_stall_s=0.15, linger_s=0.1, sweep_s=0.02) as scene:
        client = await scene.connect()
        await client.send(f"POST {path} HTTP/1.1\r\nHost: g\r\nx-api-key: {KEY.decode()}\r\n{framing}".encode())
        with pytest.raises((ConnectionError, AssertionError)):
            for _ in range(500):
                await client.send(drop)
                await asyncio.sleep(0.01)
                assert scene.gateway.connections


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_slow_body_that_makes_progress_arrives(make_scene: SceneMaker, chunked: bool) -> None:
    async with make_scene(body_stall_s=0.4, body_progress_bytes=100, sweep_s=0.02) as scene:
        scene.engine.default = whole(b"{}")
        body = b'{"model":"m","pad":"%b"}' % (b"x" * 4000)
        text = post("/v1/embeddings", body)
        if chunked:
            head = b"POST /v1/embeddings HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
            text = head % KEY + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        client = await scene.connect()
        for at in range(0, len(text), 100):
            await client.send(text[at : at + 100])
            await scene.sweeps(1)
        assert (await client.response()).status == 200
