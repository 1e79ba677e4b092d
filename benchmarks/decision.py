"""What one routing decision costs, and what one conversation weighs.

    ./run python benchmarks/decision.py [--replicas 64] [--conversations 100000]

Prints microseconds per ``offer`` (the decision with its reservation) for each kind of decision, at a small and at the
full number of conversations; resident memory per conversation; and both again after 200,000 ids that come once.
Also what it costs to tell a ledger about homes: a whole turn (offered and finished) with and without, and the telling.
Claims: a decision <= 20 us and not growing with the number of conversations; 100,000 conversations <= 60 MB.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lmwarden.routing.router import Router
from lmwarden.types import Outcome, ReplicaCapacity, ReplicaId, ReplicaSample, RoutingRequest, RoutingSettings, Usage

USAGE = Usage(prompt_tokens=10_000, cached_tokens=9_000, completion_tokens=200, finish_reason="tool_calls")


class Bench:
    """A router with replicas that are up and sampled, and a clock."""

    def __init__(self, replicas: int, max_conversations: int) -> None:
        self.now = 0.0
        self.router = Router(RoutingSettings(max_conversations=max_conversations), engines={"e0": replicas})
        self.replicas = [ReplicaId("e0", rank) for rank in range(replicas)]
        for replica in self.replicas:
            capacity = ReplicaCapacity(kv_cache_tokens=42_000, max_num_seqs=32)
            self.router.replica_up(replica, capacity, "boot", self.now)
        self.scrape()

    def scrape(self) -> None:
        for replica in self.replicas:
            self.router.observe(replica, ReplicaSample(taken_at=self.now, kv_used_ratio=0.5), self.now)

    def fill(self, keys: list[bytes], turns: int = 1) -> None:
        for _ in range(turns):
            for key in keys:
                self.turn(RoutingRequest(conversation=key, opening=key))

    def turn(self, request: RoutingRequest) -> float:
        """One whole turn; returns the seconds that ``offer`` took."""
        self.now += 0.001
        started = time.perf_counter()
        ticket, _ = self.router.offer(request, self.now)
        took = time.perf_counter() - started
        self.router.finished(ticket, Outcome.OK, USAGE, self.now)
        return took

    def microseconds(self, request: Callable[[], RoutingRequest], count: int = 5_000) -> float:
        """Median over ``count`` decisions, which leaves out what the machine does besides."""
        self.scrape()
        return sorted(self.turn(request()) for _ in range(count))[count // 2] * 1e6


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report(bench: Bench, keys: list[bytes], label: str) -> None:
    sticky = bench.microseconds(lambda: RoutingRequest(conversation=random.choice(keys)))
    placed = bench.microseconds(lambda: RoutingRequest(conversation=os.urandom(16)))
    balanced = bench.microseconds(lambda: RoutingRequest())
    print(f"{label:44} sticky {sticky:5.1f}   placed {placed:5.1f}   balanced {balanced:5.1f}   us per decision")


def report_homes(replicas: int, keys: list[bytes], turns: int = 40_000, every: int = 100) -> None:
    """A whole turn of two routers in alternation, one of which is asked for changes of homes as the warden does."""
    silent, asked = Bench(replicas, 200_000), Bench(replicas, 200_000)
    for bench in (silent, asked):
        bench.fill(keys, turns=2)
    asked.router.take_home_changes()
    took: dict[Bench, list[float]] = {silent: [], asked: []}
    told, telling_s = 0, 0.0
    for number in range(turns):
        request = RoutingRequest(conversation=random.choice(keys))
        for bench in (silent, asked) if number % 2 else (asked, silent):
            took[bench].append(timed(partial(bench.turn, request)))
        if number % every == 0:
            started = time.perf_counter()
            told += len(asked.router.take_home_changes().changed)
            telling_s += time.perf_counter() - started
    without, with_homes = (sorted(took[bench])[turns // 2] * 1e6 for bench in (silent, asked))
    print(f"homes: a sticky turn {without:.2f} us without, {with_homes:.2f} us with, ratio {with_homes / without:.3f}")
    print(f"homes: telling {telling_s / told * 1e6:.2f} us per home that changed")
    asking = sorted(timed(asked.router.take_home_changes) for _ in range(10_000))
    print(f"homes: asking when nothing changed {asking[5_000] * 1e6:.2f} us")


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--replicas", type=int, default=64)
    arguments.add_argument("--conversations", type=int, default=100_000)
    options = arguments.parse_args()

    small = Bench(options.replicas, 200_000)
    few = [os.urandom(16) for _ in range(1_000)]
    small.fill(few, turns=2)
    report(small, few, f"{options.replicas} replicas, 1,000 conversations")
    del small
    report_homes(options.replicas, few)

    keys = [os.urandom(16) for _ in range(options.conversations)]
    before = resident_bytes()
    bench = Bench(options.replicas, options.conversations + 50_000)
    bench.fill(keys, turns=2)
    grown = resident_bytes() - before
    print(
        f"memory: {grown / 1e6:.1f} MB for {options.conversations:,} ({grown / options.conversations:.0f} bytes each)"
    )
    report(bench, keys, f"{options.replicas} replicas, {options.conversations:,} conversations")

    for _ in range(200_000):
        bench.turn(RoutingRequest(conversation=os.urandom(16)))
    flood = resident_bytes() - before
    report(bench, keys, "after 200,000 ids that come once")
    print(f"memory: {flood / 1e6:.1f} MB, {bench.router.view(bench.now).conversations:,} conversations in the table")
    known = sum(1 for key in keys if bench.router._table.get(key) is not None)
    print(f"of the {options.conversations:,} that return, {known:,} are still known")


if __name__ == "__main__":
    main()
