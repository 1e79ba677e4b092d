"""Routing arms on a real vLLM and on the simulated engine: do they hit the same share of the prompts?

    ./run python -m benchmarks.arms_vs_real [--levels 6,20] [--sessions 60]

The same agent sessions, as token ids through ``/v1/completions`` of a warden, first in front of a real vLLM (CPU, tiny
random model, two ranks, a small cache), then in front of the simulated engine with as many blocks: off, hash, on. Six
turns a session, closed loop, caches emptied before each run. What a session says does not depend on the answers, so
both engines see the same prompts. Which requests are beside each other depends on speed, so the simulated engine has a
profile that ``calibrate`` measured on the real one. At the lower level the conversations fit the caches, at the higher
one they do not.

Both wardens share one data folder, so that a hash finds the same home in both. Needs the environment of
``scripts/real-vllm-env.sh``; about ten minutes. Exit status 0 if the prefix hits differ by at most 2 points everywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from tests.real import vllm_server

from lmwarden.bench.calibrate import HostFacts, errors, fit, profile_toml
from lmwarden.bench.calibrate_probe import HttpProbe
from lmwarden.bench.calibrate_probe import measure as probe_host
from lmwarden.bench.console import Console
from lmwarden.config import Config, Flag, load
from lmwarden.serve import Warden
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import run_server

REPOSITORY = Path(__file__).resolve().parents[1]
ARMS = ("off", "hash", "on")
ALLOWED_POINTS = 2.0
TURNS = 6
SYSTEM_TOKENS, FIRST_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 320, (600, 680), (90, 110), 96
SEED = 20_260_102
_FIRST_ORDINARY_TOKEN, _VOCABULARY_TOKENS = 3, 512


@dataclass
class Hits:
    """Of one run."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0

    @property
    def percent(self) -> float:
        """Cached over prompt tokens."""
        return 100 * self.cached_tokens / self.prompt_tokens


def prompts(session: int, level: int) -> Iterator[list[int]]:
    """The prompts of one session; each begins with the one before it."""
    system = tokens(random.Random(SEED), SYSTEM_TOKENS)
    rng = random.Random(f"{SEED}|{level}|{session}")
    context = system + tokens(rng, rng.randint(*FIRST_TOKENS))
    for _ in range(TURNS):
        yield context
        context = context + tokens(rng, rng.randint(*TURN_TOKENS))


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(_FIRST_ORDINARY_TOKEN, _VOCABULARY_TOKENS) for _ in range(count)]


def warden_config(engine_url: str, folder: Path) -> Config:
    return load(
        None,
        [
            Flag("--engine", ("models", 0, "engine", "attach"), [engine_url]),
            Flag("--model", ("models", 0, "name"), vllm_server.MODEL),
            Flag("--data-parallel-size", ("models", 0, "engine", "data_parallel_size"), vllm_server.RANKS),
            Flag("--max-num-seqs", ("models", 0, "engine", "max_num_seqs"), vllm_server.MAX_NUM_SEQS),
            Flag("--port", ("client", "port"), 0),
            Flag("--console-port", ("console", "port"), 0),
            Flag("--data-dir", ("storage", "dir"), str(folder)),
        ],
    )


@asynccontextmanager
async def warden(engine_url: str, folder: Path) -> AsyncIterator[Warden]:
    running = Warden(warden_config(engine_url, folder))
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def measure(engine_url: str, folder: Path, options: argparse.Namespace) -> dict[tuple[int, str], Hits]:
    """All levels and arms on one engine."""
    found = {}
    async with (
        warden(engine_url, folder) as running,
        Console(running.console_url, vllm_server.MODEL) as console,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
    ):
        for level in options.levels:
            for arm in ARMS:
                await console.apply(arm)
                # What the router remembers of clients that have just left would move the next ones.
                await asyncio.sleep(options.rest_s)
                async with http.post(f"{engine_url}/reset_prefix_cache") as response:
                    response.raise_for_status()
                found[level, arm] = await play(http, running.client_url, level, arm, options.sessions)
                hits = found[level, arm]
                print(f"  {level} sessions, {arm}: {hits.percent:.1f} % of {hits.requests} prompts", flush=True)
    return found


