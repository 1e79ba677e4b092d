"""What the ledger's writer costs, and what it does to a data loop that is busy.

    ./run python benchmarks/ledger.py [--rate 3000] [--seconds 20] [--max-rows 50000] [--folder DIR]

The main thread works without a pause, as a data loop does under full load: many short pieces of Python with a system
call between them. Between those it records so many rows a second, one in twelve of a new conversation, and saves the
homes of all of them twice a second, as a warden does. Once without a ledger, once with it. Prints rows written and
dropped, processor time of the writer's thread per row with all that belongs to a row (homes, history, forgetting the
oldest), and for both how long a piece took that should take a tenth of a millisecond.
"""

from __future__ import annotations

import argparse
import random
import socket
import tempfile
import threading
import time
from pathlib import Path

from lmwarden.config import StorageConfig
from lmwarden.ledger.ledger import Ledger
from lmwarden.types import ConversationKey, Decision, Home, HomeChanges, Outcome, PrefixChange, ReplicaId, RequestRecord

REPLICAS = [ReplicaId("e0", rank) for rank in range(8)]
CONVERSATIONS = 5000
HOMES_S = 0.5
_WORK = 3000


class Traffic:
    """Rows, and the homes that they change."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._chance = random.Random(1)
        self._keys = [self._chance.randbytes(16) for _ in range(CONVERSATIONS)]
        self._homes: dict[ConversationKey, Home] = {}

    def request(self) -> None:
        """One ended."""
        chance = self._chance
        place, new = chance.randrange(CONVERSATIONS), chance.random() < 1 / 12
        if new:
            self._keys[place] = chance.randbytes(16)
        key, replica = self._keys[place], chance.choice(REPLICAS)
        prompt_tokens = chance.randrange(2000, 40_000)
        self._homes[key] = Home(
            conversation=key, replica=replica, boot_id="boot", context_tokens=prompt_tokens, last_used=time.monotonic()
        )
        self._ledger.record(
            RequestRecord(
                finished_at=time.time(), model="m", endpoint="/v1/messages", key_name=f"agents-{place % 4}",
                conversation=key[:4].hex(), derived=False, decision=Decision.PLACED if new else Decision.STICKY,
                replica=str(replica), outcome=Outcome.OK, status=200, streamed=True, retried=False, waited_s=0.0,
                first_byte_s=chance.expovariate(2.0), duration_s=4.0, prompt_tokens=prompt_tokens,
                cached_tokens=prompt_tokens * 9 // 10, completion_tokens=180, finish_reason="tool_use",
                conversation_key=key, client="claude-code", kind="main", body_bytes=prompt_tokens * 4, why="home",
                home=str(replica), home_in_flight=3, spill_threshold=8, prefix_change=PrefixChange.EXTENDS,
                prefix_shared_ratio=1.0, recomputed_tokens=0,
            )
        )  # fmt: skip

    def save_homes(self) -> None:
        """Those that changed."""
        self._ledger.save_homes("m", HomeChanges(list(self._homes.values()), []), time.monotonic(), time.time())
        self._homes.clear()


def piece(one: socket.socket, other: socket.socket) -> None:
    """What a data loop does for one event, about."""
    one.send(b"x" * 200)
    other.recv(400)
    total = 0
    for number in range(_WORK):
        total += number


def work(seconds: float, rate: float, traffic: Traffic | None) -> list[float]:
    """Be busy; returns how long each piece took, in seconds, in order."""
    one, other = socket.socketpair()
    took, requests, began_s, homes_s = [], 0, time.perf_counter(), 0.0
    with one, other:
        while (now_s := time.perf_counter() - began_s) < seconds:
            if traffic is not None:
                for _ in range(int(now_s * rate) - requests):
                    traffic.request()
                    requests += 1
                if now_s - homes_s >= HOMES_S:
                    traffic.save_homes()
                    homes_s = now_s
            piece_s = time.perf_counter()
            piece(one, other)
            took.append(time.perf_counter() - piece_s)
    return sorted(took)


def told(name: str, took: list[float]) -> None:
    """One line."""
    p50, p99, p999 = (took[int(len(took) * ratio)] * 1000 for ratio in (0.5, 0.99, 0.999))
    print(f"{name:<15} pieces {len(took):>7}  p50 {p50:.2f} ms  p99 {p99:.2f} ms  p99.9 {p999:.2f} ms")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=3000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--max-rows", type=int, default=50_000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    told("without ledger", work(min(5.0, arguments.seconds), arguments.rate, None))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        settings = StorageConfig(
            retention_days=30, max_rows=arguments.max_rows, max_queued_rows=20_000, history_days=7,
            history_max_bytes=1 << 28,
        )  # fmt: skip
        ledger = Ledger(Path(folder), settings)
        ledger.start()
        (writer,) = (thread for thread in threading.enumerate() if thread.name == "lmwarden-ledger")
        assert writer.ident is not None
        clock = time.pthread_getcpuclockid(writer.ident)
        told("with ledger", work(arguments.seconds, arguments.rate, Traffic(ledger)))
        written, used_s = ledger.written_rows, time.clock_gettime(clock)
        print(
            f"{written} rows written, {ledger.dropped_rows} dropped; the writer used {used_s / written * 1e6:.1f} us of"
            f" processor time per row, {used_s / arguments.seconds:.1%} of a core"
        )
        ledger.stop()


if __name__ == "__main__":
    main()
