"""Sessions are deterministic, of the wanted sizes, and never reuse a prompt across cells."""

from __future__ import annotations

import pytest

from lmwarden.bench.sessions import SessionSource, words
from lmwarden.bench.workload import BYTES_PER_TOKEN, load_workload

WORKLOAD = load_workload("claude-code")


def source(seed: int = 1, sessions: int = 8, arm: str = "on", think: str = "none") -> SessionSource:
    return SessionSource(WORKLOAD, think=WORKLOAD.think_named(think), seed=seed, sessions=sessions, arm=arm)


def test_the_same_arguments_give_the_same_session() -> None:
    first, again = source().session(3), source().session(3)
    assert first == again
    assert first.message_text(2) == again.message_text(2)


def test_sizes_are_as_the_workload_says() -> None:
    assert len(source().system_text()) == 3500 * BYTES_PER_TOKEN
    for index in range(50):
        session = source().session(index)
        sizes = [turn.new_tokens for turn in session.turns]
        assert len(sizes) == 6
        assert 7200 <= sizes[0] <= 7500
        assert all(360 <= size <= 440 for size in sizes[1:])
        assert len(session.message_text(0)) == sizes[0] * BYTES_PER_TOKEN
        assert {turn.max_output_tokens for turn in session.turns} == {256}


@pytest.mark.parametrize("other", [{"arm": "off"}, {"sessions": 4}, {"seed": 2}])
def test_no_prompt_is_used_in_two_cells(other: dict[str, object]) -> None:
    here = {source().session(index).message_text(0)[:64] for index in range(40)}
    there = {source(**other).session(index).message_text(0)[:64] for index in range(40)}  # type: ignore[arg-type]
    assert len(here) == len(there) == 40
    assert not here & there


def test_session_ids_differ_between_arms_and_sessions() -> None:
    ids = {source(arm=arm).session(index).session_id for arm in ("off", "on") for index in range(40)}
    assert len(ids) == 80


def test_arms_are_compared_on_the_same_sizes_and_gaps() -> None:
    off = source(arm="off", think="agent").session(5)
    on = source(arm="on", think="agent").session(5)
    assert off.turns == on.turns


def test_the_system_prompt_is_shared_by_all() -> None:
    assert source().system_text() == source(seed=9, sessions=4, arm="off").system_text()


def test_agent_gaps_follow_the_measured_shares() -> None:
    gaps = [turn.gap_before_s for index in range(2000) for turn in source(think="agent").session(index).turns[1:]]
    under = {limit: sum(gap <= limit for gap in gaps) / len(gaps) for limit in (1.0, 10.0, 60.0)}
    assert under[1.0] == pytest.approx(0.86, abs=0.02)
    assert under[10.0] == pytest.approx(0.95, abs=0.02)
    assert under[60.0] == 1.0
    assert min(gaps) >= 0.05
    assert source(think="agent").session(0).turns[0].gap_before_s == 0


def test_words_are_four_bytes_each() -> None:
    text = words(b"key", 100)
    assert len(text) == 400
    assert text.isascii()
    assert all(len(word) == 3 for word in text[:-1].split(" "))
    assert words(b"key", 0) == ""
