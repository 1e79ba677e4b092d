"""The console's JSON, built from the control's snapshots. Field names here are public.

What an engine does not report is ``null``, never 0.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lmwarden.console.admission import AdmissionState, admission_state, holds
from lmwarden.console.checks import ModelWarning, warnings_of
from lmwarden.console.engines import EngineLine, PinState, engines_of, pin_state
from lmwarden.control import ModelSnapshot, Operation, Snapshot
from lmwarden.types import Decision, ReplicaState, ReplicaView


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the *Data-parallel routing* card."""

    replica: str
    state: ReplicaState
    stalled: bool
    """It has requests and makes no progress."""
    suspect: bool
    """It failed, stayed silent or stalled a moment ago: no new conversations for a while."""
    drained: bool
    """An operator took it out."""
    in_flight: int
    placed: int
    sticky: int
    spilled_in: int
    client_pinned: int
    rehomed_in: int
    balanced: int
    conversations: int
    resident_tokens: int
    kv_cache_tokens: int | None
    running: int | None
    waiting: int | None
    kv_used_ratio: float | None
    prefix_hit_ratio: float | None
    residents: int | None
    """Conversations with a place while the waiting room is engaged; null: there is no room."""
    reserved_tokens: int | None
    """What their places hold."""


class IdentityCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How requests were recognised as part of a conversation, since ``counting_since``."""

    sent: int
    """By a session id that the client sent."""
    derived: int
    """By how the conversation begins."""
    none: int
    """Not at all."""


class RoutingState(msgspec.Struct, frozen=True, kw_only=True):
    """``/api/models/{name}/routing``."""

    affinity: bool
    placement: str
    spill_threshold: int
    spill_threshold_source: str
    sticky_ratio: float | None
    in_flight: int
    decisions: dict[Decision, int]
    refused: int
    balancer: str | None
    counting_since: str
    admission: AdmissionState
    pins: PinState
    replicas: list[ReplicaRow]


class ModelDetail(msgspec.Struct, frozen=True, kw_only=True):
    """``/api/models/{name}``."""

    name: str
    aliases: tuple[str, ...]
    max_model_len: int | None
    conversations: int
    identity: IdentityCounts
    panic: bool
    """The probes of all its engines fail, so they are tried all the same."""
    engines: list[EngineLine]
    operation: Operation | None
    """The latest restart: running, or how it ended."""
    warnings: list[ModelWarning]
    routing: RoutingState
    held_tokens: int
    """Context of all live conversations, by their last usage."""
    mean_context_tokens: float | None
    """Of a live conversation; null: there is none, or none was answered yet."""
    room_for: int | None
    """So many more conversations of the usual size fit what the ready replicas keep; null: not known."""


class ModelLine(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``/api/models``."""

    name: str
    aliases: tuple[str, ...]
    affinity: bool
    in_flight: int
    sticky_ratio: float | None
    replicas: int
    replicas_ready: int


class ModelLines(msgspec.Struct, frozen=True, kw_only=True):
    """``/api/models``."""

    counting_since: str
    models: list[ModelLine]


def routing_state(model: ModelSnapshot, counting_since: str) -> RoutingState:
    """The routing card of one model."""
    view = model.view
    return RoutingState(
        affinity=view.settings.affinity,
        placement=view.settings.placement,
        spill_threshold=view.spill_threshold,
        spill_threshold_source=view.spill_threshold_source,
        sticky_ratio=view.sticky_ratio,
        in_flight=view.in_flight,
        decisions={decision: view.decisions.get(decision, 0) for decision in Decision},
        refused=view.refused,
        balancer=view.balancer,
        counting_since=counting_since,
        admission=admission_state(model, _room(model).room_for),
        pins=pin_state(model.engines),
        replicas=[_row(replica, model) for replica in view.replicas],
    )


