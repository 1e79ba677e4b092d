"""One of vLLM's processes is killed in the middle of two answers.

Any engine core that dies takes the whole server with it, and not cleanly: the other rank's answers end *properly*,
with ``finish_reason: abort`` and a 200, as if the model had stopped there; the dead rank's hang for some seconds.
A client must see neither as an end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest
from tests.real.vllm_server import MODEL, VllmServer
from tests.real.warden_process import WardenProcess, eventually

pytestmark = pytest.mark.real


async def test_a_killed_rank_breaks_its_streams_visibly_and_leaves_nothing_in_flight(
    doomed_vllm: VllmServer, warden: WardenProcess
) -> None:
    async with aiohttp.ClientSession() as session:
        responses = [await _long_stream(session, warden, f"5e55-doomed-{number}") for number in range(2)]
        replicas = [response.headers["X-LMWarden-Replica"] for response in responses]
        assert sorted(replicas) == ["e0/0", "e0/1"]

        _kill_engine_core(doomed_vllm, rank=0)

        for ended in await asyncio.gather(*map(_ends_cleanly, responses)):
            assert not ended, "a truncated answer looked complete"

        await eventually(lambda: warden.routing()["in_flight"] == 0, warden.routing)
        await eventually(
            lambda: {row["state"] for row in warden.routing()["replicas"]} == {"down"}, warden.routing
        )
        await eventually(lambda: len(warden.ledger()) == 2, warden.ledger)
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
    session: aiohttp.ClientSession, warden: WardenProcess, session_id: str
) -> aiohttp.ClientResponse:
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 4000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": f"Count, {session_id}."}],
    }
    response = await session.post(
        f"{warden.client_url}/v1/chat/completions", json=body, headers={"X-Session-Id": session_id}
    )
    assert response.status == 200
    await response.content.readany()
    return response


async def _ends_cleanly(response: aiohttp.ClientResponse) -> bool:
    try:
        async with asyncio.timeout(60):
            body = await response.read()
    except aiohttp.ClientPayloadError:
        return False
    # An error event is no clean end either: it is how vLLM itself says that the rank is gone.
    return b'"error"' not in body


def _kill_engine_core(server: VllmServer, rank: int) -> None:
    """SIGKILL to the one process of the server's group that is the engine core of ``rank``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            group = os.getpgid(int(process.name))
        except (OSError, ProcessLookupError):
            continue
        if group == server.process.pid and b"EngineCore_DP%d" % rank in title:
            found.append(int(process.name))
    assert len(found) == 1, f"expected one engine core of rank {rank}, found {found}"
    os.kill(found[0], signal.SIGKILL)
