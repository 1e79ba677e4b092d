"""What a soak sees of a warden from outside: its process, its ``/metrics``, its files; and two people who look on."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import aiohttp
import msgspec
import psutil

from lmwarden.gateway.loop_lag import LAG_BOUNDS_S, LoopLagSnapshot

_LINE = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)
_LOOKED_AT = (
    ("/api/requests?limit=100", 2.0),
    ("/api/models/busy/conversations?state=live&limit=100", 1.0),
    ("/api/models/ranks/routing", 1.0),
    ("/api/stats/tokens?window=1h", 5.0),
    ("/api/stats/latency?window=1h", 5.0),
)
"""What an open page asks for beside its live stream, and how often."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One moment."""

    done_ratio: float
    """Of the day's requests."""
    rss_bytes: int
    files: int
    threads: int
    tasks: int
    connections: int
    """Of clients."""
    database_bytes: int
    log_bytes: int
    """SQLite's write-ahead log."""


class Metrics(msgspec.Struct, frozen=True):
    """A scrape."""

    values: Mapping[str, float]
    """By name and labels, as on the page."""

    def total(self, name: str) -> float:
        """Sum over all labels."""
        return sum(value for key, value in self.values.items() if key.partition("{")[0] == name)

    def lag_counts(self) -> list[float]:
        """Ticks of the loop in or below each bound, and in all."""
        bounds = [*map(str, LAG_BOUNDS_S), "+Inf"]
        return [self.values[f'lmwarden_event_loop_lag_seconds_bucket{{le="{bound}"}}'] for bound in bounds]


async def scrape(http: aiohttp.ClientSession, console: str) -> Metrics:
    """Read ``/metrics``."""
    async with http.get(f"{console}/metrics") as response:
        response.raise_for_status()
        text = await response.text()
    return Metrics({name + labels: float(value) for name, labels, value in _LINE.findall(text)})


def lag_quantile_ms(before: Metrics, after: Metrics, ratio: float) -> float:
    """Upper bound of the bucket that holds the quantile of the ticks between two scrapes, in milliseconds."""
    return _quantile_ms(
        [late - early for early, late in zip(before.lag_counts(), after.lag_counts(), strict=True)], ratio
    )


def own_quantile_ms(own: LoopLagSnapshot, ratio: float) -> float:
    """The same of this process's loop, which has little to do: how late the machine lets it be."""
    return _quantile_ms(list(accumulate(own.counts)), ratio)


def _quantile_ms(cumulative: Sequence[float], ratio: float) -> float:
    for bound, count in zip(LAG_BOUNDS_S, cumulative, strict=False):
        if count >= ratio * cumulative[-1]:
            return bound * 1000
    return float("inf")


def look(process: psutil.Process, ledger: Path, metrics: Metrics, done_ratio: float) -> Sample:
    """Take a sample."""
    with process.oneshot():
        rss, files, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
    wal = ledger.with_name(ledger.name + "-wal")
    return Sample(
        done_ratio=done_ratio,
        rss_bytes=rss,
        files=files,
        threads=threads,
        tasks=int(metrics.total("lmwarden_event_loop_tasks")),
        connections=int(metrics.total("lmwarden_client_connections")),
        database_bytes=ledger.stat().st_size,
        log_bytes=wal.stat().st_size if wal.exists() else 0,
    )


def rows_ever_written(ledger: Path) -> int:
    """Row numbers go on where the oldest rows are forgotten."""
    with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True, timeout=10.0)) as connection:
        return int(connection.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()[0])


def rows_kept(ledger: Path) -> int:
    """Rows that are there."""
    with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True, timeout=10.0)) as connection:
        return int(connection.execute("SELECT count(*) FROM requests").fetchone()[0])


class Viewers:
    """People who look at the console until they are stopped."""

    def __init__(self, console: str, count: int) -> None:
        self.messages = 0
        self.pages = 0
        self.failed = 0
        self._console = console
        self._tasks = [
            asyncio.ensure_future(work)
            for _ in range(count)
            for work in (self._stream(), *(self._ask(*question) for question in _LOOKED_AT))
        ]
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def stop(self) -> None:
        """Close the pages."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    async def _stream(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=30)
        async with self._http.get(f"{self._console}/api/events", timeout=timeout) as response:
            async for part in response.content.iter_any():
                self.messages += part.count(b"event: snapshot")

    async def _ask(self, path: str, every_s: float) -> None:
        while True:
            async with self._http.get(self._console + path) as response:
                await response.read()
                self.pages += 1
                self.failed += response.status != 200
            await asyncio.sleep(every_s)
