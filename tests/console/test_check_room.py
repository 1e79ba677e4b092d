"""What is said of a model whose work does not fit its caches."""

from __future__ import annotations

import pytest
from tests.console.made_up import engaged, engine, model, replica, room, view

from lmwarden.console.check_room import check_room
from lmwarden.console.findings import Check, Level
from lmwarden.control import ModelSnapshot
from lmwarden.types import ReplicaCapacity, RoutingSettings

OVER = (replica(0), replica(1, resident_tokens=50_000))
AUTO = RoutingSettings(admission="auto")


def found(made_up: ModelSnapshot) -> dict[str, Check]:
    return {check.code: check for check in check_room(made_up)}


def test_an_engaged_room_says_what_it_does_and_what_would_help() -> None:
    (check,) = found(model(view=engaged(replicas=OVER), engines=(engine(kv_bytes_per_token=147_456.0),))).values()
    assert (check.code, check.level) == ("waiting_room", Level.WARNING)
    assert "1.5 times the context" in check.text
    assert "8 of them have a place and go at once, and 3 requests wait for one, the longest for 12 s" in check.text
    assert check.what_to_do is not None
    assert "a CPU tier of at least 76,000 tokens (10.5 GiB) per replica" in check.what_to_do
    assert "nobody waits longer than 240 s" in check.what_to_do
    assert check.params == {
        "demand_ratio": 1.5, "residents": 8, "waiting": 3, "longest_wait_s": 12.4, "max_wait_s": 240.0,
        "tier_tokens": 76_000, "tier_gib": 10.5,
    }  # fmt: skip


def test_an_engaged_room_where_nobody_waits_just_now() -> None:
    (check,) = found(model(view=engaged(room=room(engaged=True, demand_ratio=1.2, why_code="engaged")))).values()
    assert (check.level, check.text.endswith("and 0 requests wait for one")) == (Level.WARNING, True)
    assert "longest_wait_s" not in check.params


def test_a_room_that_empties_is_no_trouble_unless_somebody_still_waits() -> None:
    empty = room(engaged=True, demand_ratio=0.0, why_code="emptying")
    checks = found(model(view=engaged(room=empty, waiting=0)))
    assert {name: check.level for name, check in checks.items()} == {"waiting_room_open": Level.OK}
    last = room(engaged=True, demand_ratio=0.9, why_code="emptying", waiting=1, residents=4)
    assert found(model(view=engaged(room=last)))["waiting_room"].level is Level.WARNING


def test_where_the_median_is_preferred_no_tier_is_recommended() -> None:
    (check,) = found(model(view=engaged(settings=RoutingSettings(admission="auto", prefer="median")))).values()
    assert check.what_to_do == "fewer agents at a time; nobody waits longer than 240 s"
    assert "tier_tokens" not in check.params


def test_live_conversations_that_do_not_fit_are_no_trouble_where_those_in_use_do() -> None:
    checks = found(model(view=view(replicas=OVER, settings=AUTO, room=room())))
    assert {check.level for check in checks.values()} == {Level.OK}
    assert set(checks) == {"waiting_room_open"}


def test_agents_that_pause_are_not_held_and_a_tier_would_help() -> None:
    pausing = room(demand_ratio=1.4, why_code="gaps", gap_s=3.0)
    (check,) = found(model(view=view(settings=AUTO, room=pausing))).values()
    assert (check.code, check.level) == ("cpu_tier", Level.WARNING)
    assert "pause between their turns" in check.text
    assert check.params["tier_tokens"] == 71_000


def test_a_tier_that_is_there_is_said() -> None:
    checks = found(model(view=view(settings=AUTO, room=room(tier_tokens=200_000))))
    assert checks["cpu_tier"].level is Level.OK
    assert checks["cpu_tier"].params == {"tokens": 200_000}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (RoutingSettings(), "switch the waiting room on, fewer agents"),
        (RoutingSettings(affinity=False), "fewer agents"),
        (AUTO, "fewer agents"),
    ],
)
def test_without_a_room_all_live_conversations_count(settings: RoutingSettings, says: str) -> None:
    check = found(model(view=view(replicas=OVER, settings=settings)))["contexts_do_not_fit"]
    assert check.what_to_do is not None
    assert check.what_to_do.startswith(says)
    assert check.params["over"] == "e0/1 50,000/42,000"


def test_a_tier_counts_as_cache() -> None:
    large = ReplicaCapacity(kv_cache_tokens=42_000, cpu_cache_tokens=100_000)
    kept = (replica(0), replica(1, resident_tokens=50_000, capacity=large))
    assert set(found(model(view=view(replicas=kept)))) == {"contexts"}


def test_nothing_is_said_where_no_capacity_is_known() -> None:
    unknown = (replica(0, capacity=ReplicaCapacity()),)
    assert found(model(view=view(replicas=unknown))) == {}
    assert found(model(view=view(replicas=unknown, settings=AUTO, room=room(why_code="no_capacity")))) == {}