def model_detail(model: ModelSnapshot, counting_since: str) -> ModelDetail:
    """Everything about one model."""
    room = _room(model)
    return ModelDetail(
        name=model.name,
        aliases=model.aliases,
        max_model_len=model.max_model_len,
        conversations=model.view.conversations,
        identity=IdentityCounts(
            sent=model.counters.identity_sent,
            derived=model.counters.identity_derived,
            none=model.counters.identity_none,
        ),
        panic=model.panic,
        engines=engines_of(model),
        operation=model.operation,
        warnings=warnings_of(model),
        routing=routing_state(model, counting_since),
        held_tokens=room.held_tokens,
        mean_context_tokens=room.mean_context_tokens,
        room_for=room.room_for,
    )


def model_lines(snapshot: Snapshot) -> ModelLines:
    """The list of models. Short by nature: one per ``[[models]]``."""
    return ModelLines(
        counting_since=snapshot.counting_since,
        models=[
            ModelLine(
                name=model.name,
                aliases=model.aliases,
                affinity=model.view.settings.affinity,
                in_flight=model.view.in_flight,
                sticky_ratio=model.view.sticky_ratio,
                replicas=len(model.view.replicas),
                replicas_ready=sum(r.state is ReplicaState.READY for r in model.view.replicas),
            )
            for model in snapshot.models
        ],
    )


FULL_KV_RATIO = 0.9
"""Of a replica's KV cache in use by running requests: there is no room for more conversations."""


class _Room(NamedTuple):
    held_tokens: int
    mean_context_tokens: float | None
    room_for: int | None


def _room(model: ModelSnapshot) -> _Room:
    """How much context is held, and what still fits."""
    replicas = model.view.replicas
    held = sum(replica.resident_tokens for replica in replicas)
    live = sum(replica.conversations for replica in replicas)
    mean = held / live if live and held else None
    capacities = [replica.capacity.kv_cache_tokens for replica in replicas if replica.state is ReplicaState.READY]
    known = [capacity for capacity in capacities if capacity is not None]
    if mean is None or len(known) != len(capacities) or not known:
        return _Room(held, mean, None)
    view = model.view.room
    if view is not None and holds(view):
        return _Room(held, mean, 0)
    if any(_is_full(replica) for replica in replicas):
        # Turns that are not answered yet hold context that nobody has counted.
        return _Room(held, mean, 0)
    if view is not None:
        # It knows which of them are in use; where none is, everything is free.
        free = view.room_for if view.room_for is not None or view.demand_ratio else int(sum(known) // mean)
        return _Room(held, mean, free)
    return _Room(held, mean, max(0, int((sum(known) - held) // mean)))


def _is_full(replica: ReplicaView) -> bool:
    """Whether the engine itself says that nothing more fits just now."""
    sample = replica.sample
    return sample is not None and (bool(sample.waiting) or (sample.kv_used_ratio or 0.0) > FULL_KV_RATIO)


def _row(replica: ReplicaView, model: ModelSnapshot) -> ReplicaRow:
    sample = replica.sample
    return ReplicaRow(
        replica=str(replica.replica),
        state=replica.state,
        stalled=sample.stalled if sample else False,
        suspect=replica.suspect,
        drained=replica.replica in model.drained,
        in_flight=replica.in_flight,
        placed=replica.placed,
        sticky=replica.sticky,
        spilled_in=replica.spilled_in,
        client_pinned=replica.client_pinned,
        rehomed_in=replica.rehomed_in,
        balanced=replica.balanced,
        conversations=replica.conversations,
        resident_tokens=replica.resident_tokens,
        kv_cache_tokens=replica.capacity.kv_cache_tokens,
        running=sample.running if sample else None,
        waiting=sample.waiting if sample else None,
        kv_used_ratio=sample.kv_used_ratio if sample else None,
        prefix_hit_ratio=model.prefix_hit_ratio.get(replica.replica),
        residents=replica.residents,
        reserved_tokens=replica.reserved_tokens,
    )
