"""The gateway's own cost beside other routers, in one run; ratios are what counts.

    ./run bench-gateway [--seconds 3] [--rounds 3] [--no-peers] [--json FILE]

Builds the upstream and the load generator (``cc``), installs the peers into ``.cache/bench-peers``, and pins upstream
and load generator to core 0 and the router under test to core 1. Routers take turns in each round; a figure is the
median over the rounds. The gateway runs with keys, identity, the usage tap, the real router and its counters on.

The run fails (status 1) if the usage that the gateway recorded is not one row per request, if something stays in
flight, or if a client that did not ask for usage sees a chunk for it. Missed targets are printed, and fail the run
with ``--strict``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache"
PEERS = ("vllm-router==0.1.17", "sglang-router==0.3.2")
STREAMS = 5000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SCENARIOS: dict[str, list[str]] = {
    "32 connections": ["-c", "32"],
    "1 connection": ["-c", "1"],
    "500 KB bodies": ["-c", "16", "-b", "500000"],
    "messages chunks": ["-c", "64", "-s", "-A"],
    "chat chunks": ["-c", "64", "-s", "-L"],
}
HALF_CORE = "messages chunks", "chat chunks"
"""Measured a second time with a busy loop beside the router: upstream and load generator share a core and cannot feed a
whole core of this gateway, so without it the figure is theirs and not the router's."""


@dataclass
class Router:
    """One router under test."""

    name: str
    command: Callable[[int, int, int], list[str]]
    """From its port and the upstream's two ports."""
    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def median(self, scenario: str, figure: str) -> float:
        """Over the rounds; not a number where the router does not serve this."""
        rows = self.figures.get(scenario)
        return statistics.median(row[figure] for row in rows) if rows else math.nan


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def build(name: str) -> Path:
    """Compile one of the C programs, if it is newer than its binary."""
    binary = CACHE / f"bench-{name}"
    source = HERE / f"{name}.c"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        CACHE.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-w", "-o", str(binary), str(source)], check=True)
    return binary


def peers() -> Path:
    """The folder of the peers' commands, installed on first use."""
    folder = CACHE / "bench-peers"
    if not (folder / "ready").exists():
        print("installing", *PEERS, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *PEERS], check=True)
        (folder / "ready").touch()
    return folder / "bin"


def routers(stats: Path, with_peers: bool) -> list[Router]:
    """The gateway first."""

    def ours(port: int, first: int, second: int) -> list[str]:
        return [sys.executable, str(HERE / "launch.py"), str(port), str(first), str(stats)]

    found = [Router("lmwarden", ours)]
    if with_peers:
        folder = peers()

        def vllm_router(policy: str) -> Callable[[int, int, int], list[str]]:
            def command(port: int, first: int, second: int) -> list[str]:
                urls = [f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}"]
                address = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
                chosen = ["--policy", policy] if policy else []
                return [str(folder / "vllm-router"), *address, *chosen, "--worker-urls", *urls]

            return command

        def sglang_router(port: int, first: int, second: int) -> list[str]:
            urls = [f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}"]
            address = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
            module = ["-m", "sglang_router.launch_router"]
            return [str(folder / "python"), *module, *address, "--worker-urls", *urls]

        found.append(Router("vllm-router", vllm_router("")))
        found.append(Router("vllm-router consistent_hash", vllm_router("consistent_hash")))
        found.append(Router("sglang-router", sglang_router))
    return found


@contextmanager
def running(command: list[str], core: int, port: int, log: Path) -> Iterator[int]:
    """Run a command on one core until its port answers, then until the block ends. Yields its process id."""
    with log.open("wb") as output:
        process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} did not start; see {log}") from None
                time.sleep(0.05)
        time.sleep(1.5)  # some routers listen before they know their workers
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def busy_core(core: int) -> Iterator[None]:
    """Keep a core busy: whoever else runs there gets half of it."""
    process = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rss_kb(pid: int) -> int:
    """Resident memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def load(binary: Path, port: int, *arguments: str) -> dict[str, Any]:
    """One run of the load generator."""
    command = ["taskset", "-c", "0", str(binary), "-p", str(port), *arguments]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    bad = {status: count for status, count in answer["st"].items() if status != "200"}
    if bad or answer["errs"] > answer["done"] // 100:
        raise SystemExit(f"the load generator got {bad or 'no answers'} and {answer['errs']} errors from port {port}")
    return answer


def configure(port: int, query: str) -> None:
    """Set the upstream's pace."""
    urllib.request.urlopen(f"http://127.0.0.1:{port}/__cfg?{query}", timeout=5).read()


def measure(router: Router, loader: Path, pid: int, port: int, seconds: float) -> None:
    """All scenarios once."""
    for name, arguments in SCENARIOS.items():
        if router.name == "sglang-router" and "-A" in arguments:
            continue  # it has no /v1/messages
        before = cpu_s(pid)
        answer = load(loader, port, *arguments, "-t", str(seconds))
        figures = {"rps": answer["rps"], "p50_us": answer["p50"]}
        figures["cpu_us"] = (cpu_s(pid) - before) * 1e6 / max(1, answer["done"])
        if "chunks_s" in answer:
            figures["chunks_s"] = answer["chunks_s"]
        if name in HALF_CORE:
            with busy_core(1):
                figures["half_core_chunks_s"] = load(loader, port, *arguments, "-t", str(seconds))["chunks_s"]
        router.figures.setdefault(name, []).append(figures)


