"""Places: what fits, who makes room, and the scale that cannot swing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.routing.driver import key

from lmwarden.routing.admission_places import SCALE, SCALE_MAX, SCALE_MIN, SCALE_USUAL, Floor, Places
from lmwarden.routing.replicas import Fleet, Replica
from lmwarden.types import ReplicaCapacity

A, B, C = key("a"), key("b"), key("c")


class House:
    """Two replicas of 10,000 tokens, of which 1,000 are shared; scale 1."""

    def __init__(self) -> None:
        self.fleet = Fleet({"e0": 2}, seed=0)
        self.replicas = list(self.fleet)
        for replica in self.replicas:
            replica.up = True
            replica.capacity = ReplicaCapacity(kv_cache_tokens=10_000)
        self.fleet.changed()
        self.places = Places(self.fleet)
        self.floors = [self.places.floors[replica] for replica in self.replicas]
        for floor in self.floors:
            floor.scale = 1.0

    def leaving(self, tokens: int, *, now: float = 100.0, keep_s: float = 5.0) -> list[bytes] | None:
        """Who leaves replica 0 for so many tokens."""
        leaving = self.places.room(self.floors[0], tokens, 1_000, keep_s, now)
        return None if leaving is None else [place.key for place in leaving]


def test_free_is_capacity_less_what_is_shared_reserved_and_visited() -> None:
    house = House()
    floor, here = house.floors[0], house.replicas[0]
    assert floor.free_tokens(1_000) == 9_000
    house.places.take(A, here, 4_000)
    house.places.visit(1, here, 500)
    assert floor.free_tokens(1_000) == 4_500
    house.places.take(A, here, 6_000)
    assert floor.free_tokens(1_000) == 2_500
    house.places.ended(1, returns=True, now=0.0)
    house.places.ended(1, returns=True, now=0.0)
    assert floor.free_tokens(1_000) == 3_000


def test_a_replica_of_unknown_capacity_holds_nothing() -> None:
    house = House()
    house.replicas[0].capacity = ReplicaCapacity()
    assert house.floors[0].capacity_tokens(1_000) == 0.0


def test_a_tier_that_is_large_enough_keeps_what_the_cache_loses() -> None:
    house = House()
    house.replicas[0].capacity = ReplicaCapacity(kv_cache_tokens=10_000, cpu_cache_tokens=60_000)
    assert house.floors[0].kept_tokens(1_000) == 49_000
    house.replicas[0].capacity = ReplicaCapacity(kv_cache_tokens=10_000, cpu_cache_tokens=6_000)
    assert house.floors[0].kept_tokens(1_000) == 9_000


def test_a_conversation_has_one_place() -> None:
    house = House()
    house.places.take(A, house.replicas[0], 4_000)
    place = house.places.take(A, house.replicas[1], 5_000)
    assert house.places.of(A) is place
    assert (house.floors[0].tokens, house.floors[1].tokens) == (0, 5_000)


@pytest.mark.parametrize("lose", [lambda r: setattr(r, "epoch", 9), lambda r: setattr(r, "is_ready", False)])
def test_a_place_is_lost_with_its_replica(lose: Callable[[Replica], None]) -> None:
    house = House()
    house.places.take(A, house.replicas[0], 4_000)
    lose(house.replicas[0])
    assert house.places.of(A) is None
    assert house.floors[0].tokens == 0


class TestRoom:
    """Who makes room for a newcomer."""

    def test_nobody_if_it_fits(self) -> None:
        house = House()
        house.places.take(A, house.replicas[0], 4_000)
        assert house.leaving(5_000) == []

    def test_the_longest_idle_and_no_more_than_needed(self) -> None:
        house = House()
        for number, name in enumerate((A, B, C)):
            house.places.take(name, house.replicas[0], 3_000).idle_since = 50.0 - number
        assert house.leaving(3_000) == [C]
        assert house.leaving(5_000) == [C, B]

    def test_not_who_runs_or_was_idle_for_a_short_time(self) -> None:
        house = House()
        house.places.ride(1, house.places.take(A, house.replicas[0], 3_000))
        house.places.take(B, house.replicas[0], 3_000).idle_since = 96.0
        assert house.leaving(5_000) is None
        assert house.leaving(5_000, now=102.0) == [B]

    def test_who_may_be_over_leaves_first_and_at_once(self) -> None:
        house = House()
        house.places.take(A, house.replicas[0], 3_000).idle_since = 1.0
        place = house.places.take(B, house.replicas[0], 3_000)
        house.places.ride(1, place)
        house.places.ended(1, returns=False, now=100.0)
        assert house.leaving(5_000) == [B]

    def test_an_empty_replica_takes_what_is_larger_than_itself(self) -> None:
        house = House()
        assert house.leaving(50_000) == []
        house.places.take(A, house.replicas[0], 3_000).idle_since = 1.0
        assert house.leaving(50_000) == [A]
        house.places.visit(7, house.replicas[0], 10)
        assert house.leaving(50_000) is None


class TestScale:
    """Estimates that are wrong are corrected by what the engine kept."""

    def floor(self) -> Floor:
        return Floor(House().replicas[0])

    def test_it_falls_once_in_a_while_and_not_below_a_bound(self) -> None:
        floor = self.floor()
        for _ in range(5):
            floor.kept(0.1, now=100.0)
        assert floor.scale == pytest.approx(SCALE * 0.93)
        for number in range(100):
            floor.kept(0.1, now=200.0 + 10 * number)
        assert floor.scale == SCALE_MIN

    def test_it_rises_slowly_to_a_bound(self) -> None:
        floor = self.floor()
        floor.kept(1.0, now=1.0)
        assert SCALE < floor.scale < SCALE + 0.01
        for number in range(100):
            floor.kept(1.0, now=2.0 + number)
        assert SCALE_USUAL < floor.scale < SCALE_USUAL + 0.02
        for number in range(1_000):
            floor.kept(1.0, now=200.0 + number)
        assert floor.scale == SCALE_MAX

    def test_it_does_not_swing_around_what_is_true(self) -> None:
        """Residents lose their context as soon as the scale is above 1: the ceiling keeps it below, and is given back
        so slowly that it breaks twice in an hour."""
        floor, falls = self.floor(), []
        for second in range(3_600):
            before = floor.scale
            floor.kept(0.2 if floor.scale > 1.0 else 1.0, now=float(second))
            if floor.scale < before:
                falls.append(second)
        assert len(falls) == 2
        assert falls[0] == 0
        assert falls[1] > 1_000
        assert 0.93 <= floor.scale <= 1.0


def test_reading_is_over_with_the_first_byte_or_the_end() -> None:
    house = House()
    here, floor = house.replicas[0], house.floors[0]
    house.places.reads(1, here, 700)
    house.places.reads(2, here, 50)
    house.places.has_read(1)
    house.places.has_read(1)
    assert floor.reading_tokens == 50
    house.places.ended(2, returns=True, now=0.0)
    assert floor.reading_tokens == 0


def test_all_is_forgotten_but_what_was_learned() -> None:
    house = House()
    place = house.places.take(A, house.replicas[0], 3_000)
    house.places.ride(1, place)
    house.places.visit(2, house.replicas[1], 100)
    house.floors[0].kept(0.1, now=100.0)
    scale = house.floors[0].scale
    house.places.clear()
    assert house.places.ended(1, returns=True, now=0.0) is None
    assert [floor.tokens + floor.guest_tokens for floor in house.floors] == [0, 0]
    assert house.floors[0].scale == scale
