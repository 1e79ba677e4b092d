"""Routers as they show themselves, for the tests of the history."""

from __future__ import annotations

from typing import Any

import msgspec

from lmwarden.types import (
    Decision,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    ReplicaState,
    ReplicaView,
    RouterView,
    RoutingSettings,
)


def sample(**changes: Any) -> ReplicaSample:
    """A scrape taken at 100 on the router's clock: one request runs, two wait."""
    return msgspec.structs.replace(ReplicaSample(taken_at=100.0, running=1, waiting=2, kv_used_ratio=0.5), **changes)


def replica(rank: int = 0, **changes: Any) -> ReplicaView:
    """One with three requests in flight and two conversations of 1000 tokens together."""
    usual = ReplicaView(
        replica=ReplicaId("e0", rank),
        state=ReplicaState.READY,
        in_flight=3,
        placed=0,
        sticky=0,
        spilled_in=0,
        client_pinned=0,
        rehomed_in=0,
        balanced=0,
        conversations=2,
        resident_tokens=1000,
        capacity=ReplicaCapacity(kv_cache_tokens=42_000, max_num_seqs=32),
        sample=sample(),
        suspect=False,
    )
    return msgspec.structs.replace(usual, **changes)


def view(*replicas: ReplicaView, **changes: Any) -> RouterView:
    """A router over these replicas (none named: one)."""
    shown = replicas or (replica(),)
    usual = RouterView(
        settings=RoutingSettings(),
        spill_threshold=8,
        spill_threshold_source="auto",
        in_flight=sum(one.in_flight for one in shown),
        waiting=0,
        decisions=dict.fromkeys(Decision, 0),
        refused=0,
        sticky_ratio=None,
        conversations=0,
        replicas=shown,
        balancer=None,
    )
    return msgspec.structs.replace(usual, **changes)
