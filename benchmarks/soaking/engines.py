"""Engines that answer at once and do as each request says, in a process of their own; for loads at full speed.

    python -m benchmarks.soaking.engines RANKS...

One engine per number, with that many ranks, on free ports of the loopback; the first line of the output names them
(``{"ports": […]}``). What a request wants stands in its header ``X-Soak: NUMBER[,word…]``:

======================  =================================================================================
``stream``              server-sent events, the form by the path; without it one JSON object
``chunks=N``            of so many deltas
``pause=MS``            so long between two of them, and before the first; without it all goes out in one write
``status=N``            an error of that status
``cold``                its usage says that nothing of the prompt was cached
======================  =================================================================================

NUMBER comes back in the text, so that a client knows its own answer. Every number is counted when its answer begins and
when it is complete: what was begun or completed twice is in the books that ``report`` prints.

Commands on standard input, one JSON object a line: ``{"restart": ENGINE, "down_s": S}`` cuts all connections of an
engine, refuses new ones for so long and comes back as another run; ``{"report": true}``; the end of the input ends it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop

MODELS = {1: "busy", 2: "ranks"}
"""By number of ranks: what an engine serves."""
_ROOM_NUMBERS = 1 << 23
KV_CACHE_TOKENS = {1: 400_000, 2: 2_000}
"""Per rank: plenty, and so little that a busy hour does not fit."""


@dataclass
class Books:
    """What was answered."""

    begun: bytearray = field(default_factory=lambda: bytearray(_ROOM_NUMBERS))
    completed: bytearray = field(default_factory=lambda: bytearray(_ROOM_NUMBERS))
    requests: int = 0
    restarts: int = 0
    left: int = 0
    """Connections that the warden closed in the middle of an answer: its client left."""
    unheard: set[int] = field(default_factory=set)
    """Begun on a connection that died with its engine, perhaps before the warden had a byte: it may ask again, once."""

    def report(self) -> dict[str, int]:
        """Counts, for the checks."""
        again = sum(self.begun[number] == 2 for number in self.unheard)
        return {
            "requests": self.requests,
            "restarts": self.restarts,
            "left": self.left,
            "numbers": len(self.begun) - self.begun.count(0),
            "asked_again": again,
            "begun_twice": len(self.begun) - self.begun.count(0) - self.begun.count(1) - again,
            "completed_twice": len(self.completed) - self.completed.count(0) - self.completed.count(1),
        }


class Engine:
    """One listener and its connections."""

    def __init__(self, ranks: int, books: Books) -> None:
        self.ranks = ranks
        self.books = books
        self.model = MODELS[ranks]
        self.running = 0
        self.open: set[Connection] = set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._born = time.time()

    async def listen(self) -> None:
        """Take requests (again)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", self.port, backlog=4096)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def restart(self, down_s: float) -> None:
        """Die, and come back as another run."""
        self.books.restarts += 1
        if self._server is not None:
            self._server.close()
        for connection in list(self.open):
            connection.die()
        await asyncio.sleep(down_s)
        self._born = time.time()
        await self.listen()

    def page(self) -> bytes:
        """``/metrics`` as vLLM writes it, as far as it is read."""
        lines = [f"process_start_time_seconds {self._born}"]
        for rank in range(self.ranks):
            label = f'{{engine="{rank}",model_name="{self.model}"}}'
            size = f'{{block_size="16",engine="{rank}",kv_cache_size_tokens="{KV_CACHE_TOKENS[self.ranks]}"}}'
            lines += [
                f"vllm:num_requests_running{label} {self.running / self.ranks}",
                f"vllm:num_requests_waiting{label} 0.0",
                f"vllm:kv_cache_usage_perc{label} 0.25",
                f"vllm:prefix_cache_queries_total{label} {self.books.requests}.0",
                f"vllm:prefix_cache_hits_total{label} {self.books.requests // 2}.0",
                f"vllm:prompt_tokens_total{label} {self.books.requests}.0",
                f"vllm:prompt_tokens_created{label} {self._born}",
                f"vllm:generation_tokens_total{label} {self.books.requests}.0",
                f"vllm:cache_config_info{size} 1.0",
            ]
        return ("\n".join(lines) + "\n").encode()

    def listing(self) -> bytes:
        """``/v1/models``."""
        card = {"id": self.model, "root": self.model, "max_model_len": 32768, "owned_by": "vllm"}
        return json.dumps({"object": "list", "data": [card]}).encode()


