"""A replica's state, frozen for console, metrics and tests."""

from __future__ import annotations

from lmwarden.routing.replicas import Replica
from lmwarden.types import Decision, ReplicaView


def replica_view(replica: Replica, now: float) -> ReplicaView:
    """The replica at ``now``."""
    return ReplicaView(
        replica=replica.id,
        state=replica.state,
        in_flight=replica.in_flight,
        placed=replica.decisions[Decision.PLACED],
        sticky=replica.decisions[Decision.STICKY],
        spilled_in=replica.decisions[Decision.SPILLED],
        client_pinned=replica.decisions[Decision.CLIENT_PINNED],
        rehomed_in=replica.decisions[Decision.REHOMED],
        balanced=replica.decisions[Decision.BALANCED],
        conversations=replica.conversations,
        resident_tokens=replica.resident_tokens,
        capacity=replica.capacity,
        sample=replica.sample,
        suspect=replica.is_suspect(now),
        unrouted_in_flight=replica.engine.unrouted_in_flight,
    )
