"""Thousands of streams, some of whose readers are slow: what these cost the warden, and the others.

    ./run python -m benchmarks.slow_readers [--streams 5000] [--slow 500] [--seconds 10] [--rounds 3]

Three processes: ``lmwarden serve``; an engine that writes the time into a chunk of each stream twice a second
(``soaking/streams.py``); this one, which reads. Most streams are read at once all the time. Rounds take turns: in one
the other ``--slow`` streams are read like the rest, in the next they are floods that are read a few KB a second, from a
socket that holds little. A flood is first let run until it stands still: until all buffers on the way are full and the
engine is paused.

1. Memory of the warden. Claim: a slow reader costs it at most ``LIMIT_KB`` beyond what a stream costs.
2. Delay of the others' chunks, from the engine's write to the client's read. Claim: p99 of a round with slow readers is
   within the noise of the rounds without.

What the kernel holds in the buffers of all TCP sockets of the machine is printed too. The engine is a stub.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import aiohttp
import psutil
import uvloop
from benchmarks.soaking.child import Child
from benchmarks.soaking.streams import MODEL
from benchmarks.soaking.watching import lag_quantile_ms, scrape
from tests.waiting import until
from tests.whole.launched import LaunchedWarden

from lmwarden.daemon import raise_file_limit

EVERY_MS = 500
FLOOD_BYTES = 64 << 20
SLOW_RECEIVE_BYTES = 4096
SLOW_READ_S = 1.0
"""A slow reader takes what its socket holds about so often; they do not keep step with each other."""
LIMIT_KB = 400
_PATIENCE_S = 60.0
NOISE_MS = 1.0
"""Less than this is no difference."""
_STAMP = re.compile(rb"t=([0-9.]+);")


class StreamsWarden(LaunchedWarden):
    """In front of the one engine."""

    port = 0

    def configuration(self) -> str:
        """The file ``lmwarden.toml``."""
        return f"""
[client]
port = 0
drain_s = 1
max_connections_per_peer = 16384  # all readers come from here
[console]
port = 0
[storage]
dir = "{self.folder / "data"}"
[watch]
test_pins = false
[[models]]
name = "{MODEL}"
[models.engine]
attach = ["http://127.0.0.1:{self.port}"]
model = "{MODEL}"
data_parallel_size = 1
max_num_seqs = 40000
"""


class Reader(asyncio.Protocol):
    """One client with one stream."""

    def __init__(self, room: Room, wish: str, slow: bool) -> None:
        self._room = room
        self._wish = wish
        self._slow = slow
        self.begun = False
        self.bytes = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self.transport = cast(asyncio.Transport, transport)
        body = b'{"model":"%b","stream":true,"messages":[{"role":"user","content":"x"}]}' % MODEL.encode()
        self._room.asked += 1
        self.transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"X-Session-Id: reader-%d\r\nX-Stream: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (self._room.asked, self._wish.encode(), len(body), body)
        )

    def data_received(self, data: bytes) -> None:
        """A chunk, mostly."""
        now = time.monotonic()
        if not self.begun:
            self.begun = True
            self._room.began(data.startswith(b"HTTP/1.1 200"))
        self.bytes += len(data)
        self._room.news()
        if self._slow:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(SLOW_READ_S * (0.5 + random.random()), self._again)
        elif self._room.measuring:
            for stamp in _STAMP.findall(data):
                self._room.delays_ms.append((now - float(stamp)) * 1000)

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended, which it should not by itself."""
        self._room.left(self)

    def _again(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()


@dataclass(eq=False)
class Room:
    """All readers."""

    port: int
    open: set[Reader] = field(default_factory=set)
    delays_ms: list[float] = field(default_factory=list)
    measuring: bool = False
    closing: bool = False
    asked: int = 0
    good: int = 0
    lost: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def began(self, good: bool) -> None:
        """A stream's first bytes came."""
        self.good += good
        self.lost += not good
        self.news()

    def news(self) -> None:
        """Somebody got something."""
        self._news.set()

    def left(self, reader: Reader) -> None:
        """A connection has ended."""
        self.open.discard(reader)
        self.lost += not self.closing
        self.news()

    async def enter(self, count: int, wish: str, *, slow: bool = False) -> list[Reader]:
        """So many more readers; returns when each of them has its first bytes."""
        loop = asyncio.get_running_loop()
        found: list[Reader] = []
        for _ in range(count):
            sock = socket.socket()
            sock.setblocking(False)
            if slow:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_RECEIVE_BYTES)
            await loop.sock_connect(sock, ("127.0.0.1", self.port))
            _, reader = await loop.create_connection(lambda: Reader(self, wish, slow), sock=sock)
            self.open.add(reader)
            found.append(reader)
        await self._until(lambda: all(reader.begun for reader in found))
        return found

    async def all_go_on(self, readers: list[Reader]) -> None:
        """Wait until each of them got more than it has now."""
        before = [reader.bytes for reader in readers]
        await self._until(lambda: all(reader.bytes > had for reader, had in zip(readers, before, strict=True)))

    async def leave(self, readers: list[Reader]) -> None:
        """They close."""
        self.closing = True
        for reader in readers:
            reader.transport.abort()
        await self._until(lambda: self.open.isdisjoint(readers))
        self.closing = False

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def delays(self, seconds: float) -> list[float]:
        """Of all chunks that are read at once in that time, sorted, in milliseconds."""
        self.delays_ms = []
        self.measuring = True
        await asyncio.sleep(seconds)
        self.measuring = False
        return sorted(self.delays_ms)


