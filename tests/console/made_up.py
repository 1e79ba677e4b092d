"""Snapshots as nothing made them: a model that is well, and ways to make it ill."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from tests.console.scene import launched

from lmwarden.control import EngineSnapshot, EngineState, ModelSnapshot, Snapshot
from lmwarden.engine.launch_state import EnginePhase
from lmwarden.engine.pins import PinReport
from lmwarden.gateway.counters import ModelCounters
from lmwarden.types import (
    Decision,
    PinVerdict,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    ReplicaState,
    ReplicaView,
    RoomView,
    RouterView,
    RoutingSettings,
)

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def pin(verdict: PinVerdict, detail: str | None = None) -> PinReport:
    return PinReport(verdict=verdict, detail=detail, tested_at=1.0)


def engine(name: str = "e0", **changes: Any) -> EngineSnapshot:
    """One that is well: two ranks, attached."""
    well = EngineSnapshot(
        engine=name,
        url="http://h:1",
        ranks=2,
        state=EngineState.UP,
        version="0.32.0",
        is_vllm=True,
        scrape_age_s=0.5,
        usage_details=True,
        pins={CHAT: pin(PinVerdict.VERIFIED), MESSAGES: pin(PinVerdict.VERIFIED)},
        launched=False,
        launch=None,
    )
    return msgspec.structs.replace(well, **changes)


def process(phase: EnginePhase = EnginePhase.RUNNING, **facts: Any) -> EngineSnapshot:
    """A launched engine in a phase; it is up only where it runs."""
    state = EngineState.UP if phase is EnginePhase.RUNNING else EngineState.DOWN
    return engine(state=state, launched=True, launch=launched(phase, **facts))


def replica(rank: int = 0, **changes: Any) -> ReplicaView:
    """One that is well."""
    well = ReplicaView(
        replica=ReplicaId("e0", rank),
        state=ReplicaState.READY,
        in_flight=0,
        placed=0,
        sticky=0,
        spilled_in=0,
        client_pinned=0,
        rehomed_in=0,
        balanced=0,
        conversations=0,
        resident_tokens=10_000,
        capacity=ReplicaCapacity(kv_cache_tokens=42_000, max_num_seqs=32),
        sample=ReplicaSample(taken_at=1.0),
        suspect=False,
    )
    return msgspec.structs.replace(well, **changes)


def view(**changes: Any) -> RouterView:
    """A router of two replicas that are well."""
    well = RouterView(
        settings=RoutingSettings(),
        spill_threshold=8,
        spill_threshold_source="auto",
        in_flight=0,
        waiting=0,
        decisions=dict.fromkeys(Decision, 0),
        refused=0,
        sticky_ratio=None,
        conversations=0,
        replicas=(replica(0), replica(1)),
        balancer=None,
    )
    return msgspec.structs.replace(well, **changes)


def room(**changes: Any) -> RoomView:
    """A waiting room that holds nobody: the conversations in use need half of what there is."""
    well = RoomView(
        engaged=False,
        waiting=0,
        longest_wait_s=None,
        residents=0,
        reserved_tokens=0,
        room_for=4,
        demand_ratio=0.5,
        why="Open: they fit.",
        why_code="open",
    )
    return msgspec.structs.replace(well, **changes)


def engaged(**changes: Any) -> RouterView:
    """A router whose waiting room holds requests."""
    held = room(
        engaged=True, waiting=3, longest_wait_s=12.4, residents=8, reserved_tokens=70_000, room_for=0,
        demand_ratio=1.5, why="Engaged: they do not fit.", why_code="engaged",
    )  # fmt: skip
    settings = RoutingSettings(admission="auto")
    return view(**{"room": held, "waiting": 3, "settings": settings} | changes)


def model(**changes: Any) -> ModelSnapshot:
    """One that is well."""
    counters = ModelCounters().snapshot(open_exchanges=0, buffered_bytes=0, client_connections=0)
    well = ModelSnapshot(
        name="org/model",
        aliases=(),
        max_model_len=32_768,
        view=view(),
        engines=(engine(),),
        prefix_hit_ratio={},
        counters=counters,
        panic=False,
        drained=frozenset(),
        operation=None,
    )
    return msgspec.structs.replace(well, **changes)


def counted(**counts: Any) -> ModelSnapshot:
    """A model with these counts."""
    return model(counters=msgspec.structs.replace(model().counters, **counts))


def snapshot(*models: ModelSnapshot, **changes: Any) -> Snapshot:
    """One that was taken just now."""
    well = Snapshot(
        taken_at=time.time(),
        counting_since="2026-01-01T00:00:00Z",
        models=models or (model(),),
        ledger_dropped_rows=0,
        ledger_trouble=None,
    )
    return msgspec.structs.replace(well, **changes)
