"""One of vLLM's processes is killed in the middle of four answers.

Any engine core that dies takes the whole server with it, and not cleanly: the other rank's answers end *properly*,
with ``finish_reason: abort`` (or no stop reason at all) and a 200, as if the model had stopped there; the dead
rank's hang for some seconds and then carry an error event. A client must take neither for an end.
"""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
import pytest
from tests.real.vllm_server import MODEL, RANKS, VllmServer, engine_cores
from tests.real.warden_process import WardenProcess
from tests.waiting import until

pytestmark = pytest.mark.real

PATHS = ("/v1/chat/completions", "/v1/messages")


async def test_a_killed_rank_breaks_its_streams_visibly_and_leaves_nothing_in_flight(
    doomed_vllm: VllmServer, warden: WardenProcess
) -> None:
    cores = engine_cores(doomed_vllm)
    async with aiohttp.ClientSession() as session:
        responses: list[aiohttp.ClientResponse] = []
        for rank in range(RANKS):
            # Both at once: the tiny model writes an answer of 3900 tokens in seconds, and the first one would have
            # gone on while the second one began. Held here, they can not be over.
            responses += await asyncio.gather(*(_long_stream(session, warden, path, rank) for path in PATHS))
            os.kill(cores[rank], signal.SIGSTOP)
        os.kill(cores[0], signal.SIGKILL)
        os.kill(cores[1], signal.SIGCONT)

        ends = await asyncio.gather(*map(_end_of, responses))

        assert set(ends[:2]) <= {"cut", "error"}, "the killed rank's"
        assert set(ends[2:]) == {"cut"}, "the other rank's, which vLLM ended as if they were complete"
        await until(lambda: warden.routing()["in_flight"] == 0, warden.routing)
        await until(lambda: {row["state"] for row in warden.routing()["replicas"]} == {"down"}, warden.routing)
        await until(lambda: len(warden.ledger()) == len(ends), warden.ledger)
        assert {row["outcome"] for row in warden.ledger()} == {"failed"}

        refused = await session.post(
            f"{warden.client_url}/v1/messages",
            json={"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello?"}]},
        )
        error = await refused.json()
    assert refused.status in (503, 529)
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert error["type"] == "error"
    assert error["error"]["type"] in ("overloaded_error", "api_error")


async def _long_stream(
    session: aiohttp.ClientSession, warden: WardenProcess, path: str, rank: int
) -> aiohttp.ClientResponse:
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 3900,
        "temperature": 0,
        "messages": [{"role": "user", "content": f"Count to {rank}."}],
    }
    if path == "/v1/chat/completions":
        body["ignore_eos"] = True
    response = await session.post(f"{warden.client_url}{path}", json=body, headers={"X-data-parallel-rank": str(rank)})
    assert response.status == 200
    await response.content.readany()
    return response


async def _end_of(response: aiohttp.ClientResponse) -> str:
    """``cut``: the connection broke; ``error``: an event says so; ``clean``: it looks complete."""
    try:
        async with asyncio.timeout(60):
            body = await response.read()
    except aiohttp.ClientPayloadError:
        return "cut"
    return "error" if b'\ndata: {"error"' in body or b"event: error\n" in body else "clean"
