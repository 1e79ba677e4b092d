"""What people who look at the console cost the traffic, and the processor.

    ./run python benchmarks/console_viewers.py [--viewers 20] [--replicas 64] [--conversations 5000] [--seconds 10]
                                               [--rounds 5]

Three processes: the warden with live conversations on many replicas; a stub engine that streams chunks with the time in
them, and the client that reads them through the warden; the viewers. Rounds without and with viewers take turns.

1. Delay of a relayed chunk, from the engine's write to the client's read. Claim: with 20 viewers of ``/api/events``,
   each of whom also asks for the list of conversations every second, p99 rises by less than 5 ms.
2. Processor time of the warden without traffic, with and without one such viewer. Claim: 64 replicas and 5,000 live
   conversations cost less than 5 % of a core.

What else the machine does only ever adds to a delay, so the best rounds are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import quote

import aiohttp
import psutil
import structlog
import uvloop
from aiohttp import web

from lmwarden.config import Flag, load
from lmwarden.serve import Warden
from lmwarden.types import Dispatch, Outcome, RoutingRequest, Usage

MODEL = "stub"
STREAMS = 16
CHUNK_EVERY_S = 0.01
CONTEXT_TOKENS = 8_000


# -- the stub engine --------------------------------------------------------------------------------------------------


def metrics_page(ranks: int) -> str:
    """As vLLM writes it, as far as it is read."""
    lines = ["process_start_time_seconds 1000.5"]
    for rank in range(ranks):
        label = f'{{engine="{rank}",model_name="{MODEL}"}}'
        lines += [
            f"vllm:num_requests_running{label} 0.0",
            f"vllm:num_requests_waiting{label} 0.0",
            f"vllm:kv_cache_usage_perc{label} 0.25",
            f"vllm:prefix_cache_queries_total{label} 1000.0",
            f"vllm:prefix_cache_hits_total{label} 780.0",
            f"vllm:prompt_tokens_total{label} 1000.0",
            f"vllm:generation_tokens_total{label} 70.0",
            f'vllm:cache_config_info{{block_size="16",engine="{rank}",kv_cache_size_tokens="1000000"}} 1.0',
        ]
    return "\n".join(lines) + "\n"


class Engine:
    """Answers what a warden asks, and streams times."""

    def __init__(self, ranks: int) -> None:
        self._page = metrics_page(ranks)
        self.ends_at = 0.0

    async def start(self) -> str:
        """Listen; returns the URL."""
        app = web.Application()
        listing = {"data": [{"id": MODEL, "root": MODEL, "max_model_len": 32768, "owned_by": "vllm"}]}
        app.router.add_get("/health", self._ok)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/version", lambda request: asyncio.sleep(0, web.json_response({"version": "0.32.0"})))
        app.router.add_get("/v1/models", lambda request: asyncio.sleep(0, web.json_response(listing)))
        app.router.add_post("/v1/chat/completions", self._stream)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self._page)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while time.monotonic() < self.ends_at:
            delta = {"choices": [{"index": 0, "delta": {"content": f"{time.monotonic():.6f}"}}]}
            await response.write(f"data: {json.dumps(delta)}\n\n".encode())
            await asyncio.sleep(CHUNK_EVERY_S)
        await response.write(b"data: [DONE]\n\n")
        return response


async def delays_ms(engine: Engine, url: str, seconds: float) -> list[float]:
    """Of every chunk that came through the warden in that time."""
    engine.ends_at = time.monotonic() + seconds
    found: list[float] = []

    async def read(session: aiohttp.ClientSession, number: int) -> None:
        body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "x"}]}
        headers = {"x-session-id": f"reader-{number}"}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            async for line in response.content:
                now = time.monotonic()
                if line.startswith(b'data: {"choices"'):
                    delta = json.loads(line[6:])["choices"][0]["delta"]
                    found.append((now - float(delta["content"])) * 1000)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(read(session, number) for number in range(STREAMS)))
    return found


# -- the warden -------------------------------------------------------------------------------------------------------


def warden_process(engine: str, conversations: int, wire: Connection) -> None:
    """Serve; the addresses go over the wire."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    uvloop.run(_warden(engine, conversations, wire))


