"""Engines that outlive their warden on purpose, and what the next one makes of them."""

from __future__ import annotations

import asyncio
import signal
import socket

import aiohttp
import psutil
import pytest
from tests.waiting import until
from tests.whole.agent import Asked, End, ask
from tests.whole.launched import MODEL, LaunchedWarden

pytestmark = pytest.mark.parametrize("replicas", [2])


async def test_kept_engines_are_taken_over_with_their_caches(warden: LaunchedWarden) -> None:
    # The fixture's warden ends its engines; from here on they are kept. Nothing else of the command changes.
    pids = _pids(warden)
    warden.on_exit = "keep"
    warden.kill()
    await warden.start()
    await warden.all_ready()
    assert _pids(warden) == pids
    async with aiohttp.ClientSession() as http:
        first = await ask(http, warden.client_url, MODEL, "session", "Hello.")

        assert warden.end() == 0
        assert all(map(_lives, pids.values()))

        with socket.create_server(("127.0.0.1", 0)) as taken:
            warden.client_port = taken.getsockname()[1]
            assert await warden.fails_to_start() == 2
        assert all(map(_lives, pids.values())), "a start that fails ends no engine"

        warden.client_port = 0
        await warden.start()
        await warden.all_ready()
        assert _pids(warden) == pids
        assert all(engine["process"]["taken_over"] for engine in warden.engines().values())
        again = await ask(http, warden.client_url, MODEL, "session", "Hello.")
    assert (again.end, again.decision, again.replica) == (End.COMPLETE, "sticky", first.replica)

    assert warden.end() == 0
    warden.replicas, warden.on_exit = 1, "stop"
    await warden.start()
    await warden.all_ready()
    assert _pids(warden) == {"e0": pids["e0"]}
    assert not _lives(pids["e1"]), "nobody wants it any more"
    assert warden.end() == 0
    await until(lambda: not any(map(_lives, pids.values())), lambda: pids)


async def test_a_changed_command_is_shown_and_a_rolling_restart_applies_it(warden: LaunchedWarden) -> None:
    pids = _pids(warden)
    warden.kill()
    warden.speed = 20.0
    await warden.start()
    await warden.all_ready()
    assert _pids(warden) == pids
    assert all(engine["process"]["outdated"] for engine in warden.engines().values())
    codes = [warning["code"] for warning in warden.get(f"/api/models/{MODEL}")["warnings"]]
    assert "engine_outdated" in codes

    warden.post(f"/api/models/{MODEL}/rolling-restart")
    await until(lambda: not any(engine["process"]["outdated"] for engine in warden.engines().values()), warden.describe)
    await warden.all_ready()
    assert set(_pids(warden).values()).isdisjoint(pids.values())


async def test_sigusr1_ends_the_warden_in_order_and_leaves_its_engines(warden: LaunchedWarden) -> None:
    pids = _pids(warden)
    async with aiohttp.ClientSession() as http:
        asked = Asked()
        open_stream = asyncio.ensure_future(ask(http, warden.client_url, MODEL, "session", "Count.", 300, asked))
        await until(lambda: bool(asked.text), warden.describe)
        assert await asyncio.to_thread(warden.end, signal.SIGUSR1) == 75
        first = await open_stream
        assert first.end is End.COMPLETE
        await warden.start()
        await warden.all_ready()
        assert _pids(warden) == pids
        again = await ask(http, warden.client_url, MODEL, "session", "Count.")
    assert (again.decision, again.replica) == ("sticky", first.replica)


def _pids(warden: LaunchedWarden) -> dict[str, int]:
    return {engine: warden.engine_pid(engine) for engine in warden.engines()}


def _lives(pid: int) -> bool:
    """A zombie does not: whoever inherited it from a killed warden may reap it late, or never."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
