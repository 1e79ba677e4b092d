"""What views add up to, and sums of sums."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.ledger.views import replica, sample, view

from lmwarden.ledger.history_sums import (
    COUNTS,
    FRESH_S,
    MOST_TOKENS,
    NUMBERS,
    WHOLE,
    Spot,
    Sums,
    Tallies,
    Views,
    add_up,
    add_views,
)
from lmwarden.types import ReplicaState, ReplicaView


def seen(*replicas: ReplicaView, clock_now: float = 100.0, **changes: Any) -> Tallies:
    tallies: Tallies = {}
    add_views(tallies, Views({"m": view(*replicas, **changes)}, clock_now, 1007.0))
    return tallies


def whole(tallies: Tallies) -> Sums:
    return tallies[Spot("m", WHOLE, 1000)]


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


def test_the_cached_ratio() -> None:
    assert Sums(cached_tokens=900, computed_tokens=100).cached_ratio == 0.9
    assert Sums().cached_ratio is None


def test_what_the_engine_did_not_tell_is_in_no_ratio() -> None:
    assert Sums(computed_tokens=1000, unknown_tokens=1000).cached_ratio is None, "not known, which is not 0 %"
    assert Sums(cached_tokens=900, computed_tokens=5100, unknown_tokens=5000).cached_ratio == 0.9


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
