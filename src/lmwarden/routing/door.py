"""The door of the waiting room: where the router asks it, and what it lets out.

The router calls here for every request while admission is on. As long as the room is not engaged this only looks on:
``ends`` notes the ends of turns, and every ``LOOK_S`` it compares demand with capacity. When the room engages,
whoever is in flight or was a moment ago gets a place, even where that is more than fits: places are given up, never
taken from a running turn. While it is engaged, a turn that keeps a conversation's home needs a place; everything else
(pins, auxiliary calls, requests of no conversation, turns that spill) is a guest. When it disengages all who wait go.

A waiter's decision is made when it goes, not when it comes: where its home takes it, it is ``sticky``; where another
replica does, its home's cache has lost it, and it is ``rehomed``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Protocol

from lmwarden.routing.admission import KEEP_MAX_S, Waiter, WaitingRoom
from lmwarden.routing.admission_ends import Ends
from lmwarden.routing.admission_use import Use
from lmwarden.routing.admission_words import why, why_code
from lmwarden.routing.conversations import Conversation, ConversationTable, by_last_used
from lmwarden.routing.explain import Choice, Why
from lmwarden.routing.open_turn import OpenTurn
from lmwarden.routing.replicas import Fleet, Replica
from lmwarden.types import (
    Action,
    ConversationKey,
    Decision,
    Dispatch,
    Explanation,
    Refuse,
    RefuseReason,
    RoomView,
    RoutingRequest,
    RoutingSettings,
    Ticket,
)

LOOK_S = 0.5
"""How often demand is compared with capacity."""
PUMP_S = 0.1
"""How often idle places are looked at while somebody waits."""


class Sends(Protocol):
    """What the door needs of the router."""

    def decide(self, request: RoutingRequest, now: float) -> Choice | RefuseReason:
        """As if it had just come."""
        ...

    def send(self, ticket: Ticket, request: RoutingRequest, choice: Choice, now: float) -> Dispatch:
        """Carry a choice out."""
        ...

    def refuse(self, ticket: Ticket, reason: RefuseReason, retry_after_s: int) -> Refuse:
        """Refuse it."""
        ...

    def wait_expired(self) -> None:
        """One goes because it has waited for ``max_wait_s``."""
        ...

    def open_turns(self) -> Collection[tuple[Ticket, OpenTurn]]:
        """Everything that was sent and has not ended."""
        ...


_HELD = frozenset({Decision.PLACED, Decision.STICKY, Decision.REHOMED})
"""Who needs a place: turns of a conversation that stay where they go."""


def _since(waiter: Waiter) -> tuple[float, Ticket]:
    return waiter.since, waiter.ticket


class Door:
    """Of one router. Created when admission is switched on."""

    def __init__(
        self, settings: RoutingSettings, fleet: Fleet, table: ConversationTable, router: Sends, now: float
    ) -> None:
        self._fleet = fleet
        self._table = table
        self._router = router
        self.room = WaitingRoom(fleet, settings.prefer, settings.max_wait_s)
        self.thrash = self.room.thrash
        """Whether turns need places (``engaged``)."""
        self._use = Use(self.room, fleet, table, router.open_turns)
        self.ends = Ends(self.room)
        self._gaps = self.room.learned.gaps
        self._look_at = now + LOOK_S
        self._pump_at = math.inf

    def configure(self, settings: RoutingSettings, now: float) -> Sequence[Action]:
        """Other settings, admission still on."""
        self.room.configure(settings.prefer, settings.max_wait_s)
        return self.pump(now)

    def replicas_changed(self, now: float) -> Sequence[Action]:
        """One came or went. Where none is left, whoever waits is refused at once, as are those who come."""
        self.room.places.sweep()
        return self.pump(now) if self._fleet.ready else self.open(now)

    def replicas_will_change(self, now: float) -> None:
        """One is being drained, or is back: nobody is let out in this call, but with the next tick, which is due."""
        self.room.places.sweep()
        if len(self.room):
            self._pump_at = now

    # Requests

    def _came_back(self, conversation: Conversation, now: float) -> None:
        """The next turn of a conversation that was idle. If it is refused, and comes again, that is no other gap."""
        if conversation.gap_turns == conversation.turns:
            return
        conversation.gap_turns = conversation.turns
        gap_s = now - conversation.last_used
        if conversation.returns:
            self._gaps.append(gap_s)
        elif gap_s < KEEP_MAX_S:
            self._gaps.append(gap_s)
            self.room.learned.came_back()

    def came(
        self, ticket: Ticket, request: RoutingRequest, conversation: Conversation | None, choice: Choice, now: float
    ) -> Sequence[Action] | None:
        """A request that could go as ``choice`` says. None: it goes; else what happens instead."""
        room, key = self.room, request.conversation
        if conversation is not None and choice.binds and not conversation.in_flight:
            self._came_back(conversation, now)
        if not self.thrash.engaged or key is None or choice.decision not in _HELD or request.engine is not None:
            return None
        tokens = room.learned.footprint(request, conversation)
        if room.goes_at_once(key, tokens, now):
            return None
        actions = self.pump(now) if room.is_full else []  # it may have given up a place
        if room.is_full:
            retry_s = max(1, min(60, math.ceil(len(room) * room.learned.between_ends_s)))
            return (self._router.refuse(ticket, RefuseReason.ROOM_FULL, retry_s), *actions)
        room.enter(Waiter(ticket, request, key, tokens, now))
        return [*actions, *self.pump(now)]

    def went(
        self, ticket: Ticket, request: RoutingRequest, key: ConversationKey | None, choice: Choice, now: float
    ) -> None:
        """While engaged, a request was sent."""
        if choice.replica is None:
            return
        conversation = None if key is None else self._table.get(key)
        tokens = self.room.learned.footprint(request, conversation)
        self._count(ticket, request, key, choice, tokens)

    def _count(
        self, ticket: Ticket, request: RoutingRequest, key: ConversationKey | None, choice: Choice, tokens: int
    ) -> None:
        """Give it its conversation's place, or make it a guest."""
        replica, places = choice.replica, self.room.places
        assert replica is not None
        place = None if key is None else places.of(key)
        if key is None or choice.decision not in _HELD or (request.engine is not None and place is None):
            places.visit(ticket, replica, tokens)
            return
        if place is not None and place.in_flight:
            tokens = max(tokens, place.tokens)  # beside a turn that is larger
        places.ride(ticket, places.take(key, replica, tokens))

    def moved(
        self, ticket: Ticket, request: RoutingRequest, key: ConversationKey | None, choice: Choice, now: float
    ) -> None:
        """It was sent again, maybe elsewhere."""
        self.room.places.ended(ticket, returns=True, now=now)
        if self.thrash.engaged:
            self.went(ticket, request, key, choice, now)

    def gave_up(self, ticket: Ticket, now: float) -> Sequence[Action] | None:
        """The client left. None: the ticket does not wait."""
        waiter = self.room.get(ticket)
        if waiter is None:
            return None
        self.room.leave(waiter)
        return self.pump(now)

    def ended(self, ticket: Ticket, returns: bool, now: float) -> Sequence[Action]:
        """While engaged, a request that was sent has ended."""
        self.room.places.ended(ticket, returns or self.room.learned.comes_back, now)
        return self.pump(now)

    # Time

    @property
    def next_deadline(self) -> float:
        """When ``tick`` has something to do."""
        return min(self._look_at, self._pump_at)

    def tick(self, now: float) -> list[Action]:
        """Look at demand, let out who may go."""
        actions: list[Action] = []
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self.ends.catch_up()
            self.room.refresh()
            gap_s = self.room.learned.gap_quantile_s(0.75)
            demand_ratio = self._use.demand_ratio(now)
            waiting = len(self.room) if self._use.capacity_known else 0  # nobody waits for what is not known
            idle_ratio = self.room.learned.idle_ratio(self.room.keep_s)
            if self.room.thrash.look(
                demand_ratio, gap_s, waiting, now, idle_ratio=idle_ratio, though_kept=self._use.for_median
            ):
                if self.thrash.engaged:
                    self._give_places(now)
                else:
                    actions += self.open(now)
        # All may have been drained: then those who wait are refused, as are those who come.
        actions += self.pump(now) if self._fleet.ready or not len(self.room) else self.open(now)
        return actions

    def pump(self, now: float) -> list[Action]:
        """Let out whoever may go: those who have waited for too long, then those for whom there is room."""
        room, actions = self.room, []
        while (oldest := room.oldest) is not None and now >= oldest.since + room.max_wait_s:
            self._router.wait_expired()
            actions += self._let_go_together(oldest, None, now)
        while len(room):
            found = room.next(self._fleet.usable(now), now)
            if found is None:
                break
            actions += self._let_go_together(*found, now)
        self._pump_at = math.inf
        if oldest is not None and len(room):
            self._pump_at = min(now + PUMP_S, oldest.since + room.max_wait_s)
        return actions

    def open(self, now: float) -> list[Action]:
        """All who wait go, the oldest first, and nobody has a place."""
        actions = [self._let_go(waiter, None, now) for waiter in sorted(self.room, key=_since)]
        self.room.places.clear()
        self._pump_at = math.inf
        return actions

    def _let_go_together(self, waiter: Waiter, replica: Replica | None, now: float) -> list[Action]:
        """And with it, to the same place, what else waits of its conversation: one context, and none overtakes."""
        actions = [self._let_go(waiter, replica, now)]
        place = self.room.places.of(waiter.key)
        if place is not None:
            others = sorted((other for other in self.room if other.key == waiter.key), key=_since)
            actions += [self._let_go(other, place.replica, now) for other in others]
        return actions

    def _let_go(self, waiter: Waiter, replica: Replica | None, now: float) -> Action:
        self.room.leave(waiter)
        choice = self._router.decide(waiter.request, now)
        if isinstance(choice, RefuseReason):
            return self._router.refuse(waiter.ticket, choice, 5)
        if replica is not None and choice.binds and choice.replica is not replica:
            choice = self._elsewhere(choice, replica)
        action = self._router.send(waiter.ticket, waiter.request, choice, now)
        if self.thrash.engaged and choice.replica is not None:
            self._seated(waiter, choice.replica)
        return action

    def _seated(self, waiter: Waiter, replica: Replica) -> None:
        places, conversation = self.room.places, self._table.get(waiter.key)
        places.reads(waiter.ticket, replica, waiter.tokens)
        place = places.riding(waiter.ticket)
        if place is not None and conversation is not None and place.in_flight == 1:  # who goes with it waited with it
            conversation.waits += 1
            place.waits = conversation.waits

    def _elsewhere(self, choice: Choice, replica: Replica) -> Choice:
        new = choice.decision is Decision.PLACED
        decision = Decision.PLACED if new else Decision.REHOMED
        return Choice(decision, replica.engine, replica, choice.threshold, Why.ROOM, choice.home)

    def _give_places(self, now: float) -> None:
        places, learned = self.room.places, self.room.learned
        for ticket, turn in self._router.open_turns():
            if turn.choice.replica is not None:
                tokens = learned.footprint(turn.request, turn.conversation)
                self._count(ticket, turn.request, turn.key, turn.choice, tokens)
        for key, conversation in sorted(self._use.idle(now), key=by_last_used, reverse=True):
            assert conversation.home is not None
            place = places.take(key, conversation.home, max(1, conversation.context_tokens - learned.shared_tokens))
            place.idle_since = conversation.last_used

    # For people

    def view(self, now: float) -> RoomView:
        """The room at ``now``."""
        room, places = self.room, self.room.places
        oldest = room.oldest
        reserved = sum(floor.tokens for floor in places.floors.values())
        return RoomView(
            engaged=room.thrash.engaged,
            waiting=len(room),
            longest_wait_s=None if oldest is None else now - oldest.since,
            residents=len(places.by_key),
            reserved_tokens=reserved,
            room_for=self._use.room_for,
            demand_ratio=room.thrash.demand_ratio,
            why=self._why(),
            why_code=self._why_code(),
            gap_s=room.learned.gap_quantile_s(0.75),
            tier_tokens=self._use.tier_tokens,
        )

    def _why_code(self) -> str:
        return why_code(
            self.room.thrash,
            self.room.learned.gap_quantile_s(0.75),
            capacity_known=self._use.capacity_known,
            though_kept=self._use.for_median,
        )

    def _why(self) -> str:
        return why(self._why_code(), self.room.thrash.demand_ratio, self.room.learned.gap_quantile_s(0.75))

    def explain(self, ticket: Ticket, threshold: int) -> Explanation:
        """Of a request that waits.

        Raises:
            KeyError: it does not wait.
        """
        waiter = self.room.get(ticket)
        if waiter is None:
            raise KeyError(ticket)
        ahead = sum(1 for other in self.room if other.small is waiter.small and other.ticket < ticket)
        return Explanation(
            ticket=ticket,
            decision=None,
            replica=None,
            reason=f"It waits for a place of {waiter.tokens} tokens with {ahead} requests before it. {self._why()}",
            home=None,
            home_in_flight=None,
            spill_threshold=threshold,
            retried=False,
            candidates=(),
        )
