"""A scripted engine at the socket: answers exactly the bytes it was told to, or misbehaves as it was told to.

Each request that arrives is recorded whole and takes the next ``Act`` from the script; when the script is empty, the
default act answers a small chat completion. Acts write raw bytes, so anything an engine could send can be sent.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.listening import Listener
from tests.waiting import PATIENCE_S, turns

CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "engine-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 36, "output_tokens": 7, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 0},
}


@dataclass
class Seen:
    """One request as it arrived."""

    head: bytes
    body: bytes
    connection: int
    """Which connection, counted from 0."""
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    """The peer closed this request's connection."""

    @property
    def line(self) -> bytes:
        """The request line."""
        return self.head.split(b"\r\n", 1)[0]

    def values(self, name: str) -> list[bytes]:
        """All values of a header."""
        lines = (line.partition(b":") for line in self.head.split(b"\r\n")[1:])
        return [value.strip() for key, _, value in lines if key.strip().lower() == name.lower().encode()]


class Peer:
    """The engine's end of one connection, for acts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Write and let the bytes go."""
        self._writer.write(data)
        await self._writer.drain()

    async def send_apart(self, data: bytes) -> None:
        """Write byte by byte, a turn of the loop between two."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(0)

    def reset(self) -> None:
        """Close with a TCP reset."""
        if self._writer.transport.is_closing():
            return
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        """Close in order."""
        self._writer.close()

    async def gone(self) -> None:
        """Wait until the gateway closes its end."""
        while await self._reader.read(65536):
            pass


Act = Callable[[Peer, Seen], Awaitable[None]]


def head(status: int = 200, content_type: str = "application/json", *lines: str) -> bytes:
    """A response head without its framing line and without its end."""
    return "\r\n".join((f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", *lines, "")).encode()


def whole(
    body: bytes | Mapping[str, object], status: int = 200, *lines: str, content_type: str = "application/json"
) -> Act:
    """Answer with a Content-Length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(head(status, content_type, *lines) + b"Content-Length: %d\r\n\r\n" % len(data) + data)

    return act


def chunk(piece: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


MESSAGE_BEGIN = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n'
MESSAGE_END = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
STREAM_HEAD = head(200, "text/event-stream; charset=utf-8") + b"Transfer-Encoding: chunked\r\n\r\n"


def stream(pieces: Sequence[bytes], *, end: bytes = b"0\r\n\r\n", apart: bool = False) -> Act:
    """Answer with server-sent events, one chunk each."""

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD)
        data = b"".join(map(chunk, pieces)) + end
        await (peer.send_apart(data) if apart else peer.send(data))

    return act


def held(begin: bytes, go_on: asyncio.Event, end: bytes) -> Act:
    """Answer with server-sent events that end when told."""

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD + chunk(begin))
        await go_on.wait()
        await peer.send(chunk(end) + b"0\r\n\r\n")

    return act


def raw(data: bytes, *, then: str = "keep") -> Act:
    """Answer with these bytes, then ``keep``, ``close`` or ``reset`` the connection."""

    async def act(peer: Peer, seen: Seen) -> None:
        if data:
            await peer.send(data)
        if then == "close":
            peer.close()
        elif then == "reset":
            await turns()  # let the bytes be read before the reset overtakes them
            peer.reset()

    return act


def silence(first: bytes = b"") -> Act:
    """Send ``first`` and then nothing more."""

    async def act(peer: Peer, seen: Seen) -> None:
        if first:
            await peer.send(first)
        await peer.gone()

    return act


class StubEngine:
    """Listens on a free port of the loopback."""

    def __init__(self) -> None:
        self.script: deque[Act] = deque()
        self.default: Act = whole(CHAT)
        self.seen: list[Seen] = []
        self.connections = 0
        self.arrived = asyncio.Event()
        """Set at each request; clear it to wait for the next."""
        self._listener = Listener(self._serve)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listener.close()

    @property
    def port(self) -> int:
        """Where it listens, or listened."""
        return self._listener.port

    async def listen(self) -> None:
        """Listen again."""
        await self._listener.listen(limit=64 * 1024 * 1024)

    def refuse(self) -> None:
        """Refuse connections and keep the open ones."""
        self._listener.refuse()

    async def stop(self) -> None:
        """Refuse connections and cut the open ones."""
        await self._listener.stop()

    async def requests(self, count: int) -> list[Seen]:
        """Wait until that many requests have arrived."""
        while len(self.seen) < count:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), PATIENCE_S)
        return self.seen

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        seen: Seen | None = None
        try:
            while True:
                seen = await _read(reader, number)
                self.seen.append(seen)
                self.arrived.set()
                act = self.script.popleft() if self.script else self.default
                await act(Peer(reader, writer), seen)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled only by stop()
        except RuntimeError as error:  # uvloop's word for a write to a peer that has just left
            if "handler is closed" not in str(error):
                raise
        finally:
            if seen is not None:
                seen.dropped.set()
            writer.close()


async def _read(reader: asyncio.StreamReader, number: int) -> Seen:
    text = await reader.readuntil(b"\r\n\r\n")
    seen = Seen(text[:-4], b"", number)
    length = seen.values("content-length")
    if length:
        seen.body = await reader.readexactly(int(length[0]))
    return seen
