"""Mutated requests at the socket of a real gateway, as fast as it takes them; whatever comes, nothing may break.

    ./run python -m benchmarks.fuzz [--minutes 1] [--requests N] [--seed 1] [--clients 256]

The gateway with the real router, its clients and a stub engine run in this process on one loop. Each input is
what one client sends: one to three requests made by the grammar of the tests (``tests/gateway/mutated.py``), or one of
the kept corpus (``tests/data/http_corpus.txt``), changed here and there, written in up to three pieces. One client in
twelve leaves early. The number of an input and ``--seed`` make it again.

Checked, status 1 and the input printed if one does not hold:

* the loop reports no fault;
* what a client gets is whole HTTP/1.1 answers, one after the other, with a status of ``STATUSES``; every error of ours
  is a plain envelope with a sentence, and every 5xx has one that says why;
* the engine gets nothing but strict requests: a path that is served, one Content-Length and no other framing, no
  header that must stop at the gateway, a body that is JSON, and nothing behind it;
* at the end nothing is in flight, no byte is held, no connection is open, and rows = requests that were offered;
* memory does not grow in the second half (``MOST_GROWTH_MIB``).

Printed: inputs, requests in them, requests per second, how the answers fell out, lag of the loop (clients, gateway and
engine share it).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import psutil
import uvloop
from tests.gateway import mutated
from tests.gateway.conftest import Keys

from lmwarden.gateway import Gateway, GatewaySettings, ServedModel
from lmwarden.gateway import gateway as gateway_module
from lmwarden.gateway.client_side import ClientConnection, DataPlane
from lmwarden.routing.router import Router
from lmwarden.types import EngineEndpoint, ReplicaCapacity, ReplicaId, RequestRecord, RoutingSettings

RANKS = 4
STATUSES = {200, 400, 401, 403, 404, 413, 415, 417, 431, 503, 505}
MOST_GROWTH_MIB = 24
MOST_LAGS = 1_000_000
TICK_S = 0.01
PROGRESS_S = 60.0
LEAVES_SHARE = 1 / 12
ANSWER = (
    b'{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":64}}}'
)
STREAMS = {
    b"/v1/messages": (
        b"event: message_start\n"
        b'data: {"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":0}}}\n\n'
        b"event: message_delta\n"
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    ),
    b"/v1/responses": (
        b"event: response.completed\n"
        b'data: {"type":"response.completed","response":{"id":"r","usage":{"input_tokens":100,"output_tokens":7}}}\n\n'
    ),
}
CHAT_STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":7}}\n\ndata: [DONE]\n\n'
)
PATHS = re.compile(
    rb"POST (/v1/chat/completions|/v1/completions|/v1/messages|/v1/messages/count_tokens|/v1/responses|/v1/embeddings"
    rb"|/tokenize)(\?[!-~]*)? HTTP/1\.1"
)
LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\t -~\x80-\xff]*)")
STOPS = {
    *(
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
    ),
    *(b"http2-settings", b"content-encoding", b"x-api-key", b"forwarded", b"x-forwarded-for", b"x-lmwarden-replica"),
    b"x-lmwarden-decision",
}


class FindingError(Exception):
    """Something does not hold."""


@dataclass
class Books:
    """What came of it."""

    inputs: int = 0
    requests: int = 0
    rows: int = 0
    at_engine: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)

    def record(self, record: RequestRecord) -> None:
        """Count a row."""
        self.rows += 1

    def finding(self, text: str) -> None:
        """Note what does not hold."""
        self.findings.append(text)
        print(f"FINDING {text}", flush=True)


def check_engine_head(head: bytes) -> tuple[bytes, int]:
    """Judge a request head as the strictest of engines; returns the path and the length of the body."""
    start, *lines = head.split(b"\r\n")
    asked = PATHS.fullmatch(start)
    if asked is None:
        raise FindingError(f"start line {start!r}")
    names: Counter[bytes] = Counter()
    length = b""
    for line in lines:
        parts = LINE.fullmatch(line)
        if parts is None:
            raise FindingError(f"header line {line!r}")
        name = parts[1].lower()
        names[name] += 1
        if name == b"content-length":
            length = parts[2]
        elif name == b"authorization" and parts[2] != b"Bearer engine-key":
            raise FindingError("somebody else's key")
        elif name in STOPS:
            raise FindingError(f"header {line!r} must stop at the gateway")
    for name, most in ((b"host", 1), (b"content-length", 1), (b"authorization", 1)):
        if names[name] != most:
            raise FindingError(f"{name!r} comes {names[name]} times")
    if names[b"x-data-parallel-rank"] > 1 or not length.isdigit():
        raise FindingError(f"ranks or length: {head!r}")
    return asked[1], int(length)


class Engine(asyncio.Protocol):
    """One connection of a strict engine."""

    transport: asyncio.Transport

    def __init__(self, books: Books) -> None:
        self._books = books
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            try:
                path, length = check_engine_head(self._data[:end])
                body = self._data[end + 4 : end + 4 + length]
                if len(body) < length:
                    return
                json.loads(body.decode(errors="replace"), strict=False)  # the text in it is for the engine to judge
            except (FindingError, ValueError) as error:
                self._books.finding(f"at the engine: {error}; got {self._data!r}")
                self.transport.abort()
                return
            self._data = self._data[end + 4 + length :]
            if self._data:
                self._books.finding(f"at the engine: something behind the body: {self._data!r}")
            self._books.at_engine += 1
            self._answer(STREAMS.get(path, CHAT_STREAM) if b'"stream":true' in body else None)

    def _answer(self, stream: bytes | None) -> None:
        kind, body = (b"application/json", ANSWER) if stream is None else (b"text/event-stream", stream)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n" % kind
        if stream is not None:
            self.transport.write(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        else:
            self.transport.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


def read_answers(data: bytes) -> list[int]:
    """The statuses of the answers, each of which must be whole and ours or the engine's."""
    statuses: list[int] = []
    at = 0
    while at < len(data):
        end = data.find(b"\r\n\r\n", at)
        status = data[at + 9 : at + 12]
        if not data.startswith(b"HTTP/1.1 ", at) or end < 0 or not status.isdigit():
            raise FindingError(f"no answer at {at}")
        lines = data[at:end].lower()
        at = end + 4
        if status == b"100":
            continue
        statuses.append(int(status))
        if statuses[-1] not in STATUSES:
            raise FindingError(f"status {status!r}")
        if at == len(data) or data.startswith(b"HTTP/1.1 ", at):
            continue  # to a HEAD
        if b"transfer-encoding: chunked" in lines:
            stop = data.index(b"0\r\n\r\n", at) + 5
        else:
            found = re.search(rb"content-length: (\d+)", lines)
            stop = at + int(found[1]) if found is not None else len(data)
        body, at = data[at:stop], stop
        if len(data) < stop:
            raise FindingError("an answer is cut off")
        if statuses[-1] >= 400:
            _check_envelope(body)
    return statuses


