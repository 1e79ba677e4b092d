"""OpenCode over ``/v1/chat/completions``, configured by what ``lmwarden connect opencode`` prints."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.clients.answers import Failure, Reply, ToolCall
from tests.clients.conftest import HouseMaker
from tests.clients.programs import Clients
from tests.clients.scripted_engine import BLOCK_SIZE_TOKENS, MAX_MODEL_LEN_TOKENS, Seen

pytestmark = pytest.mark.clients

LOOK = ToolCall("bash", {"command": "echo the number is $((6 * 7))", "description": "Look"})


async def test_a_session_stays_at_home_through_a_tool_call_and_a_second_turn(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(ranks=4)
    both_here = asyncio.Event()
    titled = asyncio.Event()

    async def title_beside_the_first_turn(seen: Seen) -> Reply | Failure:
        if len(house.seen) == 2:
            both_here.set()
        await both_here.wait()
        if not seen.body.get("tools"):
            titled.set()
            return Reply("A number")
        await titled.wait()
        if seen.said("the number is 42"):
            return Reply("It is 42.")
        return Reply("Still 42.") if seen.answers else Reply("I look.", (LOOK,))

    house.think(title_beside_the_first_turn)
    opencode = await clients.opencode(house.warden.client_url)

    first = await opencode.run("run", "--format", "json", "What is the number?")
    second = await opencode.run("run", "--format", "json", "--continue", "And now?")

    said = [line["part"]["text"] for line in first.lines if line["type"] == "text"]
    assert (first.status, said) == (0, ["I look.", "It is 42."])
    assert second.status == 0
    assert {seen.headers["x-session-id"] for seen in house.seen} == {first.lines[0]["sessionID"]}
    turns = [seen for seen in house.engines[0].seen if seen.body.get("tools")]
    assert [seen.answers for seen in turns] == [0, 1, 2]
    assert len({seen.replica for seen in turns}) == 1
    assert all(0 < seen.body["max_tokens"] < MAX_MODEL_LEN_TOKENS for seen in turns)
    assert all(after.cached_tokens >= before.prompt_tokens - 2 * BLOCK_SIZE_TOKENS for before, after in pairwise(turns))
    rows = await house.rows(len(house.seen))
    assert {row["derived"] for row in rows} == {0}, "it sends its session's id by itself"
    assert [row["decision"] for row in rows][-2:] == ["sticky", "sticky"]
