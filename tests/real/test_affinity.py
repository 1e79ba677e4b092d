"""Behind ``lmwarden serve`` a conversation's turns stay on one rank of a real vLLM.

That a turn went to the rank we named is never taken from our own headers alone: vLLM counts prompt tokens per
rank, and those counters are the witness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from tests.real.agent import MAX_TOKENS, Agent, Reply
from tests.real.vllm_server import BLOCK_SIZE_TOKENS, MODEL, RANKS, VllmServer
from tests.real.warden_process import (
    TokenSums,
    WardenProcess,
    engine_counted,
    engine_running,
)
from tests.waiting import until

pytestmark = pytest.mark.real

APIS = pytest.mark.parametrize("api", ["chat", "messages"])
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
QUESTIONS = [
    "The test failed because the counter was decremented twice. Read the file and say where.",
    "Now release it once, in one place, and run the tests again.",
    "One of them fails still: print the errors, each on a line of its own.",
    "Good. Write down in one sentence why it works now.",
]


def _agent(warden: WardenProcess, name: str, api: str = "messages", streamed: bool = False) -> Agent:
    return Agent(warden.client_url, MODEL, api, streamed, session_id=f"5e55-{name}")


async def _converse(agent: Agent) -> list[Reply]:
    return [await agent.turn(f"{agent.session_id}: {question}") for question in QUESTIONS]


def _by_rank(rows: Iterable[dict[str, Any]]) -> dict[int, TokenSums]:
    sums = {rank: TokenSums() for rank in range(RANKS)}
    for row in rows:
        rank = int(row["replica"].rpartition("/")[2])
        sums[rank] += TokenSums(row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"])
    return sums


async def _only_this_rank_read(vllm: VllmServer, before: dict[int, TokenSums], rank: int, reply: Reply) -> None:
    def read() -> list[int]:
        return [sums.prompt - before[of].prompt for of, sums in engine_counted(vllm.url).items()]

    expected = [reply.prompt_tokens if of == rank else 0 for of in range(RANKS)]
    await until(lambda: read() == expected, lambda: (read(), expected))


@APIS
@STREAMED
async def test_two_conversations_keep_a_rank_each_and_every_token_is_counted_as_vllm_counts_it(
    cold_vllm: VllmServer, warden: WardenProcess, api: str, streamed: bool
) -> None:
    before = engine_counted(cold_vllm.url)

    first = await _converse(_agent(warden, "one", api, streamed))
    after_first = engine_counted(cold_vllm.url)
    second = await _converse(_agent(warden, "two", api, streamed))
    replies = [*first, *second]

    assert [reply.status for reply in replies] == [200] * len(replies)
    assert [reply.decision for reply in first] == ["placed", "sticky", "sticky", "sticky"]
    assert [reply.decision for reply in second] == ["placed", "sticky", "sticky", "sticky"]
    assert {reply.rank for reply in first} == {first[0].rank}
    assert {reply.rank for reply in second} == {1 - first[0].rank}, "the second goes to the emptier rank"

    # What the ledger says of each rank is what that rank says, to the token.
    await until(lambda: len(warden.ledger()) == len(replies), warden.ledger)
    rows = warden.ledger()
    ours = _by_rank(rows)

    def engines() -> dict[int, TokenSums]:
        return {rank: sums - before[rank] for rank, sums in engine_counted(cold_vllm.url).items()}

    await until(lambda: engines() == ours, lambda: (engines(), ours))
    assert after_first[1 - first[0].rank] == before[1 - first[0].rank], "the first touched the other rank"
    total = ours[0] + ours[1]
    await until(lambda: warden.counted() == total, lambda: (warden.counted(), total))

    # What the client was told, where it was told anything, is the same.
    for reply, row in zip(replies, rows, strict=True):
        if reply.prompt_tokens is not None:
            assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (
                row["prompt_tokens"],
                row["cached_tokens"],
                row["completion_tokens"],
            )

    words = {"stop", "length"} if api == "chat" else {"end_turn", "max_tokens"}
    assert {row["finish_reason"] for row in rows} <= words

    # And it was worth it: a turn finds the one before it in the cache, but for the block that the answer began.
    for previous, row in pairwise(rows):
        if row["decision"] == "sticky":
            assert row["cached_tokens"] >= previous["prompt_tokens"] - 2 * BLOCK_SIZE_TOKENS


async def test_a_chat_stream_that_did_not_ask_for_usage_gets_none_and_is_counted_all_the_same(
    warden: WardenProcess,
) -> None:
    reply = await _agent(warden, "quiet", "chat", streamed=True).turn(QUESTIONS[0])

    assert reply.prompt_tokens is None
    assert b'"usage"' not in reply.raw
    assert b'"choices":[]' not in reply.raw
    assert reply.raw.endswith(b"data: [DONE]\n\n")
    await until(lambda: len(warden.ledger()) == 1, warden.ledger)
    assert warden.ledger()[0]["prompt_tokens"] > 0


async def test_with_affinity_off_vllm_balances(cold_vllm: VllmServer, warden: WardenProcess) -> None:
    warden.patch_routing(affinity=False)
    before = engine_counted(cold_vllm.url)
    agent = _agent(warden, "loose")

    replies = await asyncio.gather(*(agent.ask([{"role": "user", "content": QUESTIONS[0]}]) for _ in range(8)))

    assert {reply.decision for reply in replies} == {"unrouted"}
    prompt_tokens = sum(reply.prompt_tokens or 0 for reply in replies)

    def per_rank() -> list[int]:
        return [sums.prompt - before[rank].prompt for rank, sums in engine_counted(cold_vllm.url).items()]

    await until(lambda: sum(per_rank()) == prompt_tokens, per_rank)
    assert all(tokens > 0 for tokens in per_rank()), "eight at once on one rank: something still pins them"
    await until(lambda: warden.routing()["balancer"] == "engine", warden.routing)

    warden.patch_routing(affinity=True)
    assert (await agent.turn(QUESTIONS[0])).decision == "placed"
    assert (await agent.turn(QUESTIONS[1])).decision == "sticky"


@APIS
async def test_a_client_that_names_its_rank_is_obeyed(cold_vllm: VllmServer, warden: WardenProcess, api: str) -> None:
    agent = _agent(warden, "pinned", api)
    home = (await agent.turn(QUESTIONS[0])).rank

    for rank in (1 - home, home):
        before = engine_counted(cold_vllm.url)
        reply = await agent.ask(agent.messages, **{"X-data-parallel-rank": str(rank)})
        assert (reply.decision, reply.rank) == ("client_pinned", rank)
        await _only_this_rank_read(cold_vllm, before, rank, reply)

    refused = await agent.ask(agent.messages, **{"X-data-parallel-rank": "2"})
    assert refused.status == 400
    assert b"e0/0" in refused.raw or b"0, 1" in refused.raw, "the answer lists what is allowed"
    assert (await agent.turn(QUESTIONS[1])).rank == home, "a pin does not move the conversation"


async def test_responses_are_unrouted_because_vllm_ignores_a_rank_there(warden: WardenProcess) -> None:
    body = {"model": MODEL, "input": QUESTIONS[0], "max_output_tokens": MAX_TOKENS, "prompt_cache_key": "5e55-r"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{warden.client_url}/v1/responses", json=body) as response,
    ):
        answer = await response.json()

    assert response.status == 200
    assert response.headers["X-LMWarden-Decision"] == "unrouted"
    await until(lambda: len(warden.ledger()) == 1, warden.ledger)
    row = warden.ledger()[0]
    assert row["prompt_tokens"] == answer["usage"]["input_tokens"]
    assert row["cached_tokens"] == answer["usage"]["input_tokens_details"]["cached_tokens"]
    assert row["completion_tokens"] == answer["usage"]["output_tokens"]


async def test_counting_tokens_asks_vllm_and_moves_nothing(warden: WardenProcess) -> None:
    agent = _agent(warden, "counted")
    home = (await agent.turn(QUESTIONS[0])).rank
    async with aiohttp.ClientSession() as session:
        for _ in range(5):
            body = {"model": MODEL, "messages": agent.messages}
            headers = {"X-Claude-Code-Session-Id": agent.session_id}
            async with session.post(
                f"{warden.client_url}/v1/messages/count_tokens", json=body, headers=headers
            ) as response:
                assert response.status == 200
                assert (await response.json())["input_tokens"] > 0

    reply = await agent.turn(QUESTIONS[1])
    assert (reply.decision, reply.rank) == ("sticky", home)


async def test_vllms_own_refusal_reaches_the_client_word_for_word(cold_vllm: VllmServer, warden: WardenProcess) -> None:
    """Claude Code reads the sentence about the context length to know that it must compact."""
    messages = [{"role": "user", "content": "too long " * 4000}]
    ours = await _agent(warden, "long").ask(messages)
    theirs = await Agent(cold_vllm.url, MODEL, "messages", False, "5e55-direct").ask(messages)

    assert ours.status == theirs.status == 400
    assert ours.raw == theirs.raw
    assert b"maximum context length" in ours.raw


async def test_a_client_that_leaves_stops_the_work(cold_vllm: VllmServer, warden: WardenProcess) -> None:
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 3000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": QUESTIONS[0]}],
    }
    async with aiohttp.ClientSession() as session:
        response = await session.post(f"{warden.client_url}/v1/chat/completions", json=body)
        await response.content.readany()
        await until(lambda: engine_running(cold_vllm.url) == 1, lambda: "the request never ran")
        response.close()

    await until(lambda: engine_running(cold_vllm.url) == 0, lambda: "vLLM still works on it")
    await until(lambda: warden.routing()["in_flight"] == 0, warden.routing)
    await until(lambda: len(warden.ledger()) == 1, warden.ledger)
    assert warden.ledger()[0]["outcome"] == "cancelled"


async def test_the_warden_found_out_what_it_is_in_front_of(warden: WardenProcess) -> None:
    await until(lambda: all(row["kv_cache_tokens"] is not None for row in warden.routing()["replicas"]), warden.routing)
    state = warden.routing()

    assert [row["replica"] for row in state["replicas"]] == ["e0/0", "e0/1"]
    assert [row["state"] for row in state["replicas"]] == ["ready", "ready"]
    # One of vLLM's 160 blocks is never given out.
    assert {row["kv_cache_tokens"] for row in state["replicas"]} <= {159 * 32, 160 * 32}
    assert (state["spill_threshold"], state["spill_threshold_source"]) == (8, "auto")
