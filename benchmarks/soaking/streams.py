"""An engine that streams the time, in a process of its own.

    python -m benchmarks.soaking.streams

Serves one model, ``streams``; the first line of the output names the port. A request's header ``X-Stream`` says what
it gets: ``every=MS`` a chunk with the time in it so often until the connection closes, or ``flood=BYTES`` as much as
that as fast as it is taken. All streams of one pace are spread evenly over it and written from one timer. Any line on
standard input has it print what it has and wrote so far (``{"streams": …, "flooded_bytes": …}``); the end of the input
ends it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import cast

import uvloop
from benchmarks.soaking.engines import json_answer, value_of

MODEL = "streams"
TICK_S = 0.01
_SEND_BYTES = 32 * 1024
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_DELTA = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
FLOOD_PIECE = _DELTA % (b"flood " * 300)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Streams:
    """All connections, and the timer that writes to them."""

    def __init__(self) -> None:
        self.open: set[Stream] = set()
        self.flooded_bytes = 0
        self._slots: list[set[Stream]] = []
        self._next = 0
        self._newest = 0
        self._born = time.time()

    def pace(self, stream: Stream, every_s: float) -> None:
        """Write to it so often. One pace for all."""
        if not self._slots:
            self._slots = [set() for _ in range(max(1, round(every_s / TICK_S)))]
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._newest = (self._newest + 1) % len(self._slots)
        self._slots[self._newest].add(stream)

    def forget(self, stream: Stream) -> None:
        """It is closed."""
        self.open.discard(stream)
        for slot in self._slots:
            slot.discard(stream)

    def _tick(self) -> None:
        asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._next = (self._next + 1) % len(self._slots)
        for stream in self._slots[self._next]:
            stream.transport.write(chunk(_DELTA % (b"t=%.6f;" % time.monotonic())))

    def page(self) -> bytes:
        """``/metrics``."""
        label = f'{{engine="0",model_name="{MODEL}"}}'
        return "\n".join(
            (
                f"process_start_time_seconds {self._born}",
                f"vllm:num_requests_running{label} {len(self.open)}.0",
                f"vllm:num_requests_waiting{label} 0.0",
                f"vllm:prompt_tokens_total{label} {len(self.open)}.0",
                f"vllm:generation_tokens_total{label} {int(time.monotonic() * 1000)}.0",
                'vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="100000000"} 1.0',
                "",
            )
        ).encode()


class Stream(asyncio.Protocol):
    """One connection."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._left_bytes = 0
        self._paused = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The warden connected."""
        self.transport = cast(asyncio.Transport, transport)
        # Its own buffer shall be small, so that what the kernel holds of a flood is the warden's.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._streams.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It left."""
        self._left_bytes = 0
        self._streams.forget(self)

    def data_received(self, data: bytes) -> None:
        """A request; each comes in one piece."""
        path = data.split(b" ", 2)[1]
        wanted = value_of(data, b"\r\nX-Stream:")
        if wanted is None:
            card = {"id": MODEL, "root": MODEL, "max_model_len": 32768, "owned_by": "vllm"}
            pages = {
                b"/metrics": self._streams.page(),
                b"/v1/models": json.dumps({"object": "list", "data": [card]}).encode(),
                b"/version": b'{"version":"0.32.0"}',
            }
            self.transport.write(json_answer(200, pages.get(path, b"{}")))
            return
        name, _, number = wanted.decode().partition("=")
        self.transport.write(_HEAD + chunk(_DELTA % b"begins"))
        if name == "every":
            self._streams.pace(self, int(number) / 1000)
        else:
            self._left_bytes = int(number)
            self._pour()

    def pause_writing(self) -> None:
        """The warden takes no more."""
        self._paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self._paused = False
        self._pour()

    def _pour(self) -> None:
        while self._left_bytes > 0 and not self._paused:
            self.transport.write(chunk(FLOOD_PIECE))
            self._left_bytes -= len(FLOOD_PIECE)
            self._streams.flooded_bytes += len(FLOOD_PIECE)


async def main() -> None:
    """Serve until the input ends."""
    streams = Streams()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stream(streams), "127.0.0.1", 0, backlog=8192)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        print(json.dumps({"streams": len(streams.open), "flooded_bytes": streams.flooded_bytes}), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
