"""The arithmetic of a level, on records written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.bench.measure import LevelRecords, SessionRecord, TurnRecord, Window, level_result
from lmwarden.bench.results import ClientCounters, LevelResult

WINDOW = Window(100.0, 160.0)


def turn(sent_s: float, first_s: float | None = None, ended_s: float | None = None, **more: Any) -> TurnRecord:
    usage = {"prompt_tokens": 1000, "cached_tokens": 800, "output_tokens": 256} if ended_s else {}
    fields: dict[str, Any] = {"session": 0, "turn": 1, **usage, **more}
    return TurnRecord(sent_s=sent_s, first_token_s=first_s, ended_s=ended_s, **fields)


def measured(*turns: TurnRecord, **records: Any) -> LevelResult:
    return level_result(LevelRecords(turns=list(turns), **records), WINDOW, sessions=8, arm="on", seed=3)


def test_rates_count_what_ended_in_the_window() -> None:
    sessions = [SessionRecord(0, 90.0, 99.0), SessionRecord(1, 90.0, 110.0), SessionRecord(2, 101.0, 160.0)]
    row = measured(turn(98, 99, 101), turn(102, 103, 104), turn(150, 159), sessions=sessions)
    assert row.sessions_per_hour == 2 * 60
    assert row.output_tokens_per_minute == 512
    assert (row.session_s.p50, row.seconds) == (39.5, 60.0)


def test_a_request_belongs_to_the_window_in_which_its_wait_ended() -> None:
    row = measured(turn(90, 99, 120), turn(90, 101, 102), turn(150, 155))
    assert row.requests == 2
    assert row.ttfb_s.max == 11


def test_waiting_requests_count_at_their_wait_so_far() -> None:
    row = measured(*(turn(100 + i, 101 + i, 105 + i) for i in range(9)), turn(90))
    assert (row.requests, row.unserved) == (10, 1)
    assert row.ttfb_s.p50 == row.ttfb_s.p95 == 1
    assert row.ttfb_s.p95_with_waiting == pytest.approx(1 + 0.55 * 69)


def test_first_and_later_turns_are_told_apart() -> None:
    row = measured(turn(100, 104, 110, turn=0), turn(110, 111, 112, turn=1), turn(113, 114, 115, turn=2))
    assert (row.ttfb_s.first_turn_p95, row.ttfb_s.later_turn_p95, row.ttfb_s.mean) == (4, 1, 2)
    row = measured(turn(100, 104, 110, turn=0), turn(110, 111, 112, turn=1), turn(113, 116, 117, turn=2))
    assert (row.ttfb_s.first_turn_p50, row.ttfb_s.later_turn_p50) == (4, 2)


def test_failures_are_counted_and_do_not_wait() -> None:
    row = measured(turn(100, None, 101, failed=True), turn(100, 101, 105))
    assert (row.requests, row.failed, row.unserved) == (2, 1, 0)
    assert row.ttfb_s.max == 1
    assert row.output_tokens_per_minute == 256


def test_a_failure_after_the_first_token_keeps_its_wait_and_loses_its_tokens() -> None:
    row = measured(turn(100, 103, 104, failed=True))
    assert (row.failed, row.ttfb_s.p50, row.output_tokens_per_minute) == (1, 3, 0)


def test_hits_are_tokens_over_tokens_of_the_answers_that_name_both() -> None:
    row = measured(
        turn(100, 101, 102, prompt_tokens=100, cached_tokens=0),
        turn(100, 101, 102, prompt_tokens=900, cached_tokens=800),
        turn(100, 101, 102, prompt_tokens=900, cached_tokens=None),
    )
    assert row.prefix_hit_ratio == 0.8


def test_what_was_not_measured_is_none_and_not_zero() -> None:
    row = measured(turn(100, 101, 102, cached_tokens=None, output_tokens=None))
    assert row.prefix_hit_ratio is None
    assert row.prefix_hit_ratio_engine is None
    assert row.output_tokens_per_minute is None
    assert row.replicas_busy is None
    assert (row.decisions, row.stayed_ratio, row.waited_in_room, row.balancer) == (None, None, None, None)
    assert row.session_s.p50 is None
    assert measured().ttfb_s.p50 is None


def test_decisions_come_from_each_answer() -> None:
    words = ["placed", "sticky", "sticky", "sticky", "spilled", "balanced", None]
    row = measured(*(turn(100, 101, 102, decision=word, waited_s=0.0) for word in words))
    assert row.decisions is not None
    assert row.decisions["sticky"] == 3
    assert row.decisions["rehomed"] == 0
    assert row.stayed_ratio == 0.75
    assert row.waited_in_room == 0


def test_requests_are_counted_by_the_replica_that_answered() -> None:
    names = ["e0/1", "e0/0", "e0/1", "e0", None]
    row = measured(*(turn(100, 101, 102, replica=name) for name in names))
    assert row.requests_by_replica == {"e0/0": 1, "e0/1": 2}
    assert measured(turn(100, 101, 102, replica="e0")).requests_by_replica is None


def test_waits_in_the_room_are_those_of_the_requests_that_waited() -> None:
    row = measured(*(turn(100, 101, 102, waited_s=wait) for wait in (0.0, 0.0, 2.0, 4.0)))
    assert row.waited_in_room == 2
    assert (row.room_wait_s.p50, row.room_wait_s.max) == (3.0, 4.0)


def test_a_request_that_its_client_left_was_served_but_its_tokens_are_unknown() -> None:
    row = measured(turn(100, 101, 102), turn(100, 103, 104, left=True, prompt_tokens=None, output_tokens=None))
    assert (row.requests, row.failed, row.left) == (2, 0, 1)
    assert row.ttfb_s.max == 3
    assert row.output_tokens_per_minute == 256
    assert row.client == ClientCounters(requests=1, prompt_tokens=1000, cached_tokens=800, output_tokens=256)


def test_stayed_is_none_where_no_turn_could_stay() -> None:
    assert measured(turn(100, 101, 102, decision="placed")).stayed_ratio is None


def test_busy_is_the_mean_over_polls() -> None:
    assert measured(busy=[1, 2, 4, 1]).replicas_busy == 2


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        level_result(LevelRecords(), Window(5.0, 5.0), sessions=1, arm="on", seed=1)


MOMENTS = st.one_of(st.none(), st.floats(0, 100))


@given(st.lists(st.tuples(st.floats(0, 200), MOMENTS, MOMENTS, st.booleans()), max_size=30))
def test_whatever_was_recorded_no_figure_is_negative_or_counted_twice(
    events: list[tuple[float, float | None, float | None, bool]],
) -> None:
    turns = []
    for sent_s, wait_s, rest_s, failed in events:
        first_s = None if wait_s is None else sent_s + wait_s
        ended_s = None if rest_s is None or (first_s is None and not failed) else (first_s or sent_s) + rest_s
        turns.append(turn(sent_s, first_s, ended_s, failed=failed and ended_s is not None))
    row = measured(*turns)
    served = sum(WINDOW.holds(t.first_token_s) for t in turns)
    failed_waiting = sum(t.first_token_s is None and WINDOW.holds(t.ended_s) for t in turns)
    assert row.requests == served + failed_waiting + row.unserved
    assert row.ttfb_s.p50 is None or row.ttfb_s.p50 >= 0
    assert row.ttfb_s.p95_with_waiting is None or row.ttfb_s.p95_with_waiting >= 0
    assert row.prefix_hit_ratio is None or 0 <= row.prefix_hit_ratio <= 1
    assert row.output_tokens_per_minute is not None and row.output_tokens_per_minute >= 0
