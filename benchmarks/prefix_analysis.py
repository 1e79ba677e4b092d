"""What looking at prompts costs those who are being answered: the delay of a relayed chunk, with and without it.

    ./run python benchmarks/prefix_analysis.py [--rounds 8] [--seconds 3] [--streams 16] [--body-kb 200] [--rate 20]

A gateway process relays streams whose chunks carry the moment at which they were sent. Beside them conversations of
``--body-kb`` are sent, ``--rate`` a second, each a turn longer than the last. Gateways with and without
``prefix_watch`` take turns. Prints the delay of a chunk for both (the median over the rounds of each round's p50 and
p99, and the best and worst p99), how many prompts were dropped, and the processor time of the gateway per turn.
Claim, on a machine that is not busy otherwise (or under ``chrt -f 5``): p99 rises by less than 1 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

HERE = Path(__file__).parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CHUNK_EVERY_S = 0.05
ANSWER = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5}}'


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Streams for whoever asks for a stream, answers others at once."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            if b'"stream":true' not in body:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not writer.is_closing():
                event = b'data: {"sent":%.6f}\n\n' % time.monotonic()
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await asyncio.sleep(CHUNK_EVERY_S)
            return
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        return
    finally:
        writer.close()


def request(body: bytes, session: str) -> bytes:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer sk-1234\r\n"
        f"X-Session-Id: {session}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def watch_stream(port: int, number: int, delays: list[float]) -> None:
    """Note how old each chunk is when it arrives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(b'{"model":"fake","stream":true,"messages":[]}', f"stream-{number}"))
        while line := await reader.readline():
            if line.startswith(b'data: {"sent":'):
                delays.append(time.monotonic() - float(line[len(b'data: {"sent":') : line.index(b"}")]))
    finally:
        writer.close()


async def converse(port: int, number: int, size: int, every_s: float) -> None:
    """One conversation after the other whose history is about ``size`` bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    turns = [
        {"role": "user", "content": f"{number} {at} " + "some words of a tool's result " * 60} for at in range(9999)
    ]
    each = len(json.dumps(turns[0]))
    try:
        while True:
            for extra in range(10):
                body = json.dumps({"model": "fake", "messages": turns[: size // each + extra]}).encode()
                started = time.monotonic()
                writer.write(request(body, f"conversation-{number}"))
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
                await asyncio.sleep(max(0.0, every_s - (time.monotonic() - started)))
    finally:
        writer.close()


async def measure(port: int, options: argparse.Namespace) -> list[float]:
    """Delays of chunks in seconds."""
    delays: list[float] = []
    talkers = max(1, options.rate // 5)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch_stream(port, number, delays)) for number in range(options.streams)]
        tasks += [
            group.create_task(converse(port, number, options.body_kb * 1000, talkers / options.rate))
            for number in range(talkers)
        ]
        await asyncio.sleep(1.0)
        delays.clear()
        await asyncio.sleep(options.seconds)
        found = list(delays)
        for task in tasks:
            task.cancel()
    return found


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(options: argparse.Namespace) -> None:
    server = await asyncio.start_server(engine, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    upstream = server.sockets[0].getsockname()[1]
    found: dict[str, list[list[float]]] = {"without": [], "with": []}
    cpu, dropped = dict.fromkeys(found, 0.0), 0
    with tempfile.TemporaryDirectory() as folder:
        stats = Path(folder) / "stats.json"
        for number in range(2 * options.rounds):
            arm = ("without", "with")[(number + number // 2) % 2]
            port = free_port()
            command = [sys.executable, str(HERE / "gateway/launch.py"), str(port), str(upstream), str(stats)]
            process = subprocess.Popen(command + (["--no-prefixes"] if arm == "without" else []))  # noqa: ASYNC220
            try:
                while True:
                    try:
                        socket.create_connection(("127.0.0.1", port), 1).close()
                        break
                    except OSError:
                        if process.poll() is not None:
                            raise SystemExit("the gateway did not start") from None
                        await asyncio.sleep(0.05)
                before = cpu_s(process.pid)
                found[arm].append(sorted(await measure(port, options)))
                cpu[arm] += cpu_s(process.pid) - before
                stats.unlink(missing_ok=True)
                process.send_signal(signal.SIGUSR1)
                while not (stats.exists() and stats.read_text()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                dropped += json.loads(stats.read_text())["unread_prompts"]
            finally:
                process.terminate()
                process.wait()
    server.close()
    turns = options.rounds * (options.seconds + 1) * options.rate
    for arm, rounds in found.items():
        p50, p99 = (sorted(delays[int(len(delays) * share)] * 1e3 for delays in rounds) for share in (0.5, 0.99))
        print(
            f"{arm:8} p50 {p50[len(p50) // 2]:6.2f} ms   p99 {p99[len(p99) // 2]:6.2f} ms"
            f" ({p99[0]:.2f} to {p99[-1]:.2f})   {sum(map(len, rounds)):,} chunks"
            f"   gateway {cpu[arm] / turns * 1e3:.2f} ms of a core per turn"
        )
    print(f"{dropped} prompts dropped; load {os.getloadavg()[0]:.1f}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=8)
    arguments.add_argument("--seconds", type=float, default=3.0)
    arguments.add_argument("--streams", type=int, default=16)
    arguments.add_argument("--body-kb", type=int, default=200)
    arguments.add_argument("--rate", type=int, default=20)
    uvloop.run(run(arguments.parse_args()))


if __name__ == "__main__":
    main()
