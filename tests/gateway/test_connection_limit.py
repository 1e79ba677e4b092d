"""Limits of connections: who is served, who is told to come back, and that everybody who leaves makes room."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import HEALTH, Client, Scene, SceneMaker, chat, post
from tests.stub_engine import MESSAGE, silence, whole
from tests.waiting import turns, until

from lmwarden.gateway import connection_limit
from lmwarden.gateway.connection_limit import ConnectionLimit, Entry, limit_for, peer_of
from lmwarden.gateway.gateway import Gateway


@given(
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 1000)), max_size=400),
    most=st.integers(1, 6),
    per_peer=st.integers(1, 6),
)
def test_the_books_of_the_limit(steps: list[tuple[bool, str, int]], most: int, per_peer: int) -> None:
    limit = ConnectionLimit(most, per_peer)
    inside: list[tuple[str, Entry]] = []
    for enters, peer, which in steps:
        if enters:
            served = [one for one, entry in inside if entry is Entry.SERVED]
            entry = limit.enter(peer)
            room = len(served) < most and served.count(peer) < per_peer
            assert (entry is Entry.SERVED) == room
            inside.append((peer, entry))
        elif inside:
            limit.leave(*inside.pop(which % len(inside)))
        assert limit.served == sum(entry is Entry.SERVED for _, entry in inside) <= most
        assert limit.surplus == sum(entry is Entry.SURPLUS for _, entry in inside) <= 256
    for one in inside:
        limit.leave(*one)
    assert (limit.served, limit.surplus, limit._by_peer) == (0, 0, {})


def test_only_some_surplus_connections_are_kept() -> None:
    limit = ConnectionLimit(1, 1)
    entries = [limit.enter("a") for _ in range(300)]
    assert entries == [Entry.SERVED] + [Entry.SURPLUS] * 256 + [Entry.CLOSED] * 43


@pytest.mark.parametrize(
    ("peername", "peer"),
    [
        (("10.0.0.7", 5000), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 5000, 0, 0), "2001:db8:1:2::"),
        (("2001:db8:1:2:ffff::1", 5000, 0, 0), "2001:db8:1:2::"),
        (("::ffff:10.0.0.7", 5000, 0, 0), "10.0.0.7"),
        (("fe80::1%eth0", 5000, 0, 3), "fe80::"),
        (("odd:name", 1), "odd:name"),
        ("", ""),
        (None, ""),
        ((), ""),
    ],
)
def test_the_address_that_counts(peername: object, peer: str) -> None:
    assert peer_of(peername) == peer


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        (65_536, (16_384, 8_192)),
        (4096, (1920, 960)),
        (100, (1, 1)),
        (resource.RLIM_INFINITY, (16_384, 8_192)),
    ],
)
def test_no_more_than_there_are_descriptors_for(
    monkeypatch: pytest.MonkeyPatch, files: int, limits: tuple[int, int]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    made = limit_for(16_384, 8_192)
    assert (made.most, made.most_per_peer) == limits
    assert limit_for(16_384, 1).most_per_peer == 1
    behind_a_proxy = limit_for(16_384, 16_384)
    assert behind_a_proxy.most == behind_a_proxy.most_per_peer == limits[0]


async def connect_from(scene: Scene, address: str) -> Client:
    """A connection from another address of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.gateway.port, local_addr=(address, 0))
    client = Client(reader, writer)
    scene.clients.append(client)
    return client


async def connected(scene: Scene, count: int) -> list[Client]:
    """So many connections that the gateway has taken."""
    clients = [await scene.connect() for _ in range(count)]
    for client in clients:
        await client.send(HEALTH)
        assert (await client.response()).status == 200
    return clients


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_peer"])
async def test_a_connection_too_many_is_told_to_come_back(make_scene: SceneMaker, limit: str) -> None:
    async with make_scene(**{limit: 3}) as scene:
        clients = await connected(scene, 3)
        for path, status in (("/v1/messages", 529), ("/v1/chat/completions", 503), ("/nothing", 503)):
            client = await scene.connect()
            await client.send(post(path, chat()))
            response = await client.response()
            assert (response.status, response.header("Connection")) == (status, "close")
            assert response.header("Retry-After") == "2"
            assert ("type" in response.json()) == (path == "/v1/messages")
            await client.rest()
        health = await scene.connect()
        await health.send(HEALTH * 2)
        response = await health.response()
        assert (response.status, response.header("Connection")) == (200, "close")
        await health.rest()
        await clients[0].send(post("/v1/chat/completions", chat()))
        assert (await clients[0].response()).status == 200
        assert len(scene.engine.seen) == 1
        await clients[1].closed()
        await until(lambda: scene.gateway.connection_limit.served < 3)
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 200


