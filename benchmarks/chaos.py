"""Kills everything at random under load, then checks that nothing was lost and everything is accounted for once.

    ./run python -m benchmarks.chaos [--conversations 1000] [--turns 20] [--agents 100] [--seed 1]

One warden, started as a user starts it, with two models: ``agents`` on four simulated engines that it launches
(one process tree per replica), and ``attached`` on a simulated engine with two ranks that this script runs, behind a
proxy of its own that resets and delays connections. Agents play conversations of growing turns on both; a turn that
does not end well is sent again, as real clients do. Meanwhile, at random: an engine is killed (SIGKILL), the server
with the two ranks is killed (all its ranks end), an engine stands still for a while (SIGSTOP, SIGCONT), connections to
engines are reset, or no byte passes them for a while, clients leave in the middle of an answer, the warden itself is
killed.

Checked at the end, status 1 if one does not hold:

* every turn of every conversation was answered completely;
* every complete answer has one row ``ok`` in the ledger, and every row ``ok`` one complete answer. A kill of the
  warden may cost the rows of the last moments before it (``ROWS_WINDOW_S``), and they are counted;
* since the warden's last start (a kill takes its counters along) every request has one decision, or was refused or
  left: ``/metrics`` counts as many of each decision and outcome as there are rows;
* nothing is in flight, nobody waits, no request body is held, and no connection of a client is open.

Simulated engines; the warden, its sockets, files and processes are real.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from benchmarks.soaking.watching import Metrics, scrape
from tests.waiting import until
from tests.whole.agent import Asked, End, ask
from tests.whole.launched import MODEL, LaunchedWarden

from lmwarden.cli.engine_process import simulated_engine

ATTACHED = "attached"
SPEED = 100.0
OUTPUT_TOKENS = 24
BLOWS = {"engine": 4, "engine stands still": 2, "connections": 4, "delay": 3, "ranks": 1, "warden": 1}
"""How often, in proportion."""
STANDS_STILL_S = 4.0
"""At most."""
LEAVES_SHARE = 0.01
"""Of turns, the client leaves once in the middle of the answer."""
ROWS_WINDOW_S = 0.5
"""Rows of requests that ended so shortly before a kill of the warden may be missing: they are written in batches."""


@dataclass
class Books:
    """What the clients saw."""

    ends: Counter[str] = field(default_factory=Counter)
    complete_at: list[float] = field(default_factory=list)
    warden_killed_at: list[float] = field(default_factory=list)
    rows_of_earlier_lives: int = 0
    """Rows that were written before the warden's last start."""
    kills: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    attempts_of_a_turn: list[int] = field(default_factory=list)
    sticky: Counter[str] = field(default_factory=Counter)