def _check_envelope(body: bytes) -> None:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise FindingError(f"no envelope: {body!r}") from None
    if not message.endswith(".") or "Traceback" in message:
        raise FindingError(f"no sentence: {message!r}")


class Client(asyncio.Protocol):
    """Sends one input and collects what comes."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.closed = asyncio.get_running_loop().create_future()
        self.port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        own = transport.get_extra_info("sockname")
        self.port = own[1] if own else 0

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class Run:
    """One run of the fuzzer."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.seed: int = arguments.seed
        self.clients: int = arguments.clients
        self.most: int | None = arguments.requests
        self.minutes: float | None = arguments.minutes
        self.books = Books()
        self.corpus = mutated.corpus()
        self.router = Router(RoutingSettings(), engines={"e0": RANKS})
        self.connections = Connections()
        self._next = 0
        self._ends_at = 0.0

    def input(self, number: int) -> tuple[bytes, Random]:
        """The input of this number."""
        rng = Random(f"{self.seed}/{number}")
        if rng.random() < 0.2:
            data = rng.choice(self.corpus)
            for _ in range(rng.choice((0, 1, 1, 2, 4))):
                data = mutated.changed(rng, data)
            return data, rng
        return mutated.requests(rng), rng

    @property
    def over(self) -> bool:
        """Nothing more is sent."""
        books = self.books
        if len(books.findings) >= 20 or (self.most is not None and books.requests >= self.most):
            return True
        return self.minutes is not None and time.monotonic() >= self._ends_at

    async def client(self, port: int) -> None:
        """Send input after input, each on a connection of its own."""
        loop = asyncio.get_running_loop()
        while not self.over:
            number = self._next
            self._next += 1
            data, rng = self.input(number)
            _, client = await loop.create_connection(Client, "127.0.0.1", port)
            self.books.inputs += 1
            self.books.requests += max(1, data.count(b" HTTP/1."))
            await self._send(client, data, rng)
            leaves = rng.random() < LEAVES_SHARE
            if not leaves:
                await self._quiet(client, len(data))
            client.transport.close() if rng.random() < 0.5 else client.transport.abort()
            await client.closed
            if leaves:
                continue
            try:
                self.books.statuses.update(read_answers(bytes(client.received)))
            except (FindingError, ValueError) as error:
                self.books.finding(f"input {number}: {error}; sent {data!r}; got {bytes(client.received)!r}")

    async def _send(self, client: Client, data: bytes, rng: Random) -> None:
        cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.choice((0, 0, 1, 2))))
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if client.transport.is_closing():
                return
            client.transport.write(data[start:stop])
            await asyncio.sleep(0)

    async def _quiet(self, client: Client, sent_bytes: int) -> None:
        """Wait until the connection is closed, or the gateway has nothing more to do for it."""
        calm, seen = 0, -1
        while calm < 2 and not client.closed.done():
            await asyncio.sleep(TICK_S)
            works = self.connections.works_for(client.port, sent_bytes)
            calm = calm + 1 if seen == len(client.received) and not works else 0
            seen = len(client.received)

    async def watch(self) -> None:
        """Measure the loop's lag and, once a second, memory."""
        process = psutil.Process()
        books = self.books
        looked_at = told_at = began_at = time.monotonic()
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if len(books.lags_s) < MOST_LAGS:
                books.lags_s.append(now - before - TICK_S)
            if now - looked_at > 1.0:
                looked_at = now
                books.rss_mib.append(process.memory_info().rss / 2**20)
            if now - told_at > PROGRESS_S:
                told_at = now
                print(f"{now - began_at:.0f} s: {books.inputs:,} inputs, {books.requests:,} requests", flush=True)