async def test_who_leaves_before_he_is_let_in_is_counted_out(make_scene: SceneMaker) -> None:
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with make_scene() as scene:
        for _ in range(5):
            left = [socket.create_connection(("127.0.0.1", scene.gateway.port)) for _ in range(20)]
            for sock in left:  # before the loop has taken them
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
            await turns()
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 200
        await until(lambda: not scene.gateway.connection_limit.served)
    assert faults == []


async def test_one_address_cannot_shut_out_another(make_scene: SceneMaker) -> None:
    async with make_scene(max_connections_per_peer=2) as scene:
        await connected(scene, 2)
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 503
        other = await connect_from(scene, "127.0.0.2")
        await other.send(post("/v1/chat/completions", chat()))
        assert (await other.response()).status == 200


async def test_far_too_many_are_closed_unheard(make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "_MOST_SURPLUS", 2)
    async with make_scene(max_connections=1) as scene:
        (served,) = await connected(scene, 1)
        for _ in range(2):
            await scene.connect()
        await until(lambda: scene.gateway.connection_limit.surplus == 2)
        with pytest.raises((ConnectionError, AssertionError)):
            assert (await scene.ask(HEALTH)).status != 0
        await served.send(HEALTH)
        assert (await served.response()).status == 200


async def test_a_surplus_connection_that_says_nothing_is_closed_soon(make_scene: SceneMaker) -> None:
    async with make_scene(max_connections=1, linger_s=0.2, sweep_s=0.02) as scene:
        await connected(scene, 1)
        silent = await scene.connect()
        assert await silent.rest() == b""
        slow = await scene.connect()
        await slow.send(b"POST /v1/messages HTTP/1.1\r\nHost:")
        assert await slow.rest() == b""
        upload = await scene.connect()
        await upload.send(post("/v1/messages", chat())[:-5])
        assert bytes(await upload.rest()).startswith(b"HTTP/1.1 529 ")


async def test_a_connection_must_begin_its_first_request_in_time(make_scene: SceneMaker) -> None:
    async with make_scene(head_s=0.2, sweep_s=0.02) as scene:
        (used,) = await connected(scene, 1)
        silent = await scene.connect()
        assert await silent.rest() == b""
        await used.send(HEALTH)
        assert (await used.response()).status == 200, "a connection that was used may rest for longer"


async def test_pipelined_requests_do_not_hold_up_the_others(
    make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_in_turn: list[int] = [0]
    begin = Gateway.begin

    def counted(gateway: Gateway, connection: object, request: object) -> None:
        if begun_in_turn[-1] == 0:
            asyncio.get_running_loop().call_soon(begun_in_turn.append, 0)
        begun_in_turn[-1] += 1
        begin(gateway, connection, request)  # type: ignore[arg-type]

    monkeypatch.setattr(Gateway, "begin", counted)
    async with make_scene(max_pipelined=8) as scene:
        client = await scene.connect()
        refused = post("/v1/messages", chat(), key=b"wrong")
        await client.send(HEALTH * 200 + refused * 50 + post("/v1/chat/completions", chat()))
        for status in [200] * 200 + [401] * 50 + [200]:
            assert (await client.response()).status == status
        assert sum(begun_in_turn) == 251
        assert max(begun_in_turn) <= 16  # the end of one call and the whole of the next may fall into one turn


async def test_who_does_not_read_gets_no_further_answers(make_scene: SceneMaker) -> None:
    async with make_scene(write_stall_s=0.5, sweep_s=0.02) as scene:
        client = await scene.connect()
        client._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        refused = post("/v1/messages", chat(), key=b"wrong")
        sending = asyncio.create_task(client.send(refused * 40_000))
        await until(lambda: any(one.write_paused and one.requests for one in scene.gateway.connections))
        (connection,) = scene.gateway.connections
        for _ in range(5):
            await turns()
            assert connection.transport.get_write_buffer_size() < 200_000
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 200
        await until(lambda: not scene.gateway.connections)  # its stall has a limit
        await asyncio.gather(sending, return_exceptions=True)


async def test_who_reads_late_gets_all_answers(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        refused = post("/v1/messages", chat(), key=b"wrong")
        sending = asyncio.create_task(client.send(refused * 6000 + post("/v1/chat/completions", chat())))
        await until(lambda: any(one.write_paused for one in scene.gateway.connections))
        assert {(await client.response()).status for _ in range(6000)} == {401}
        assert (await client.response()).status == 200
        await sending


async def test_a_client_that_leaves_between_its_turns(make_scene: SceneMaker) -> None:
    async with make_scene(max_pipelined=2) as scene:
        scene.engine.default = silence()
        for reset in (False, True):
            client = await scene.connect()
            await client.send(HEALTH * 100)
            await asyncio.sleep(0)
            client._writer.transport.abort() if reset else client.leave()
        scene.engine.default = whole(MESSAGE)
        assert (await scene.ask(post("/v1/messages", chat()))).status == 200