class Proxy:
    """Between the warden and the attached engine: forwards bytes, and resets connections when told to."""

    def __init__(self) -> None:
        self.port = 0
        self.upstream: tuple[str, int] | None = None
        """None: the engine is away, and connections are refused by closing them."""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def reset(self, chance: random.Random, share: float) -> None:
        """Reset some of the open connections."""
        for writer in list(self._open):
            if chance.random() < share:
                writer.transport.abort()

    async def delay(self, seconds: float) -> None:
        """Let no byte pass for a while."""
        self._flows.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._flows.set()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.reset(random.Random(0), 2.0)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.upstream is None:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, up_writer}
        ways = ((reader, up_writer), (up_reader, writer))
        both = [asyncio.create_task(self._pump(*way)) for way in ways]
        self._tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, up_writer):
            end.transport.abort()
        await asyncio.gather(*both, return_exceptions=True)
        self._tasks.difference_update(both)
        self._open -= {writer, up_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()


class WardenWithBoth(LaunchedWarden):
    """The launched model, and the attached one behind the proxy."""

    proxy_port = 0

    def configuration(self) -> str:
        return (
            super().configuration()
            + f"""
[[models]]
name = "{ATTACHED}"
[models.engine]
attach = ["http://127.0.0.1:{self.proxy_port}"]
model = "{ATTACHED}"
data_parallel_size = 2
"""
        )


class AttachedEngine:
    """The engine with two ranks, killed and started anew."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._killed = asyncio.Event()
        self.pid: int | None = None

    async def run(self) -> None:
        arguments = ["--replicas", "2", "--model", ATTACHED, "--speed", f"{SPEED:g}"]
        while True:
            async with simulated_engine(arguments) as engine:
                host, _, port = engine.url.removeprefix("http://").partition(":")
                self._proxy.upstream = (host, int(port))
                self.pid = engine.process.pid
                await engine.ended()
                self.pid = None
                self._proxy.upstream = None
                self._proxy.reset(random.Random(0), 2.0)


async def play(
    warden: LaunchedWarden, http: aiohttp.ClientSession, number: int, turns: int, books: Books, chance: random.Random
) -> None:
    """One conversation, to its end."""
    model = ATTACHED if number % 5 == 4 else MODEL
    text = f"Conversation {number}. " + "word " * chance.randrange(50, 400)
    for turn in range(turns):
        text += f" Turn {turn}: " + "more " * 20
        leaves = chance.random() < LEAVES_SHARE
        for attempt in range(1, 10_000):
            asked = await one(warden, http, model, f"chaos-{number}", text, leaves and attempt == 1)
            books.ends[asked.end if not (leaves and attempt == 1) else "left"] += 1
            if leaves and attempt == 1:
                continue
            if asked.end is End.COMPLETE:
                books.complete_at.append(time.monotonic())
                books.sticky[str(asked.decision)] += 1
                books.turns += 1
                books.attempts_of_a_turn.append(attempt)
                break
            # As clients do: a moment, then the same request again.
            await asyncio.sleep(0.05 + 0.1 * chance.random())


async def one(
    warden: LaunchedWarden, http: aiohttp.ClientSession, model: str, session: str, text: str, leaves: bool
) -> Asked:
    asking = asyncio.ensure_future(ask(http, warden.client_url, model, session, text, OUTPUT_TOKENS))
    if leaves:
        await asyncio.wait([asking], timeout=0.02)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return Asked(End.BROKEN)
    return await asking


async def havoc(
    warden: LaunchedWarden,
    proxy: Proxy,
    attached: AttachedEngine,
    books: Books,
    chance: random.Random,
    pause_s: float,
    over: asyncio.Event,
) -> None:
    """One blow after the other until it is over; the last one is carried out whole."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), pause_s * (0.5 + chance.random()))
            return
        blow = chance.choices(list(BLOWS), list(BLOWS.values()))[0]
        if blow in ("engine", "engine stands still"):
            processes = await asyncio.to_thread(warden.engine_processes)
            if not processes:
                continue
            one = chance.choice(sorted(processes, key=lambda process: process.pid))
            with suppress(psutil.NoSuchProcess):
                if blow == "engine":
                    one.kill()
                else:
                    await stand_still(one, STANDS_STILL_S * chance.random())
        elif blow == "delay":
            await proxy.delay(STANDS_STILL_S * chance.random())
        elif blow == "connections":
            proxy.reset(chance, 0.5)
        elif blow == "ranks":
            if attached.pid is None:
                continue
            with suppress(psutil.NoSuchProcess):
                psutil.Process(attached.pid).kill()
        else:
            warden.kill()
            books.warden_killed_at.append(time.monotonic())
            books.rows_of_earlier_lives = len(warden.rows())
            await warden.start()
        books.kills[blow] += 1


async def stand_still(process: psutil.Process, seconds: float) -> None:
    """Stop a process, and let it go on whatever happens meanwhile.

    Raises:
        psutil.NoSuchProcess: it is gone.
    """
    process.suspend()
    try:
        await asyncio.sleep(seconds)
    finally:
        process.resume()


async def run(options: argparse.Namespace, folder: Path) -> bool:
    chance = random.Random(options.seed)
    proxy = Proxy()
    await proxy.start()
    warden = WardenWithBoth(folder, speed=SPEED)
    warden.proxy_port = proxy.port
    attached = AttachedEngine(proxy)
    books = Books()
    over = asyncio.Event()
    background = [asyncio.ensure_future(attached.run())]
    started = time.monotonic()
    try:
        await warden.start()
        await warden.all_ready()
        queue = iter(range(options.conversations))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

            async def agent() -> None:
                for number in queue:
                    await play(warden, http, number, options.turns, books, chance)

            background.append(asyncio.ensure_future(havoc(warden, proxy, attached, books, chance, options.pause, over)))
            agents = asyncio.gather(*(agent() for _ in range(options.agents)))
            all_of_it: list[asyncio.Future[Any]] = [agents, *background]
            await asyncio.wait(all_of_it, return_when=asyncio.FIRST_COMPLETED)
            if not agents.done():
                agents.cancel()
                raise RuntimeError("the havoc ended before the agents did")
            agents.result()
            over.set()
            await background[1]
        print(f"{time.monotonic() - started:.0f} s; blows: {dict(books.kills)}; clients saw: {dict(books.ends)}")
        print(
            f"decisions of complete answers: {dict(books.sticky)}; most attempts of a turn: "
            f"{max(books.attempts_of_a_turn)}"
        )
        return await check(warden, books, options)
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        warden.stop()
        await proxy.stop()


async def check(warden: LaunchedWarden, books: Books, options: argparse.Namespace) -> bool:
    def in_flight() -> int:
        return sum(int(warden.get(f"/api/models/{model}/routing")["in_flight"]) for model in (MODEL, ATTACHED))

    await until(lambda: in_flight() == 0, warden.describe)
    await asyncio.sleep(2.5)  # the ledger's last batch, and a snapshot after it
    metrics = await metrics_of(warden)
    held = held_at_rest(metrics)
    rows = warden.rows()
    of_this_life = rows[books.rows_of_earlier_lives :]
    uncounted = counted(metrics) - decided(of_this_life) + (decided(of_this_life) - counted(metrics))
    ok = sum(row["outcome"] == "ok" for row in rows)
    in_window = sum(
        any(0 <= killed - at <= ROWS_WINDOW_S for killed in books.warden_killed_at) for at in books.complete_at
    )
    complete = books.ends[End.COMPLETE]
    checks: list[tuple[str, Callable[[], bool]]] = [
        (
            f"every turn answered: {books.turns} of {options.conversations * options.turns}",
            lambda: books.turns == options.conversations * options.turns,
        ),
        # A client may leave, or die with the warden, when the answer is complete already: hence no equality there.
        (
            f"complete answers {complete}, rows ok {ok}, in the {ROWS_WINDOW_S} s before a kill {in_window}",
            lambda: complete - in_window <= ok <= complete + books.ends["left"] + books.ends[End.BROKEN],
        ),
        (
            f"since the last start {len(of_this_life)} rows; counted otherwise by /metrics: {dict(uncounted)}",
            lambda: not uncounted,
        ),
        (f"in flight {in_flight()}", lambda: in_flight() == 0),
        (f"held at rest {held}", lambda: not any(held.values())),
        (f"rows: {dict(Counter(row['outcome'] for row in rows))}", lambda: True),
    ]
    good = True
    for sentence, holds in checks:
        passed = holds()
        good &= passed
        print(("ok    " if passed else "FAULT ") + sentence)
    return good


async def metrics_of(warden: LaunchedWarden) -> Metrics:
    async with aiohttp.ClientSession() as http:
        return await scrape(http, warden.console_url)


def counted(metrics: Metrics) -> Counter[tuple[str, ...]]:
    """Requests by model, decision and outcome, as the warden counted them since its start."""
    found: Counter[tuple[str, ...]] = Counter()
    for key, value in metrics.values.items():
        if key.startswith("lmwarden_requests_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', key))
            found[labels["model"], labels["decision"], labels["outcome"]] += int(value)
    return found


def decided(rows: Sequence[Mapping[str, Any]]) -> Counter[tuple[str, ...]]:
    """The same of request rows."""
    undecided = {"refused": "refused", "cancelled": "left"}
    return Counter(
        (row["model"], row["decision"] or undecided.get(row["outcome"], "none"), row["outcome"]) for row in rows
    )


def held_at_rest(metrics: Metrics) -> dict[str, int]:
    """What is to be 0 when nobody asks for anything."""
    names = ("waiting_room", "buffered_bytes", "client_connections")
    return {name: int(metrics.total(f"lmwarden_{name}")) for name in names}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--conversations", type=int, default=1000)
    arguments.add_argument("--turns", type=int, default=20)
    arguments.add_argument("--agents", type=int, default=100)
    arguments.add_argument("--pause", type=float, default=3.0, help="mean seconds between blows")
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="lmwarden-chaos-") as folder:
        return 0 if asyncio.run(run(options, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
