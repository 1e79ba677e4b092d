"""Plays a day of a busy host in compressed form against a whole warden, and checks that nothing grows or gets lost.

    ./run python -m benchmarks.soak [--requests 2000000] [--minutes N] [--agents 64] [--restarts 6] [--seed 1]

The warden is ``lmwarden serve`` in a process of its own, with keys, its ledger on the disk, and two people at its
console. Behind it five engines that answer at once (``soaking/engines.py``; two models, one of them on engines with
two ranks each), before it agents at full speed (``soaking/load.py``): conversations that live and die, streams, clients
that leave, mistakes, large bodies. Now and then an engine dies and comes back. In the rush hours one of the models has
more conversations than its caches hold, and its waiting room engages.

The tables that a warden keeps are bounded; the bounds of the largest are set low here (``MAX_ROWS`` of the database,
``MAX_CONVERSATIONS`` of the routers and of what is remembered of prompts), so that they are full after a tenth of the
day. What grows in its second half, grows for ever.

Prints one line per check, and ends with status 1 if one fails. The engines are stubs; the warden, its sockets, files
and its process are real. How late the event loop is depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec
import psutil
from benchmarks.soaking.child import Child
from benchmarks.soaking.plan import Plan, Report
from benchmarks.soaking.table import DOWN_S, LONG_ENOUGH, MAX_ROWS, Check, Soak, checks, table
from benchmarks.soaking.watching import (
    Viewers,
    lag_quantile_ms,
    look,
    rows_ever_written,
    rows_kept,
    scrape,
)
from tests.waiting import until
from tests.whole.launched import LaunchedWarden

from lmwarden.access.keys import KeyStore
from lmwarden.access.secrets import load_secrets
from lmwarden.gateway.loop_lag import LoopLag

RANKS = (1, 1, 1, 2, 2)
MODELS = ("busy", "ranks")
MAX_CONVERSATIONS = 5_000
_SETTLE_S = 30.0


class SoakedWarden(LaunchedWarden):
    """In front of engines that run already."""

    ports: tuple[int, ...] = ()

    def configuration(self) -> str:
        """The file ``lmwarden.toml``."""
        urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        text = f"""
[client]
port = 0
require_key = true
drain_s = 5
[console]
port = 0
[storage]
dir = "{self.folder / "data"}"
max_rows = {MAX_ROWS}
[watch]
test_pins = false
"""
        for model, ranks, attach in zip(MODELS, (1, 2), (urls[:3], urls[3:]), strict=True):
            text += f"""
