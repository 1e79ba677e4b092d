"""Claude Code when an engine is lost, breaks off or refuses: its turn is answered all the same, or it says why not."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.clients.answers import Failure, Reply, ToolCall
from tests.clients.conftest import HouseMaker
from tests.clients.house import MODEL
from tests.clients.programs import Clients
from tests.clients.scripted_engine import Seen
from tests.waiting import until

pytestmark = pytest.mark.clients

LOOK = ToolCall("Bash", {"command": "echo 'the number is' $((6 * 7))", "description": "Look"})
FIRST_WORDS = 3
"""Events of a stream until its first words are out."""


@pytest.mark.parametrize("moment", ["before its answer", "in its answer"])
async def test_a_killed_engines_turn_is_answered_by_another_which_keeps_the_conversation(
    make_house: HouseMaker, clients: Clients, moment: str
) -> None:
    house = await make_house(engines=2)
    lost = False

    async def die_at_the_second_turn(seen: Seen) -> Reply | Failure:
        if not seen.answers:
            return Reply("I look.", (LOOK,))
        if lost:
            return Reply("It is 42.")
        if moment == "in its answer":
            return Reply("It is hard to say.", stalls_after=FIRST_WORDS)
        seen.stalled.set()
        await asyncio.Event().wait()
        raise AssertionError

    house.think(die_at_the_second_turn)
    claude = await clients.claude_code(house.warden.client_url)

    run = asyncio.ensure_future(claude.say("What is the number?"))
    second = (await house.arrivals(2))[1]
    await second.stalled.wait()
    lost = True
    victim = next(engine for engine in house.engines if engine.engine == second.engine)
    await victim.kill()
    done = await run
    await victim.start()
    await until(lambda: {row["state"] for row in house.warden.routing()["replicas"]} == {"ready"}, house.warden.routing)
    continued = await claude.say("Thank you.", "--continue")

    assert (done.status, done.json["result"]) == (0, "It is 42.")
    assert continued.status == 0
    served = sorted(house.seen, key=lambda seen: (seen.answers, seen.outcome == "done"))
    other = next(engine for engine in house.engines if engine is not victim)
    assert [seen.engine for seen in served] == [victim.engine, victim.engine, other.engine, other.engine]
    assert served[1].body == served[2].body, "the very same request was sent again"
    await until(lambda: house.warden.routing()["in_flight"] == 0, house.warden.routing)
    # Of an answer not begun the client never hears: the warden itself sends the request elsewhere.
    unseen = moment == "before its answer"
    rows = await house.rows(3 if unseen else 4)
    assert [row["outcome"] for row in rows] == (["ok"] * 3 if unseen else ["ok", "failed", "ok", "ok"])
    assert rows[1]["retried"] == int(unseen)
    assert rows[-1]["decision"] == "sticky", "it does not go back"


async def test_a_broken_answer_is_asked_for_again_at_home(make_house: HouseMaker, clients: Clients) -> None:
    house = await make_house(ranks=4)

    async def break_once(seen: Seen) -> Reply | Failure:
        whole = Reply("It is 42.")
        return whole if len(house.seen) > 1 else replace(whole, broken_after=FIRST_WORDS)

    house.think(break_once)
    claude = await clients.claude_code(house.warden.client_url)

    done = await claude.say("What is the number?")

    assert (done.status, done.json["result"]) == (0, "It is 42.")
    first, second = house.seen
    assert first.outcome == "broken"
    assert first.replica == second.replica
    assert first.body == second.body
    assert [(row["decision"], row["outcome"]) for row in await house.rows(2)] == [
        ("placed", "failed"),
        ("sticky", "ok"),
    ]


async def test_an_overloaded_engine_is_asked_again_and_a_clients_mistake_is_told_in_the_engines_words(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(ranks=2)

    async def overloaded_once(seen: Seen) -> Reply | Failure:
        if seen.said("too much"):
            return Failure(403, "This model is not for you.")
        return Reply("Here.") if len(house.seen) > 1 else Failure(529, "Overloaded", {"Retry-After": "1"})

    house.think(overloaded_once)
    claude = await clients.claude_code(house.warden.client_url)

    served = await claude.say("Are you there?")
    refused = await claude.say("Is this too much?")

    assert (served.status, served.json["result"]) == (0, "Here.")
    assert [seen.outcome for seen in house.seen[:2]] == ["failed", "done"]
    assert refused.status != 0
    assert "This model is not for you." in refused.json["result"]


async def test_a_key_is_wanted_read_from_the_environment_and_a_wrong_one_is_told(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(require_key=True)
    assert house.key is not None
    claude = await clients.claude_code(house.warden.client_url, "--model", MODEL)

    # A 401 is asked again for three minutes, with ever longer pauses.
    claude.environment["CLAUDE_CODE_MAX_RETRIES"] = "1"

    without = await claude.say("Hello.")
    claude.environment["LMWARDEN_KEY"] = "lmw_wrong"
    wrong = await claude.say("Hello.")
    claude.environment["LMWARDEN_KEY"] = house.key
    right = await claude.say("Hello.")

    assert without.status != 0
    assert "lmwarden keys create NAME" in without.errors
    assert wrong.status != 0
    assert "API key" in wrong.json["result"]
    assert (right.status, right.json["result"]) == (0, "Hello.")
    assert [row["key_name"] for row in await house.rows(1) if row["status"] == 200] == ["anna"]
