"""The real clients against a real vLLM: what the scripted engine only imitates.

The model's answers are noise. What is held against each other is what the warden's ledger says of each request and
what vLLM's own counters say of each rank.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.clients.programs import Clients
from tests.real.vllm_server import BLOCK_SIZE_TOKENS, MODEL, RANKS, VllmServer
from tests.real.warden_process import TokenSums, WardenProcess, engine_counted
from tests.waiting import until

pytestmark = pytest.mark.clients

SCRIPTS = {
    "sdk_openai.py": ("chat", "chat_stream", "chat_stream_with_usage"),
    "sdk_anthropic.py": ("messages", "messages_stream"),
}


def answered(warden: WardenProcess) -> list[dict[str, Any]]:
    """The ledger's rows of generations that vLLM answered, oldest first."""
    return [row for row in warden.ledger() if row["status"] == 200 and row["prompt_tokens"] is not None]


def by_rank(rows: list[dict[str, Any]]) -> dict[int, TokenSums]:
    """The rows' tokens, summed for each rank."""
    sums = {rank: TokenSums() for rank in range(RANKS)}
    for row in rows:
        rank = int(row["replica"].rpartition("/")[2])
        sums[rank] += TokenSums(row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"])
    return sums


async def test_claude_code_keeps_its_rank_and_finds_its_last_turn_cached(
    roomy_vllm: VllmServer, real_warden: WardenProcess, clients: Clients
) -> None:
    before = engine_counted(roomy_vllm.url)
    claude = await clients.claude_code(real_warden.client_url)
    # Noise does not know when to stop.
    claude.environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = "512"

    first = await claude.say("What is the number?")
    second = await claude.say("And now?", "--continue")
    third = await claude.say("And then?", "--continue")
    stranger = await claude.say("Something else.")

    assert [run.status for run in (first, second, third, stranger)] == [0] * 4
    assert first.json["session_id"] == third.json["session_id"] != stranger.json["session_id"]

    def engines() -> dict[int, TokenSums]:
        return {rank: sums - before[rank] for rank, sums in engine_counted(roomy_vllm.url).items()}

    await until(lambda: by_rank(answered(real_warden)) == engines(), lambda: (answered(real_warden), engines()))
    conversations: dict[str, list[dict[str, Any]]] = {}
    for row in answered(real_warden):
        conversations.setdefault(row["conversation"], []).append(row)
    mine, others = conversations.values()
    assert [row["decision"] for row in mine] == ["placed"] + ["sticky"] * (len(mine) - 1)
    assert len({row["replica"] for row in mine}) == 1
    assert others[0]["replica"] != mine[0]["replica"]
    assert mine[0]["prompt_tokens"] > 10_000, "the prompt of a real agent"
    # After an answer that happens to be empty the client lays its request out anew.
    pairs = [(last, row) for last, row in pairwise(mine) if last["completion_tokens"] > 1]
    assert pairs
    for last, row in pairs:
        assert row["cached_tokens"] >= last["prompt_tokens"] - 2 * BLOCK_SIZE_TOKENS


async def test_the_sdks_read_what_vllm_writes(
    roomy_vllm: VllmServer, real_warden: WardenProcess, clients: Clients
) -> None:
    before = engine_counted(roomy_vllm.url)

    told = {}
    for script, calls in SCRIPTS.items():
        for call in calls:
            done = await clients.python_script(script, call, real_warden.client_url, "unused", MODEL)
            assert done.status == 0, done.errors
            told[call] = done.json
            assert "error" not in told[call], told[call]

    assert (told["chat_stream"]["usages"], told["chat_stream"]["chunks_without_choice"]) == ([], 0)
    assert told["chat_stream_with_usage"]["chunks_without_choice"] == 1
    await until(lambda: len(answered(real_warden)) == 5, lambda: answered(real_warden))
    rows = answered(real_warden)
    assert [row["decision"] for row in rows] == ["placed", "sticky", "sticky", "placed", "sticky"]
    assert {row["replica"] for row in rows[:3]} != {row["replica"] for row in rows[3:]}
    assert all(row["cached_tokens"] > 0 for row in (rows[1], rows[2], rows[4]))
    usages = [told["chat"]["usage"], told["chat_stream_with_usage"]["usages"][0]]
    assert [(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) for usage in usages] == [
        (rows[0]["prompt_tokens"], rows[0]["cached_tokens"]),
        (rows[2]["prompt_tokens"], rows[2]["cached_tokens"]),
    ]

    def engines() -> dict[int, TokenSums]:
        return {rank: sums - before[rank] for rank, sums in engine_counted(roomy_vllm.url).items()}

    await until(lambda: by_rank(rows) == engines(), lambda: (rows, engines()))