async def _warden(engine: str, conversations: int, wire: Connection) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = load(
            None,
            [
                Flag("--engine", ("models",), [{"engine": {"attach": [engine], "max_num_seqs": 32}}]),
                Flag("--port", ("client", "port"), 0),
                Flag("--console-port", ("console", "port"), 0),
                Flag("--data-dir", ("storage", "dir"), folder),
                Flag("pins", ("watch", "test_pins"), False),
            ],
        )
        warden = Warden(config)
        await warden.start()
        (model,) = warden._models
        for number in range(conversations):
            request = RoutingRequest(conversation=number.to_bytes(16, "big"), opening=number.to_bytes(16, "big"))
            ticket, (action,) = model.router.offer(request, time.monotonic())
            assert isinstance(action, Dispatch)
            usage = Usage(prompt_tokens=CONTEXT_TOKENS, cached_tokens=CONTEXT_TOKENS // 2, completion_tokens=100)
            model.router.finished(ticket, Outcome.OK, usage, time.monotonic())
        wire.send((warden.client_url, warden.console_url))
        await asyncio.to_thread(wire.recv)
        await warden.stop(drain_s=0)


# -- the viewers ------------------------------------------------------------------------------------------------------


def viewers_process(console: str, count: int, wire: Connection) -> None:
    """Look until told to stop; answers with how many bytes and messages came."""
    uvloop.run(_viewers(console, count, wire))


async def _viewers(console: str, count: int, wire: Connection) -> None:
    seen = {"messages": 0, "bytes": 0, "lists": 0}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def look() -> None:
            async with session.get(f"{console}/api/events") as response:
                async for part in response.content.iter_any():
                    seen["bytes"] += len(part)
                    seen["messages"] += part.count(b"event: snapshot")

        async def ask() -> None:
            url = f"{console}/api/models/{quote(MODEL)}/conversations?state=live&limit=100"
            while True:
                async with session.get(url) as response:
                    await response.read()
                    seen["lists"] += response.status == 200
                await asyncio.sleep(1.0)

        looking = [asyncio.ensure_future(work()) for _ in range(count) for work in (look, ask)]
        await asyncio.to_thread(wire.recv)
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
    wire.send(seen)


class Viewers:
    """A process of viewers, for as long as the block runs."""

    def __init__(self, console: str, count: int) -> None:
        self._wire, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=viewers_process, args=(console, count, theirs))
        self.seen: dict[str, int] = {}

    async def __aenter__(self) -> Viewers:
        self._process.start()
        await asyncio.sleep(2.0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._wire.send(None)
        self.seen = await asyncio.to_thread(self._wire.recv)
        self._process.join()


# -- the measurement --------------------------------------------------------------------------------------------------


def quantile(values: list[float], ratio: float) -> float:
    """Of a sorted list."""
    return values[min(len(values) - 1, int(ratio * len(values)))]


async def cpu_ratio(process: psutil.Process, seconds: float) -> float:
    """Share of a core that a process takes."""
    before = process.cpu_times()
    began = time.monotonic()
    await asyncio.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


async def measure(options: argparse.Namespace) -> None:
    """Both parts, printed."""
    engine = Engine(options.replicas)
    wire, theirs = multiprocessing.Pipe()
    arguments = (await engine.start(), options.conversations, theirs)
    process = multiprocessing.Process(target=warden_process, args=arguments)
    process.start()
    client_url, console_url = await asyncio.to_thread(wire.recv)
    await delays_ms(engine, client_url, 1.0)
    print(f"{options.replicas} replicas, {options.conversations} conversations; {STREAMS} streams")
    print(f"{'viewers':>8} {'chunks':>8} {'p50 ms':>8} {'p99 ms':>8} {'p99.9 ms':>9}")
    p99: dict[int, list[float]] = {0: [], options.viewers: []}
    for _ in range(options.rounds):
        for count in p99:
            found = await with_viewers(console_url, count, delays_ms(engine, client_url, options.seconds))
            found.sort()
            p99[count].append(quantile(found, 0.99))
            shown = [quantile(found, ratio) for ratio in (0.5, 0.99, 0.999)]
            print(f"{count:>8} {len(found):>8} {shown[0]:>8.2f} {shown[1]:>8.2f} {shown[2]:>9.2f}")
    for name, of in (("best", min), ("median", statistics.median)):
        rise = of(p99[options.viewers]) - of(p99[0])
        print(f"p99 rises by {rise:+.2f} ms ({name} of {options.rounds} rounds each)")
    warden = psutil.Process(process.pid)
    for count in (0, 1, options.viewers):
        share = await with_viewers(console_url, count, cpu_ratio(warden, options.seconds))
        print(f"processor time of the warden without traffic, {count} viewers: {share:.1%} of a core")
    wire.send(None)
    process.join()


async def with_viewers(console: str, count: int, work: Any) -> Any:
    """Do it while so many look."""
    if not count:
        return await work
    async with Viewers(console, count) as viewers:
        found = await work
    messages, size = viewers.seen["messages"], viewers.seen["bytes"]
    print(f"{'':>8} {messages} messages of {size // max(1, messages)} bytes, {viewers.seen['lists']} lists were seen")
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--conversations", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
