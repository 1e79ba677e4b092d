"""Compressed requests through the whole gateway: decoded once, bounded in every way, dropped when nobody wants them."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.coded import ENCODERS
from tests.gateway.conftest import HEALTH, KEY, Scene, SceneMaker, chat, post
from tests.stub_engine import silence, whole
from tests.waiting import PATIENCE_S, turns, until

from lmwarden.gateway import body_decoding
from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.codings import Decoder
from lmwarden.gateway.envelope import Problem

KINDS = sorted(ENCODERS)
MARKED = {"model": "m", "messages": [{"role": "user", "content": "MARKER-7f3a"}]}


def body_of(size: int) -> bytes:
    """JSON that does not compress well."""
    words = " ".join(str(number * 7919 % 1_000_003) for number in range(size // 7))
    return json.dumps(chat(pad=words)).encode()


def coded(path: str, kind: str, body: bytes, *lines: str) -> bytes:
    """A request with a compressed body."""
    name = kind if kind == "x-gzip" else ENCODERS[kind][0]
    return post(path, ENCODERS[kind][1](body), f"Content-Encoding: {name}", *lines)


def as_chunks(request: bytes, size: int) -> bytes:
    """The same request in chunks."""
    head, _, body = request.partition(b"\r\n\r\n")
    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    text = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + text + b"0\r\n\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [100, 60_000, 300_000, 1_500_000])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_engine_gets_it_decoded(make_scene: SceneMaker, kind: str, size: int, chunked: bool) -> None:
    async with make_scene() as scene:
        body = body_of(size)
        request = coded("/v1/chat/completions", kind, body, "X-Session-Id: session-0001")
        response = await scene.ask(as_chunks(request, size // 3 + 1) if chunked else request)
        assert response.status == 200
        (seen,) = scene.engine.seen
        assert seen.body == body
        assert seen.values("content-encoding") == []
        assert seen.values("content-length") == [b"%d" % len(body)]
        assert scene.router.offered[0].body_bytes == len(body)


async def test_a_coding_changes_nothing_of_what_is_recognised(make_scene: SceneMaker) -> None:
    async with make_scene(aliases=["other"], engine_model="theirs") as scene:
        user = {"user_id": json.dumps({"session_id": "3e0c1f6a-0000-4000-8000-000000000001"})}
        body = json.dumps(chat(model="other", metadata=user, stream=False)).encode()
        for request in (post("/v1/messages", body), *(coded("/v1/messages", kind, body) for kind in KINDS)):
            assert (await scene.ask(request)).status == 200
        assert len({offered.conversation for offered in scene.router.offered}) == 1
        assert scene.router.offered[0].conversation is not None
        assert len({seen.body for seen in scene.engine.seen}) == 1
        assert b'"model":"theirs"' in scene.engine.seen[0].body.replace(b": ", b":")


async def test_coded_and_plain_requests_on_one_connection(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        bodies = [body_of(size) for size in (10, 300_000, 20, 50_000, 30, 200_000)]
        kinds = ["gzip", "br", None, "zstd", None, "deflate"]
        client = await scene.connect()
        text = b"".join(
            post("/v1/chat/completions", body) if kind is None else coded("/v1/chat/completions", kind, body)
            for body, kind in zip(bodies, kinds, strict=True)
        )
        sending = asyncio.create_task(client.send(text + coded("/v1/chat/completions", "zstd", b"{}") * 2))
        assert [(await client.response()).status for _ in range(8)] == [200] * 8
        await sending
        assert [seen.body for seen in scene.engine.seen] == [*bodies, b"{}", b"{}"]


async def test_a_head_that_is_remembered_keeps_its_coding(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        for size in (100, 200, 300):
            await client.send(coded("/v1/chat/completions", "zstd", body_of(size)))
            assert (await client.response()).status == 200
        assert [seen.body for seen in scene.engine.seen] == [body_of(size) for size in (100, 200, 300)]


@pytest.mark.parametrize("value", ["foo", "gzip, zstd", "gzip, identity", "aws-chunked", "gzip;q=1"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_an_unknown_coding_is_415(make_scene: SceneMaker, path: str, value: str) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(post(path, b"\x1f\x8b", f"Content-Encoding: {value}"))
        response = await client.response()
        assert response.status == 415
        assert response.header("Accept-Encoding") == "zstd, gzip, deflate, br"
        assert ("type" in response.json()) == (path == "/v1/messages")
        await client.send(post("/v1/chat/completions", chat()))
        assert (await client.response()).status == 200, "the connection lives on"
        assert len(scene.engine.seen) == 1


@pytest.mark.parametrize("lines", [("identity", "gzip"), ("identity", "identity"), ("gzip", "gzip")])
async def test_two_codings_are_415(make_scene: SceneMaker, lines: tuple[str, str]) -> None:
    async with make_scene() as scene:
        request = post("/v1/messages", chat(), *(f"Content-Encoding: {line}" for line in lines))
        assert (await scene.ask(request)).status == 415


@pytest.mark.parametrize("size", [100, 300_000])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_broken_is_400_and_says_nothing_of_it(make_scene: SceneMaker, kind: str, size: int) -> None:
    coding, encode = ENCODERS[kind]
    body = encode(json.dumps(MARKED).encode() + body_of(size))
    wrong = bytes([body[0] ^ 255]) + body[1:]
    async with make_scene() as scene:
        for broken in (body[:-1], body[: len(body) // 2], body + b"x", b"", wrong, json.dumps(MARKED).encode()):
            response = await scene.ask(post("/v1/messages", broken, f"Content-Encoding: {coding}"))
            assert response.status == 400
            assert "MARKER" not in response.body.decode()
            assert "valid" in response.json()["error"]["message"]
        assert scene.engine.seen == []


@pytest.mark.parametrize("kind", KINDS)
async def test_the_limit_is_that_of_the_decoded_body(make_scene: SceneMaker, kind: str) -> None:
    for size in (1000, 500_000):
        body = body_of(size)
        async with make_scene(max_body_bytes=len(body)) as scene:
            assert (await scene.ask(coded("/v1/messages", kind, body))).status == 200
            response = await scene.ask(coded("/v1/messages", kind, body + b" "))
            assert response.status == 413
            assert response.json()["error"]["type"] == "request_too_large"
            assert len(scene.engine.seen) == 1


@pytest.mark.parametrize("kind", ["zstd", "gzip", "br"])
async def test_a_bomb_is_413_long_before_it_is_decoded(
    make_scene: SceneMaker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    take = BufferBudget.take

    def watched(budget: BufferBudget, size_bytes: int) -> bool:
        within = take(budget, size_bytes)
        held.append(budget.held_bytes)
        return within

    monkeypatch.setattr(BufferBudget, "take", watched)
    async with make_scene(max_body_bytes=1 << 30) as scene:
        bomb = gzip.compress(bytes(64 << 20)) if kind == "gzip" else ENCODERS[kind][1](bytes(64 << 20))
        response = await scene.ask(post("/v1/messages", bomb, f"Content-Encoding: {kind}"))
        assert response.status == 413
        assert "expands" in response.json()["error"]["message"]
        assert max(held) < 20 << 20


@pytest.mark.parametrize("kind", ["zstd", "gzip"])
async def test_many_small_members_are_for_the_workers(
    make_scene: SceneMaker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = ENCODERS[kind][1]
    on_loop: list[int] = []
    step = body_decoding._step

    def watched(decoder: Decoder, source: memoryview, at: int, most_bytes: int) -> tuple[list[bytes], int]:
        before = decoder.members
        made = step(decoder, source, at, most_bytes)
        if threading.current_thread() is threading.main_thread():
            on_loop.append(decoder.members - before)
        return made

    monkeypatch.setattr(body_decoding, "_step", watched)
    async with make_scene() as scene:
        body = encode(b"") * 900 + encode(b'{"model":"m"}')
        assert (await scene.ask(post("/v1/messages", body, f"Content-Encoding: {kind}"))).status == 200
        assert scene.engine.seen[0].body == b'{"model":"m"}'
        assert on_loop == [32]
        body = encode(b"") * 1100 + encode(b'{"model":"m"}')
        assert (await scene.ask(post("/v1/messages", body, f"Content-Encoding: {kind}"))).status == 400


async def test_a_small_body_of_many_members_is_read_to_its_end(make_scene: SceneMaker) -> None:
    """The loop's own look ends at 32 members, here where all that it had taken in was used up."""
    text = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=28_000))
    body = json.dumps(chat(pad=text)).encode()
    async with make_scene() as scene:
        sent = gzip.compress(b" ") * 32 + gzip.compress(body)
        assert 16_384 < len(sent) <= 32_768
        assert (await scene.ask(post("/v1/chat/completions", sent, "Content-Encoding: gzip"))).status == 200
        assert scene.engine.seen[0].body == b" " * 32 + body