def memory_per_stream(loader: Path, pid: int, port: int, upstream: int) -> float:
    """KB of resident memory per open stream at 5,000 of them."""
    load(loader, port, "-c", "64", "-s", "-n", "500")
    before = rss_kb(pid)
    configure(upstream, "chunks=1000&interval_us=1000000")
    command = [
        "taskset",
        "-c",
        "0",
        str(loader),
        "-p",
        str(port),
        "-c",
        str(STREAMS),
        "-s",
        "-R",
        "2500",
        "-t",
        "5",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        time.sleep(5.5)
        after = rss_kb(pid)
        assert process.stdout is not None
        answer = json.loads(process.stdout.read())
    configure(upstream, "chunks=64&interval_us=0")
    if answer["peak_open"] < STREAMS or answer["errs"]:
        raise SystemExit(f"only {answer['peak_open']} streams were open, {answer['errs']} errors")
    return (after - before) / STREAMS


def check_books(loader: Path, pid: int, port: int, stats: Path) -> list[str]:
    """Every request must leave one row with its usage, and no client may see a chunk that it did not ask for."""
    faults = []

    def counts() -> dict[str, int]:
        stats.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + 10
        while not stats.exists() or not stats.read_text():
            if time.monotonic() > deadline:
                raise SystemExit("the gateway does not report its counts")
            time.sleep(0.02)
        answer: dict[str, int] = json.loads(stats.read_text())
        return answer

    for name, arguments in {"chat": ["-s", "-L"], "messages": ["-s", "-A"], "not streamed": []}.items():
        before = counts()
        answer = load(loader, port, "-c", "32", "-n", "2000", *arguments)
        time.sleep(0.2)
        after = counts()
        rows = after["with_usage"] - before["with_usage"]
        if rows != answer["done"]:
            faults.append(f"{name}: {answer['done']} requests, {rows} rows with their usage")
        if answer["added"]:
            faults.append(f"{name}: clients saw {answer['added']} chunks that they had not asked for")
        if after["in_flight"]:
            faults.append(f"{name}: {after['in_flight']} in flight at rest")
    return faults


def table(found: list[Router], direct_p50: float, memory: dict[str, float]) -> dict[str, dict[str, float]]:
    """Print one row per router."""
    heads = (
        "rps 32 conn",
        "CPU us/req",
        "added us",
        "rps 500 KB",
        "msg chunks/s",
        "chat chunks/s",
        "half core msg",
        "half core chat",
        "KB/stream",
    )
    print(f"\n{'':30}" + "".join(f"{head:>15}" for head in heads))
    rows = {}
    for router in found:
        row = {
            "rps": router.median("32 connections", "rps"),
            "cpu_us": router.median("32 connections", "cpu_us"),
            "added_us": router.median("1 connection", "p50_us") - direct_p50,
            "large_rps": router.median("500 KB bodies", "rps"),
            "message_chunks_s": router.median("messages chunks", "chunks_s"),
            "chat_chunks_s": router.median("chat chunks", "chunks_s"),
            "half_core_message_chunks_s": router.median("messages chunks", "half_core_chunks_s"),
            "half_core_chat_chunks_s": router.median("chat chunks", "half_core_chunks_s"),
            "stream_kb": memory[router.name],
        }
        rows[router.name] = row
        print(f"{router.name:30}" + "".join(f"{value:15,.1f}" for value in row.values()))
    return rows


def verdict(rows: dict[str, dict[str, float]]) -> bool:
    """Print the ratios against their targets."""
    ours, peer = rows["lmwarden"], rows.get("vllm-router")
    checks = [("KB per open stream at 5,000 streams", ours["stream_kb"], 8.0, False)]
    if peer is not None:
        ratio = {figure: ours[figure] / peer[figure] for figure in ours}
        checks += [
            ("requests/s at 32 connections, x vllm-router", ratio["rps"], 3.0, True),
            ("added latency at one connection, x vllm-router", ratio["added_us"], 1.0, False),
            ("message chunks/s on half a core, x vllm-router", ratio["half_core_message_chunks_s"], 2.0, True),
            ("chat chunks/s on half a core, x vllm-router", ratio["half_core_chat_chunks_s"], 2.0, True),
            ("requests/s with 500 KB bodies, x vllm-router", ratio["large_rps"], 1.5, True),
        ]
    print()
    fine = True
    for name, value, target, at_least in checks:
        reached = value >= target if at_least else value <= target
        fine = fine and reached
        print(f"{'ok  ' if reached else 'MISS'} {name}: {value:.2f} (target {'>=' if at_least else '<='} {target:g})")
    return fine


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    upstream_binary, loader = build("up"), build("lg")
    stats = CACHE / "bench-stats.json"
    found = routers(stats, not arguments.no_peers)
    first, second = free_port(), free_port()
    faults: list[str] = []
    direct: list[float] = []
    memory: dict[str, float] = {}
    with running([str(upstream_binary), str(first), str(second)], 0, first, CACHE / "bench-up.log"):
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
            direct.append(load(loader, first, "-c", "1", "-t", str(arguments.seconds))["p50"])
            for router in found:
                port = free_port()
                log = CACHE / f"bench-{router.name.replace(' ', '-')}.log"
                with running(router.command(port, first, second), 1, port, log) as pid:
                    if router is found[0] and not number:
                        faults = check_books(loader, pid, port, stats)
                    if not number:
                        memory[router.name] = memory_per_stream(loader, pid, port, first)
                    measure(router, loader, pid, port, arguments.seconds)
    rows = table(found, statistics.median(direct), memory)
    fine = verdict(rows)
    for fault in faults:
        print("FAULT", fault)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"routers": rows, "faults": faults}, indent=1))
    return 1 if faults or (arguments.strict and not fine) else 0


if __name__ == "__main__":
    raise SystemExit(main())
