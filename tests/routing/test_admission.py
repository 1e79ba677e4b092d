"""Who gives way, who may grow, and how long a place is kept; with the router around it in test_door.py."""

from __future__ import annotations

import pytest
from tests.routing.driver import key

from lmwarden.routing.admission import (
    KEEP_GAPS_RATIO,
    KEEP_MAX_S,
    KEEP_MIN_S,
    MOST_GROWTH_TURNS,
    MOST_WAITS,
    Waiter,
    WaitingRoom,
)
from lmwarden.routing.admission_places import Place
from lmwarden.routing.replicas import Fleet
from lmwarden.types import ReplicaCapacity, RoutingRequest

PATIENCE_S = 30.0
NOW = 1_000.0


class Room:
    """One replica of 40,000 tokens with three residents, and a waiter; patience 30 s, of turns of ``turn_s``."""

    def __init__(self, *, turn_s: float = 10.0, late_ratio: float = 0.0) -> None:
        """``late_ratio``: of its patience, by which the waiter is late when its turn comes."""
        self.fleet = Fleet({"e0": 1}, seed=0)
        (self.replica,) = self.fleet
        self.replica.up, self.replica.capacity = True, ReplicaCapacity(kv_cache_tokens=40_000)
        self.fleet.changed()
        self.room = WaitingRoom(self.fleet, "balanced", 240.0)
        self.floor = self.room.places.floors[self.replica]
        self.floor.scale = 1.0
        self.room.learned.turn_s = turn_s
        self.room.learned.between_ends_s = between_s = PATIENCE_S / self.room.beta
        since = NOW - PATIENCE_S * (1.0 + late_ratio) + between_s
        self.room.enter(Waiter(1, RoutingRequest(conversation=key("w")), key("w"), 9_000, since))
        self.places = [self.room.places.take(key(name), self.replica, 12_000) for name in "abc"]
        for place in self.places:
            place.turns, place.idle_since = 1, NOW

    def gives_way(self, waits: int, **changes: int) -> bool:
        """Whether the first resident does at its next turn, after so many waits of its conversation."""
        place = self.places[0]
        place.waits = waits
        for name, value in changes.items():
            setattr(place, name, value)
        return not self.room.goes_at_once(place.key, place.tokens, NOW)


@pytest.mark.parametrize(("late_ratio", "gives_way"), [(-0.01, False), (0.01, True)])
def test_nobody_gives_way_before_a_waiter_loses_its_patience(late_ratio: float, gives_way: bool) -> None:
    assert Room(late_ratio=late_ratio).gives_way(0) is gives_way


@pytest.mark.parametrize(("waited_s", "gives_way"), [(30.0, False), (100.0, True)])
def test_whoever_of_the_waiters_is_late_counts(waited_s: float, gives_way: bool) -> None:
    """Two of them have a patience of a minute, and the one that stands behind came earlier."""
    room = Room(late_ratio=-1.0)
    room.room.enter(Waiter(2, RoutingRequest(conversation=key("x")), key("x"), 9_000, NOW - waited_s))
    assert room.room.patience_s == pytest.approx(2 * PATIENCE_S)
    assert room.gives_way(0) is gives_way


@pytest.mark.parametrize(
    ("waits", "late_ratio", "gives_way"),
    [(1, 0.01, True), (2, 0.01, False), (2, 0.11, True), (4, 0.11, False), (4, 0.21, True), (50, 0.21, True)],
)
def test_where_waits_are_long_who_has_waited_gives_way_last(waits: int, late_ratio: float, gives_way: bool) -> None:
    """In its first turn with a place. From the second twentieth of the patience on, each takes a turn back."""
    assert Room(late_ratio=late_ratio).gives_way(waits) is gives_way


def test_who_has_kept_its_place_for_as_many_turns_as_it_waited_gives_way() -> None:
    assert not Room(late_ratio=0.01).gives_way(3, turns=2)
    assert Room(late_ratio=0.01).gives_way(3, turns=3)


def test_where_waits_are_short_everybody_gives_way_alike() -> None:
    assert Room(late_ratio=0.01, turn_s=20.0).gives_way(MOST_WAITS)


@pytest.mark.parametrize(("waits", "goes"), [(1, False), (2, True)])
def test_who_is_kept_because_it_waited_may_grow_by_a_turn_beyond_what_fits(waits: int, goes: bool) -> None:
    """4,000 tokens are free."""
    room = Room(late_ratio=-0.5)
    room.room.learned.growth_tokens = 700.0
    place = room.places[0]
    place.waits = waits
    assert room.room.goes_at_once(place.key, place.tokens + 4_600, NOW) is goes
    assert not room.room.goes_at_once(place.key, place.tokens + 4_800, NOW)


def test_who_grows_takes_the_place_of_whom_nobody_expects_any_more() -> None:
    """4,000 tokens are free."""
    room = Room(late_ratio=-0.5)
    growing, gone, _ = room.places
    assert not room.room.goes_at_once(growing.key, growing.tokens + 10_000, NOW)
    room = Room(late_ratio=-0.5)
    growing, gone, _ = room.places
    gone.idle_since = NOW - 100.0
    assert room.room.goes_at_once(growing.key, growing.tokens + 10_000, NOW)
    assert room.room.places.of(gone.key) is None
    assert growing.tokens == 22_000


