"""What a client that reads slowly may cost: a bounded amount of our and the kernel's memory, and no other stream."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

from tests.gateway.conftest import Scene, SceneMaker, chat, post
from tests.stub_engine import STREAM_HEAD, Peer, Seen, chunk
from tests.waiting import PATIENCE_S

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
PIECE = EVENT % (b"x" * 1000)
OWN_BYTES = 256 * 1024
"""Asked of the kernel for the two ends of the way, which are not the gateway's; it may take twice as much."""
MOST_BYTES = 1_300_000
"""On the way of one stream, both ends included; without the bounds it is two to nine million."""


class Flood:
    """Pours until it is told to end, and counts."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.enough = False

    async def __call__(self, peer: Peer, seen: Seen) -> None:
        peer._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, OWN_BYTES // 2)
        await peer.send(STREAM_HEAD)
        while not self.enough:
            await peer.send(chunk(PIECE))
            self.sent_bytes += len(PIECE)
        await peer.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def slow_client(scene: Scene) -> socket.socket:
    """A client that has asked for a stream and reads nothing of it."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, OWN_BYTES // 2)
    await loop.sock_connect(client, ("127.0.0.1", scene.gateway.port))
    await loop.sock_sendall(
        client, post("/v1/chat/completions", chat(stream=True, stream_options={"include_usage": True}))
    )
    return client


def numbers(first: int, count: int) -> Iterator[bytes]:
    return (chunk(EVENT % b"%d" % number) for number in range(first, first + count))


async def test_a_reader_that_stands_still_holds_little(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        flood = Flood()
        scene.engine.script.append(flood)
        client = await slow_client(scene)
        await scene.stands_still(lambda: flood.sent_bytes)
        assert flood.sent_bytes < MOST_BYTES
        (connection,) = scene.gateway.connections
        assert connection.write_paused
        assert connection.transport.get_write_buffer_size() < 512 * 1024
        # And it gets everything as soon as it reads.
        flood.enough = True
        loop = asyncio.get_running_loop()
        taken = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while not taken.endswith(b"0\r\n\r\n"):
                data = await loop.sock_recv(client, 1 << 20)
                assert data, "cut"
                taken += data
        assert taken.count(PIECE) * len(PIECE) == flood.sent_bytes
        client.close()


async def test_the_others_go_on_while_one_stands_still(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        floods = [Flood() for _ in range(8)]
        scene.engine.script.extend(floods)
        slow = [await slow_client(scene) for _ in floods]
        await scene.stands_still(lambda: sum(flood.sent_bytes for flood in floods))
        go_on = asyncio.Event()

        async def steadily(peer: Peer, seen: Seen) -> None:
            await peer.send(STREAM_HEAD + b"".join(numbers(0, 3)))
            await go_on.wait()
            await peer.send(b"".join(numbers(3, 3)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        scene.engine.default = steadily
        clients = [await scene.connect() for _ in range(8)]
        for client in clients:
            await client.send(post("/v1/chat/completions", chat(stream=True)))
        for client in clients:
            await client.until(EVENT % b"2")
        go_on.set()
        for client in clients:
            response = await client.response()
            assert response.complete
            assert response.body.count(b"delta") == 6
        assert all(flood.sent_bytes < MOST_BYTES for flood in floods)
        for client in slow:
            client.close()