class Connection(asyncio.Protocol):
    """One connection of the warden's: a request at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._in = b""
        self._answer: Answer | None = None
        self._last_number: int | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The warden connected."""
        self.transport = cast(asyncio.Transport, transport)
        self._engine.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It left."""
        self._engine.open.discard(self)
        if self._answer is not None:
            self._engine.books.left += 1
            self._end()

    def die(self) -> None:
        """The engine dies. Whether the last answer still arrives nobody knows, so it does not count as complete."""
        books, number = self._engine.books, self._last_number
        if number is not None:
            if self._answer is None:
                books.completed[number] = max(0, books.completed[number] - 1)
            if self._answer is None or not self._answer.begun:
                books.unheard.add(number)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        self._in = self._in + data if self._in else data
        at = self._in.find(b"\r\n\r\n")
        if at < 0:
            return
        head = self._in[:at]
        length = int(value_of(head.lower(), b"\r\ncontent-length:") or 0)
        if len(self._in) < at + 4 + length:
            return
        body, self._in = self._in[at + 4 : at + 4 + length], self._in[at + 4 + length :]
        self._take(head, body)

    def _take(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        wanted = value_of(head, b"\r\nX-Soak:")
        if head.startswith(b"GET"):
            self.transport.write(json_answer(200, self._page(path)))
            return
        if wanted is None:
            self.transport.write(json_answer(400, b'{"error":{"message":"no X-Soak","type":"invalid_request_error"}}'))
            return
        books = self._engine.books
        answer = Answer.of(wanted, path, body)
        books.requests += 1
        books.begun[answer.number] = min(255, books.begun[answer.number] + 1)
        self._engine.running += 1
        self._answer = answer
        self._last_number = answer.number
        if answer.pause_s:
            asyncio.get_running_loop().call_later(answer.pause_s, self._go_on, answer)
        else:
            self.transport.write(b"".join(answer.pieces))
            self._completed(answer)

    def _go_on(self, answer: Answer) -> None:
        """Write the next piece."""
        if self._answer is not answer:
            return
        self.transport.write(answer.pieces.pop(0))
        answer.begun = True
        if answer.pieces:
            asyncio.get_running_loop().call_later(answer.pause_s, self._go_on, answer)
        else:
            self._completed(answer)

    def _completed(self, answer: Answer) -> None:
        completed = self._engine.books.completed
        completed[answer.number] = min(255, completed[answer.number] + 1)
        self._end()

    def _end(self) -> None:
        self._answer = None
        self._engine.running -= 1

    def _page(self, path: bytes) -> bytes:
        if path == b"/metrics":
            return self._engine.page()
        if path == b"/v1/models":
            return self._engine.listing()
        return b'{"version":"0.32.0"}' if path == b"/version" else b"{}"


@dataclass
class Answer:
    """What goes out for one request."""

    number: int
    pieces: list[bytes]
    pause_s: float
    begun: bool = False
    """Its first piece is on its way."""

    @classmethod
    def of(cls, wanted: bytes, path: bytes, body: bytes) -> Answer:
        """As the header says."""
        first, *rest = wanted.decode().split(",")
        words = dict(word.partition("=")[::2] for word in rest)
        number, pause_s = int(first), int(words.get("pause", 0)) / 1000
        messages = path.startswith(b"/v1/messages")
        prompt_tokens = max(1, len(body) // 4)
        cached = 0 if "cold" in words else prompt_tokens * 15 // 16 & ~15
        if "status" in words:
            kind = {"type": "error"} if messages else {}
            error = {**kind, "error": {"message": "asked for", "type": "invalid_request_error"}}
            return cls(number, [json_answer(int(words["status"]), json.dumps(error).encode())], pause_s)
        if path.endswith(b"count_tokens"):
            return cls(number, [json_answer(200, b'{"input_tokens":%d}' % prompt_tokens)], pause_s)
        if "stream" not in words:
            text = (message_object if messages else chat_object)(number, prompt_tokens, cached)
            return cls(number, [json_answer(200, text)], pause_s)
        chunks = int(words.get("chunks", 4))
        with_usage = b'"include_usage":true' in body
        make = message_events if messages else chat_events
        return cls(number, make(number, chunks, prompt_tokens, cached, with_usage), pause_s)


def value_of(head: bytes, line: bytes) -> bytes | None:
    """The value of a header, named as it is written."""
    at = head.find(line)
    if at < 0:
        return None
    end = head.find(b"\r\n", at + 2)
    return head[at + len(line) : end if end >= 0 else len(head)].strip()


def json_answer(status: int, body: bytes) -> bytes:
    """A whole answer."""
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status, len(body), body,
    )  # fmt: skip


def chat_object(number: int, prompt_tokens: int, cached: int) -> bytes:
    """A whole chat completion."""
    return (
        b'{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
        b'"content":"n%d"},"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":5,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}}}' % (number, prompt_tokens, prompt_tokens + 5, cached)
    )


def message_object(number: int, prompt_tokens: int, cached: int) -> bytes:
    """A whole message."""
    return (
        b'{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"n%d"}],'
        b'"stop_reason":"end_turn","usage":{"input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":5}}'
        % (number, prompt_tokens - cached, cached)
    )


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chat_events(number: int, chunks: int, prompt_tokens: int, cached: int, with_usage: bool) -> list[bytes]:
    """The head and the chunks of a streamed chat completion."""
    begins = b'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":['
    delta = _chunk(begins + b'{"index":0,"delta":{"content":"n%d"},"finish_reason":null}]}\n\n' % number)
    pieces = [_STREAM_HEAD + delta, *[delta] * (chunks - 1)]
    pieces.append(_chunk(begins + b'{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'))
    if with_usage:
        pieces.append(
            _chunk(
                begins + b'],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
                b'"prompt_tokens_details":{"cached_tokens":%d}}}\n\n'
                % (prompt_tokens, chunks, prompt_tokens + chunks, cached)
            )
        )
    pieces[-1] += _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return pieces


def message_events(number: int, chunks: int, prompt_tokens: int, cached: int, with_usage: bool) -> list[bytes]:
    """The head and the chunks of a streamed message."""
    start = _chunk(
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
        b'"model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":%d,"cache_read_input_tokens":%d,'
        b'"output_tokens":0}}}\n\nevent: content_block_start\ndata: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":""}}\n\n' % (prompt_tokens - cached, cached)
    )
    delta = _chunk(
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
        b'"text":"n%d"}}\n\n' % number
    )
    end = _chunk(
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\nevent: message_delta\ndata: '
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":%d}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n' % chunks
    )
    return [_STREAM_HEAD + start + delta, *[delta] * (chunks - 1), end + b"0\r\n\r\n"]


async def main(ranks: list[int]) -> None:
    """Serve until the input ends."""
    books = Books()
    engines = [Engine(number, books) for number in ranks]
    for engine in engines:
        await engine.listen()
    print(json.dumps({"ports": [engine.port for engine in engines]}), flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    restarting: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        command = json.loads(line)
        if "restart" in command:
            task = asyncio.ensure_future(engines[command["restart"]].restart(command["down_s"]))
            restarting.add(task)
            task.add_done_callback(restarting.discard)
        else:
            print(json.dumps(books.report()), flush=True)


if __name__ == "__main__":
    uvloop.run(main([int(text) for text in sys.argv[1:]]))
