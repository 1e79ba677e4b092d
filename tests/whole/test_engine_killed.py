"""kill -9 of one replica of four during 200 streams.

No other replica's stream is touched; requests with no byte yet are served elsewhere; the others end as a broken
connection; nothing stays in flight; and the replica comes back by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import aiohttp
import pytest
from tests.waiting import until
from tests.whole.agent import Asked, End, ask
from tests.whole.launched import MODEL, LaunchedWarden

STREAMS = 200
PROMPT = "word " * 800
"""About 1,000 tokens: room for fewer than 20 at once in an engine's cache, so that most of its 50 have no byte yet."""
TOKENS = 200
VICTIM = "e1"


@pytest.mark.parametrize("speed", [3.0])
async def test_a_killed_replica_touches_no_other_and_comes_back(warden: LaunchedWarden) -> None:
    pid = warden.engine_pid(VICTIM)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        asked = [Asked() for _ in range(STREAMS)]
        streams = [
            asyncio.ensure_future(ask(http, warden.client_url, MODEL, f"session-{number}", PROMPT, TOKENS, one))
            for number, one in enumerate(asked)
        ]
        await until(lambda: any(one.flows and one.replica == f"{VICTIM}/0" for one in asked), warden.describe)
        os.kill(pid, signal.SIGSTOP)  # it stays as it is, however late this process or the warden is
        await until(lambda: _have_come(warden) == STREAMS, warden.describe)
        os.kill(pid, signal.SIGKILL)
        ends = await asyncio.gather(*streams)

        counted = Counter(one.end for one in ends)
        assert set(counted) == {End.COMPLETE, End.BROKEN}, counted
        assert {one.replica for one in ends if one.end is End.BROKEN} == {f"{VICTIM}/0"}
        assert all(_is_whole(one) for one in ends if one.end is End.COMPLETE)
        await until(lambda: warden.routing()["in_flight"] == 0, warden.describe)
        await until(lambda: len(warden.rows()) == STREAMS, lambda: len(warden.rows()))
        rows = warden.rows()
        assert Counter(row["outcome"] for row in rows) == {
            "ok": counted[End.COMPLETE],
            "failed": counted[End.BROKEN],
        }
        moved = [row for row in rows if row["retried"]]
        assert moved
        assert all(row["outcome"] == "ok" and row["replica"] != f"{VICTIM}/0" for row in moved)

        await warden.all_ready()
        assert warden.engine_pid(VICTIM) != pid
        later = [await ask(http, warden.client_url, MODEL, f"one-{number}", "Hello.") for number in range(24)]
        burst = await asyncio.gather(
            *(ask(http, warden.client_url, MODEL, f"burst-{number}", "Hello.") for number in range(40))
        )
    assert {one.end for one in (*later, *burst)} == {End.COMPLETE}
    # One after the other, only what the replicas hold tells them apart: without care all would go to the empty one.
    assert _served_by_victim(later) <= len(later) / 2
    assert 0 < _served_by_victim(burst) <= len(burst) / 2


def _served_by_victim(asked: list[Asked]) -> int:
    return sum(one.replica == f"{VICTIM}/0" for one in asked)


def _have_come(warden: LaunchedWarden) -> int:
    """Requests that the warden has sent to engines, those that have ended included."""
    card = warden.routing()
    return int(card["in_flight"]) + len(warden.rows())


def _is_whole(asked: Asked) -> bool:
    """All its tokens came, in one message."""
    return asked.text.count(b"event: message_start") == 1 and b'"output_tokens":%d' % TOKENS in asked.text.replace(
        b" ", b""
    )
