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
        streams = [
            asyncio.ensure_future(ask(http, warden.client_url, MODEL, f"session-{number}", PROMPT, TOKENS))
            for number in range(STREAMS)
        ]
        await until(lambda: warden.routing()["in_flight"] == STREAMS and _waiting(warden), warden.describe)
        os.kill(pid, signal.SIGKILL)
        ends = await asyncio.gather(*streams)

        counted = Counter(asked.end for asked in ends)
        assert set(counted) == {End.COMPLETE, End.BROKEN}, counted
        broken = [asked for asked in ends if asked.end is End.BROKEN]
        assert {asked.replica for asked in broken} == {f"{VICTIM}/0"}
        assert all(_is_whole(asked) for asked in ends if asked.end is End.COMPLETE)
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
    assert {asked.end for asked in (*later, *burst)} == {End.COMPLETE}
    # One after the other, only what the replicas hold tells them apart: without care all would go to the empty one.
    assert _served_by_victim(later) <= len(later) / 2
    assert 0 < _served_by_victim(burst) <= len(burst) / 2


def _served_by_victim(asked: list[Asked]) -> int:
    return sum(one.replica == f"{VICTIM}/0" for one in asked)


def _waiting(warden: LaunchedWarden) -> bool:
    """Whether the victim has requests that wait for a place."""
    row = next(row for row in warden.routing()["replicas"] if row["replica"] == f"{VICTIM}/0")
    return bool(row["waiting"])


def _is_whole(asked: Asked) -> bool:
    """All its tokens came, in one message."""
    return asked.text.count(b"event: message_start") == 1 and b'"output_tokens":%d' % TOKENS in asked.text.replace(
        b" ", b""
    )
