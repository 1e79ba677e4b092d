"""The fleet's sums."""

from __future__ import annotations

import math

import pytest

from lmwarden.routing.placement import compare
from lmwarden.routing.replicas import SUSPECT_MAX_S, Fleet
from lmwarden.types import ReplicaCapacity, ReplicaId, ReplicaSample


def test_lookup() -> None:
    fleet = Fleet({"e0": 2, "e1": 1}, seed=0)
    assert [str(replica.id) for replica in fleet] == ["e0/0", "e0/1", "e1/0"]
    assert fleet.get(ReplicaId("e2", 0)) is None
    assert fleet[ReplicaId("e1", 0)].engine.name == "e1"
    assert fleet.ready == ()


def test_suspicion_doubles_up_to_a_bound() -> None:
    fleet = Fleet({"e0": 1}, seed=0)
    (replica,) = fleet
    lengths = []
    now = 0.0
    for _ in range(12):
        fleet.failed(replica, now, certain=True)
        lengths.append(replica.suspect_until - now)
        now = replica.suspect_until
    assert lengths[:4] == [2.0, 4.0, 8.0, 16.0]
    assert lengths[-1] == SUSPECT_MAX_S


def test_a_burst_is_one_failure() -> None:
    fleet = Fleet({"e0": 1}, seed=0)
    (replica,) = fleet
    for _ in range(6):
        fleet.failed(replica, 0.5, certain=True)
    assert (replica.failures, replica.suspect_until) == (1, 2.5)


def test_an_answer_that_went_wrong_counts_from_the_second_in_a_row() -> None:
    fleet = Fleet({"e0": 1}, seed=0)
    (replica,) = fleet
    fleet.failed(replica, 0.0, certain=False)
    assert not replica.is_suspect(0.0)
    replica.succeeded()
    fleet.failed(replica, 1.0, certain=False)
    assert not replica.is_suspect(1.0)
    fleet.failed(replica, 2.0, certain=False)
    assert replica.is_suspect(2.0)


def test_warm_conversations_decay_at_one_rate_however_long_nobody_looks() -> None:
    fleet = Fleet({"e0": 1}, seed=0)
    (replica,) = fleet
    fleet.hold_idle(replica, 1.0, 100.0, idle_since=0.0)
    assert fleet.decay(10.0) * replica.warm_scaled == pytest.approx(math.exp(-1))
    fleet.hold_idle(replica, 1.0, 100.0, idle_since=9000.0)  # exp(900) would overflow
    assert fleet.decay(9000.0) * replica.warm_scaled == pytest.approx(1.0)
    assert fleet.decay(9010.0) * replica.warm_tokens_scaled == pytest.approx(100.0 * math.exp(-1))


def test_a_trace_of_what_was_warm_is_dropped_but_not_what_is() -> None:
    fleet = Fleet({"e0": 2}, seed=0)
    old, young = fleet
    fleet.hold_idle(old, 1.0, 100.0, idle_since=0.0)
    fleet.hold_idle(young, 1.0, 100.0, idle_since=60.0)
    assert fleet.decay(71.0) * old.warm_scaled == 0.0
    assert fleet.decay(71.0) * young.warm_scaled == pytest.approx(math.exp(-1.1))


def test_usable_besides_an_engine() -> None:
    fleet = Fleet({"e0": 1, "e1": 1}, seed=0)
    for replica in fleet:
        replica.up = True
    fleet.changed()
    first, second = fleet
    assert fleet.usable(0.0, besides=first.engine) == (second,)
    second.up = False
    fleet.changed()
    assert fleet.usable(0.0, besides=first.engine) == (first,)


def test_a_fleet_that_nobody_used_is_level() -> None:
    """Nothing is held, warm or busy anywhere, however its replicas compare: only the ties decide."""
    fleet = Fleet({"e0": 2, "e1": 1}, seed=0)
    for replica in fleet:
        replica.up, replica.capacity = True, ReplicaCapacity(kv_cache_tokens=10)
    fleet.changed()
    for seen in compare(fleet.ready, fleet, 0.0).frozen():
        numbers = (seen.score, seen.in_flight, seen.warm, seen.conversations, seen.live_share, seen.held_ratio)
        assert numbers == (0.0, 0, 0.0, 0, 0.0, 0.0)


@pytest.mark.parametrize("kv_used_ratio", [None, -0.1, 1.1, math.nan])
def test_a_kv_use_that_cannot_be_is_not_reported(kv_used_ratio: float | None) -> None:
    fleet = Fleet({"e0": 1}, seed=0)
    (replica,) = fleet
    replica.sampled(ReplicaSample(taken_at=0.0, kv_used_ratio=0.9))
    replica.sampled(ReplicaSample(taken_at=1.0, kv_used_ratio=kv_used_ratio))
    assert (replica.kv_used_ratio, replica.kv_fresh_until) == (0.0, -math.inf)