class Connection(ClientConnection):
    """The gateway's, with the number of bytes that it has read."""

    __slots__ = ("port", "taken_bytes")

    port: int

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self.taken_bytes = 0

    def buffer_updated(self, nbytes: int) -> None:
        self.taken_bytes += nbytes
        super().buffer_updated(nbytes)


class Connections(set[Any]):
    """The gateway's set of connections, by the port of their client as well."""

    def __init__(self) -> None:
        super().__init__()
        self._by_port: dict[int, Connection] = {}

    def add(self, connection: Any) -> None:
        super().add(connection)
        peer = connection.transport.get_extra_info("peername")
        connection.port = peer[1] if peer else 0  # 0: it was reset before it was taken
        self._by_port[connection.port] = connection

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        self._by_port.pop(connection.port, None)

    def works_for(self, port: int, sent_bytes: int) -> bool:
        """Whether a connection is being worked on, or is still to be."""
        connection = self._by_port.get(port)
        if connection is None or connection.busy or connection.requests:
            return True
        return connection.taken_bytes < sent_bytes


async def fuzz(run: Run) -> None:
    """Run until the time or the number is reached."""
    loop = asyncio.get_running_loop()
    books = run.books
    loop.set_exception_handler(lambda _, context: books.finding(f"the loop: {context}"))
    engine = await loop.create_server(lambda: Engine(books), "127.0.0.1", 0)
    endpoint = EngineEndpoint(
        engine="e0",
        host="127.0.0.1",
        port=engine.sockets[0].getsockname()[1],
        ranks=RANKS,
        model="m",
        api_key="engine-key",
    )
    for rank in range(RANKS):
        capacity = ReplicaCapacity(kv_cache_tokens=100_000_000, max_num_seqs=4096)
        run.router.replica_up(ReplicaId("e0", rank), capacity, "boot", time.monotonic())
    served = ServedModel(name="m", router=run.router, engines={"e0": endpoint}, identity_secret=b"s" * 32)
    gateway = Gateway([served], Keys(True), books, GatewaySettings(linger_s=0.2, sweep_s=0.1))
    gateway.connections = run.connections
    vars(gateway_module)["ClientConnection"] = Connection
    await gateway.start("127.0.0.1", 0)
    run._ends_at = time.monotonic() + 60 * (run.minutes or 0)
    watching = loop.create_task(run.watch())
    await asyncio.gather(*(run.client(gateway.port) for _ in range(run.clients)))
    watching.cancel()
    for _ in range(500):
        if not gateway.connections and not gateway.exchanges:
            break
        await asyncio.sleep(0.01)
    view = run.router.view(time.monotonic())
    left = (view.in_flight, len(gateway.exchanges), len(gateway.connections), gateway.budget.held_bytes)
    if left != (0, 0, 0, 0):
        books.finding(f"at rest: in flight, exchanges, connections, held bytes are {left}")
    decided = sum(view.decisions.values()) + view.refused
    if decided != books.rows:
        books.finding(f"{decided} requests were decided, and {books.rows} rows written")
    await gateway.stop(0)
    engine.close()


def report(run: Run, took_s: float) -> None:
    """Print what came of it."""
    books = run.books
    print(f"{books.inputs:,} inputs with {books.requests:,} requests in {took_s:.0f} s", end="; ")
    print(f"{books.requests / took_s:,.0f} requests/s; {books.at_engine:,} reached the engine; {books.rows:,} rows")
    print("answers: " + ", ".join(f"{status}: {count:,}" for status, count in sorted(books.statuses.items())))
    lags = sorted(books.lags_s)
    if lags:
        p50, p99 = (lags[int(len(lags) * part)] * 1000 for part in (0.5, 0.99))
        print(f"lag of the loop: p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {lags[-1] * 1000:.1f} ms")
    rss = books.rss_mib
    if len(rss) >= 20:
        growth = max(rss[-len(rss) // 10 :]) - max(rss[len(rss) // 4 : len(rss) // 2])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"memory: {rss[-1]:.0f} MiB at the end, {peak:.0f} MiB at most, {growth:+.1f} MiB in the second half")
        if growth > MOST_GROWTH_MIB:
            books.finding(f"memory grew by {growth:.0f} MiB")
    print(f"{len(books.findings)} findings")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long; without --requests 1")
    parser.add_argument("--requests", type=int, help="stop after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=256, help="at the same time")
    arguments = parser.parse_args()
    if arguments.minutes is None and arguments.requests is None:
        arguments.minutes = 1.0
    run = Run(arguments)
    began = time.monotonic()
    uvloop.run(fuzz(run))
    report(run, time.monotonic() - began)
    sys.exit(bool(run.books.findings))


if __name__ == "__main__":
    main()
