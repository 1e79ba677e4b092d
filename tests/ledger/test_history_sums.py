"""What rows and views add up to."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.ledger.samples import record
from tests.ledger.views import replica, sample, view

from lmwarden.ledger import schema
from lmwarden.ledger.histogram import bucket_of
from lmwarden.ledger.history_sums import (
    COUNTS,
    FRESH_S,
    MOST_TOKENS,
    NUMBERS,
    WHOLE,
    RowFacts,
    Spot,
    Sums,
    Tallies,
    Views,
    add_row,
    add_up,
    add_views,
)
from lmwarden.types import Decision, Outcome, ReplicaState, ReplicaView


def facts(**changes: Any) -> RowFacts:
    """Of a row as the ledger writes it, ended at 1007."""
    values = dict(zip(schema.FIELDS, schema.to_row(record(**{"finished_at": 1007.0} | changes)), strict=True))
    return RowFacts(**{name: values[name] for name in RowFacts._fields})


def of_row(**changes: Any) -> Tallies:
    tallies: Tallies = {}
    add_row(tallies, facts(**changes))
    return tallies


def seen(*replicas: ReplicaView, clock_now: float = 100.0, **changes: Any) -> Tallies:
    tallies: Tallies = {}
    add_views(tallies, Views({"m": view(*replicas, **changes)}, clock_now, 1007.0))
    return tallies


def whole(tallies: Tallies) -> Sums:
    return tallies[Spot("m", WHOLE, 1000)]


class TestRows:
    def test_a_row_counts_for_its_model_and_its_replica_in_the_tick_of_its_end(self) -> None:
        tallies = of_row()
        assert set(tallies) == {Spot("m", WHOLE, 1000), Spot("m", "e0/1", 1000)}
        for sums in tallies.values():
            assert sums == Sums(
                cached_tokens=900, computed_tokens=100, completion_tokens=50, sticky=1, ok=1,
                first_byte_sum_s=0.25, first_byte_counts={bucket_of(0.25): 1},
            )  # fmt: skip

    def test_a_row_that_reached_no_replica_counts_for_the_model_alone(self) -> None:
        tallies = of_row(decision=None, replica=None, outcome=Outcome.REFUSED, first_byte_s=None, prompt_tokens=None,
                         cached_tokens=None, completion_tokens=None)  # fmt: skip
        assert tallies == {Spot("m", WHOLE, 1000): Sums(refused=1)}

    @pytest.mark.parametrize("decision", Decision)
    def test_every_decision_has_its_sum(self, decision: Decision) -> None:
        assert getattr(whole(of_row(decision=decision)), decision) == 1

    @pytest.mark.parametrize("outcome", Outcome)
    def test_every_outcome_has_its_sum(self, outcome: Outcome) -> None:
        assert getattr(whole(of_row(outcome=outcome)), outcome) == 1

    @pytest.mark.parametrize(
        ("prompt", "cached", "expected"),
        [
            (1000, None, (0, 1000, 1000)),  # not reported is computed, and known to be so
            (1000, 0, (0, 1000, 0)),
            (None, 900, (0, 0, 0)),
            (1000, 1200, (1000, 0, 0)),
            (MOST_TOKENS + 1, 5, (0, 0, 0)),
        ],
    )
    def test_cached_and_computed(self, prompt: int | None, cached: int | None, expected: tuple[int, int, int]) -> None:
        sums = whole(of_row(prompt_tokens=prompt, cached_tokens=cached))
        assert (sums.cached_tokens, sums.computed_tokens, sums.unknown_tokens) == expected

    def test_completion_tokens_that_no_engine_can_mean(self) -> None:
        assert whole(of_row(completion_tokens=MOST_TOKENS + 1)).completion_tokens == 0

    def test_the_cached_ratio(self) -> None:
        assert whole(of_row()).cached_ratio == 0.9
        assert Sums().cached_ratio is None

    def test_what_the_engine_did_not_tell_is_in_no_ratio(self) -> None:
        silent = facts(cached_tokens=None)
        assert whole(of_row(cached_tokens=None)).cached_ratio is None, "not known, which is not 0 %"
        tallies = of_row()
        for _ in range(5):
            add_row(tallies, silent)
        assert whole(tallies).cached_ratio == 0.9
        assert whole(tallies).computed_tokens == 5100, "the chart has them"


class TestViews:
    def test_the_model_is_the_sum_of_its_replicas(self) -> None:
        tallies = seen(replica(0), replica(1, sample=sample(running=0, waiting=0, kv_used_ratio=0.25)), in_flight=7)
        own = Sums(
            samples=1, ready_sum=1, in_flight_sum=3, conversations_sum=2, held_tokens_sum=1000,
            engine_samples=1, busy_sum=1, running_sum=1, waiting_sum=2, kv_samples=1, kv_used_sum=0.5,
        )  # fmt: skip
        assert tallies[Spot("m", "e0/0", 1000)] == own
        assert tallies[Spot("m", "e0/1", 1000)].busy_sum == 0
        assert whole(tallies) == Sums(
            samples=1, ready_sum=2, in_flight_sum=7, conversations_sum=4, held_tokens_sum=2000,
            engine_samples=1, busy_sum=1, running_sum=1, waiting_sum=2, kv_samples=2, kv_used_sum=0.75,
        )  # fmt: skip

    @pytest.mark.parametrize(
        "silent",
        [None, sample(running=None), sample(waiting=None), sample(taken_at=100.0 - FRESH_S - 1)],
        ids=["no scrape", "no running", "no waiting", "too old"],
    )
    def test_what_an_engine_does_not_tell_is_unknown_and_so_is_the_sum(self, silent: ReplicaView | None) -> None:
        tallies = seen(replica(0), replica(1, sample=silent))
        assert tallies[Spot("m", "e0/1", 1000)].engine_samples == 0
        assert tallies[Spot("m", "e0/0", 1000)].engine_samples == 1
        assert (whole(tallies).samples, whole(tallies).engine_samples) == (1, 0)
        assert whole(tallies).kv_samples == 1

    @pytest.mark.parametrize("ratio", [None, math.nan, -0.1, 1.1])
    def test_a_kv_figure_that_is_none(self, ratio: float | None) -> None:
        sums = whole(seen(replica(sample=sample(kv_used_ratio=ratio))))
        assert (sums.kv_samples, sums.kv_used_sum, sums.engine_samples) == (0, 0.0, 1)

    def test_a_replica_that_is_down_is_not_missed(self) -> None:
        tallies = seen(replica(0), replica(1, state=ReplicaState.DOWN, sample=None))
        assert (whole(tallies).engine_samples, whole(tallies).ready_sum, whole(tallies).samples) == (1, 1, 1)
        assert tallies[Spot("m", "e0/1", 1000)].engine_samples == 0

    def test_where_all_are_down_nothing_is_known_of_the_engine(self) -> None:
        assert whole(seen(replica(state=ReplicaState.DOWN))).engine_samples == 0

    def test_a_draining_replica_still_works_and_takes_nothing(self) -> None:
        sums = whole(seen(replica(state=ReplicaState.DRAINING)))
        assert (sums.engine_samples, sums.busy_sum, sums.ready_sum) == (1, 1, 0)

    def test_figures_that_nobody_can_mean_do_not_break_sums(self) -> None:
        sums = whole(seen(replica(resident_tokens=2**70, sample=sample(running=-5, waiting=2**70))))
        assert (sums.held_tokens_sum, sums.running_sum, sums.waiting_sum) == (MOST_TOKENS, 0, MOST_TOKENS)


def test_add_up() -> None:
    one = Sums(cached_tokens=3, kv_used_sum=0.5, first_byte_counts={1: 2})
    other = Sums(cached_tokens=4, kv_used_sum=0.25, first_byte_counts={1: 1, 2: 1})
    assert add_up([one, other]) == Sums(cached_tokens=7, kv_used_sum=0.75, first_byte_counts={1: 3, 2: 1})
    assert one == Sums(cached_tokens=3, kv_used_sum=0.5, first_byte_counts={1: 2})
    assert add_up([]) == Sums()


def test_every_sum_is_added() -> None:
    assert {*NUMBERS, COUNTS} == set(Sums.__struct_fields__)
    ones = msgspec.convert(dict.fromkeys(NUMBERS, 1), Sums)
    assert add_up([ones, ones]) == msgspec.convert(dict.fromkeys(NUMBERS, 2), Sums)
