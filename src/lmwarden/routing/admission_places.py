"""Places: whose context is reserved in which replica, and how much fits.

A *resident* is a conversation with a place in one replica, as large as its latest turn will be at its end. What all
conversations share is counted once for the replica. What runs there without a place (a turn that the client pinned, a
title, a turn of somebody who is at home elsewhere) is a *guest*: counted until it ends, and never held back.

    free = scale * capacity - shared - sum over residents - sum over guests

``scale`` corrects estimates that are wrong. If a resident's next turn finds that the engine kept less than
``KEPT_LOW_RATIO`` of its context, more was let in than fits, and the scale falls, at most once in ``LOWER_EVERY_S``.
While residents keep theirs it rises slowly, but never again above the middle between where it broke and where
it fell to. So it cannot swing: each fall brings the ceiling down with it. The ceiling itself is given back very slowly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from lmwarden.routing.replicas import Replica
from lmwarden.types import ConversationKey, Ticket

SCALE = 1.02
"""To begin with: a little above 1, because not everybody's turn is at its end at once. With 1.05 the engine preempts
some turns for want of room, and reads them again."""
SCALE_MIN, SCALE_MAX = 0.5, 1.25
LOWER_RATIO = 0.93
LOWER_EVERY_S = 10.0
RAISE = 0.002
SCALE_USUAL, RAISE_BEYOND = 1.05, 0.0002
"""Above the first it rises by the second: residents may be lucky for a while, and the engine's preemptions do not show
in what they keep."""
CEILING_BACK_PER_S = 0.05 / 3600
KEPT_LOW_RATIO = 0.7
"""A turn that found less of its context in the cache lost it."""


class Place:
    """One resident."""

    __slots__ = ("epoch", "idle_since", "in_flight", "key", "replica", "returns", "tokens", "turns", "waits")

    def __init__(self, key: ConversationKey, replica: Replica) -> None:
        self.key = key
        self.replica = replica
        self.epoch = replica.epoch
        self.tokens = 0
        self.in_flight = 0
        self.idle_since = -math.inf
        self.turns = 0
        """Since it got the place."""
        self.waits = 0
        """How often its conversation has waited for one."""
        self.returns = True
        """Its last turn ended in a tool call."""

    @property
    def stands(self) -> bool:
        """Its replica takes turns, and the cache is still the one it was given in."""
        return self.replica.is_ready and self.replica.epoch == self.epoch


class Floor:
    """The places of one replica."""

    __slots__ = (
        "ceiling",
        "ceiling_since",
        "guest_tokens",
        "lowered_at",
        "reading_tokens",
        "replica",
        "residents",
        "scale",
        "tokens",
    )

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.residents: dict[ConversationKey, Place] = {}
        self.tokens = 0
        """Reserved: the sum over residents."""
        self.guest_tokens = 0
        self.reading_tokens = 0
        """Prompts of those who were let in and have no first byte yet."""
        self.scale = SCALE
        self.ceiling = SCALE_MAX
        self.ceiling_since = -math.inf
        self.lowered_at = -math.inf

    def capacity_tokens(self, shared_tokens: int) -> float:
        """What residents and guests may hold together; 0 where the engine reports no capacity."""
        return max(0.0, self.scale * (self.replica.capacity.kv_cache_tokens or 0) - shared_tokens)

    def kept_tokens(self, shared_tokens: int) -> float:
        """What is not lost between turns: the cache's, or where it is larger the CPU tier's."""
        return max(self.capacity_tokens(shared_tokens), self.replica.capacity.tier_keeps_tokens - shared_tokens)

    def free_tokens(self, shared_tokens: int) -> float:
        """What is left of it; below 0 where too much is there already."""
        return self.capacity_tokens(shared_tokens) - self.tokens - self.guest_tokens

    def kept(self, kept_ratio: float, now: float) -> None:
        """So much of a resident's context was still there."""
        if kept_ratio >= KEPT_LOW_RATIO:
            back = self.ceiling + CEILING_BACK_PER_S * (now - self.ceiling_since)
            step = RAISE if self.scale < SCALE_USUAL else RAISE_BEYOND
            self.scale = max(self.scale, min(self.scale + step, back, SCALE_MAX))
        elif now - self.lowered_at >= LOWER_EVERY_S:
            lower = max(SCALE_MIN, self.scale * LOWER_RATIO)
            self.ceiling, self.ceiling_since = (self.scale + lower) / 2, now
            self.scale, self.lowered_at = lower, now


