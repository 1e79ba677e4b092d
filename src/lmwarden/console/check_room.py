"""Does a model's work fit its caches, what is done where it does not, and what would help?

With a waiting room only the conversations that are in use at the same time count: those that pause cost nothing but
reading them again. Without one nobody tells which are in use, so all live conversations are compared with the caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lmwarden.console.admission import TierAdvice, holds, kept_tokens, tier_advice
from lmwarden.console.findings import Check, ok, warning
from lmwarden.control import ModelSnapshot
from lmwarden.types import RoomView

_TIER_SWITCHES = "kv_offload_gib, or vLLM's --kv-offloading-size"


def check_room(model: ModelSnapshot) -> Iterator[Check]:
    """All of it."""
    room, advice = model.view.room, tier_advice(model)
    if room is None:
        yield from _without_room(model, advice)
    elif holds(room):
        yield _engaged(room, model.view.settings.max_wait_s, advice)
    elif room.why_code == "gaps" and advice is not None:
        yield warning(
            "cpu_tier",
            f"the conversations in use have {room.demand_ratio:.1f} times the context that the caches hold, and pause"
            " between their turns, so nobody is made to wait, and what was dropped meanwhile is read again",
            f"{_in_words(advice)} would keep it",
            demand_ratio=room.demand_ratio,
            **_params(advice),
        )
    elif cache_tokens(model):
        yield ok("waiting_room_open", "nobody waits for a place", demand_ratio=room.demand_ratio)
        yield from _tier(room)


def cache_tokens(model: ModelSnapshot) -> dict[str, int]:
    """Replica to KV-cache capacity in tokens, where known."""
    known = {str(replica.replica): replica.capacity.kv_cache_tokens for replica in model.view.replicas}
    return {name: tokens for name, tokens in known.items() if tokens}


class Overfull(NamedTuple):
    """A replica whose live conversations have more context than is kept there."""

    replica: str
    held_tokens: int
    kept_tokens: int


def overfull(model: ModelSnapshot) -> list[Overfull]:
    """All of those."""
    return [
        Overfull(str(replica.replica), replica.resident_tokens, tokens)
        for replica in model.view.replicas
        if (tokens := kept_tokens(replica)) and replica.resident_tokens > tokens
    ]


def _engaged(room: RoomView, max_wait_s: float, advice: TierAdvice | None) -> Check:
    longest = "" if room.longest_wait_s is None else f", the longest for {room.longest_wait_s:.0f} s"
    tier = f", or {_in_words(advice)}" if advice is not None else ""
    return warning(
        "waiting_room",
        f"the conversations in use have {room.demand_ratio:.1f} times the context that the replicas keep, so"
        f" {room.residents} of them have a place and go at once, and {room.waiting} requests wait for one{longest}",
        f"fewer agents at a time{tier}; nobody waits longer than {max_wait_s:g} s",
        demand_ratio=room.demand_ratio,
        residents=room.residents,
        waiting=room.waiting,
        longest_wait_s=room.longest_wait_s,
        max_wait_s=max_wait_s,
        **_params(advice),
    )


def _tier(room: RoomView) -> Iterator[Check]:
    if room.tier_tokens is not None:
        text = f"the CPU tiers keep {room.tier_tokens:,} tokens of context together"
        yield ok("cpu_tier", text, tokens=room.tier_tokens)


def _without_room(model: ModelSnapshot, advice: TierAdvice | None) -> Iterator[Check]:
    over, settings = overfull(model), model.view.settings
    if over:
        switch = "" if settings.admission == "auto" or not settings.affinity else "switch the waiting room on, "
        tier = _in_words(advice) if advice is not None else f"a CPU tier ({_TIER_SWITCHES})"
        yield warning(
            "contexts_do_not_fit",
            "the live conversations have more context than the cache can hold, in tokens: "
            + ", ".join(f"{name} holds {held:,} of {kept:,}" for name, held, kept in over),
            f"{switch}fewer agents at a time, shorter contexts, or more cache: {tier}",
            over=", ".join(f"{name} {held:,}/{kept:,}" for name, held, kept in over),
            **_params(advice),
        )
    elif cache_tokens(model):
        yield ok("contexts", "the contexts of the live conversations fit the caches")


def _in_words(advice: TierAdvice) -> str:
    size = f"{advice.needed_tokens_per_replica:,} tokens"
    if advice.needed_gib_per_replica is not None:
        size += f" ({advice.needed_gib_per_replica:g} GiB)"
    return f"a CPU tier of at least {size} per replica ({_TIER_SWITCHES})"


def _params(advice: TierAdvice | None) -> dict[str, int | float | None]:
    if advice is None:
        return {}
    return {"tier_tokens": advice.needed_tokens_per_replica, "tier_gib": advice.needed_gib_per_replica}