async def test_what_follows_the_first_piece_is_looked_at(make_scene: SceneMaker) -> None:
    """A member that ends where the first piece does, with the number of members in it that the loop looks at."""
    body = json.dumps(chat()).encode()
    first = gzip.compress(b" ") * 32
    first += gzip.compress(body + b" " * (16_384 - len(first) - len(body) - 23), compresslevel=0)
    assert len(first) == 16_384
    async with make_scene() as scene:
        for behind, status in ((b"", 200), (b"x", 400), (b"no member at all", 400), (gzip.compress(b" "), 200)):
            request = post("/v1/chat/completions", first + behind, "Content-Encoding: gzip")
            assert (await scene.ask(request)).status == status


async def test_short_texts_may_repeat_themselves(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        body = json.dumps(chat(pad="x" * 3_000_000)).encode()
        for kind in KINDS:
            assert (await scene.ask(coded("/v1/chat/completions", kind, body))).status == 200


async def test_decoded_bodies_count_and_wait_for_room(make_scene: SceneMaker) -> None:
    async with make_scene(max_buffered_bytes=2_000_000) as scene:
        scene.engine.script.append(silence())
        first = await scene.connect()
        await first.send(post("/v1/chat/completions", body_of(1_900_000)))
        await scene.engine.requests(1)
        second = await scene.connect()
        body = json.dumps(chat(pad="y" * 1_000_000)).encode()
        await second.send(coded("/v1/chat/completions", "zstd", body))
        await until(lambda: any(work in scene.gateway.budget._waiting for work in scene.gateway._decoding.open))
        await turns()
        assert len(scene.engine.seen) == 1
        first.leave()
        assert (await second.response()).status == 200
        assert scene.engine.seen[1].body == body


async def test_without_room_it_is_told_to_come_back(make_scene: SceneMaker) -> None:
    async with make_scene(max_buffered_bytes=300_000, buffer_wait_s=0.1) as scene:
        response = await scene.ask(coded("/v1/messages", "zstd", json.dumps(chat(pad="y" * 1_000_000)).encode()))
        assert response.status == 529
        assert response.header("Retry-After") is not None
        assert scene.gateway.budget.held_bytes == 0


@pytest.fixture
def held_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No decoding gets anywhere."""
    monkeypatch.setattr(body_decoding, "_MOST_AT_ONCE", 0)
    yield


def waiting(scene: Scene) -> bool:
    return bool(scene.gateway._decoding.open)


@pytest.mark.parametrize("half", [False, True])
async def test_a_client_that_leaves_is_not_decoded_for(make_scene: SceneMaker, held_workers: None, half: bool) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(coded("/v1/messages", "br", body_of(100)) + coded("/v1/messages", "br", body_of(100)))
        await until(lambda: waiting(scene))
        if half:
            client._writer.write_eof()
        else:
            client.leave()
        await until(lambda: not waiting(scene) and not scene.gateway.budget.held_bytes)
        assert scene.rows == []


@pytest.mark.parametrize("kind", ["zstd", "gzip", "br"])
async def test_a_client_that_sends_and_leaves_in_one_turn(make_scene: SceneMaker, kind: str) -> None:
    """The body and the end of the connection arrive together: the decoding is cancelled before its first step."""
    async with make_scene() as scene:
        request = coded("/v1/chat/completions", kind, body_of(300_000))
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", scene.gateway.port)) as sock:
                sock.sendall(request)  # all of it is in the kernel before the loop looks
            await scene.ask(HEALTH)  # taken after it: so it was taken
        await until(lambda: not scene.gateway.connections)
        await scene.at_rest()


@pytest.mark.parametrize("at", ["before its first step", "when its task is done"])
async def test_a_decoding_is_given_up_at_any_moment(
    make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    works: list[body_decoding._Work] = []
    start, ended = body_decoding._Work.start, body_decoding._Work._ended

    def given_up_at_once(work: body_decoding._Work) -> None:
        start(work)
        works.append(work)
        work._connection.abort()
        work._connection.answering = None
        work.client_gone()

    def given_up_late(work: body_decoding._Work, task: asyncio.Task[bytes | Problem]) -> None:
        works.append(work)
        assert task.done()
        assert not task.cancelled()
        work._connection.abort()
        work._connection.answering = None
        work.client_gone()
        ended(work, task)

    if at == "before its first step":
        monkeypatch.setattr(body_decoding._Work, "start", given_up_at_once)
    else:
        monkeypatch.setattr(body_decoding._Work, "_ended", given_up_late)
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(coded("/v1/messages", "br", body_of(100)))
        await until(lambda: bool(works) and not scene.gateway._decoding.open)
        await scene.at_rest()
        assert scene.rows == []


async def test_a_fault_of_ours_leaves_nothing_behind(make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> None:
        raise RuntimeError("a fault")

    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
    monkeypatch.setattr(body_decoding, "_step", faulty)
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(coded("/v1/messages", "br", body_of(100)))
        with pytest.raises((ConnectionError, AssertionError)):
            assert (await client.response()).status != 0
        await scene.at_rest()
    assert [type(fault) for fault in faults] == [RuntimeError]


async def test_a_drain_ends_with_the_last_decoding_that_is_given_up(make_scene: SceneMaker, held_workers: None) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(coded("/v1/messages", "br", body_of(100)))
        await until(lambda: waiting(scene))
        async with asyncio.timeout(PATIENCE_S):
            stopping = asyncio.create_task(scene.gateway.stop(600))
            await until(lambda: scene.gateway.draining)
            client.leave()
            await stopping


async def test_the_gateway_stops_while_bodies_are_decoded(make_scene: SceneMaker, held_workers: None) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(coded("/v1/messages", "br", body_of(100)))
        await until(lambda: waiting(scene))
        await scene.gateway.stop(0.05)
        assert not waiting(scene)
        assert scene.gateway.budget.held_bytes == 0


async def test_draining_waits_for_what_is_decoded_and_refuses_it(make_scene: SceneMaker, held_workers: None) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(coded("/v1/messages", "br", body_of(100)))
        await until(lambda: waiting(scene))
        stopping = asyncio.create_task(scene.gateway.stop(600))
        await until(lambda: scene.gateway.draining)
        scene.gateway._decoding.free.release()
        response = await client.response()
        assert (response.status, response.header("Connection")) == (503, "close")
        await stopping
        assert scene.engine.seen == []


async def test_many_at_once(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.default = whole(b"{}")
        body = body_of(300_000)
        clients = [await scene.connect() for _ in range(24)]
        for number, client in enumerate(clients):
            await client.send(coded("/v1/embeddings", KINDS[number % len(KINDS)], body))
        assert {(await client.response()).status for client in clients} == {200}
        assert {seen.body for seen in scene.engine.seen} == {body}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=400), kind=st.sampled_from(KINDS))
async def test_any_bytes_are_400(make_scene: SceneMaker, data: bytes, kind: str) -> None:
    async with make_scene() as scene:
        request = post("/v1/messages", data, f"Content-Encoding: {ENCODERS[kind][0]}")
        assert (await scene.ask(request)).status == 400
        assert (await scene.ask(post("/v1/chat/completions", chat(), key=KEY))).status == 200
