"""Twice as many conversations as a real vLLM's caches hold: some wait, and who runs finds its context.

Sizes: a rank holds 5,088 tokens, a conversation grows to about 1,900, so two or three fit a rank and twelve are twice
too many. Without the room every turn would read everything again (``benchmarks/room_vs_real.py`` measures it).
"""

from __future__ import annotations

import asyncio
import random
from statistics import median
from typing import Any

import pytest
from tests.real.agent import Agent, Reply
from tests.real.vllm_server import MODEL, VllmServer
from tests.real.warden_process import WardenProcess, eventually

pytestmark = pytest.mark.real

CONVERSATIONS, TURNS = 12, 8
FIRST_WORDS, TURN_WORDS = 400, 15
"""The tiny model's tokenizer makes about three tokens of a word that it was not trained on."""
WAITED_S = 0.001
"""What the head's milliseconds can say."""
KEPT_RATIO = 0.7
"""A turn that finds more of its prompt in the cache than this has kept its context."""


async def converse(agent: Agent, turns: int) -> list[Reply]:
    """A long first message, then short ones without a pause."""
    rng = random.Random(agent.session_id)
    replies = []
    for turn in range(turns):
        words = (f"{rng.randrange(100, 1000)}" for _ in range(TURN_WORDS if turn else FIRST_WORDS))
        replies.append(await agent.turn(" ".join(words)))
    return replies


def is_empty(card: dict[str, Any]) -> bool:
    """By one look: the card is a second old at times, and between two turns nothing is in flight while some wait."""
    return bool(card["in_flight"] == 0 and card["admission"]["waiting"] == 0)


async def test_beyond_capacity_some_wait_and_whoever_runs_finds_its_context(
    cold_vllm: VllmServer, warden: WardenProcess
) -> None:
    agents = [Agent(warden.client_url, MODEL, "messages", True, f"5e55-room-{n}") for n in range(CONVERSATIONS)]
    seen_engaged = asyncio.Event()

    async def watch() -> None:
        await eventually(lambda: warden.routing()["admission"]["engaged"], warden.routing)
        seen_engaged.set()

    watching = asyncio.ensure_future(watch())
    conversations = await asyncio.gather(*(converse(agent, TURNS) for agent in agents))
    await watching
    assert seen_engaged.is_set()

    replies = [reply for conversation in conversations for reply in conversation]
    assert {reply.status for reply in replies} == {200}
    assert all(reply.text for reply in replies)
    held = [reply for reply in replies if reply.waited_ms]
    assert held, "nobody waited"

    # Nobody is lost, and nothing stays behind.
    await eventually(lambda: len(warden.ledger()) == len(replies), lambda: len(warden.ledger()))
    rows = warden.ledger()
    assert {row["outcome"] for row in rows} == {"ok"}
    waited = [row for row in rows if row["waited_s"] >= WAITED_S]
    assert len(waited) == len(held), "the row and the answer's head say the same"
    await eventually(lambda: is_empty(warden.routing()), warden.routing)

    # Who holds a place keeps its context: of the turns that went at once after the first wait, most found it.
    first_held = min(row["id"] for row in waited)
    at_once = [row for row in rows if row["id"] > first_held and row["waited_s"] < WAITED_S]
    residents = [row for row in at_once if row["decision"] == "sticky"]
    assert residents
    assert median(row["cached_tokens"] / row["prompt_tokens"] for row in residents) > KEPT_RATIO
