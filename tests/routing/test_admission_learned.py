"""What the waiting room learns."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from lmwarden.routing.admission_learned import Learned
from lmwarden.routing.conversations import Conversation
from lmwarden.types import RoutingRequest, Usage


def usage(prompt: int, completion: int | None = 100, cached: int | None = 0) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def request(body_bytes: int, limit: int | None = None) -> RoutingRequest:
    return RoutingRequest(body_bytes=body_bytes, max_output_tokens=limit)


def known(context_tokens: int, body_bytes: int) -> Conversation:
    conversation = Conversation(0.0, OrderedDict())
    conversation.context_tokens, conversation.body_bytes = context_tokens, body_bytes
    return conversation


def taught(turns: int = 60) -> Learned:
    """Five bytes a token, answers of 100 tokens, 1,000 shared tokens, a turn's end each 2 s."""
    learned = Learned()
    learned.output_tokens = 100.0
    for number in range(turns):
        learned.ended(request(10_000), usage(2_000, 100, 1_000), first=True, now=2.0 * number)
    return learned


def test_what_traffic_teaches() -> None:
    learned = taught()
    assert learned.tokens_per_byte == pytest.approx(0.2, rel=0.01)
    assert learned.output_tokens == pytest.approx(100, rel=0.01)
    assert learned.shared_tokens == 1_000
    assert learned.between_ends_s == pytest.approx(2.0)


def test_a_first_turn_is_as_large_as_its_body() -> None:
    assert taught().prompt_tokens(request(10_000), None) == pytest.approx(2_000, rel=0.01)
    assert taught().prompt_tokens(request(10_000), known(0, 0)) == pytest.approx(2_000, rel=0.01)


def test_a_later_turn_is_its_last_usage_and_what_is_new() -> None:
    """2,500 bytes more are 500 tokens, of which the answer's 100 are in the last usage."""
    assert taught().prompt_tokens(request(12_500), known(2_100, 10_000)) == pytest.approx(2_500, rel=0.01)
    assert taught().prompt_tokens(request(10_100), known(2_100, 10_000)) == 2_100


def test_a_smaller_body_is_another_history() -> None:
    """After a compaction the last usage says nothing, nor does it where the last body's size is not known."""
    assert taught().prompt_tokens(request(5_000), known(2_100, 10_000)) == pytest.approx(1_000, rel=0.01)
    assert taught().prompt_tokens(request(5_000), known(2_100, 0)) == pytest.approx(1_000, rel=0.01)


def test_a_footprint_is_the_prompt_and_a_likely_answer_less_what_all_share() -> None:
    learned = taught(200)
    assert learned.footprint(request(10_000), None) == pytest.approx(1_100, rel=0.02)
    assert learned.footprint(request(10_000, limit=32_000), None) == pytest.approx(1_100, rel=0.02)
    assert learned.footprint(request(10_000, limit=10), None) == pytest.approx(1_010, rel=0.02)
    assert learned.footprint(request(10), None) == 1


def test_answers_that_vary_need_more() -> None:
    learned = Learned()
    for number in range(200):
        learned.ended(request(10_000), usage(2_000, 50 if number % 2 else 150), first=False, now=float(number))
    assert learned.footprint(request(10_000), None) == pytest.approx(2_000 + 100 + 2 * 50, rel=0.05)


def test_what_was_not_reported_teaches_nothing() -> None:
    learned = Learned()
    learned.ended(request(0), usage(1_000, None, None), first=True, now=1.0)
    assert vars(learned) == vars(Learned()) | {"_last_end": 1.0, "gaps": learned.gaps} | {
        "_firsts": learned._firsts,
        "_reads": learned._reads,
    }


def test_reading_costs_what_the_fast_turns_say() -> None:
    learned = Learned()
    assert learned.reading_s(1_000) == 0.0
    for seconds in (1.0, 1.0, 9.0, 9.0):
        learned.served(10_000, seconds, 12.0, kept=False)
    learned.served(100, 5.0, 12.0, kept=True)
    assert learned.reading_s(20_000) == pytest.approx(2.0)
    assert learned.turn_s == 12.0


def test_conversations_that_come_back_without_a_tool_call() -> None:
    learned = Learned()
    seen = [learned.comes_back]
    for _ in range(6):
        learned.left_open()
        learned.came_back()
    seen.append(learned.comes_back)
    for _ in range(20):
        learned.left_open()
    seen.append(learned.comes_back)
    assert seen == [False, True, False]
