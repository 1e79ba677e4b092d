"""The simulated engine against a real vLLM: is the simulated prefix cache the real one?

Everything that LM Warden claims in simulation rests on the simulated cache. Here the same prompts, given as
token ids so that no tokenizer is in the way, go through ``/v1/completions`` of a real vLLM (CPU, tiny random
model, two ranks) and of the simulated engine with the same block size, number of blocks and scheduler limits,
and the engines' own ``cached_tokens`` are compared.

* **One at a time**: nothing depends on time, so all 200 requests must report the same number. The cache is
  small (159 usable blocks of 32 tokens a rank) and the conversations together are not, so a large part of the
  answers is decided by the order of eviction.
* **Eight at a time**: which request is scheduled beside which now depends on speed, so only the totals are
  compared, within 2 %, each the mean of three runs. The spread of vLLM's own runs is printed beside it: it is
  the noise of the measure.

Run it with ``./run python -m benchmarks.sim_vs_real``; it starts both engines itself and takes vLLM from the
environment that ``scripts/real-vllm-env.sh`` makes. ``--record`` writes what vLLM answered to
``tests/data/vllm_cached_tokens.json``, by which the ordinary test suite checks the simulation without vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tests.real import vllm_server

from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving

REPOSITORY = Path(__file__).resolve().parents[1]
RECORDING = REPOSITORY / "tests/data/vllm_cached_tokens.json"

CALLS = 200
WORKERS = 8
CONCURRENT_RUNS = 3
TOLERANCE_RATIO = 0.02
SEED = 20_260_101

_FIRST_ORDINARY_TOKEN, _VOCABULARY_TOKENS = 3, 512
_SYSTEM_PROMPT_TOKENS = (333, 512, 97)
_ANSWER_TOKENS = (1, 2, 7, 33, 64)


@dataclass(frozen=True)
class Call:
    """One request: a prompt of token ids for one rank."""

    conversation: int
    rank: int
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Answer:
    """What an engine reported for one call, in tokens."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Comparison:
    """Both engines' answers to the same calls."""

    trace: tuple[Call, ...]
    real: tuple[Answer, ...]
    simulated: tuple[Answer, ...]
    real_totals_tokens: tuple[int, ...]
    """Cached tokens of each run with eight at a time."""
    simulated_totals_tokens: tuple[int, ...]

    @property
    def mismatches(self) -> list[str]:
        """One line for each call on which the engines differ, one at a time."""
        return [
            f"call {index} (conversation {call.conversation}, rank {call.rank}): vLLM {real}, simulated {simulated}"
            for index, (call, real, simulated) in enumerate(zip(self.trace, self.real, self.simulated, strict=True))
            if real != simulated
        ]

    @property
    def difference_ratio(self) -> float:
        """Eight at a time: simulated total over vLLM's, minus 1, of the means of the runs."""
        return _mean(self.simulated_totals_tokens) / _mean(self.real_totals_tokens) - 1

    @property
    def noise_ratio(self) -> float:
        """Eight at a time: vLLM's largest total over its smallest, minus 1."""
        return max(self.real_totals_tokens) / min(self.real_totals_tokens) - 1


def make_trace(*, calls: int = CALLS, seed: int = SEED, max_context_tokens: int = 2800) -> tuple[Call, ...]:
    """Agent-like conversations, interleaved at random and skewed to a few busy ones.

    Three system prompts are shared between 16 conversations. Most turns extend the last prompt; some repeat it,
    cut it short, or branch off in the middle; one in four ends exactly on a block boundary, where vLLM must
    compute the last block again. A conversation that outgrows ``max_context_tokens`` starts anew.
    """
    rng = random.Random(seed)
    conversations = 16
    systems = [_tokens(rng, length) for length in _SYSTEM_PROMPT_TOKENS]
    prompts: dict[int, list[int]] = {}
    trace: list[Call] = []
    for _ in range(calls):
        conversation = min(int(rng.expovariate(2.0) * conversations), conversations - 1)
        last = prompts.get(conversation)
        if last is None or len(last) > max_context_tokens:
            prompt = systems[conversation % len(systems)] + _tokens(rng, rng.randint(60, 600))
        else:
            prompt = _next_turn(rng, last)
        prompts[conversation] = prompt
        trace.append(Call(conversation, conversation % 2, tuple(prompt), rng.choice(_ANSWER_TOKENS)))
    return tuple(trace)


def concurrent_trace() -> tuple[Call, ...]:
    """The calls for eight at a time: contexts of which the four that run on one rank mostly fit its cache."""
    return make_trace(seed=SEED + 1, max_context_tokens=1000)


