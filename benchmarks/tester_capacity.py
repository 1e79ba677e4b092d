"""How many sessions one load tester can play: its own lag against a stub that costs next to nothing.

    ./run python benchmarks/tester_capacity.py [--sessions 300] [--seconds 30] [--tokens-per-second 20] [--think none]

The stub runs in a process of its own. It answers every request after 0.2 to 3 seconds with one event per token at the
given rate, a fifth faster or slower, so that the sessions do not march in step. Claim: with 300 sessions the tester's
own lag stays below 20 ms (p99) on two cores. Where it does not, the tester says so, here and under every table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from random import Random
from typing import ClassVar, cast

import uvloop

from lmwarden.bench.language import language
from lmwarden.bench.notes import LAG_LIMIT_MS, lag_notes
from lmwarden.bench.plan import Plan
from lmwarden.bench.results import LevelResult
from lmwarden.bench.runner import RunOutcome, run_plan
from lmwarden.bench.workload import load_workload

MODEL = "stub"
FIRST_TOKEN_S = (0.2, 3.0)
TICK_S = 0.002
ANSWER_TOKENS = 256


def event(kind: str, **fields: object) -> bytes:
    """One event in a chunk of its own."""
    data = f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


USAGE = {"input_tokens": 900, "cache_read_input_tokens": 8000, "output_tokens": ANSWER_TOKENS}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + event(
    "message_start", message={"usage": USAGE}
)
TOKEN = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "abc "})
END = event("message_delta", delta={"stop_reason": "max_tokens"}, usage=USAGE) + event("message_stop") + b"0\r\n\r\n"
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL}]}).encode()
LIST = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(MODELS), MODELS)


class Stub(asyncio.Protocol):
    """One connection. Requests are read only as far as their length."""

    streams: ClassVar[list[tuple[float, float, int, Stub]]] = []
    random = Random(1)
    token_s = 0.05

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.rest = bytearray()
        self.missing = 0

    def data_received(self, data: bytes) -> None:
        if self.missing:
            self.missing -= len(data)
            if self.missing <= 0:
                self._answer()
            return
        self.rest += data
        head, blank, body = self.rest.partition(b"\r\n\r\n")
        if not blank:
            return
        self.rest.clear()
        if head.startswith(b"GET"):
            self.transport.write(LIST)
            return
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        self.missing = int(length[15:]) - len(body)
        if self.missing <= 0:
            self._answer()

    def _answer(self) -> None:
        self.missing = 0
        first_s = asyncio.get_running_loop().time() + self.random.uniform(*FIRST_TOKEN_S)
        Stub.streams.append((first_s, self.token_s * self.random.uniform(0.8, 1.2), -1, self))

    @classmethod
    async def tick(cls) -> None:
        """Send what is due, forever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            kept = []
            for due_s, token_s, sent, connection in cls.streams:
                if connection.transport.is_closing():
                    continue
                while due_s <= now and sent <= ANSWER_TOKENS:
                    connection.transport.write(HEAD if sent < 0 else TOKEN if sent < ANSWER_TOKENS else END)
                    sent += 1
                    due_s += token_s
                if sent <= ANSWER_TOKENS:
                    kept.append((due_s, token_s, sent, connection))
            cls.streams = kept


def serve(pipe: Connection, tokens_per_second: float) -> None:
    """The stub's process."""
    Stub.token_s = 1 / tokens_per_second

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await Stub.tick()

    uvloop.run(run())


class Quiet:
    """No progress."""

    def started(self, label: str, number: int, total: int) -> None: ...

    def moved(self, elapsed_s: float, seconds: float, answered: int) -> None: ...

    def finished(self, result: LevelResult | None) -> None: ...


def measure(port: int, options: argparse.Namespace) -> RunOutcome:
    """Play against the stub."""
    plan = Plan(
        url=f"http://127.0.0.1:{port}",
        model=MODEL,
        workload=load_workload(options.workload),
        levels=[options.sessions],
        arms=["as-is"],
        seconds=options.seconds,
        think=options.think,
        clock=time.monotonic,
    )
    return uvloop.run(run_plan(plan, Quiet(), asyncio.Event()))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sessions", type=int, default=300)
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--tokens-per-second", type=float, default=20.0)
    arguments.add_argument("--workload", default="claude-code")
    arguments.add_argument("--think", default="none")
    options = arguments.parse_args()
    ours, theirs = multiprocessing.Pipe()
    stub = multiprocessing.Process(target=serve, args=(theirs, options.tokens_per_second), daemon=True)
    stub.start()
    try:
        before = time.process_time()
        outcome = measure(ours.recv(), options)
        busy = (time.process_time() - before) / options.seconds
    finally:
        stub.terminate()
    row = outcome.levels[0]
    events = (row.output_tokens_per_minute or 0) / 60
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{options.sessions} sessions, {options.seconds:g} s, {cores} cores, load of the machine {load:.1f}")
    print(f"{row.requests} requests, {row.failed} failed, about {events:.0f} token events/s")
    print(f"the tester took {100 * busy:.0f} % of a core")
    low_s, high_s = FIRST_TOKEN_S
    print(f"first token p50 {row.ttfb_s.p50:.3f} s, p95 {row.ttfb_s.p95:.3f} s (stub: {low_s} to {high_s} s, uniform)")
    for note in lag_notes(outcome.lag_p99_s, 1.0):
        print(language("en").say(note))
    if outcome.lag_p99_s is not None and 1000 * outcome.lag_p99_s <= LAG_LIMIT_MS:
        print(f"Below {LAG_LIMIT_MS:g} ms: this machine can play {options.sessions} sessions.")


if __name__ == "__main__":
    main()
