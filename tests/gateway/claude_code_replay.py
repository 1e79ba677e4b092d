"""Replays captured Claude Code traffic: its client, the engine behind the gateway, and the order between them.

What was open at the same time matters more than seconds. So a scenario is played as a list of starts and ends in
their captured order: a start sends a request on its own connection and waits until the engine has it; starts with
no end between them go out together, as the client sent them. An end lets the engine answer and waits until the
client has read all of it. Nothing sleeps, and what overlapped in the capture overlaps here.

The engine answers as the capture's scripted server did: a stream, an error, a break, or silence. It knows which
captured request it has from a header of the replay's own, which the gateway passes on like any other it does
not know.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from tests.claude_code import ShapedRequest
from tests.listening import Listener

INDEX_HEADER = "X-Replay-Index"
_SHORTEST_S = 1e-6
STREAM = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":'
    '"assistant","content":[],"model":"qwen3-coder","stop_reason":null,"stop_sequence":null,'
    '"usage":{"input_tokens":1000,"output_tokens":0}}}\n\n',
    'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"text","text":""},'
    '"index":0}\n\n',
    'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":'
    '"Fertig \u2713"},"index":0}\n\n',
    'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
    'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
    '"usage":{"input_tokens":100,"output_tokens":7,"cache_creation_input_tokens":0,'
    '"cache_read_input_tokens":900}}\n\n',
    'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)
WHOLE = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Fertig \u2713"}],
        "model": "qwen3-coder",
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 100,
            "output_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 900,
        },
    }
)
TOOL_USE_CUT = (
    *STREAM[:4],
    'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"tool_use","id":'
    '"toolu_1","name":"Bash","input":{}},"index":1}\n\n',
    'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"input_json_delta",'
    '"partial_json":"{\\"comm"},"index":1}\n\n',
)
ERROR_EVENT = 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
ERRORS = {
    "503": (503, "overloaded_error", "no worker"),
    "429": (429, "rate_limit_error", "slow down"),
    "404": (404, "not_found_error", "Not Found"),
    "400 long": (400, "invalid_request_error", "This model's maximum context length is 4096 tokens."),
    "400 rejsys": (400, "invalid_request_error", "messages.1.role: Input should be 'user' or 'assistant'"),
}


class Arrival(NamedTuple):
    """One request as the engine received it."""

    request_line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def all(self, name: str) -> list[str]:
        """Every value of one header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass(frozen=True)
class Received:
    """What the client got. ``status`` 0: nothing; ``complete``: the framing said that this was all."""

    status: int
    headers: dict[str, str]
    """Lower-case names."""
    body: bytes
    complete: bool