[[models]]
name = "{model}"
[models.engine]
attach = {json.dumps(attach)}
model = "{model}"
data_parallel_size = {ranks}
max_num_seqs = 64
[models.routing]
max_conversations = {MAX_CONVERSATIONS}
"""
        return text


async def run(options: argparse.Namespace, folder: Path, say: Callable[[str], None] = print) -> list[Check]:
    """Play the day.

    Args:
        options: of the command.
        folder: for the warden's files.
        say: takes lines on how it goes.

    Returns:
        The checks, in the order of the table.
    """
    soak = Soak(options, folder)
    keys = KeyStore(folder / "data", load_secrets(folder / "data", "soak").keys)
    texts = tuple(keys.create(f"agents-{number}") for number in range(4))
    engines = await Child.start("benchmarks.soaking.engines", *map(str, RANKS))
    warden = SoakedWarden(folder)
    children = [engines]
    try:
        warden.ports = tuple((await engines.line())["ports"])
        await warden.start()
        assert warden.process is not None
        process = psutil.Process(warden.process.pid)
        await until(lambda: _are_ready(warden), warden.describe)
        load = await Child.start("benchmarks.soaking.load")
        children.append(load)
        port = int(warden.client_url.rpartition(":")[2])
        plan = Plan(
            port=port,
            keys=texts,
            models=MODELS,
            requests=options.requests,
            agents=options.agents,
            seed=options.seed,
            seconds=None if options.minutes is None else options.minutes * 60,
        )
        async with aiohttp.ClientSession() as http:
            soak.before = await scrape(http, warden.console_url)
            soak.idle_files = process.num_fds()
            soak.viewers = Viewers(warden.console_url, 2)
            own_lag = LoopLag()
            own_lag.start()
            try:
                load.tell(msgspec.to_builtins(plan), last=True)
                await _play(soak, warden, process, http, load, engines, say)
                soak.under_load = await scrape(http, warden.console_url)
            finally:
                own_lag.stop()
                soak.own_lag = own_lag.snapshot()
                await soak.viewers.stop()
            await _come_to_rest(soak, warden, process, http)
        engines.tell({"report": True})
        soak.engines = await engines.line()
    finally:
        soak.exit_status = warden.stop()
        for child in children:
            await child.end()
    soak.complaints = _complaints(warden.log)
    return checks(soak)


def _are_ready(warden: LaunchedWarden) -> bool:
    cards = [warden.get(f"/api/models/{model}/routing") for model in MODELS]
    return all(row["state"] == "ready" for card in cards for row in card["replicas"])


async def _play(
    soak: Soak,
    warden: SoakedWarden,
    process: psutil.Process,
    http: aiohttp.ClientSession,
    load: Child,
    engines: Child,
    say: Callable[[str], None],
) -> None:
    """Until the load's report: samples, and engines that die."""
    options, told, began_s, last = soak.options, 0, time.monotonic(), soak.before
    ledger = _ledger(warden)
    assert last is not None
    while True:
        progress = await load.line()
        if progress["ended"]:
            soak.report = msgspec.convert(progress, type=Report)
            return
        elapsed_s = time.monotonic() - began_s
        done = progress["sent"] / options.requests
        if options.minutes is not None:
            done = elapsed_s / (options.minutes * 60)
        metrics = await scrape(http, warden.console_url)
        sample = look(process, ledger, metrics, min(1.0, done))
        soak.samples.append(sample)
        if len(soak.restarted_at) < min(options.restarts, int(done * (options.restarts + 1))):
            soak.restarted_at.append(time.monotonic())
            engines.tell({"restart": len(soak.restarted_at) % len(RANKS), "down_s": DOWN_S})
        if int(done * 20) > told:
            told = int(done * 20)
            say(
                f"{done:4.0%}  {elapsed_s:5.0f} s  {progress['sent']:>8} requests  RSS {sample.rss_bytes / 1e6:4.0f} MB"
                f"  files {sample.files:>3}  tasks {sample.tasks:>2}  database {sample.database_bytes / 1e6:4.0f}"
                f" + {sample.log_bytes / 1e6:3.0f} MB  lag p99 <= {lag_quantile_ms(last, metrics, 0.99):g} ms"
            )
            last = metrics


async def _come_to_rest(soak: Soak, warden: SoakedWarden, process: psutil.Process, http: aiohttp.ClientSession) -> None:
    """Wait until what is to become 0 is 0 and the rows are written, or for as long as that may take."""
    ledger = _ledger(warden)
    until_s = time.monotonic() + _SETTLE_S
    while True:
        soak.at_rest = rest = await scrape(http, warden.console_url)
        soak.rows_written = rows_ever_written(ledger)
        soak.files_at_rest = process.num_fds()
        dropped = rest.total("lmwarden_ledger_dropped_rows_total")
        settled = rest.total("lmwarden_in_flight") == 0 == rest.total("lmwarden_client_connections")
        if (settled and soak.rows_written + dropped >= soak.report.routed) or time.monotonic() > until_s:
            break
        await asyncio.sleep(0.5)
    await asyncio.sleep(6.0 if soak.options.requests >= LONG_ENOUGH else 0.0)  # idle connections to engines end
    soak.at_rest = await scrape(http, warden.console_url)
    soak.files_at_rest = process.num_fds()
    soak.rows_kept = rows_kept(ledger)


def _ledger(warden: LaunchedWarden) -> Path:
    return warden.folder / "data" / "ledger.sqlite3"


def _complaints(log: Path) -> list[str]:
    """Errors in the warden's log, and lines that are none of its own."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            found.append(line)
            continue
        if event.get("level") in ("error", "critical"):
            found.append(str(event.get("event")))
    return found


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", type=int, default=2_000_000)
    arguments.add_argument("--minutes", type=float, help="play for so long instead")
    arguments.add_argument("--agents", type=int, default=64)
    arguments.add_argument("--restarts", type=int, default=6, help="how often an engine dies")
    arguments.add_argument("--seed", type=int, default=1)
    return arguments


def main() -> int:
    """The command."""
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # so that nothing is left running
    with tempfile.TemporaryDirectory(prefix="lmwarden-soak-") as folder:
        found = asyncio.run(run(options, Path(folder), lambda line: print(line, flush=True)))
    print(table(found))
    return 0 if all(check.passed for check in found) else 1


if __name__ == "__main__":
    sys.exit(main())
