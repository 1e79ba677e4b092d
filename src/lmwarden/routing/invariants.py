"""What must hold for a router at any moment. Tests call this after every event; it is too slow for anything else."""

from __future__ import annotations

import math
from collections import Counter

from lmwarden.routing.admission import WaitingRoom
from lmwarden.routing.conversations import IDLE_WEIGHT
from lmwarden.routing.replicas import WARM_S
from lmwarden.routing.router import Router
from lmwarden.types import Decision


def check(router: Router, now: float) -> None:
    """Recount everything from the open tickets and the table.

    Raises:
        AssertionError: an invariant is broken; the message names it.
    """
    fleet, table = router._fleet, router._table
    entries = list(router._open.values())
    for engine in fleet.engines.values():
        unrouted = sum(1 for entry in entries if entry.choice.replica is None and entry.choice.engine is engine)
        assert engine.unrouted_in_flight == unrouted, f"{engine.name}: unrouted in flight is not what is open"
    decay = fleet.decay(now)
    for replica in fleet:
        name = str(replica.id)
        in_flight = sum(1 for entry in entries if entry.choice.replica is replica)
        assert replica.in_flight == in_flight, f"{name}: in flight {replica.in_flight}, open tickets {in_flight}"
        homed = [c for _, c in table if c.home is replica and c.has_home and c.live]
        assert replica.conversations == len(homed), f"{name}: conversations"
        assert replica.resident_tokens == sum(c.context_tokens for c in homed), f"{name}: resident tokens"
        assert replica.open_tokens == sum(c.context_tokens for c in homed if c.in_flight), f"{name}: open tokens"
        idle = [(c, math.exp((c.last_used - now) / WARM_S)) for c in homed if not c.in_flight]
        warm = sum(IDLE_WEIGHT[c.returns] * age for c, age in idle)
        warm_tokens = sum(IDLE_WEIGHT[c.returns] * c.context_tokens * age for c, age in idle)
        # Traces are dropped on purpose: a thousandth of a conversation each time, which may hold 50 tokens.
        assert math.isclose(decay * replica.warm_scaled, warm, rel_tol=1e-6, abs_tol=0.01), f"{name}: warm"
        assert math.isclose(decay * replica.warm_tokens_scaled, warm_tokens, rel_tol=1e-6, abs_tol=500), (
            f"{name}: warm tokens"
        )
    assert fleet.live_conversations == sum(replica.conversations for replica in fleet.ready), "live conversations"
    for key, conversation in table:
        own = sum(1 for entry in entries if entry.conversation is conversation)
        assert conversation.in_flight == own >= 0, f"conversation {key.hex()[:8]}: in flight"
    for decision in Decision:
        if decision is not Decision.UNROUTED:
            counted = sum(replica.decisions[decision] for replica in fleet)
            assert counted == router._decisions[decision] >= 0, f"{decision}: replicas' counts and the sum differ"
    for ticket, entry in router._open.items():
        named = entry.request.engine
        there = named is None or entry.request.pin is not None or entry.choice.engine.name == named
        assert there, f"ticket {ticket} is not at the engine that it must go to"
    waiting = 0 if router._door is None else len(router._door.room)
    told = sum(router._decisions.values()) + router._refused + router._left_room + waiting
    assert told == router._last_ticket, "decisions and requests differ"
    if router._door is not None:
        _check_room(router, router._door.room, now)


def _check_room(router: Router, room: WaitingRoom, now: float) -> None:
    """The waiting room's accounts, recounted."""
    for waiter in room:
        assert waiter.ticket not in router._open, f"ticket {waiter.ticket} waits and is open"
        assert now < waiter.since + room.max_wait_s, f"ticket {waiter.ticket} waits for longer than max_wait_s"
    assert room.thrash.engaged or not len(room), "somebody waits while the room is not engaged"
    places = room.places
    assert len(places.by_key) == sum(len(floor.residents) for floor in places.floors.values()), "residents"
    for replica, floor in places.floors.items():
        residents = floor.residents.items()
        assert all(place.replica is replica and places.by_key[key] is place for key, place in residents), replica.name
        assert floor.tokens == sum(place.tokens for _, place in residents) >= 0, f"{replica.name}: reserved tokens"
        assert all(place.tokens > 0 for _, place in residents), f"{replica.name}: a place of nothing"
        guests = sum(tokens for where, tokens in places._guests.values() if where is floor)
        assert floor.guest_tokens == guests >= 0, f"{replica.name}: guest tokens"
        reading = sum(tokens for where, tokens in places._reading.values() if where is floor)
        assert floor.reading_tokens == reading >= 0, f"{replica.name}: reading tokens"
    riding = Counter(id(place) for place in places._riding.values())
    assert all(place.in_flight == riding[id(place)] for place in places.by_key.values()), "turns of residents"
    assert {*places._riding, *places._guests, *places._reading} <= {*router._open}, "a closed ticket has a place"
