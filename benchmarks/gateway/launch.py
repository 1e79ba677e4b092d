"""A gateway process for the benchmark: the real router, keys and identity in front of one upstream.

    launch.py LISTEN_PORT UPSTREAM_PORT STATS_FILE [--ledger DIR] [--no-prefixes]

On SIGUSR1 it writes a JSON object of counts to STATS_FILE. Rows go to memory (counted, then dropped) unless
``--ledger`` names a folder: then the real ledger writes them to SQLite, on the same core. Prompts are looked at as in
the product (``prefix_watch``), unless ``--no-prefixes``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import tempfile
import time
from pathlib import Path

import uvloop

from lmwarden.access.keys import Authenticator, KeyStore, digest_of
from lmwarden.config import Flag, load_storage
from lmwarden.gateway import Gateway, ServedModel
from lmwarden.gateway.prefix_watch import PrefixWatch
from lmwarden.ledger.ledger import Ledger
from lmwarden.routing.router import Router
from lmwarden.types import (
    EngineEndpoint,
    KeyIdentity,
    ReplicaCapacity,
    ReplicaId,
    RequestRecord,
    RoutingSettings,
)

KEY = b"sk-1234"
"""What the load generator sends."""
RANKS = 4
SECRET = b"benchmark secret of 32 bytes...."


class Rows:
    """Counts rows, and those with usage."""

    def __init__(self, ledger: Ledger | None) -> None:
        self.rows = 0
        self.with_usage = 0
        self._ledger = ledger

    def record(self, record: RequestRecord) -> None:
        """Take one row."""
        self.rows += 1
        self.with_usage += record.prompt_tokens == 10 and record.cached_tokens == 4 and record.completion_tokens == 5
        if self._ledger is not None:
            self._ledger.record(record)


def authenticator(folder: Path) -> Authenticator:
    """The product's own, with the load generator's key in its table."""
    keys = Authenticator(KeyStore(folder, SECRET), SECRET, required=True)
    digest = digest_of(KEY, SECRET)
    keys._by_digest = {digest: KeyIdentity("bench", digest)}
    return keys


async def serve(arguments: argparse.Namespace, folder: Path) -> None:
    """Run until SIGTERM."""
    ledger = None
    if arguments.ledger is not None:
        storage, _ = load_storage(None, [Flag("--ledger", ("storage", "dir"), str(arguments.ledger))])
        ledger = Ledger(arguments.ledger, storage)
        ledger.start()
    rows = Rows(ledger)
    router = Router(RoutingSettings(admission="auto"), engines={"e0": RANKS})
    for rank in range(RANKS):
        capacity = ReplicaCapacity(kv_cache_tokens=1_000_000, max_num_seqs=40_000)
        router.replica_up(ReplicaId("e0", rank), capacity, "boot", time.monotonic())
    endpoint = EngineEndpoint(engine="e0", host="127.0.0.1", port=arguments.upstream, ranks=RANKS, model="fake")
    served = ServedModel(name="fake", router=router, engines={"e0": endpoint}, identity_secret=SECRET)
    prefixes = None if arguments.no_prefixes else PrefixWatch(SECRET)
    if prefixes is not None:
        prefixes.start()
    gateway = Gateway([served], authenticator(folder), rows, prefixes=prefixes)
    await gateway.start("127.0.0.1", arguments.port)

    def report() -> None:
        view = router.view(time.monotonic())
        counts = {"rows": rows.rows, "with_usage": rows.with_usage, "in_flight": view.in_flight}
        counts["unread_prompts"] = 0 if prefixes is None else prefixes.dropped
        arguments.stats.write_text(json.dumps(counts))

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, report)
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 1, 10_000)  # as the daemon does
    await stop.wait()
    await gateway.stop(0)
    if prefixes is not None:
        prefixes.stop()
    if ledger is not None:
        ledger.stop()


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("upstream", type=int)
    parser.add_argument("stats", type=Path)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--no-prefixes", action="store_true")
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(serve(parser.parse_args(), Path(folder)))


if __name__ == "__main__":
    main()