def _next_turn(rng: random.Random, last: list[int]) -> list[int]:
    kind = rng.random()
    if kind < 0.08:
        return last
    cut = last[: rng.randint(len(last) // 2, len(last))]
    if kind < 0.16:
        return cut
    if kind < 0.24:
        return cut + _tokens(rng, rng.randint(20, 300))
    extended = last + _tokens(rng, rng.randint(20, 300))
    if rng.random() < 0.25:
        extended += _tokens(rng, -len(extended) % vllm_server.BLOCK_SIZE_TOKENS)
    return extended


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(_FIRST_ORDINARY_TOKEN, _VOCABULARY_TOKENS) for _ in range(count)]


async def compare(real_url: str) -> Comparison:
    """Replay both traces on vLLM at ``real_url`` (started by ``vllm_server``) and on a simulated engine.

    Raises:
        RuntimeError: an engine refused a call.
    """
    options = SimulatedEngineOptions(
        replicas=vllm_server.RANKS,
        hardware="tiny-cpu",
        speed=4,
        model=vllm_server.MODEL,
        balancer="0.27",
        kv_cache_tokens=vllm_server.BLOCKS_PER_RANK * vllm_server.BLOCK_SIZE_TOKENS,
        block_size=vllm_server.BLOCK_SIZE_TOKENS,
        max_num_seqs=vllm_server.MAX_NUM_SEQS,
        max_num_batched_tokens=vllm_server.MAX_NUM_BATCHED_TOKENS,
        max_model_len=vllm_server.MAX_MODEL_LEN_TOKENS,
    )
    real, real_totals = await _measure(real_url)
    async with serving(options) as url:
        simulated, simulated_totals = await _measure(url)
    return Comparison(make_trace(), real, simulated, real_totals, simulated_totals)


async def _measure(url: str) -> tuple[tuple[Answer, ...], tuple[int, ...]]:
    totals: list[int] = []
    async with aiohttp.ClientSession() as session:
        await _empty_cache(session, url)
        in_order = tuple([await _complete(session, url, call) for call in make_trace()])
        for _ in range(CONCURRENT_RUNS):
            await _empty_cache(session, url)
            answers = await _replay_concurrently(session, url, concurrent_trace())
            totals.append(sum(answer.cached_tokens for answer in answers))
    return in_order, tuple(totals)


async def _replay_concurrently(session: aiohttp.ClientSession, url: str, trace: Sequence[Call]) -> list[Answer]:
    # Closed loops, as agents are; a conversation's calls stay in order within one of them.
    shares: defaultdict[int, list[Call]] = defaultdict(list)
    for call in trace:
        shares[call.conversation % WORKERS].append(call)

    async def work(share: list[Call]) -> list[Answer]:
        return [await _complete(session, url, call) for call in share]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(share)) for share in shares.values()]
    return [answer for task in tasks for answer in task.result()]


async def _complete(session: aiohttp.ClientSession, url: str, call: Call) -> Answer:
    body = {
        "model": vllm_server.MODEL,
        "prompt": call.prompt,
        "max_tokens": call.max_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    headers = {"X-data-parallel-rank": str(call.rank)}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {(await response.text())[:300]}")
        usage: dict[str, Any] = (await response.json())["usage"]
    return Answer(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])


async def _empty_cache(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(f"{url}/reset_prefix_cache") as response:
        if response.status != 200:
            raise RuntimeError(f"{url}/reset_prefix_cache answered {response.status}")


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _report(comparison: Comparison) -> bool:
    """Print the figures; whether both targets are reached."""
    wrong = comparison.mismatches
    equal = len(comparison.trace) - len(wrong)
    print("\n".join(wrong))
    print(f"one at a time: {equal} of {len(comparison.trace)} requests report the same cached tokens")
    print(
        f"  vLLM {sum(a.cached_tokens for a in comparison.real)} of "
        f"{sum(a.prompt_tokens for a in comparison.real)} prompt tokens cached"
    )
    print(
        f"{WORKERS} at a time: cached tokens, vLLM {comparison.real_totals_tokens}, "
        f"simulated {comparison.simulated_totals_tokens}"
    )
    print(
        f"  difference of the means {comparison.difference_ratio:+.2%} (allowed {TOLERANCE_RATIO:.0%}); "
        f"vLLM against itself {comparison.noise_ratio:.2%}"
    )
    return not wrong and abs(comparison.difference_ratio) <= TOLERANCE_RATIO


def _record(comparison: Comparison) -> None:
    recording = {
        "note": "cached_tokens that vLLM 0.32.0 reported for benchmarks.sim_vs_real.make_trace(), one at a time, "
        "from an empty cache.",
        "block_size_tokens": vllm_server.BLOCK_SIZE_TOKENS,
        "blocks_per_rank": vllm_server.BLOCKS_PER_RANK,
        "max_num_batched_tokens": vllm_server.MAX_NUM_BATCHED_TOKENS,
        "cached_tokens": [answer.cached_tokens for answer in comparison.real],
    }
    RECORDING.write_text(json.dumps(recording) + "\n")


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 both targets reached, 1 not, 3 no vLLM on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help=f"write vLLM's answers to {RECORDING.name}")
    options = parser.parse_args(arguments)
    found = subprocess.run([REPOSITORY / "scripts/real-vllm-env.sh"], check=False, text=True, stdout=subprocess.PIPE)
    if found.returncode:
        return found.returncode
    with tempfile.TemporaryDirectory() as directory:
        server = vllm_server.start_vllm(Path(found.stdout.strip()), Path(directory))
        try:
            comparison = asyncio.run(compare(server.url))
        finally:
            server.stop()
    if options.record:
        _record(comparison)
    return 0 if _report(comparison) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