@dataclass(frozen=True)
class Round:
    """What one round saw."""

    slow: bool
    delays_ms: list[float]
    rss_bytes: int
    kernel_bytes: int
    lag_ms: float
    """p99 of the warden's own event loop, rounded up: what of the delays is the machine's."""

    def quantile(self, ratio: float) -> float:
        """Of the delays; not a number if there was none, which happens in very short rounds."""
        if not self.delays_ms:
            return math.nan
        return self.delays_ms[min(len(self.delays_ms) - 1, int(ratio * len(self.delays_ms)))]


@dataclass(frozen=True)
class Result:
    """The run."""

    rounds: list[Round]
    slow: int
    good: int
    """Streams that began."""
    lost: int
    """Streams that did not begin, or ended by themselves."""
    stream_kb: float
    """Memory of the warden per stream that is read."""

    def of(self, slow: bool) -> list[Round]:
        """The rounds of one kind."""
        return [one for one in self.rounds if one.slow is slow]

    @property
    def slow_kb(self) -> float:
        """Most memory of the warden that a slow reader cost beyond one that is not."""
        return (max(one.rss_bytes for one in self.of(True)) - self.of(False)[0].rss_bytes) / self.slow / 1024

    @property
    def rise_ms(self) -> float:
        """Of the p99 of the others' delay, median of the rounds."""
        with_slow, without = (statistics.median(one.quantile(0.99) for one in self.of(kind)) for kind in (True, False))
        return with_slow - without

    @property
    def noise_ms(self) -> float:
        """What the rounds without slow readers differ by."""
        values = [one.quantile(0.99) for one in self.of(False)]
        return max(NOISE_MS, max(values) - min(values))


