"""What is in use, and what there is for it."""

from __future__ import annotations

import pytest
from tests.routing.driver import Driver, key
from tests.routing.test_door import BODY, Crowd

from lmwarden.routing import admission_use
from lmwarden.routing.admission import Waiter, WaitingRoom
from lmwarden.routing.admission_demand import STAY_S
from lmwarden.routing.conversations import Conversation
from lmwarden.types import ReplicaCapacity, RoutingRequest, RoutingSettings


def test_where_one_replica_says_nothing_of_its_capacity_nobody_is_held() -> None:
    """The other's places alone would send everybody there."""
    crowd = Crowd(1)
    crowd.driver.capacity = ReplicaCapacity(kv_cache_tokens=None, max_num_seqs=32)
    crowd.driver.up("e0/1")
    crowd.names = [f"d{number}" for number in range(14)]
    for name in crowd.names:
        crowd.tickets[name] = crowd.driver.offer(name, body_bytes=BODY)
    for _ in range(3):
        crowd.everybody()
        crowd.wait(4.0)
    assert (crowd.room.engaged, crowd.room.demand_ratio, crowd.room.why_code) == (False, 0.0, "no_capacity")
    assert crowd.room.room_for is None
    assert min(crowd.driver.in_flight().values()) > 4


def test_an_engaged_room_opens_when_such_a_replica_comes() -> None:
    crowd = Crowd(30)
    crowd.everybody()
    assert crowd.room.waiting
    crowd.driver.capacity = ReplicaCapacity(kv_cache_tokens=None, max_num_seqs=32)
    crowd.driver.up("e0/1", "boot2")
    crowd.wait(STAY_S + 1.0)
    assert (crowd.room.engaged, crowd.room.waiting) == (False, 0)


def test_while_no_replica_is_ready_the_capacity_is_not_said_to_be_unknown() -> None:
    crowd = Crowd(2)
    for replica in crowd.driver.replicas:
        crowd.driver.down(replica)
    crowd.wait(1.0)
    assert (crowd.room.demand_ratio, crowd.room.why_code) == (0.0, "open")


def test_of_many_idle_conversations_a_bounded_number_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of conversations must not hold up the loop twice a second."""
    driver = Driver(settings=RoutingSettings(admission="auto"))
    for number in range(20):
        driver.turn(f"c{number}")
    door = driver.router._door
    assert door is not None
    assert len(door._use.idle(driver.now)) == 20
    monkeypatch.setattr(admission_use, "MOST_IDLE", 5)
    assert len(door._use.idle(driver.now)) == 5


def test_of_many_open_turns_some_stand_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd()
    crowd.everybody()
    door = crowd.driver.router._door
    assert door is not None
    now = crowd.driver.now
    exact, room_for = door._use.demand_ratio(now), door._use.room_for
    looked: list[object] = []
    footprint = door.room.learned.footprint

    def counted(request: RoutingRequest, conversation: Conversation | None) -> int:
        looked.append(request)
        return footprint(request, conversation)

    monkeypatch.setattr(door.room.learned, "footprint", counted)
    monkeypatch.setattr(admission_use, "MOST_OPEN", 5)
    assert door._use.demand_ratio(now) == pytest.approx(exact, rel=0.1)
    assert door._use.room_for == room_for
    assert 3 <= len(looked) <= 5


def test_the_room_grows_with_the_fleet() -> None:
    for replicas, most in ((2, 512), (32, 512), (200, 3200)):
        room = WaitingRoom(Driver({"e0": replicas}).router._fleet, "balanced", 240.0)
        for number in range(most):
            assert not room.is_full
            room.enter(Waiter(number, RoutingRequest(), b"%d" % number, 1, 0.0))
        assert room.is_full


def test_only_who_is_idle_at_home_is_about_to_come() -> None:
    driver = Driver(settings=RoutingSettings(admission="auto"))
    door = driver.router._door
    assert door is not None
    for name in ("comes", "runs", "ended", "lost"):
        ticket = driver.offer(name)
        if name == "lost":
            lost = driver.went[1]
        driver.finish(ticket, finish_reason="stop" if name == "ended" else "tool_calls")
    driver.offer("runs")
    driver.up(lost, "boot2")
    assert [found for found, _ in door._use.idle(driver.now)] == [key("comes")]


def test_who_waits_is_demand_too() -> None:
    crowd = Crowd()
    crowd.everybody()
    before = crowd.room
    assert before.demand_ratio
    for number in range(4):
        crowd.tickets[f"new {number}"] = crowd.driver.offer(f"new {number}", body_bytes=BODY)
    crowd.wait(1.0)
    assert crowd.room.waiting == before.waiting + 4
    assert crowd.room.demand_ratio == pytest.approx(before.demand_ratio * 16 / 12, rel=0.02)
