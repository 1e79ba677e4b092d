"""The waiting room as the console shows it: what the operator set, how it stands, and whether a CPU tier would help.

**A CPU tier** holds contexts that the KV cache had to drop, so that a turn loads them back instead of reading them
again. It keeps them all if it is ``TIER_RATIO`` times what the conversations in use need (a least-recently-used store
that is smaller than its round trip keeps nothing of it); then the waiting room stays open. What they need is the
room's demand, which is relative to what the replicas keep; without a room it is the context of the live conversations.
Advice is given where that is more than the caches hold, and more than the tier that is there; with a room only while it
is engaged, or is kept open by pauses. Where the median is preferred a tier keeps the room from nothing, and is not
counted in the demand: nothing is said of one.
"""

from __future__ import annotations

import math

import msgspec

from lmwarden.control import ModelSnapshot
from lmwarden.types import TIER_RATIO, ReplicaState, ReplicaView, RoomView

GIB = 1 << 30


class TierAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """So large a CPU tier would keep what the caches drop."""

    needed_tokens_per_replica: int
    needed_gib_per_replica: float | None
    """null: it is not known how much memory a token takes."""


class AdmissionState(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting room. What is null is not known, or there is no room (``mode`` or affinity is off)."""

    mode: str
    """``auto`` or ``off``, as the operator set it."""
    prefer: str
    """``balanced``, ``median`` or ``tail``."""
    max_wait_s: float
    engaged: bool
    waiting: int
    longest_wait_s: float | None
    """Of those who wait."""
    room_for: int | None
    """As ``ModelDetail.room_for``."""
    residents: int | None
    """Conversations with a place; 0 while the room is open."""
    reserved_tokens: int | None
    demand_ratio: float | None
    """Context of the conversations in use over what the replicas keep."""
    wait_expired: int
    """Requests that went because they had waited for ``max_wait_s``, since ``counting_since``."""
    why: str | None
    """One English sentence; ``why_code`` says the same for machines."""
    why_code: str
    """Those of ``types.RoomView``, or ``off``."""
    gap_s: float | None
    """A quarter of the pauses between two turns exceeds it."""
    tier_tokens: int | None
    """What the replicas' CPU tiers keep together."""
    tier_advice: TierAdvice | None


def admission_state(model: ModelSnapshot, room_for: int | None) -> AdmissionState:
    """The room of one model. ``room_for``: so many more conversations fit."""
    settings, room = model.view.settings, model.view.room
    return AdmissionState(
        mode=settings.admission,
        prefer=settings.prefer,
        max_wait_s=settings.max_wait_s,
        engaged=room is not None and room.engaged,
        waiting=model.view.waiting,
        longest_wait_s=room.longest_wait_s if room is not None else None,
        room_for=room_for,
        residents=room.residents if room is not None else None,
        reserved_tokens=room.reserved_tokens if room is not None else None,
        demand_ratio=room.demand_ratio if room is not None and room.why_code != "no_capacity" else None,
        wait_expired=model.view.wait_expired,
        why=room.why if room is not None else None,
        why_code=room.why_code if room is not None else "off",
        gap_s=room.gap_s if room is not None else None,
        tier_tokens=room.tier_tokens if room is not None else None,
        tier_advice=tier_advice(model),
    )


def holds(room: RoomView) -> bool:
    """Somebody waits, or the work does not fit; not so while a room that is still engaged empties."""
    return room.engaged and (room.waiting > 0 or room.demand_ratio >= 1)


def kept_tokens(replica: ReplicaView) -> int | None:
    """Context that is not lost between turns: the cache's, or where it keeps more the CPU tier's; None: not known."""
    capacity = replica.capacity
    if capacity.kv_cache_tokens is None:
        return None
    return max(capacity.kv_cache_tokens, int(capacity.tier_keeps_tokens))


def tier_advice(model: ModelSnapshot) -> TierAdvice | None:
    """How large a CPU tier per replica would have to be; None: it would not help, or that cannot be told."""
    room = model.view.room
    if room is not None and (room.why_code not in ("engaged", "gaps") or model.view.settings.prefer == "median"):
        return None
    ready = [replica for replica in model.view.replicas if replica.state is ReplicaState.READY]
    kept = [tokens for replica in ready if (tokens := kept_tokens(replica)) is not None]
    if not kept or len(kept) != len(ready):
        return None
    in_use = sum(replica.resident_tokens for replica in ready) if room is None else room.demand_ratio * sum(kept)
    if in_use <= sum(kept):
        return None
    needed = math.ceil(TIER_RATIO * in_use / len(ready) / 1000) * 1000
    if all((replica.capacity.cpu_cache_tokens or 0) >= needed for replica in ready):
        return None
    per_token = [engine.kv_bytes_per_token for engine in model.engines]
    known = [size for size in per_token if size is not None]
    gib = math.ceil(10 * needed * max(known) / GIB) / 10 if known and len(known) == len(per_token) else None
    return TierAdvice(needed_tokens_per_replica=needed, needed_gib_per_replica=gib)
