"""Claude Code, headless and on a terminal, set up as ``lmwarden connect claude-code`` prints.

Where a turn went is read from the engines, which know who asked; what the warden says of it, from its ledger.
The engines call themselves otherwise than the client calls the model, so every passing test also shows that the
client takes another name in ``message_start``.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from tests.clients.answers import Failure, Reply, ToolCall
from tests.clients.conftest import HouseMaker
from tests.clients.house import MODEL
from tests.clients.programs import Clients
from tests.clients.scripted_engine import BLOCK_SIZE_TOKENS, Seen
from tests.waiting import until

pytestmark = pytest.mark.clients

LOOK = ToolCall("Bash", {"command": "echo 'the number is' $((6 * 7))", "description": "Look"})


async def use_two_tools(seen: Seen) -> Reply | Failure:
    """Look by Bash, read by Read, then say what was found."""
    if seen.said("written in the file"):
        return Reply("Both were found.")
    if seen.said("the number is 42"):
        return Reply("", (ToolCall("Read", {"file_path": "notes.txt"}),))
    return Reply("I look.", (LOOK,))


async def test_a_tool_loop_stays_at_home_and_is_counted_as_the_engine_counts(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(ranks=4)
    house.think(use_two_tools)
    claude = await clients.claude_code(house.warden.client_url)
    (claude.work / "notes.txt").write_text("written in the file\n")

    done = await claude.say("What is the number?")

    assert (done.status, done.json["result"]) == (0, "Both were found.")
    assert len(house.seen) == 3
    assert len(set(house.homes()[done.json["session_id"], None])) == 1
    assert house.seen[0].body["model"] == house.engines[0].model != MODEL
    rows = await house.rows(3)
    assert [row["decision"] for row in rows] == ["placed", "sticky", "sticky"]
    assert [(row["replica"], row["prompt_tokens"], row["cached_tokens"]) for row in rows] == [
        (seen.replica, seen.prompt_tokens, seen.cached_tokens) for seen in house.seen
    ]
    for before, after in pairwise(house.seen):
        assert after.cached_tokens >= before.prompt_tokens - 2 * BLOCK_SIZE_TOKENS, "the prompt's beginning changed"


async def test_a_continued_session_goes_home_from_another_process_and_a_fork_goes_where_its_beginning_is(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(ranks=4)
    claude = await clients.claude_code(house.warden.client_url)

    first = await claude.say("My name is Anna.")
    session = first.json["session_id"]
    continued = await claude.say("And again.", "--continue")
    resumed = await claude.say("Once more.", "--resume", session)
    fork = await claude.say("What if?", "--resume", session, "--fork-session")
    forks_second = await claude.say("And then?", "--resume", fork.json["session_id"])
    stranger = await claude.say("Something else.")

    assert continued.json["session_id"] == resumed.json["session_id"] == session
    assert fork.json["session_id"] == forks_second.json["session_id"] != session
    homes = house.homes()
    assert len(homes[session, None]) == 3
    assert len(homes[fork.json["session_id"], None]) == 2
    home = homes[session, None][0]
    assert set(homes[session, None]) == {home}
    assert set(homes[fork.json["session_id"], None]) == {home}, "the fork has another id, but the same beginning"
    assert homes[stranger.json["session_id"], None] != [home], "a session of its own goes to an emptier replica"
    by_arrival = house.engines[0].seen
    assert by_arrival[3].cached_tokens >= by_arrival[2].prompt_tokens - 2 * BLOCK_SIZE_TOKENS
    rows = await house.rows(6)
    assert [row["decision"] for row in rows] == ["placed", "sticky", "sticky", "placed", "sticky", "placed"]


async def test_sessions_at_the_same_time_get_a_replica_each_and_keep_it(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(engines=2, ranks=2)
    all_begun = asyncio.Event()

    async def begin_together(seen: Seen) -> Reply | Failure:
        if len({other.session for other in house.seen}) == 4:
            all_begun.set()
        await all_begun.wait()
        return Reply("Seen.") if seen.said("the number is 42") else Reply("I look.", (LOOK,))

    house.think(begin_together)
    users = [await clients.claude_code(house.warden.client_url, user=f"user-{number}") for number in range(4)]

    done = await asyncio.gather(*(claude.say("Look, please.") for claude in users))
    again = await asyncio.gather(*(claude.say("And again.", "--continue") for claude in users))

    assert [run.status for run in (*done, *again)] == [0] * 8
    homes = house.homes()
    assert [len(replicas) for replicas in homes.values()] == [4] * 4
    assert sorted(replica for replicas in homes.values() for replica in set(replicas)) == [
        "e0/0",
        "e0/1",
        "e1/0",
        "e1/1",
    ]


async def test_subagents_are_conversations_of_their_own_near_each_other(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(ranks=4)
    children = 3
    all_begun = asyncio.Event()

    async def ask_three(seen: Seen) -> Reply | Failure:
        if seen.agent is not None:
            if len({other.agent for other in house.seen} - {None}) == children:
                all_begun.set()
            await all_begun.wait()
            return Reply("It is there.") if seen.answers else Reply("", (LOOK,))
        if not seen.answers:
            task = {"description": "Look", "subagent_type": "general-purpose"}
            calls = [ToolCall("Agent", {**task, "prompt": f"Look at part {number}."}) for number in range(children)]
            return Reply("I ask three.", tuple(calls))
        return Reply("They looked.")

    house.think(ask_three)
    claude = await clients.claude_code(house.warden.client_url)

    done = await claude.say("Look everywhere.")

    assert done.status == 0
    assert done.json["subagent_stats"]["completed"] == children
    homes = house.homes()
    main = homes.pop((done.json["session_id"], None))
    assert len(main) >= 2
    assert len(set(main)) == 1, "the main conversation moved"
    assert {session for session, _ in homes} == {done.json["session_id"]}, "they share the session's id"
    assert len(homes) == children
    for replicas in homes.values():
        assert len(replicas) == 2
        assert len(set(replicas)) == 1, "a subagent moved"
    assert len({replicas[0] for replicas in homes.values()}) == 1, "siblings share most of their prompt"
    firsts = [seen for seen in house.seen if seen.agent is not None and not seen.answers]
    assert all(seen.cached_tokens > seen.prompt_tokens / 2 for seen in firsts[1:])
    rows = await house.rows(len(house.seen))
    assert len({row["conversation"] for row in rows}) == 1 + children


async def test_counting_tokens_is_passed_on_and_binds_nothing(make_house: HouseMaker, clients: Clients) -> None:
    house = await make_house(ranks=2)
    claude = await clients.claude_code(house.warden.client_url)
    session = (await claude.say("Hello.")).json["session_id"]

    shown = await claude.say("/context", "--resume", session)

    assert shown.status == 0
    assert "System prompt" in shown.json["result"]
    assert house.engines[0].counted_tokens > 1
    assert len(house.seen) == 1, "nothing was generated"

    def counts() -> list[dict[str, Any]]:
        return [row for row in house.warden.ledger() if row["endpoint"].endswith("count_tokens")]

    await until(lambda: len(counts()) >= house.engines[0].counted_tokens, counts)
    assert {(row["decision"], row["conversation"], row["status"]) for row in counts()} == {("unrouted", None, 200)}
    card = await house.card(1 + house.engines[0].counted_tokens)
    assert sum(row["conversations"] for row in card["replicas"]) == 1


async def test_a_compaction_is_written_at_home_and_the_shorter_conversation_stays_there(
    make_house: HouseMaker, clients: Clients
) -> None:
    house = await make_house(ranks=4)

    async def summarise(seen: Seen) -> Reply | Failure:
        if seen.request_class == "compaction":
            return Reply("<analysis>Little was said.</analysis>\n<summary>The user greeted.</summary>")
        return Reply("Hello.")

    house.think(summarise)
    claude = await clients.claude_code(house.warden.client_url)
    session = (await claude.say("Hello. " * 400)).json["session_id"]

    compacted = await claude.say("/compact", "--resume", session)
    after = await claude.say("Where were we?", "--resume", session)

    assert (compacted.status, after.status) == (0, 0)
    turns = house.engines[0].seen
    assert [seen.request_class for seen in turns] == ["main", "compaction", "main"]
    assert {seen.replica for seen in turns} == {turns[0].replica}
    assert turns[1].cached_tokens >= turns[0].prompt_tokens - 2 * BLOCK_SIZE_TOKENS
    assert any("The user greeted." in text for text in turns[2].texts)
    assert [row["decision"] for row in await house.rows(3)] == ["placed", "sticky", "sticky"]


async def test_a_title_call_beside_the_first_turn_binds_nothing(make_house: HouseMaker, clients: Clients) -> None:
    house = await make_house(ranks=4)
    both_here = asyncio.Event()

    async def title_and_talk(seen: Seen) -> Reply | Failure:
        if len(house.seen) == 2:
            both_here.set()
        await both_here.wait()
        is_title = "format" in seen.body.get("output_config", {})
        return Reply(json.dumps({"title": "A greeting"})) if is_title else Reply("Nice to meet you.")

    house.think(title_and_talk)
    claude = await clients.claude_code(house.warden.client_url)
    claude.skip_the_welcome()
    # As printed it asks for no titles at all: they count as traffic that is not essential.
    claude.settings += "unset CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC\n"
    terminal = await claude.open_terminal("--permission-mode", "default")
    try:
        await terminal.shows("? for shortcuts")
        terminal.type("My name is Anna.")
        await terminal.shows("My name is Anna.")
        terminal.type("\r")
        await terminal.shows("Nice to meet you.")
        rows = await house.rows(2)
    finally:
        await terminal.close()

    title, main = sorted(house.seen, key=lambda seen: "format" not in seen.body.get("output_config", {}))
    assert title.session == main.session
    assert title.request_class == "auxiliary"
    assert title.replica != main.replica, "the title was on the way, so the emptier replica was another"
    assert {row["decision"]: row["replica"] for row in rows} == {"balanced": title.replica, "placed": main.replica}


async def test_other_names_lead_to_the_model_and_to_the_same_home(make_house: HouseMaker, clients: Clients) -> None:
    house = await make_house(ranks=4)
    claude = await clients.claude_code(house.warden.client_url)
    session = (await claude.say("Hello.")).json["session_id"]

    renamed = await claude.say("Hello again.", "--resume", session, "--model", "claude-sonnet-4-6")
    unknown = await claude.say("Hello again.", "--resume", session, "--model", "gpt-nonesuch")

    assert (renamed.status, renamed.json["result"]) == (0, "Hello.")
    replicas = house.homes()[session, None]
    assert len(replicas) == 2
    assert len(set(replicas)) == 1
    assert {seen.body["model"] for seen in house.seen} == {house.engines[0].model}
    assert unknown.status != 0
    assert "gpt-nonesuch" in unknown.json["result"]
