"""Replicas and conversations, frozen for console, metrics and tests."""

from __future__ import annotations

from collections.abc import Mapping

from lmwarden.routing.admission_places import Floor, Places
from lmwarden.routing.conversations import Conversation, ConversationTable
from lmwarden.routing.replicas import Fleet, Replica
from lmwarden.types import (
    ConversationKey,
    ConversationView,
    Decision,
    ReplicaView,
    RoomView,
    RouterView,
    RoutingSettings,
)


def router_view(
    fleet: Fleet,
    settings: RoutingSettings,
    now: float,
    *,
    threshold: tuple[int, str],
    in_flight: int,
    decisions: Mapping[Decision, int],
    refused: int,
    wait_expired: int,
    conversations: int,
    room: RoomView | None = None,
    places: Places | None = None,
) -> RouterView:
    """The router at ``now``.

    Args:
        threshold: What it is and where it comes from.
        places: Of the waiting room, if there is one. The rest as ``RouterView`` has it.
    """
    counts = {decision: decisions.get(decision, 0) for decision in Decision}
    again = sum(counts[word] for word in (Decision.STICKY, Decision.SPILLED, Decision.REHOMED))
    balancer = None
    if not settings.affinity:
        balancer = "engine" if len(fleet.engines) == 1 else "emulated"
    return RouterView(
        settings=settings,
        spill_threshold=threshold[0],
        spill_threshold_source=threshold[1],
        in_flight=in_flight,
        waiting=0 if room is None else room.waiting,
        decisions=counts,
        refused=refused,
        sticky_ratio=counts[Decision.STICKY] / again if again else None,
        conversations=conversations,
        replicas=tuple(
            replica_view(replica, now, None if places is None else places.floors[replica]) for replica in fleet
        ),
        balancer=balancer,
        room=room,
        wait_expired=wait_expired,
    )


def replica_view(replica: Replica, now: float, floor: Floor | None) -> ReplicaView:
    """The replica at ``now``, with its places in the waiting room."""
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
        residents=None if floor is None else len(floor.residents),
        reserved_tokens=None if floor is None else floor.tokens,
    )


def _conversation_view(key: ConversationKey, conversation: Conversation, live_since: float) -> ConversationView:
    """The conversation; it is live if it was used after ``live_since``, whenever the table expires it."""
    home = conversation.home
    return ConversationView(
        key=key,
        parent=conversation.parent,
        derived=conversation.derived,
        home=home.id if home is not None and home.epoch == conversation.epoch else None,
        turns=conversation.turns,
        context_tokens=conversation.context_tokens,
        in_flight=conversation.in_flight,
        live=conversation.in_flight > 0 or (conversation.live and conversation.last_used > live_since),
        last_used=conversation.last_used,
    )


def last_used(table: ConversationTable, now: float, most: int) -> tuple[ConversationView, ...]:
    """So many conversations, the one used last first."""
    live_since = now - table.live_s
    return tuple(_conversation_view(key, conversation, live_since) for key, conversation in table.latest(most))
