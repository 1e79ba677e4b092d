"""What the waiting room learns."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from lmwarden.routing.admission_learned import LEARN_RATIO, LULL_RATIO, SIZES_MIN, Learned
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
        learned.ended(request(10_000), usage(2_000, 50 if number % 2 else 150), first=True, now=float(number))
    assert learned.footprint(request(10_000), None) == pytest.approx(2_000 + 100 + 2 * 50, rel=0.05)


def test_what_was_not_reported_teaches_nothing() -> None:
    learned = Learned()
    learned.ended(request(0), Usage(), first=True, now=1.0)
    kept = {"_last_end": 1.0, "_prompts": learned._prompts, "_news": learned._news}
    assert vars(learned) == vars(Learned()) | kept
    learned.ended(request(0), usage(1_000, None, None), first=True, now=1.0)
    assert vars(learned) == vars(Learned()) | kept


PICTURE = request(4_000_000)
"""A picture of 4 MB is some 1,500 tokens."""


def test_tokens_per_byte_are_those_of_the_new_part() -> None:
    """A history of pictures; what is new each time is text, of four bytes a token."""
    learned = Learned()
    learned.output_tokens = 100.0
    for _ in range(40):
        learned.ended(request(4_004_400), usage(21_100), first=False, now=1.0, before=(20_100, 4_000_000))
        learned.ended(PICTURE, usage(20_000), first=False, now=1.0)
    assert learned.tokens_per_byte == pytest.approx(0.25)
    assert learned.prompt_tokens(request(4_004_400), known(20_100, 4_000_000)) == pytest.approx(21_100)


def test_bytes_of_a_picture_say_nothing_about_text() -> None:
    learned = taught()
    for _ in range(60):
        learned.ended(PICTURE, usage(1_500), first=True, now=200.0)
        learned.ended(request(4_010_000), usage(3_600), first=False, now=200.0, before=(2_100, 10_000))
    assert learned.tokens_per_byte == pytest.approx(0.2, rel=0.01)


def test_some_odd_turns_do_not_change_what_a_byte_is() -> None:
    learned = taught()
    for _ in range(10):
        learned.ended(request(10_000), usage(9_000), first=True, now=200.0)
    assert learned.tokens_per_byte == pytest.approx(0.2, rel=0.01)


def test_what_is_far_larger_than_all_that_was_seen_is_not_believed() -> None:
    learned = Learned()
    for number in range(SIZES_MIN):
        assert learned.prompt_tokens(PICTURE, None) > 900_000
        assert learned.prompt_tokens(request(4_010_000), known(2_100, 10_000)) > 900_000
        usual = request(23_000)
        learned.ended(usual, usage(6_000, 250), first=False, now=float(number), before=(5_000, 20_000))
    assert learned.prompt_tokens(PICTURE, None) == 2 * 6_000
    new = learned.prompt_tokens(request(4_010_000), known(2_100, 10_000)) - 2_100
    assert new == pytest.approx(2 * 1_250, rel=0.05)
    assert learned.prompt_tokens(usual, known(5_000, 20_000)) == pytest.approx(6_000, rel=0.05)


def test_no_footprint_is_larger_than_the_largest_replica() -> None:
    learned = Learned()
    learned.most_tokens = 40_000.0
    assert learned.footprint(PICTURE, None) == 40_000


def test_a_lull_says_nothing_about_how_often_turns_end() -> None:
    def ended(now: float, after_lull: bool = False) -> float:
        learned.ended(request(0), Usage(), first=False, now=now, after_lull=after_lull)
        return learned.between_ends_s

    learned = Learned()
    for number in range(100):
        ended(0.5 * number)
    assert ended(1_000.0) <= 0.5 * (1.0 + LEARN_RATIO * (LULL_RATIO - 1.0)) + 1e-9
    learned.turn_s = 10.0
    assert ended(2_000.0) > 1.0, "as long as a turn may take is no lull"
    before = learned.between_ends_s
    assert ended(3_000.0, after_lull=True) == before


def test_reading_costs_what_the_fast_turns_say() -> None:
    learned = Learned()
    assert learned.reading_s(1_000) == 0.0
    for seconds in (1.0, 1.0, 9.0, 9.0):
        learned.served(10_000, seconds, 12.0, kept=False)
    learned.served(100, 5.0, 12.0, kept=True)
    assert learned.reading_s(20_000) == pytest.approx(2.0)
    assert learned.turn_s == 12.0


def test_only_what_grows_says_how_much_a_turn_adds() -> None:
    learned = Learned()
    learned.grew(500)
    assert learned.growth_tokens == 500.0
    learned.grew(0)
    learned.grew(-300)
    assert learned.growth_tokens == 500.0


def test_how_idle_a_place_stands() -> None:
    learned = Learned()
    learned.gaps.extend([0.5, 1.5])
    assert learned.idle_ratio(8.0) == 0.0, "nobody knows yet how long a turn takes"
    learned.served(500, 0.1, 4.0, kept=True)
    assert learned.idle_ratio(8.0) == pytest.approx(1.0 / 5.0)
    learned.gaps.append(60.0)
    assert learned.idle_ratio(2.0) == pytest.approx((4.0 / 3) / (4.0 / 3 + 4.0)), "a place is given up after 2 s"
    learned.gaps.clear()
    assert learned.idle_ratio(8.0) == 0.0


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


def test_who_came_back_once_does_not_count_for_ever() -> None:
    learned = Learned()
    for _ in range(300):
        learned.left_open()
        learned.came_back()
    assert learned.comes_back
    for _ in range(60):
        learned.left_open()
    assert not learned.comes_back
