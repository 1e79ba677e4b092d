"""An engine that closes its idle connections just as a request is on its way: nothing fails, nothing runs twice."""

from __future__ import annotations

import asyncio
from random import Random
from typing import ClassVar, cast

import pytest
from tests.gateway.conftest import SceneMaker, chat, post

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Closing(asyncio.Protocol):
    """Answers, then closes after a moment of idleness, as uvicorn does: a request that it has not read is lost."""

    transport: asyncio.Transport
    generated: list[bytes]
    closed_idle = 0
    open: ClassVar[set[asyncio.Transport]] = set()

    def __init__(self, generated: list[bytes], rng: Random, how: str) -> None:
        self.generated = generated
        self._rng = rng
        self._how = how
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.open.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
        if not end or len(body) < length:
            return
        self.generated.append(body)
        self._data = b""
        self.transport.write(ANSWER)
        idle_s = self._rng.choice((0.0, 0.0, 0.001, 0.002, 0.004))
        self._timer = asyncio.get_running_loop().call_later(idle_s, self._close)

    def _close(self) -> None:
        Closing.closed_idle += 1
        if self._how == "reset":
            self.transport.abort()
        else:
            self.transport.close()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("streams", [1, 8])
async def test_no_request_is_lost_or_doubled(make_scene: SceneMaker, how: str, streams: int) -> None:
    loop = asyncio.get_running_loop()
    rng = Random(5)
    generated: list[bytes] = []
    Closing.closed_idle = 0
    server = await loop.create_server(lambda: Closing(generated, rng, how), "127.0.0.1", 0)
    async with server, make_scene(ports=[server.sockets[0].getsockname()[1]], engine_idle_s=60.0) as scene:

        async def ask(stream: int) -> None:
            client = await scene.connect()
            for number in range(240 // streams):
                await client.send(post("/v1/chat/completions", chat(n=number, stream=False, user=f"s{stream}")))
                assert (await client.response()).status == 200
                for _ in range(rng.choice((0, 1, 3, 20))):
                    await asyncio.sleep(0)
                await asyncio.sleep(rng.choice((0.0, 0.0, 0.001, 0.002)))

        await asyncio.gather(*(ask(stream) for stream in range(streams)))
        assert len(generated) == len(set(generated)) == 240
        assert Closing.closed_idle > 50, "the race was run"
        await scene.at_rest()
        assert len(scene.rows) == 240
    for transport in Closing.open:
        transport.abort()
    await asyncio.sleep(0)
    assert not Closing.open
