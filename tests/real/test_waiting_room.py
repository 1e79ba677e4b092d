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
from tests.real.warden_process import WardenProcess
from tests.waiting import until

pytestmark = pytest.mark.real

CONVERSATIONS, TURNS = 12, 8
ENOUGH = 24
"""Turns that waited: a room engages some seconds after the caches thrash, which are many turns of so small a model."""
PATIENCE_S = 240
FIRST_WORDS, TURN_WORDS = 400, 15
"""The tiny model's tokenizer makes about three tokens of a word that it was not trained on."""
WAITED_S = 0.001
"""What the head's milliseconds can say."""
KEPT_RATIO = 0.7
"""A turn that finds more of its prompt in the cache than this has kept its context."""


class Crowd:
    """So many agents, session after session without a pause, until enough of their turns have waited."""

    def __init__(self, warden: WardenProcess) -> None:
        self._warden = warden
        self.replies: list[Reply] = []

    @property
    def held(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.waited_ms]

    async def play(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(self._agent(number) for number in range(CONVERSATIONS)))

    async def _agent(self, number: int) -> None:
        session = 0
        while len(self.held) < ENOUGH:
            name = f"5e55-room-{number}-{session}"
            await self._converse(Agent(self._warden.client_url, MODEL, "messages", True, name))
            session += 1

    async def _converse(self, agent: Agent) -> None:
        """A long first message, then short ones."""
        rng = random.Random(agent.session_id)
        for turn in range(TURNS):
            words = (f"{rng.randrange(100, 1000)}" for _ in range(TURN_WORDS if turn else FIRST_WORDS))
            self.replies.append(await agent.turn(" ".join(words)))


def is_empty(card: dict[str, Any]) -> bool:
    """By one look: the card is a second old at times, and between two turns nothing is in flight while some wait."""
    return bool(card["in_flight"] == 0 and card["admission"]["waiting"] == 0)


async def test_beyond_capacity_some_wait_and_whoever_runs_finds_its_context(
    cold_vllm: VllmServer, warden: WardenProcess
) -> None:
    crowd = Crowd(warden)
    await crowd.play()
    replies, held = crowd.replies, crowd.held
    assert {reply.status for reply in replies} == {200}
    assert all(reply.text for reply in replies)

    # Nobody is lost, and nothing stays behind.
    await until(lambda: len(warden.ledger()) == len(replies), lambda: len(warden.ledger()))
    rows = warden.ledger()
    assert {row["outcome"] for row in rows} == {"ok"}
    waited = [row for row in rows if row["waited_s"] >= WAITED_S]
    assert len(waited) == len(held), "the row and the answer's head say the same"
    await until(lambda: is_empty(warden.routing()), warden.routing)

    # Who holds a place keeps its context: of the turns that went at once after the first wait, most found it.
    first_held = min(row["id"] for row in waited)
    at_once = [row for row in rows if row["id"] > first_held and row["waited_s"] < WAITED_S]
    residents = [row for row in at_once if row["decision"] == "sticky"]
    assert residents
    assert median(row["cached_tokens"] / row["prompt_tokens"] for row in residents) > KEPT_RATIO
