"""The simulated cache against what a real vLLM reported, recorded by ``benchmarks/sim_vs_real.py --record``.

``tests/real`` makes the same comparison with a live vLLM; this one needs none and runs with every change.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.sim_vs_real import RECORDING, Call, make_trace

from lmwarden.simulation.scheduler import EngineRequest, Scheduler, SchedulerLimits
from lmwarden.simulation.tokens import chain_hashes


def test_every_request_of_the_recording_finds_the_same_tokens_cached() -> None:
    recording: dict[str, Any] = json.loads(RECORDING.read_text())
    limits = SchedulerLimits(
        block_size=recording["block_size_tokens"],
        num_blocks=recording["blocks_per_rank"],
        max_num_batched_tokens=recording["max_num_batched_tokens"],
    )
    ranks = (Scheduler(limits), Scheduler(limits))

    simulated = [_serve(ranks[call.rank], call) for call in make_trace()]

    assert simulated == recording["cached_tokens"]


def test_the_recording_depends_on_the_order_of_eviction() -> None:
    """With an endless cache many of the answers would be others, else the test above would prove little."""
    recording: dict[str, Any] = json.loads(RECORDING.read_text())
    endless = SchedulerLimits(block_size=recording["block_size_tokens"], num_blocks=100_000)
    ranks = (Scheduler(endless), Scheduler(endless))

    unevicted = [_serve(ranks[call.rank], call) for call in make_trace()]

    decided_by_eviction = sum(a != b for a, b in zip(unevicted, recording["cached_tokens"], strict=True))
    assert decided_by_eviction > 50


def _serve(rank: Scheduler, call: Call) -> int:
    # What is generated never comes back in a later prompt, so any tokens will do that occur nowhere else.
    answer = [-1 - index for index in range(call.max_tokens)]
    hashes = chain_hashes([*call.prompt, *answer], rank.limits.block_size)
    request = EngineRequest(hashes, len(call.prompt), call.max_tokens)
    rank.add(request)
    while not request.finished:
        rank.schedule(0.0)
        rank.complete(0.0)
    return request.cached_tokens
