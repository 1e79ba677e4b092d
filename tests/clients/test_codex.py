"""Codex over ``/v1/responses``, configured by what ``lmwarden connect codex`` prints."""

from __future__ import annotations

import pytest
from tests.clients.answers import Failure, Reply, ToolCall
from tests.clients.conftest import HouseMaker
from tests.clients.programs import Clients
from tests.clients.scripted_engine import BLOCK_SIZE_TOKENS, Seen

pytestmark = pytest.mark.clients

EXEC = ("exec", "--skip-git-repo-check", "--json")
LOOK = ToolCall("exec_command", {"cmd": "echo the number is $((6 * 7))"})


async def look_once(seen: Seen) -> Reply | Failure:
    """Use the shell, then answer; later turns are answered at once."""
    if seen.said("the number is 42"):
        return Reply("It is 42.")
    return Reply("Still 42.") if seen.answers else Reply("I look.", (LOOK,))


async def test_a_session_stays_on_its_engine_through_a_tool_call_and_a_second_turn(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(engines=3)
    house.think(look_once)
    codex = await clients.codex(house.warden.client_url)

    first = await codex.run(*EXEC, "What is the number?")
    second = await codex.run(*EXEC, "resume", "--last", "And now?")
    other = await codex.run(*EXEC, "What is the number?")

    said = [line["item"].get("text") for line in first.lines if line["type"] == "item.completed"]
    assert (first.status, said[-1]) == (0, "It is 42.")
    assert (second.status, other.status) == (0, 0)
    threads = [run.lines[0]["thread_id"] for run in (first, second, other)]
    assert threads[0] == threads[1] != threads[2]
    by_session: dict[str, list[Seen]] = {}
    for seen in house.seen:
        by_session.setdefault(seen.headers["session-id"], []).append(seen)
    mine, others = by_session[threads[0]], by_session[threads[2]]
    assert ([seen.path for seen in mine], len(others)) == (["/v1/responses"] * 3, 2)
    assert len({seen.replica for seen in mine}) == 1
    assert others[0].replica != mine[0].replica
    assert mine[2].cached_tokens >= mine[1].prompt_tokens - 2 * BLOCK_SIZE_TOKENS
    rows = await house.rows(5)
    assert [row["decision"] for row in rows] == ["placed", "sticky", "sticky", "placed", "sticky"]
    counted = {(row["prompt_tokens"], row["cached_tokens"]) for row in rows}
    assert counted == {(seen.prompt_tokens, seen.cached_tokens) for seen in house.seen}


async def test_an_engine_with_several_ranks_balances_it_and_nothing_is_bound(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(ranks=2)
    house.think(look_once)
    codex = await clients.codex(house.warden.client_url)

    done = await codex.run(*EXEC, "What is the number?")

    assert done.status == 0
    assert all("X-data-parallel-rank" not in seen.headers for seen in house.seen)
    assert [(row["decision"], row["replica"]) for row in await house.rows(2)] == [("unrouted", "e0")] * 2
    assert sum(row["conversations"] for row in (await house.card(2))["replicas"]) == 0
