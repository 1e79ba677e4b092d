"""The waiting room on the console, and what is said of a CPU tier."""

from __future__ import annotations

from typing import Any

import pytest
from tests.console.made_up import engaged, engine, model, replica, room, view

from lmwarden.console.admission import GIB, admission_state, kept_tokens, tier_advice
from lmwarden.control import ModelSnapshot
from lmwarden.types import ReplicaCapacity, ReplicaState, RoutingSettings

FOR_MEDIAN = RoutingSettings(admission="auto", prefer="median")


def test_a_room_that_is_off_is_null() -> None:
    state = admission_state(model(), 2)
    assert (state.mode, state.why_code, state.engaged, state.waiting, state.room_for) == ("off", "off", False, 0, 2)
    nulls = ("longest_wait_s", "residents", "reserved_tokens", "demand_ratio", "why", "gap_s")
    assert all(getattr(state, name) is None for name in nulls)
    assert state.wait_expired == 0
    assert admission_state(model(view=view(wait_expired=3)), 2).wait_expired == 3


def test_a_demand_on_caches_of_unknown_size_is_null() -> None:
    state = admission_state(model(view=view(room=room(demand_ratio=0.0, why_code="no_capacity"))), None)
    assert (state.why_code, state.demand_ratio) == ("no_capacity", None)
    assert admission_state(model(view=view(room=room(demand_ratio=0.0, why_code="open"))), None).demand_ratio == 0.0


def test_an_engaged_room_tells_who_waits_and_why() -> None:
    state = admission_state(model(view=engaged(wait_expired=2)), 0)
    assert (state.mode, state.prefer, state.max_wait_s) == ("auto", "balanced", 240.0)
    assert (state.engaged, state.waiting, state.longest_wait_s, state.room_for) == (True, 3, 12.4, 0)
    assert (state.residents, state.reserved_tokens, state.demand_ratio, state.wait_expired) == (8, 70_000, 1.5, 2)
    assert (state.why, state.why_code) == ("Engaged: they do not fit.", "engaged")


def with_tier(tokens: int | None, kv: int | None = 40_000, **changes: Any) -> Any:
    return replica(capacity=ReplicaCapacity(kv_cache_tokens=kv, cpu_cache_tokens=tokens), **changes)


def needed(made_up: ModelSnapshot) -> int | None:
    advice = tier_advice(made_up)
    return None if advice is None else advice.needed_tokens_per_replica


def test_a_tier_keeps_what_is_larger_than_the_cache() -> None:
    assert kept_tokens(with_tier(None)) == 40_000
    assert kept_tokens(with_tier(30_000)) == 40_000
    assert kept_tokens(with_tier(120_000)) == 100_000
    assert kept_tokens(with_tier(120_000, None)) is None


def test_the_advice_is_a_fifth_more_than_what_is_in_use() -> None:
    # 1.5 times what two caches of 40,000 keep is 60,000 for each.
    two = (with_tier(None), with_tier(None))
    assert needed(model(view=engaged(replicas=two))) == 72_000
    # One that is down keeps nothing: the other one has it all.
    one = (with_tier(None), with_tier(None, state=ReplicaState.DOWN))
    assert needed(model(view=engaged(replicas=one))) == 72_000
    # Without a room it is the live conversations.
    live = (with_tier(None, resident_tokens=70_000), with_tier(None, resident_tokens=30_000))
    assert needed(model(view=view(replicas=live))) == 60_000


@pytest.mark.parametrize(
    "made_up",
    [
        model(),
        model(view=view(room=room(demand_ratio=0.9))),
        # They find their context there: something keeps it that we do not know.
        model(view=view(room=room(demand_ratio=1.3, why_code="kept"))),
        # The median is preferred: demand is over the caches alone, the tiers keep all of it, and yet some wait.
        model(view=engaged(replicas=(with_tier(100_000), with_tier(100_000)), settings=FOR_MEDIAN)),
        model(view=engaged(replicas=(with_tier(None), with_tier(None)), settings=FOR_MEDIAN)),
        # It does not hold anybody, or not for long.
        *(
            model(view=view(room=room(engaged=why == "emptying", demand_ratio=1.3, why_code=why)))
            for why in ("open", "settling", "no_capacity", "emptying")
        ),
        # Unknown capacities, or none.
        model(view=engaged(replicas=(with_tier(None), with_tier(None, None)))),
        model(view=engaged(replicas=())),
    ],
)
def test_no_advice_where_it_would_not_help_or_cannot_be_told(made_up: ModelSnapshot) -> None:
    assert admission_state(made_up, None).tier_advice is None


def test_a_tier_that_is_a_little_too_small_is_told_the_larger_size() -> None:
    small = (with_tier(80_000), with_tier(80_000))
    assert (
        needed(model(view=engaged(replicas=small, room=room(engaged=True, demand_ratio=1.01, why_code="engaged"))))
        == 81_000
    )


@pytest.mark.parametrize("why", ["engaged", "gaps"])
def test_advice_is_given_where_some_wait_or_pause(why: str) -> None:
    held = room(engaged=why == "engaged", demand_ratio=1.5, why_code=why)
    two = (with_tier(None), with_tier(None))
    assert needed(model(view=view(replicas=two, room=held, settings=RoutingSettings(admission="auto")))) == 72_000


def test_memory_is_told_where_it_is_known() -> None:
    two = (with_tier(None), with_tier(None))
    known = model(view=engaged(replicas=two), engines=(engine(kv_bytes_per_token=147_456.0),))
    advice = tier_advice(known)
    assert advice is not None
    assert advice.needed_gib_per_replica == pytest.approx(72_000 * 147_456 / GIB, abs=0.1)
    unknown = tier_advice(model(view=engaged(replicas=two), engines=(engine(), engine(kv_bytes_per_token=1.0))))
    assert unknown is not None
    assert unknown.needed_gib_per_replica is None


def test_the_default_settings_of_a_router_hold_nobody() -> None:
    """A router that nobody configured is one without a room; the configuration's default is another (test_config)."""
    assert RoutingSettings().admission == "off"