async def play(http: aiohttp.ClientSession, url: str, level: int, arm: str, sessions: int) -> Hits:
    """``level`` agents play ``sessions`` sessions, one after the other."""
    hits, numbers = Hits(), itertools.count()

    async def agent() -> None:
        while (number := next(numbers)) < sessions:
            for prompt in prompts(number, level):
                usage = await complete(http, url, prompt, f"{level}-{arm}-{number}")
                hits.requests += 1
                hits.prompt_tokens += usage["prompt_tokens"]
                hits.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]

    async with asyncio.TaskGroup() as group:
        for _ in range(level):
            group.create_task(agent())
    return hits


async def complete(http: aiohttp.ClientSession, url: str, prompt: list[int], session: str) -> Any:
    body = {
        "model": vllm_server.MODEL,
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    async with http.post(f"{url}/v1/completions", json=body, headers={"X-Session-Id": session}) as response:
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {(await response.text())[:300]}")
        return (await response.json())["usage"]


async def measured_profile(url: str) -> str:
    """Calibrate the real engine, as ``lmwarden calibrate`` does."""
    async with HttpProbe(url, vllm_server.MODEL, key=None, clock=time.monotonic) as probe:
        capacity = vllm_server.BLOCKS_PER_RANK * vllm_server.BLOCK_SIZE_TOKENS
        prompts, steps = await probe_host(
            probe, vllm_server.MAX_MODEL_LEN_TOKENS, capacity, lambda text: print(f"  {text}")
        )
    model = fit(prompts, steps, vllm_server.MAX_NUM_BATCHED_TOKENS)
    off = [abs(error) for error in errors(model, prompts, steps)]
    print(f"  {model}; off by {100 * sum(off) / len(off):.0f} % on the average, {100 * max(off):.0f} % at most")
    facts = HostFacts(
        kv_cache_tokens=capacity,
        block_size=vllm_server.BLOCK_SIZE_TOKENS,
        max_model_len=vllm_server.MAX_MODEL_LEN_TOKENS,
        max_num_seqs=vllm_server.MAX_NUM_SEQS,
        max_num_batched_tokens=vllm_server.MAX_NUM_BATCHED_TOKENS,
    )
    return profile_toml("measured", "vLLM on this machine's CPU", model, facts)


def simulated_options(profile: Path) -> SimulatedEngineOptions:
    return SimulatedEngineOptions(
        replicas=vllm_server.RANKS,
        hardware=str(profile),
        model=vllm_server.MODEL,
        balancer="0.27",
        api_servers=1,
    )


@contextmanager
def simulated(profile: Path) -> Iterator[str]:
    """The simulated engine in a process of its own, as the real one is; yields its URL."""
    command = [sys.executable, "-m", "benchmarks.arms_vs_real", "--serve", str(profile)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    """Returns the exit status: 0 the target is reached, 1 not, 3 no vLLM on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="6,20", help="numbers of sessions at once")
    parser.add_argument("--sessions", type=int, default=60, help="how many are played in each run")
    parser.add_argument("--rest-s", type=float, default=30.0, help="pause before each run")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(run_server(simulated_options(options.serve), on_listening=lambda url: print(url, flush=True)))
        return 0
    options.levels = [int(level) for level in options.levels.split(",")]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    made = subprocess.run([REPOSITORY / "scripts/real-vllm-env.sh"], check=False, text=True, stdout=subprocess.PIPE)
    if made.returncode:
        return made.returncode
    with tempfile.TemporaryDirectory() as directory:
        folder, profile = Path(directory) / "data", Path(directory) / "measured.toml"
        server = vllm_server.start_vllm(Path(made.stdout.strip()), Path(directory))
        try:
            print("vLLM 0.32.0")
            profile.write_text(asyncio.run(measured_profile(server.url)))
            real = asyncio.run(measure(server.url, folder, options))
        finally:
            server.stop()
        print("simulated")
        with simulated(profile) as url:
            ours = asyncio.run(measure(url, folder, options))
    print(f"{'sessions':>8} {'arm':5}{'vLLM %':>9}{'simulated %':>13}{'points':>9}")
    worst = 0.0
    for (level, arm), hits in real.items():
        points = ours[level, arm].percent - hits.percent
        worst = max(worst, abs(points))
        print(f"{level:8} {arm:5}{hits.percent:9.1f}{ours[level, arm].percent:13.1f}{points:+9.1f}")
    print(f"at most {worst:.1f} points apart, allowed {ALLOWED_POINTS:g}")
    return 0 if worst <= ALLOWED_POINTS else 1


if __name__ == "__main__":
    sys.exit(main())
