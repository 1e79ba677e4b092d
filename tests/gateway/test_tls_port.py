"""TLS: a connection counts from the moment it is accepted, however long its handshake takes."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from tests.gateway.certificate import self_signed
from tests.gateway.conftest import Client, SceneMaker, chat, post
from tests.stub_engine import silence
from tests.waiting import PATIENCE_S, until

from lmwarden.gateway.tls_port import open_tls_port
from lmwarden.types import Outcome


@dataclass
class Tls:
    """Both sides."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    """With a certificate for 127.0.0.1."""
    certificate, key = self_signed(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return Tls(server, ssl.create_default_context(cafile=str(certificate)))


async def test_it_serves(make_scene: SceneMaker, tls: Tls) -> None:
    async with make_scene(tls=tls.server) as scene:
        client = await scene.connect(tls.client)
        for request, status in (
            (post("/v1/chat/completions", chat()), 200),
            (post("/v1/chat/completions", b'{"model":"m","pad":"%b"}' % (b"x" * 300_000)), 200),
            (post("/v1/nothing", b"{}"), 404),
        ):
            await client.send(request)
            assert (await client.response()).status == status
        assert len(scene.engine.seen[1].body) > 300_000
        scene.engine.script.append(silence())
        await client.send(post("/v1/chat/completions", chat()))
        seen = (await scene.engine.requests(3))[-1]
        client.leave()
        await asyncio.wait_for(seen.dropped.wait(), PATIENCE_S)
        await scene.at_rest()
        assert scene.rows[-1].outcome is Outcome.CANCELLED
        await until(lambda: not scene.gateway.connection_limit.served)


def shakes_hands(inside: ssl.SSLObject) -> bool:
    """Whether it is done; else more must come from the other side."""
    try:
        inside.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


async def test_what_comes_with_the_end_of_the_handshake_is_read(make_scene: SceneMaker, tls: Tls) -> None:
    # The client's last part of the handshake and all that it has to say leave in one segment.
    request = post("/v1/chat/completions", b'{"model":"m","pad":"%b"}' % (b"x" * 100_000))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside = tls.client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    async with make_scene(tls=tls.server) as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.gateway.port)
        while not shakes_hands(inside):
            writer.write(outgoing.read())
            incoming.write(await reader.read(65536))
        inside.write(request)
        writer.write(outgoing.read())
        (seen,) = await scene.engine.requests(1)
        assert len(seen.body) > 100_000
        writer.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=["nothing", "a part", "no TLS"])
async def test_a_handshake_has_a_time_limit_and_counts_until_then(
    make_scene: SceneMaker, tls: Tls, said: bytes
) -> None:
    async with make_scene(tls=tls.server, head_s=0.3, max_connections_per_peer=2) as scene:
        limit = scene.gateway.connection_limit
        silent = [await scene.connect() for _ in range(4)]
        for client in silent:
            await client.send(said)
        assert [await client.rest() for client in silent] == [b""] * 4
        await until(lambda: not (limit.served or limit.surplus or scene.gateway._server._handshakes))


async def test_the_limits_hold_for_those_who_say_nothing(make_scene: SceneMaker, tls: Tls) -> None:
    async with make_scene(tls=tls.server, max_connections_per_peer=2) as scene:
        limit = scene.gateway.connection_limit
        silent = [await scene.connect() for _ in range(2)]
        await until(lambda: limit.served == 2)
        surplus = await scene.connect(tls.client)
        assert limit.surplus == 1
        await surplus.send(post("/v1/chat/completions", chat()))
        assert (await surplus.response()).status == 503
        for client in (*silent, surplus):
            client.leave()
        await until(lambda: not (limit.served or limit.surplus or scene.gateway._server._handshakes))
        client = await scene.connect(tls.client)
        await client.send(post("/v1/chat/completions", chat()))
        assert (await client.response()).status == 200


async def test_a_handshake_ends_with_the_gateway(make_scene: SceneMaker, tls: Tls) -> None:
    async with make_scene(tls=tls.server) as scene:
        client = await scene.connect()
        await until(lambda: scene.gateway._server._handshakes)
        await scene.gateway.stop(0)
        assert await client.rest() == b""
        await until(lambda: not (scene.gateway.connection_limit.served or scene.gateway._server._handshakes))


async def test_a_handshake_that_did_not_begin_counts_no_longer_than_its_port(make_scene: SceneMaker, tls: Tls) -> None:
    async with make_scene(tls=tls.server) as scene:
        limit = scene.gateway.connection_limit
        port = await open_tls_port(scene.gateway, tls.server, "127.0.0.1", 0, 16)
        (listener,) = port.sockets
        await port.start_serving()
        with socket.create_connection(listener.getsockname()) as client:
            assert select.select([listener], [], [], PATIENCE_S)[0]  # the loop does not look meanwhile
            port._accept(listener)
            assert limit.served == 1
            port.close()
            await until(lambda: not limit.served)
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_nobody_connects_before_it_serves(make_scene: SceneMaker, tls: Tls) -> None:
    async with make_scene(tls=tls.server) as scene:
        port = await open_tls_port(scene.gateway, tls.server, "127.0.0.1", 0, 16)
        address = port.sockets[0].getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        await port.start_serving()
        client = Client(*await asyncio.open_connection(*address, ssl=tls.client))
        await client.closed()
        port.close()


async def test_a_family_that_the_kernel_lacks_is_passed_over(
    make_scene: SceneMaker, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Socket(socket.socket):
        def __init__(self, family: int = -1, *more: Any, **names: Any) -> None:
            if family in lacking:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *more, **names)

    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    lacking = {socket.AF_INET6}
    async with make_scene(tls=tls.server) as scene:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", AsyncMock(return_value=both), raising=False)
        monkeypatch.setattr(socket, "socket", Socket)
        port = await open_tls_port(scene.gateway, tls.server, "localhost", 0, 16)
        assert [listener.family for listener in port.sockets] == [socket.AF_INET]
        port.close()
        lacking.add(socket.AF_INET)
        with pytest.raises(OSError, match="Address family"):
            await open_tls_port(scene.gateway, tls.server, "localhost", 0, 16)
        monkeypatch.undo()
