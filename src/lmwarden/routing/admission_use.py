"""What the conversations in use need, over what the replicas hold: the demand that the switch looks at.

In use is what is in flight, what waits, and what was in flight a moment ago and comes back. Each counts with its whole
context, once, however many requests it has; what all share stands once in each replica and is no part of it.

Where one ready replica says nothing of its KV capacity, what all hold together is not known, and nobody is held: places
in the others alone would send everybody there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import islice

from lmwarden.routing.admission import WaitingRoom
from lmwarden.routing.conversations import Conversation, ConversationTable
from lmwarden.routing.open_turn import OpenTurn
from lmwarden.routing.replicas import Fleet
from lmwarden.types import ConversationKey, Ticket

MOST_OPEN = 1024
"""So many open turns are looked at, spread evenly, and stand for the others."""
MOST_IDLE = 4096
"""So many idle conversations are looked at. Where more are in use, they need a multiple of what there is anyway."""
LIVE_MIN_S = 1.0
"""An idle conversation is part of the demand for at least so long."""


class Use:
    """Of one model."""

    def __init__(
        self,
        room: WaitingRoom,
        fleet: Fleet,
        table: ConversationTable,
        open_turns: Callable[[], Collection[tuple[Ticket, OpenTurn]]],
    ) -> None:
        self._room = room
        self._fleet = fleet
        self._table = table
        self._open_turns = open_turns
        self._capacity_tokens = 0.0
        """What was compared last."""
        self._usual_tokens = 0.0
        """Of a conversation in use."""

    @property
    def capacity_known(self) -> bool:
        """Every replica that takes turns reports what its cache holds."""
        return all(replica.capacity.kv_cache_tokens for replica in self._fleet.ready or self._fleet)

    @property
    def for_median(self) -> bool:
        """Places are held in the caches alone, and though a CPU tier keeps contexts."""
        return self._room.beta == math.inf

    def demand_ratio(self, now: float) -> float:
        """Need over capacity; 0 where that is not known."""
        learned, shared = self._room.learned, self._room.learned.shared_tokens
        floors = [self._room.places.floors[replica] for replica in self._fleet.ready]
        with_tier = not self.for_median
        kept = [floor.kept_tokens(shared) if with_tier else floor.capacity_tokens(shared) for floor in floors]
        self._capacity_tokens = capacity = sum(kept) if self.capacity_known else 0.0
        if capacity <= 0.0:
            return 0.0
        open_turns = self._open_turns()
        step = 1 + len(open_turns) // MOST_OPEN
        each = len(open_turns) / max(1, len(range(0, len(open_turns), step)))  # stand behind one that is looked at
        turns: dict[ConversationKey, int] = {}
        for _, turn in islice(open_turns, 0, None, step):
            if turn.key is not None:
                turns[turn.key] = learned.footprint(turn.request, turn.conversation)
        total, count = each * sum(turns.values()), each * len(turns)
        for waiter in self._room:
            total += waiter.tokens - turns.get(waiter.key, 0)
            count += waiter.key not in turns
            turns[waiter.key] = waiter.tokens
        idle = [max(0, c.context_tokens - shared) for key, c in self.idle(now) if key not in turns]
        total += sum(idle)
        self._usual_tokens = total / (count + len(idle)) if total else 0.0
        return total / capacity

    def idle(self, now: float) -> list[tuple[ConversationKey, Conversation]]:
        """Conversations whose next turn is about to come."""
        since = now - max(LIVE_MIN_S, self._room.keep_s)
        found = []
        for key, conversation in islice(self._table.used_since(since), MOST_IDLE):
            returns = conversation.returns or self._room.learned.comes_back
            if returns and not conversation.in_flight and conversation.has_home:
                found.append((key, conversation))
        return found

    @property
    def room_for(self) -> int | None:
        """So many conversations more would fit; None: not known."""
        if not self._usual_tokens or not self._capacity_tokens:
            return None
        return max(0, int(self._capacity_tokens * (1.0 - self._room.thrash.demand_ratio) / self._usual_tokens))

    @property
    def tier_tokens(self) -> int | None:
        """Of the CPU tiers that keep more than the caches before them; None: there is none."""
        shared, tiers = self._room.learned.shared_tokens, 0
        for replica in self._fleet.ready:
            floor = self._room.places.floors[replica]
            if floor.kept_tokens(shared) > floor.capacity_tokens(shared):
                tiers += replica.capacity.cpu_cache_tokens or 0
        return tiers or None