def let_in(room: Room, tokens: int) -> bool:
    """Whether somebody of that size gets the place of two who are gone."""
    for place in room.places[1:]:
        room.room.places.leave(place)
    room.room.leave(next(iter(room.room)))
    room.room.enter(Waiter(2, RoutingRequest(conversation=key("x")), key("x"), tokens, NOW))
    return room.room.next(room.fleet.ready, NOW) is not None


@pytest.mark.parametrize(("reading_s", "fits"), [(0.0, True), (30.0, False)])
def test_a_place_that_is_dear_to_give_up_is_given_with_room_to_grow(reading_s: float, fits: bool) -> None:
    """28,000 tokens are free, and a turn adds 1,000. Reading 26,000 again takes as long as three turns."""
    room = Room()
    room.room.learned.growth_tokens = 1_000.0
    if reading_s:
        room.room.learned.served(26_000, reading_s, 10.0, kept=False)
        assert room.room.least_turns(26_000) > MOST_GROWTH_TURNS
    assert let_in(room, 26_000) is fits
    assert let_in_again(room, 28_000 - int(1_000 * MOST_GROWTH_TURNS))


def let_in_again(room: Room, tokens: int) -> bool:
    for waiter in list(room.room):
        room.room.leave(waiter)
    room.room.enter(Waiter(3, RoutingRequest(conversation=key("y")), key("y"), tokens, NOW))
    return room.room.next(room.fleet.ready, NOW) is not None


def test_a_fresh_router_that_knows_no_times_lets_the_first_waiter_in() -> None:
    """Nothing was learned: patience is 0, and whoever waited at all is late."""
    room = Room()
    room.room.learned.turn_s = room.room.learned.between_ends_s = 0.0
    place: Place = room.places[0]
    assert room.room.patience_s == 0.0
    assert not room.room.goes_at_once(place.key, place.tokens, NOW)


def test_preferring_the_median_patience_is_max_wait_from_the_first_request_on() -> None:
    room = Room()
    room.room.configure("median", 240.0)
    room.room.learned.between_ends_s = 0.0
    assert room.room.patience_s == 240.0


@pytest.mark.parametrize(("small_waited_s", "goes"), [(100.0, True), (80.0, False)])
def test_what_is_small_is_held_back_only_for_what_is_older(small_waited_s: float, goes: bool) -> None:
    """4,000 tokens are free; a long one has waited for 90 s, and its patience is 30."""
    room = Room()
    room.room.leave(next(iter(room.room)))
    room.room.learned.between_ends_s = PATIENCE_S / room.room.beta / 2
    room.room.enter(Waiter(1, RoutingRequest(conversation=key("w")), key("w"), 9_000, NOW - 90.0))
    room.room.enter(Waiter(2, RoutingRequest(conversation=key("s")), key("s"), 200, NOW - small_waited_s))
    found = room.room.next(room.fleet.ready, NOW)
    assert (found is not None and found[0].ticket == 2) is goes


def test_for_one_that_needs_a_replica_to_itself_one_is_emptied() -> None:
    """The one with more room. What fits beside others makes whoever is due give way."""
    room = Room()
    fleet = Fleet({"e0": 3}, seed=0)
    for replica in fleet:
        replica.up, replica.capacity = True, ReplicaCapacity(kv_cache_tokens=40_000)
    fleet.changed()
    room.room = WaitingRoom(fleet, "tail", 240.0)
    room.room.refresh()
    full, emptier, down = fleet
    down.up = False
    fleet.changed()
    room.places = [
        room.room.places.take(key(name), where, 12_000)
        for name, where in (("a", full), ("b", full), ("c", full), ("d", emptier), ("e", emptier))
    ]
    room.room.enter(Waiter(1, RoutingRequest(conversation=key("w")), key("w"), 1_000_000, NOW - 60.0))
    for place in room.places:
        place.turns = 1
    assert [room.room._must_give_way(place, NOW) for place in room.places] == [False] * 3 + [True] * 2
    room.room.leave(next(iter(room.room)))
    room.room.enter(Waiter(2, RoutingRequest(conversation=key("x")), key("x"), 20_000, NOW - 60.0))
    assert [room.room._must_give_way(place, NOW) for place in room.places] == [True] * 5


@pytest.mark.parametrize(("turns", "gives_way"), [(2, False), (3, True)])
def test_a_place_is_kept_until_reading_it_again_is_a_small_part(turns: int, gives_way: bool) -> None:
    """6 s of reading are a fifth of three turns of 10 s; until then it does not give way, however late a waiter is."""
    room = Room(late_ratio=3.0)
    room.room.learned.served(12_000, 6.0, 10.0, kept=False)
    assert room.room.least_turns(12_000) == 3
    assert room.gives_way(0, turns=turns) is gives_way


@pytest.mark.parametrize(("gap_s", "keep_s"), [(0.001, KEEP_MIN_S), (2.0, 2.0 * KEEP_GAPS_RATIO), (900.0, KEEP_MAX_S)])
def test_an_idle_place_is_kept_for_somewhat_longer_than_gaps_last(gap_s: float, keep_s: float) -> None:
    """Within bounds: a pause of a person is not waited for."""
    room = Room()
    room.room.refresh()
    assert room.room.keep_s == KEEP_MIN_S, "nobody knows yet"
    room.room.learned.gaps.extend([gap_s] * 10)
    room.room.refresh()
    assert room.room.keep_s == keep_s
