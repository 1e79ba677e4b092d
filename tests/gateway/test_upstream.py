"""The pool: reuse, limits, failures to connect."""

from __future__ import annotations

import asyncio
import select
import socket
import sys

import pytest
from tests.gateway.conftest import SceneMaker, chat, post
from tests.stub_engine import CHAT, Peer, Seen, head, raw, whole
from tests.waiting import PATIENCE_S, turns

from lmwarden.types import Outcome

ASK = post("/v1/chat/completions", chat())


async def test_connections_are_reused_and_the_last_used_one_comes_first(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        gate = asyncio.Barrier(4)

        async def together(peer: Peer, seen: Seen) -> None:
            await gate.wait()
            await whole(CHAT)(peer, seen)

        scene.engine.script.extend([together] * 3)
        asking = [asyncio.create_task(scene.ask(ASK)) for _ in range(3)]
        await scene.engine.requests(3)
        await gate.wait()
        await asyncio.gather(*asking)
        assert scene.engine.connections == 3
        for _ in range(4):
            await scene.ask(ASK)
        assert scene.engine.connections == 3
        assert len({seen.connection for seen in scene.engine.seen[3:]}) == 1


async def test_an_answer_that_closes_is_not_reused(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.default = whole(CHAT, 200, "Connection: close")
        for _ in range(3):
            assert (await scene.ask(ASK)).status == 200
        assert scene.engine.connections == 3


async def test_idle_connections_are_closed_in_time(make_scene: SceneMaker) -> None:
    async with make_scene(engine_idle_s=0.05, sweep_s=0.02) as scene:
        await scene.ask(ASK)
        await asyncio.wait_for(scene.engine.seen[0].dropped.wait(), PATIENCE_S)


async def test_no_more_than_so_many_idle_connections(make_scene: SceneMaker) -> None:
    async with make_scene(max_idle_per_engine=0) as scene:
        await scene.ask(ASK)
        await scene.ask(ASK)
        assert scene.engine.connections == 2


async def test_an_engine_that_speaks_unasked_is_dropped(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        answered = asyncio.Event()

        async def chatty(peer: Peer, seen: Seen) -> None:
            await whole(CHAT)(peer, seen)
            await answered.wait()
            await peer.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")

        scene.engine.script.append(chatty)
        assert (await scene.ask(ASK)).status == 200
        answered.set()
        await asyncio.wait_for(scene.engine.seen[0].dropped.wait(), PATIENCE_S)
        assert (await scene.ask(ASK)).json() == CHAT


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a queue of no place is one of many")
async def test_connecting_has_a_limit(make_scene: SceneMaker) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        assert select.select([full], [], [], PATIENCE_S)[0]  # one waits to be taken: whoever comes now is not answered
        async with make_scene(ports=[full.getsockname()[1]], connect_s=0.1) as scene:
            assert (await scene.ask(ASK)).status == 503


async def test_a_head_in_pieces(make_scene: SceneMaker) -> None:
    answer = head(200, "application/json", "X-A: b") + b"Content-Length: 2\r\n\r\n{}"
    async with make_scene() as scene:
        for cut in (1, 15, len(answer) - 4, len(answer) - 3, len(answer) - 2, len(answer) - 1):

            async def act(peer: Peer, seen: Seen, cut: int = cut) -> None:
                await peer.send(answer[:cut])
                await turns()
                await peer.send(answer[cut:])

            scene.engine.script.append(act)
            response = await scene.ask(ASK)
            assert (response.status, response.body, response.header("X-A")) == (200, b"{}", "b"), cut


async def test_an_early_answer_to_a_large_body(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        body = b'{"model":"m","pad":"%b"}' % (b"x" * 20_000_000)
        scene.engine.script.append(raw(head(413) + b"Content-Length: 2\r\n\r\n{}", then="close"))
        response = await scene.ask(post("/v1/chat/completions", body))
        assert response.status == 413


GARBLED = [
    head(200, "application/json", "Transfer-Encoding: gzip") + b"\r\n{}",
    head(200, "application/json", "Transfer-Encoding: identity") + b"\r\n{}",
    head(200, "application/json", "Transfer-Encoding: gzip, chunked") + b"\r\n2\r\n{}\r\n0\r\n\r\n",
    head(200, "application/json", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked")
    + b"\r\n2\r\n{}\r\n0\r\n\r\n",
    head(101, "application/json", "Connection: upgrade", "Upgrade: h2c") + b"\r\nPRI",
    head(101, "application/json") + b"\r\n" + head() + b"Content-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 099 X\r\nContent-Length: 2\r\n\r\n{}",
    head(200, "application/json", "X-Long: " + "x" * 400_000) + b"Content-Length: 2\r\n\r\n{}",
]


@pytest.mark.parametrize("answer", GARBLED)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_an_answer_that_cannot_be_passed_on_is_502(make_scene: SceneMaker, answer: bytes, version: str) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(raw(answer, then="close"))
        response = await scene.ask(post("/v1/chat/completions", chat(), version=version))
        assert response.status == 502
        assert response.json()["error"]["code"] == "engine_failed"
        assert (await scene.ask(ASK)).json() == CHAT
        await scene.at_rest()
        assert [row.outcome for row in scene.rows] == [Outcome.FAILED, Outcome.OK]


async def test_an_offer_to_upgrade_beside_an_answer_is_no_fault(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(whole(CHAT, 200, "Connection: upgrade", "Upgrade: h2c"))
        response = await scene.ask(ASK)
        assert (response.status, response.header("Upgrade")) == (200, None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/v1/responses"])
async def test_without_framing_a_cut_json_answer_stays_incomplete(make_scene: SceneMaker, path: str) -> None:
    body = b'{"usage":null,"stop_reason":"end_turn","content":[1,2,3]}'
    async with make_scene() as scene:
        request = post(path, chat())
        scene.engine.script.append(raw(head() + b"\r\n" + body, then="close"))
        response = await scene.ask(request)
        assert (response.status, response.body, response.complete) == (200, body, True)
        scene.engine.script.append(raw(head() + b"\r\n" + body[:-3], then="close"))
        response = await scene.ask(request)
        assert not response.complete
        assert response.closed
        await scene.at_rest()
        assert scene.rows[-1].outcome is Outcome.FAILED


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_stays_without_one_however_often_its_head_repeats(
    make_scene: SceneMaker, status: int
) -> None:
    """A head that repeats is taken from memory, but not this one: its Content-Length frames nothing."""
    async with make_scene() as scene:
        scene.engine.script.extend([whole(b"", status), whole(b"", status), whole(b"{}", status), whole(CHAT)])
        client = await scene.connect()
        statuses = []
        for _ in range(4):
            await client.send(ASK)
            response = await client.response()
            statuses.append(response.status)
            if response.status == status:
                assert response.body == b""
        assert statuses[:2] == [status, status]
        assert statuses[3] == 200, "no stray byte was taken for the next answer"


async def test_a_body_that_reads_like_a_head_is_none(make_scene: SceneMaker) -> None:
    """It comes alone, and the next answer begins with just these bytes."""
    inner = b"HTTP/1.1 200 OK\r\nX-Inner: yes\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    outer = head(200, "text/plain", "X-Outer: yes") + b"Content-Length: %d\r\n\r\n" % len(inner)

    async def in_two(peer: Peer, seen: Seen) -> None:
        await peer.send(outer)
        await turns()
        await peer.send(inner)

    async with make_scene() as scene:
        for act, body in ((in_two, inner), (raw(inner), b"{}"), (raw(inner), b"{}"), (in_two, inner)):
            scene.engine.script.append(act)
            response = await scene.ask(ASK)
            assert (response.status, response.body) == (200, body)
            assert (response.header("X-Outer"), response.header("X-Inner")).count("yes") == 1
            assert (response.header("X-Inner") == "yes") is (body == b"{}")
        assert scene.engine.connections == 1
