"""A week of history: how large it is, what writing costs, and how long a chart takes.

    ./run python benchmarks/history.py [--replicas 64] [--days 7] [--folder DIR]

Writes the history of one model with that many busy replicas as a warden would have (ticks of the last day, minutes and
ten minutes of all days), beside it a tick of live traffic, and prints the size of the file, bytes per point, what one
tick of the writer costs, and the time of every chart as the console answers it, the first time and the best of five.
Claims: any chart of a week below 200 ms; POINT_BYTES in ledger/history_tables.py is not below what is printed.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from lmwarden.config import StorageConfig
from lmwarden.console.charts import latency_chart, replicas_chart, requests_chart, tokens_chart
from lmwarden.ledger import histogram, schema
from lmwarden.ledger import history_tables as tables
from lmwarden.ledger.history import History, Question, Stretch
from lmwarden.ledger.history_sums import TICK_S, WHOLE, Sums, Views, numbers
from lmwarden.ledger.history_writer import HistoryWriter
from lmwarden.ledger.reader import Reader
from lmwarden.types import (
    Decision,
    Outcome,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    ReplicaState,
    ReplicaView,
    RequestRecord,
    RouterView,
    RoutingSettings,
)

MODEL = "qwen3-4b"
WINDOWS_S = {"1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800}
CHARTS: dict[str, Callable[[Stretch], msgspec.Struct]] = {
    "tokens": lambda stretch: tokens_chart(stretch, 1.0),
    "latency": latency_chart,
    "requests": lambda stretch: requests_chart(stretch, 1.0),
    "replicas": lambda stretch: replicas_chart(stretch, 64),
}


def sums_of(chance: random.Random, requests: int, seconds: int, replicas: int) -> Sums:
    """A stretch of a busy replica, or of all of them."""
    counts: histogram.Counts = {}
    for _ in range(min(requests, 60)):
        bucket = histogram.bucket_of(chance.lognormvariate(0.5, 1.2))
        counts[bucket] = counts.get(bucket, 0) + max(1, requests // 60)
    prompt = requests * 12_000
    return Sums(
        cached_tokens=int(prompt * 0.8), computed_tokens=int(prompt * 0.2), completion_tokens=requests * 180,
        placed=requests // 6, sticky=requests - requests // 6, ok=requests,
        first_byte_sum_s=requests * chance.random() * 3, first_byte_counts=counts,
        samples=seconds, ready_sum=seconds * replicas, in_flight_sum=seconds * 6 * replicas,
        conversations_sum=seconds * 9 * replicas, held_tokens_sum=seconds * 38_000 * replicas,
        engine_samples=seconds, busy_sum=seconds * replicas, running_sum=seconds * 5 * replicas,
        waiting_sum=seconds * replicas, kv_samples=seconds * replicas,
        kv_used_sum=seconds * replicas * chance.random(),
    )  # fmt: skip


def rows(replicas: int, begin: int, end: int, step_s: int) -> Iterator[tuple[Any, ...]]:
    """Points of one resolution, in the order of time, as a warden writes them; every point of every series is there."""
    chance = random.Random(step_s)

    def some(of: int) -> list[tuple[Any, ...]]:
        sums = [sums_of(chance, max(1, of * step_s // 12), step_s, of) for _ in range(200)]
        return [(*numbers(one), histogram.encoded(one.first_byte_counts)) for one in sums]

    whole, own = some(replicas), some(1)
    for t in range(begin - begin % step_s, end, step_s):
        for series in range(replicas + 1):
            yield (step_s, series + 1, t, *chance.choice(whole if series == 0 else own))


def fill(connection: sqlite3.Connection, replicas: int, days: float, now: int) -> int:
    """Make the history; returns the number of points."""
    connection.create_function(tables.MERGE, 2, histogram.merged, deterministic=True)
    connection.execute("BEGIN")
    for series in range(replicas + 1):
        name = WHOLE if series == 0 else f"e0/{series - 1}"
        connection.execute(tables.ADD_SERIES, (MODEL, name))
    for step_s in tables.STEPS_S:
        kept_s = min(days * 86_400, tables.FINEST_KEPT_S if step_s == TICK_S else days * 86_400)
        connection.executemany(tables.ADD, rows(replicas, int(now - kept_s), now, step_s))
    connection.execute("COMMIT")
    return int(connection.execute("SELECT count(*) FROM history").fetchone()[0])


def view(replicas: int) -> RouterView:
    """All replicas busy."""
    shown = tuple(
        ReplicaView(
            replica=ReplicaId("e0", rank), state=ReplicaState.READY, in_flight=6, placed=1, sticky=1, spilled_in=0,
            client_pinned=0, rehomed_in=0, balanced=0, conversations=9, resident_tokens=38_000,
            capacity=ReplicaCapacity(kv_cache_tokens=42_000), suspect=False,
            sample=ReplicaSample(taken_at=0.0, running=5, waiting=1, kv_used_ratio=0.6),
        )
        for rank in range(replicas)
    )  # fmt: skip
    return RouterView(
        settings=RoutingSettings(), spill_threshold=8, spill_threshold_source="auto", in_flight=6 * replicas, waiting=0,
        decisions=dict.fromkeys(Decision, 0), refused=0, sticky_ratio=None, conversations=0, replicas=shown,
        balancer=None,
    )  # fmt: skip


def tick(connection: sqlite3.Connection, settings: StorageConfig, replicas: int, now: int) -> None:
    """Print what ten seconds of a busy warden cost its writer."""
    writer = HistoryWriter(settings)
    writer.opened(connection)
    shown = view(replicas)
    requests = [
        schema.to_row(
            RequestRecord(
                finished_at=now + number / 100, model=MODEL, endpoint="/v1/messages", key_name="anna",
                conversation="0a1b2c3d", derived=False, decision=Decision.STICKY, replica=f"e0/{number % replicas}",
                outcome=Outcome.OK, status=200, streamed=True, retried=False, waited_s=0.0, first_byte_s=0.8,
                duration_s=1.5, prompt_tokens=12_000, cached_tokens=9_600, completion_tokens=180,
                finish_reason="tool_use", conversation_key=(number % 500).to_bytes(16, "big"),
            )
        )
        for number in range(replicas * 10)
    ]  # fmt: skip
    counted, written = [], []
    for repeat in range(5):
        started = time.process_time()
        for second in range(10):
            writer.observe(Views({MODEL: shown}, 0.0, now + second + repeat * 10))
        writer.take_views()
        counted.append(time.process_time() - started)
        connection.execute("BEGIN IMMEDIATE")
        schema.write_all(connection, schema.INSERT, requests)
        writer.wrote_rows()
        started = time.process_time()
        writer.write(connection, now + repeat * 10)
        connection.execute("COMMIT")
        writer.written()
        written.append(time.process_time() - started)
    took = statistics.median(counted), statistics.median(written)
    print(
        f"one tick (10 s, {len(requests)} requests, 10 looks): {took[0] * 1000:.1f} ms to count looks,"
        f" {took[1] * 1000:.1f} ms to count requests and write = {sum(took) / 10:.2%} of a core"
    )


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "history.sqlite3"
        settings = StorageConfig(
            retention_days=30, max_rows=3_000_000, max_queued_rows=20_000, history_days=arguments.days,
            history_max_bytes=1 << 32,
        )  # fmt: skip
        connection = schema.connect(str(path), timeout_s=5.0)
        now = int(time.time()) // TICK_S * TICK_S
        started = time.monotonic()
        points = fill(connection, arguments.replicas, arguments.days, now)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = path.stat().st_size
        print(
            f"{arguments.replicas} replicas, {arguments.days:g} days: {points} points, {size / 1e6:.1f} MB,"
            f" {size / points:.0f} bytes a point (made in {time.monotonic() - started:.0f} s)"
        )
        tick(connection, settings, arguments.replicas, now)
        history = History(Reader(path), settings)
        print(f"{'chart':<10}{'window':<8}{'of':<9}{'points':>7}{'first ms':>10}{'best ms':>9}")
        for name, draw in CHARTS.items():
            for window, seconds in WINDOWS_S.items():
                for replica in (None, "e0/3"):
                    question = Question(
                        begin_s=now - seconds, end_s=now, model=MODEL, replica=replica, durations=name == "latency"
                    )
                    took = []
                    for _ in range(6):
                        began = time.perf_counter()
                        stretch = history.stretch(question, now)
                        msgspec.json.encode(draw(stretch))
                        took.append((time.perf_counter() - began) * 1000)
                    of = replica or "model"
                    print(f"{name:<10}{window:<8}{of:<9}{len(stretch.steps):>7}{took[0]:>10.1f}{min(took):>9.1f}")
        connection.close()


if __name__ == "__main__":
    main()
