"""The waiting room: beyond the caches' capacity only some conversations run, and those keep what was read.

Theory of operation. A cache that is visited in a circle larger than itself holds nothing of what comes next, so beyond
capacity every turn reads its whole context again, wherever it goes. The cure is to hold *places*: so many
conversations as fit are residents of a replica, their turns go at once and find their context; the others wait
here, before any replica, oldest first. What a resident gives up its place for:

* it is idle for longer than a next turn usually takes, or its last turn was no tool call, and somebody needs the room;
* its context has grown, and does not fit any more;
* somebody waits too long: at a turn's boundary, if any waiter would be older than its *patience* when its turn comes

      patience = max(one turn, beta * waiters * time between two ends of turns),  at most max_wait_s

  ``beta`` is the operator's ``prefer``. In a steady state about 1 / beta of the turns wait, each for its patience:
  around 1 everybody waits the mean; from 2.5 on more than half of the turns do not wait at all and the others wait
  longer; without bound only the first turns wait. A resident keeps its place for ``least_turns`` in any case, so many
  that reading its context again stays a small part of the replica's time.

Where waits are long, who has waited before gives way last: a place is kept for one turn more for each wait of its
conversation, so that a session of six turns waits three times (for its turns 1, 2 and 4) and not five. A waiter that is
late by a twentieth of its patience takes one of these turns back: this only chooses among those who could give way.

Short work must not stand behind long work: what is much smaller than the usual resident (a subagent) has a queue of its
own that goes first, until the head of the other one has lost its patience: then everything is kept for that one.

Worked example, one replica that holds four of equal size; a, b, c, d are residents, e waits for 20 s, f for 5 s, a turn
ends each 3 s and takes 12 s. beta = 2.5: patience = max(12, 2.5 * 2 * 3) = 15 s. The next turn of a resident, say of
c, finds that e is older than that: c gives up its place and stands behind f; e goes.

All of this happens only while the switch says so (admission_demand.py). The sizes are admission_places.py and
admission_learned.py; what carries it out is door.py.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from lmwarden.routing.admission_demand import Thrash
from lmwarden.routing.admission_learned import Learned
from lmwarden.routing.admission_places import Place, Places
from lmwarden.routing.replicas import Replica
from lmwarden.types import ConversationKey, RoutingRequest, Ticket

BETA = {"tail": 1.0, "balanced": 2.85, "median": math.inf}
"""By ``prefer``. 2.85 was chosen in virtual time on seeds 1 to 6: with less the output gains less, with more the p95 at
24 sessions exceeds that of vLLM's balancer."""
GROWTH_TURNS = {"tail": 0.0, "balanced": 0.0, "median": 6.0}
"""Who is let in must fit with so many turns' growth, or with that of the turns for which it keeps its place in any
case. Where residents give way to waiters anyway, a tight fit is better."""
MOST_GROWTH_TURNS = 6.0
"""Bound of that."""
REREAD_RATIO = 0.2
"""A resident keeps its place for so many turns that reading it again is no larger part of their time."""
MOST_TURNS = 64
"""Bound of that number."""
LATE_RATIO = 0.05
"""Of its patience: so much later, a waiter takes a turn from those who have waited before."""
LONG_WAIT_TURNS = 2.0
"""Only where waits are longer than so many turns those who have waited before are favoured: it makes sessions more
alike there, and with shorter waits only the longest ones longer."""
MOST_WAITS = 4
"""So many waits of a conversation count, however long it goes on."""
SMALL_RATIO = 0.25
"""Of the mean resident: what is smaller has a queue of its own."""
KEEP_GAPS_RATIO = 1.5
"""An idle place is kept for so many times the gap that a tenth of the gaps exceeds ..."""
KEEP_MIN_S, KEEP_MAX_S = 0.4, 8.0
"""... within these."""
MOST_WAITING = 512
MOST_WAITING_EACH = 16
"""Beyond so many, or so many for each replica where that is more, requests are refused. What bounds a wait is its time;
this bounds what a flood of conversations can make us keep and look through."""