class ReplayEngine:
    """Listens as an engine. ``arrivals[i]`` are the sends of request ``i``; ``release(i)`` answers it.

    Where the scripted server fell silent, this one does so ``before head``, ``after head`` or ``after event``.
    """

    def __init__(self, requests: Sequence[ShapedRequest], silence: str = "before head") -> None:
        self.arrivals: dict[int, list[Arrival]] = {}
        self.open_requests = 0
        self.most_open_requests = 0
        self._requests = requests
        self._silence = silence
        self._arrived = [asyncio.Event() for _ in requests]
        self._released = [asyncio.Event() for _ in requests]
        self._closed = [asyncio.Event() for _ in requests]
        self._listener = Listener(self._serve)

    async def start(self) -> int:
        """Listen on a free port; returns it."""
        await self._listener.listen(limit=1 << 20)
        return self._listener.port

    async def stop(self) -> None:
        """Close everything."""
        await self._listener.close()

    async def has(self, index: int) -> None:
        """Wait until request ``index`` was received."""
        await self._arrived[index].wait()

    def release(self, index: int) -> None:
        """Let request ``index`` be answered."""
        self._released[index].set()

    async def was_aborted(self, index: int) -> None:
        """Wait until the connection that carried request ``index`` was closed by the gateway."""
        await self._closed[index].wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (arrival := await _read_request(reader)) is not None:
                index = int(arrival.all(INDEX_HEADER)[0])
                self.arrivals.setdefault(index, []).append(arrival)
                self.open_requests += 1
                self.most_open_requests = max(self.most_open_requests, self.open_requests)
                self._arrived[index].set()
                try:
                    await self._answer(index, reader, writer)
                finally:
                    self.open_requests -= 1
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    async def _answer(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = self._requests[index]
        if request.reply.startswith("EXC"):
            if self._silence != "before head":
                _write_head(writer, 200, "text/event-stream", chunked=True)
            if self._silence == "after event":
                _write_chunk(writer, STREAM[0])
            with suppress(ConnectionError):  # a reset, where the gateway had not read what was sent
                await reader.read(1)
            self._closed[index].set()
            raise ConnectionResetError
        await self._released[index].wait()
        if request.reply in ERRORS:
            status, kind, message = ERRORS[request.reply]
            body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
            _write_head(writer, status, "application/json", length=len(body), retry_after=status == 429)
            writer.write(body)
        elif not request.members.get("stream"):
            _write_head(writer, 200, "application/json", length=len(WHOLE.encode()))
            writer.write(WHOLE.encode())
        else:
            _write_head(writer, 200, "text/event-stream", chunked=True)
            self._write_stream(writer, request.reply)
        await writer.drain()

    def _write_stream(self, writer: asyncio.StreamWriter, reply: str) -> None:
        if reply.startswith("cut rst"):
            for event in TOOL_USE_CUT if reply == "cut rst tool" else STREAM[:3]:
                _write_chunk(writer, event)
            # Zero linger: the close is a reset.
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionResetError
        events = (*STREAM[:3], ERROR_EVENT) if "errev" in reply else STREAM
        for event in events:
            _write_chunk(writer, event)
        writer.write(b"0\r\n\r\n")


@dataclass
class ReplayClient:
    """Claude Code's side: one TCP connection per captured one, requests as captured."""

    port: int
    _connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=dict)

    async def send(self, index: int, request: ShapedRequest) -> Received:
        """Send one request on its connection and read what comes."""
        if request.connection not in self._connections:
            opened = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
            self._connections[request.connection] = opened
        reader, writer = self._connections[request.connection]
        lines = [f"{request.method} {request.path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name}: {value}" for name, value in request.headers]
        lines.append(f"{INDEX_HEADER}: {index}")
        if request.method == "POST":
            lines.append(f"Content-Length: {len(request.body)}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + request.body)
        outcome = await _read_response(reader, head_only=request.method == "HEAD")
        if not outcome.complete or outcome.headers.get("connection") == "close":
            self.leave(request.connection)
        return outcome

    def leave(self, connection: int) -> None:
        """Close one connection, as Esc or a time-out does."""
        if connection in self._connections:
            self._connections.pop(connection)[1].close()

    def close(self) -> None:
        """Close all."""
        for connection in list(self._connections):
            self.leave(connection)


async def replay(requests: Sequence[ShapedRequest], engine: ReplayEngine, gateway_port: int) -> list[Received]:
    """Play a scenario; what the client got for each request, in order."""
    client = ReplayClient(gateway_port)
    running: dict[int, asyncio.Task[Received]] = {}
    outcomes: dict[int, Received] = {}
    try:
        for starting, events in groupby(_timeline(requests), key=lambda event: event[0]):
            indexes = [index for _, index in events]
            if starting:
                for index in indexes:
                    running[index] = asyncio.ensure_future(client.send(index, requests[index]))
                for index in indexes:
                    if requests[index].method == "POST":
                        await _first(engine.has(index), running[index])
                continue
            for index in indexes:
                if requests[index].reply.startswith("EXC"):
                    client.leave(requests[index].connection)
                    await engine.was_aborted(index)
                engine.release(index)
                outcomes[index] = await running.pop(index)
    finally:
        client.close()
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
    return [outcomes[index] for index in range(len(requests))]


def _timeline(requests: Sequence[ShapedRequest]) -> list[tuple[bool, int]]:
    """(is a start, index of the request) in captured order."""
    events: list[tuple[float, bool, int]] = []
    for index, request in enumerate(requests):
        end_s = request.end_s
        if request.reply.startswith("EXC") and index + 1 < len(requests):
            # The capture's server noticed late that the client had left: it left when it sent the next one.
            end_s = requests[index + 1].start_s
        events.append((request.start_s, True, index))
        events.append((max(end_s, request.start_s + _SHORTEST_S), False, index))
    # At one time ends come first: a connection is free for its next request only once the last one ended.
    return [(starting, index) for _, starting, index in sorted(events)]


async def _first(awaited: object, task: asyncio.Task[Received]) -> None:
    """Until the engine has the request, or the client was answered without it."""
    assert asyncio.iscoroutine(awaited)
    arrived = asyncio.ensure_future(awaited)
    await asyncio.wait({arrived, task}, return_when=asyncio.FIRST_COMPLETED)
    arrived.cancel()
    with suppress(asyncio.CancelledError):
        await arrived


async def _read_request(reader: asyncio.StreamReader) -> Arrival | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    request_line, *lines = head.decode().rstrip("\r\n").split("\r\n")
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return Arrival(request_line, headers, await reader.readexactly(length))


async def _read_response(reader: asyncio.StreamReader, *, head_only: bool) -> Received:
    body = b""
    status, headers = 0, dict[str, str]()
    try:
        status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip("\r\n").split("\r\n")
        status = int(status_line.split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if head_only:
            return Received(status, headers, b"", complete=True)
        if headers.get("transfer-encoding") != "chunked":
            body = await reader.readexactly(int(headers["content-length"]))
            return Received(status, headers, body, complete=True)
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    except (asyncio.IncompleteReadError, ConnectionError):
        return Received(status, headers, body, complete=False)
    return Received(status, headers, body, complete=True)


def _write_head(
    writer: asyncio.StreamWriter,
    status: int,
    content_type: str,
    *,
    length: int = 0,
    chunked: bool = False,
    retry_after: bool = False,
) -> None:
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", framing]
    if retry_after:
        lines.append("Retry-After: 3")
    writer.write("\r\n".join([*lines, "", ""]).encode())


def _write_chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