class Places:
    """All places of a model, and who uses them."""

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self.floors = {replica: Floor(replica) for replica in replicas}
        self.by_key: dict[ConversationKey, Place] = {}
        self._riding: dict[Ticket, Place] = {}
        self._guests: dict[Ticket, tuple[Floor, int]] = {}
        self._reading: dict[Ticket, tuple[Floor, int]] = {}

    def of(self, key: ConversationKey) -> Place | None:
        """The conversation's place. One whose replica was lost is none, and is cleared."""
        place = self.by_key.get(key)
        if place is not None and not place.stands:
            self.leave(place)
            return None
        return place

    def take(self, key: ConversationKey, replica: Replica, tokens: int) -> Place:
        """Give the conversation a place there, or make its place so large. One that it has elsewhere is given up."""
        place = self.of(key)
        if place is not None and place.replica is not replica:
            self.leave(place)
            place = None
        floor = self.floors[replica]
        if place is None:
            place = self.by_key[key] = floor.residents[key] = Place(key, replica)
        floor.tokens += tokens - place.tokens
        place.tokens = tokens
        return place

    def sweep(self) -> None:
        """Replicas have changed: who was at home in one that is lost has no place any more."""
        for place in [place for place in self.by_key.values() if not place.stands]:
            self.leave(place)

    def leave(self, place: Place) -> None:
        """Give a place up. What runs in it goes on, and is not counted any more."""
        floor = self.floors[place.replica]
        del self.by_key[place.key]
        del floor.residents[place.key]
        floor.tokens -= place.tokens

    def ride(self, ticket: Ticket, place: Place) -> None:
        """The ticket is a turn of that resident."""
        place.in_flight += 1
        place.turns += 1
        self._riding[ticket] = place

    def visit(self, ticket: Ticket, replica: Replica, tokens: int) -> None:
        """The ticket runs there as a guest."""
        floor = self.floors[replica]
        floor.guest_tokens += tokens
        self._guests[ticket] = (floor, tokens)

    def riding(self, ticket: Ticket) -> Place | None:
        """The place that the ticket uses."""
        return self._riding.get(ticket)

    def reads(self, ticket: Ticket, replica: Replica, tokens: int) -> None:
        """The ticket begins with reading so many tokens."""
        floor = self.floors[replica]
        floor.reading_tokens += tokens
        self._reading[ticket] = (floor, tokens)

    def has_read(self, ticket: Ticket) -> None:
        """It has its first byte; idempotent."""
        reading = self._reading.pop(ticket, None)
        if reading is not None:
            reading[0].reading_tokens -= reading[1]

    def ended(self, ticket: Ticket, returns: bool, now: float) -> Place | None:
        """The ticket ended, or moves; idempotent. Returns the place that it used. ``returns``: a next turn comes."""
        self.has_read(ticket)
        guest = self._guests.pop(ticket, None)
        if guest is not None:
            guest[0].guest_tokens -= guest[1]
        place = self._riding.pop(ticket, None)
        if place is not None:
            place.in_flight -= 1
            place.idle_since = now
            place.returns = returns
        return place

    def clear(self) -> None:
        """Nobody has a place. The scales stay as they were learned."""
        self.by_key.clear()
        self._riding.clear()
        self._guests.clear()
        self._reading.clear()
        for floor in self.floors.values():
            floor.residents.clear()
            floor.tokens = floor.guest_tokens = floor.reading_tokens = 0

    def room(self, floor: Floor, tokens: int, shared_tokens: int, keep_s: float, now: float) -> list[Place] | None:
        """Who would have to leave so that ``tokens`` fit: idle ones whose time is over, the longest idle first.

        None: it does not fit even then. A replica with nothing in it takes anything.
        """
        short = tokens - floor.free_tokens(shared_tokens)
        if short <= 0:
            return []
        due = [
            place
            for place in floor.residents.values()
            if not place.in_flight and (not place.returns or now - place.idle_since > keep_s)
        ]
        leaving = []
        for place in sorted(due, key=_idle_since):
            leaving.append(place)
            short -= place.tokens
            if short <= 0:
                return leaving
        return leaving if len(leaving) == len(floor.residents) and not floor.guest_tokens else None


def _idle_since(place: Place) -> tuple[bool, float]:
    return place.returns, place.idle_since
