"""What must hold for a router at any moment. Tests call this after every event; it is too slow for anything else."""

from __future__ import annotations

import math

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
        warm = sum(c.idle_weight * age for c, age in idle)
        warm_tokens = sum(c.idle_weight * c.context_tokens * age for c, age in idle)
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
    assert sum(router._decisions.values()) + router._refused == router._last_ticket, "decisions and requests differ"