def kernel_bytes() -> int:
    """In the buffers of all TCP sockets of this machine."""
    found = re.search(r"^TCP:.* mem (\d+)", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    return int(found[1]) * 4096 if found else 0


async def measure(options: argparse.Namespace, folder: Path, say: Callable[[str], None] = print) -> Result:
    """All rounds."""
    engine = await Child.start("benchmarks.soaking.streams")
    warden = StreamsWarden(folder)
    room: Room | None = None
    rounds: list[Round] = []
    http = aiohttp.ClientSession()
    try:
        warden.port = (await engine.line())["port"]
        await warden.start()
        assert warden.process is not None
        process = psutil.Process(warden.process.pid)
        await until(lambda: _is_ready(warden), warden.describe)
        room = Room(int(warden.client_url.rpartition(":")[2]))
        bare = process.memory_info().rss
        always = await room.enter(options.streams - options.slow, f"every={EVERY_MS}")
        stream_kb = (process.memory_info().rss - bare) / max(1, options.streams - options.slow) / 1024
        flooded_before = 0
        for number in range(2 * options.rounds):
            slow = bool(number % 2)
            wish = f"flood={FLOOD_BYTES}" if slow else f"every={EVERY_MS}"
            others = await room.enter(options.slow, wish, slow=slow)
            flooded = await _stands_still(engine) - flooded_before if slow else 0
            flooded_before += flooded
            await room.all_go_on(always)
            before = await scrape(http, warden.console_url)
            delays = await room.delays(options.seconds)
            lag_ms = lag_quantile_ms(before, await scrape(http, warden.console_url), 0.99)
            found = Round(slow, delays, process.memory_info().rss, kernel_bytes(), lag_ms)
            rounds.append(found)
            say(
                f"{'slow ' if slow else 'equal'}  {len(delays):>7} chunks  p50 {found.quantile(0.5):6.2f}"
                f"  p99 {found.quantile(0.99):7.2f}  p99.9 {found.quantile(0.999):7.2f} ms"
                f"  loop p99 <= {lag_ms:3g} ms  warden {found.rss_bytes / 1e6:4.0f} MB"
                f"  kernel {found.kernel_bytes / 1e6:4.0f} MB"
                + (f"  each flood stood still after {flooded / options.slow / 1e6:.1f} MB" if slow else "")
            )
            await room.leave(others)
        return Result(rounds, options.slow, room.good, room.lost, stream_kb)
    finally:
        if room is not None:
            await room.leave(list(room.open))
        await http.close()
        warden.stop()
        await engine.end()


def _is_ready(warden: LaunchedWarden) -> bool:
    card = warden.get(f"/api/models/{MODEL}/routing")
    return bool(card["replicas"][0]["state"] == "ready")


async def _stands_still(engine: Child) -> int:
    """Wait until the floods are as good as paused; returns how much the engine has ever written into floods."""
    before, first = -1, None
    while True:
        engine.tell({"report": True})
        now = int((await engine.line())["flooded_bytes"])
        first = now if first is None else first
        # What slow readers take goes on being replaced: a little is always written.
        if before >= 0 and now - before < max(1 << 20, (now - first) // 50):
            return now
        before = now
        await asyncio.sleep(1.0)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--streams", type=int, default=5000)
    arguments.add_argument("--slow", type=int, default=500, help="of the streams")
    arguments.add_argument("--seconds", type=float, default=10.0, help="of each round")
    arguments.add_argument("--rounds", type=int, default=3, help="of each kind")
    return arguments


def main() -> int:
    """The command."""
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # so that nothing is left running
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="lmwarden-slow-") as folder:
        result = uvloop.run(measure(options, Path(folder), lambda line: print(line, flush=True)))
    lines = [
        (f"streams that began {result.good}, lost {result.lost}", result.lost == 0),
        (
            f"memory of the warden: {result.stream_kb:.1f} KB per stream, {result.slow_kb:.0f} KB more per slow reader,"
            f" at most {LIMIT_KB}",
            result.slow_kb <= LIMIT_KB,
        ),
        (
            f"p99 of the others' delay: {result.rise_ms:+.2f} ms with slow readers, noise {result.noise_ms:.2f} ms",
            result.rise_ms <= result.noise_ms,
        ),
    ]
    for sentence, passed in lines:
        print(("PASS  " if passed else "FAIL  ") + sentence)
    return 0 if all(passed for _, passed in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
