"""What a real vLLM reports of itself: one boot id per rank that traffic does not change, and a standstill."""

from __future__ import annotations

import asyncio
import os
import signal
from urllib.parse import urlsplit

import aiohttp
import pytest
from tests.real.vllm_server import MODEL, RANKS, VllmServer, engine_cores
from tests.waiting import PATIENCE_S, until

from lmwarden.engine.client import EngineClient
from lmwarden.engine.discover import discover
from lmwarden.engine.progress import Progress
from lmwarden.types import EngineEndpoint

pytestmark = pytest.mark.real

STALLED_S = 1.5
MOST_TOKENS = 3900
"""The longest answer: some seconds."""


def client_of(vllm: VllmServer, session: aiohttp.ClientSession) -> EngineClient:
    port = urlsplit(vllm.url).port or 0
    endpoint = EngineEndpoint(engine="e0", host="127.0.0.1", port=port, ranks=RANKS, model=MODEL)
    return EngineClient(endpoint, session, timeout_s=PATIENCE_S)


async def test_boot_ids_are_the_ranks_own_and_outlast_traffic(vllm: VllmServer) -> None:
    async with aiohttp.ClientSession() as session:
        client = client_of(vllm, session)
        before = await discover(client, model=None, data_parallel_size=None)
        for path in ("/v1/chat/completions", "/v1/messages"):
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
            async with session.post(vllm.url + path, json=body) as answer:
                assert answer.status == 200
        after = await discover(client, model=None, data_parallel_size=None)
    assert before.is_vllm
    assert after.boot_ids == before.boot_ids
    assert len(before.boot_ids) == RANKS
    assert all(boot_id is not None and boot_id.startswith("counters-") for boot_id in before.boot_ids)


async def until_it_generates(client: EngineClient, rank: int) -> None:
    """Until the rank reports that it runs something, and has generated more at one look than at the look before.

    A first chunk can reach the client before the core reports what it runs, and a standstill from then on is not seen.
    """
    before: int | None = None

    async def generated_more() -> bool:
        nonlocal before
        metrics = (await client.metrics()).ranks[rank]
        if not metrics.running or metrics.generation_tokens is None:
            return False
        last, before = before, metrics.generation_tokens
        return last is not None and before > last

    await until(generated_more)


async def until_stalled_is(wanted: bool, progress: Progress, client: EngineClient, rank: int) -> None:
    """Until the standstill is seen, or is over; ``/health`` says 200 all the while."""
    loop = asyncio.get_running_loop()

    async def is_so() -> bool:
        await client.health()
        return progress.read((await client.metrics()).ranks[rank], loop.time()) is wanted

    await until(is_so)


async def test_a_core_that_stands_still_is_seen_while_health_says_200(vllm: VllmServer) -> None:
    core = engine_cores(vllm)[0]
    async with aiohttp.ClientSession() as session:
        client = client_of(vllm, session)
        progress = Progress(STALLED_S)
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": MOST_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"X-data-parallel-rank": "0"}
        async with session.post(f"{vllm.url}/v1/chat/completions", json=body, headers=headers):
            await until_it_generates(client, 0)
            os.kill(core, signal.SIGSTOP)
            try:
                await until_stalled_is(True, progress, client, 0)
            finally:
                os.kill(core, signal.SIGCONT)
            await until_stalled_is(False, progress, client, 0)