class Waiter:
    """A request in the room."""

    __slots__ = ("key", "request", "since", "small", "ticket", "tokens")

    def __init__(self, ticket: Ticket, request: RoutingRequest, key: ConversationKey, tokens: int, now: float) -> None:
        self.ticket = ticket
        self.request = request
        self.key = key
        self.tokens = tokens
        self.since = now
        self.small = False


class WaitingRoom:
    """Who waits and who goes next. Times in seconds."""

    def __init__(self, replicas: Iterable[Replica], prefer: str, max_wait_s: float) -> None:
        self.learned = Learned()
        self.thrash = Thrash()
        self.places = Places(replicas)
        self.configure(prefer, max_wait_s)
        self.keep_s = KEEP_MIN_S
        self._long: OrderedDict[Ticket, Waiter] = OrderedDict()
        self._small: OrderedDict[Ticket, Waiter] = OrderedDict()

    def configure(self, prefer: str, max_wait_s: float) -> None:
        """What an operator may change."""
        self.beta, self.growth_turns, self.max_wait_s = BETA[prefer], GROWTH_TURNS[prefer], max_wait_s

    def __len__(self) -> int:
        return len(self._long) + len(self._small)

    def __iter__(self) -> Iterator[Waiter]:
        return itertools.chain(self._small.values(), self._long.values())

    def get(self, ticket: Ticket) -> Waiter | None:
        """The waiter, or None."""
        return self._long.get(ticket) or self._small.get(ticket)

    @property
    def is_full(self) -> bool:
        """Nobody else is let in."""
        return len(self) >= max(MOST_WAITING, MOST_WAITING_EACH * len(self.places.floors))

    def enter(self, waiter: Waiter) -> None:
        """Stand at the end."""
        places = self.places
        usual = sum(floor.tokens for floor in places.floors.values()) / max(1, len(places.by_key))
        waiter.small = waiter.tokens < SMALL_RATIO * usual
        (self._small if waiter.small else self._long)[waiter.ticket] = waiter

    def leave(self, waiter: Waiter) -> None:
        """Go, or give up."""
        del (self._small if waiter.small else self._long)[waiter.ticket]

    @property
    def oldest(self) -> Waiter | None:
        """Who waits longest."""
        heads = [next(iter(queue.values())) for queue in (self._small, self._long) if queue]
        return min(heads, key=lambda waiter: waiter.since, default=None)

    @property
    def patience_s(self) -> float:
        """How long a waiter may wait before a resident gives way."""
        if len(self) and self.beta == math.inf:
            return self.max_wait_s
        fair = self.beta * len(self) * self.learned.between_ends_s if len(self) else 0.0
        return min(self.max_wait_s, max(self.learned.turn_s, fair))

    def goes_at_once(self, key: ConversationKey, tokens: int, now: float) -> bool:
        """Whether a turn that arrives keeps its conversation's place. If not, the conversation has none any more.

        While the room is full nobody gives way: who does would be refused.
        """
        place = self.places.of(key)
        if place is None:
            return False
        if place.in_flight:
            self.places.take(key, place.replica, max(tokens, place.tokens))
            return True
        if (self.is_full or not self._must_give_way(place, now)) and self._grow(place, tokens, now):
            return True
        self.places.leave(place)
        return False

    def _grow(self, place: Place, tokens: int, now: float) -> bool:
        """Make its place so large, if it fits; by one turn's growth beyond that if it is kept because of waits."""
        floor = self.places.floors[place.replica]
        kept = place.turns < self._kept_turns(place)
        more = tokens - place.tokens - (int(self.learned.growth_tokens) if kept else 0)
        place.in_flight += 1  # it does not make room for itself
        leaving = self.places.room(floor, more, self.learned.shared_tokens, self.keep_s, now)
        place.in_flight -= 1
        if leaving is None and len(floor.residents) > 1:
            return False
        for other in leaving or ():
            self.places.leave(other)
        self.places.take(place.key, place.replica, tokens)
        return True

    def _must_give_way(self, place: Place, now: float) -> bool:
        if not self._long or place.turns < self.least_turns(place.tokens) or not self._helps(place):
            return False
        between_s, patience_s = self.learned.between_ends_s, self.patience_s
        wait_s = max(now - waiter.since + turn * between_s for turn, waiter in enumerate(self._long.values(), start=1))
        if wait_s <= patience_s:
            return False
        late = (wait_s - patience_s) / (LATE_RATIO * patience_s) if patience_s else math.inf
        return place.turns >= self._kept_turns(place) - max(0.0, late - 1.0)

    def _helps(self, place: Place) -> bool:
        """Whether what it gives up serves who is next. For one that needs a replica to itself, one is emptied."""
        if next(iter(self._long.values())).tokens <= self.learned.most_tokens - 1:
            return True
        shared = self.learned.shared_tokens
        floors = [floor for floor in self.places.floors.values() if floor.replica.is_ready]
        return place.replica is max(floors, key=lambda floor: floor.free_tokens(shared)).replica

    def _kept_turns(self, place: Place) -> int:
        """For so many turns a place is kept because its conversation has waited before."""
        return min(MOST_WAITS, place.waits) if self.patience_s > LONG_WAIT_TURNS * self.learned.turn_s else 0

    def least_turns(self, tokens: int) -> int:
        """So many turns a place of that size is kept: what reading it again costs, over a turn's time."""
        if not self.learned.turn_s:
            return 1
        cost = self.learned.reading_s(tokens) / (REREAD_RATIO * self.learned.turn_s)
        return min(MOST_TURNS, max(1, int(cost)))

    def next(self, candidates: Iterable[Replica], now: float) -> tuple[Waiter, Replica] | None:
        """Who goes now, and where; makes room there. None: nobody."""
        heads = [next(iter(queue.values())) for queue in (self._small, self._long) if queue]
        if len(heads) == 2:
            small, long = heads
            if (small.since, small.ticket) > (long.since, long.ticket) and now - long.since > self.patience_s:
                del heads[0]  # what becomes free is kept for the other one
        for waiter in heads:
            replica = self._make_place(waiter, candidates, now)
            if replica is not None:
                return waiter, replica
        return None

    def _make_place(self, waiter: Waiter, candidates: Iterable[Replica], now: float) -> Replica | None:
        shared = self.learned.shared_tokens
        growth_turns = max(self.growth_turns, min(MOST_GROWTH_TURNS, self.least_turns(waiter.tokens) - 1))
        growth = int(growth_turns * self.learned.growth_tokens)
        found: list[tuple[tuple[int, int, int, float], Replica, list[Place]]] = []
        for replica in candidates:
            floor = self.places.floors[replica]
            leaving = self.places.room(floor, waiter.tokens + growth, shared, self.keep_s, now)
            if leaving is not None:
                rank = (floor.reading_tokens, replica.in_flight, len(leaving), -floor.free_tokens(shared))
                found.append((rank, replica, leaving))
        if not found:
            return None
        _, chosen, leaving = min(found, key=lambda one: one[0])
        for place in leaving:
            self.places.leave(place)
        return chosen

    def refresh(self) -> None:
        """Derive what is not worth deriving for every request."""
        gap_s = self.learned.gap_quantile_s(0.9)
        if gap_s is not None:
            self.keep_s = min(KEEP_MAX_S, max(KEEP_MIN_S, KEEP_GAPS_RATIO * gap_s))
        shared = self.learned.shared_tokens
        held = (floor.capacity_tokens(shared) for floor in self.places.floors.values() if floor.replica.is_ready)
        self.learned.most_tokens = max(held, default=0.0) or math.inf
