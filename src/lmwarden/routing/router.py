"""The router: one object per model that decides where each request goes.

It is a pure state machine (see contract.py). Reading and changing state happen in one call, with nothing
awaited between them; every reservation is released exactly once, because closing a ticket removes it.

It holds the open tickets and the counts; what is decided, and why, is in deciding.py; what it is told of replicas, in
replica_calls.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lmwarden.routing.conversations import RETURNS, Conversation, ConversationTable
from lmwarden.routing.deciding import Decider
from lmwarden.routing.door import Door
from lmwarden.routing.engine_balancer import BalancerVersion
from lmwarden.routing.explain import Choice, explanation, grounds
from lmwarden.routing.homes import export_homes, restore_homes, take_changes
from lmwarden.routing.open_turn import OpenTurn
from lmwarden.routing.replica_calls import ReplicaCalls
from lmwarden.routing.replicas import DEFAULT_WEIGHTS, Fleet, Weights
from lmwarden.routing.shared_ids import split_shared
from lmwarden.routing.view import last_used, router_view
from lmwarden.types import (
    Action,
    ConversationKey,
    ConversationView,
    Decision,
    Dispatch,
    Explanation,
    Grounds,
    Home,
    HomeChanges,
    Outcome,
    Refuse,
    RefuseReason,
    ReplicaId,
    RouterView,
    RoutingRequest,
    RoutingSettings,
    Ticket,
    Usage,
)

OPENING_TURNS = 8
"""For so many turns an id's openings are compared, to find constants that several clients share."""

RETRY_AFTER_S = 5
"""What a refused client is told to wait, in seconds."""


# A look-up in an Enum is slow in Python 3.11; these are needed for every request.
_STICKY, _SPILLED, _CLIENT_PINNED = Decision.STICKY, Decision.SPILLED, Decision.CLIENT_PINNED
_OK, _CLIENT_ERROR, _TIMEOUT, _FAILED = Outcome.OK, Outcome.CLIENT_ERROR, Outcome.TIMEOUT, Outcome.FAILED


class Router(ReplicaCalls):
    """LM Warden's router. Implements ``RouterContract``."""

    def __init__(
        self,
        settings: RoutingSettings,
        *,
        engines: Mapping[str, int],
        seed: int = 0,
        emulated_balancer: BalancerVersion = "0.27",
        weights: Weights = DEFAULT_WEIGHTS,
    ) -> None:
        """Args:
        settings: What an operator may change.
        engines: Name of each engine to its number of data-parallel ranks.
        seed: Order in which untouched replicas are tried.
        emulated_balancer: Which balancer chooses an engine when affinity is off and there are several.
        weights: Of the placement sum.
        """
        self._settings = settings
        self._fleet = Fleet(engines, seed, weights)
        self._table = ConversationTable(self._fleet, settings.max_conversations, settings.live_s)
        threshold, self._threshold_source = self._fleet.spill_threshold(settings.spill_threshold)
        self._decider = Decider(settings, self._fleet, threshold, emulated_balancer)
        self._open: dict[Ticket, OpenTurn] = {}
        self._last_ticket = 0
        self._decisions = dict.fromkeys(Decision, 0)
        self._refused = 0
        self._left_room = 0
        """Requests whose client left while they waited."""
        self._wait_expired = 0
        self._door: Door | None = None
        """None: admission is off, or affinity."""
        self._open_door(0.0)

    # Requests

    def offer(self, request: RoutingRequest, now: float) -> tuple[Ticket, Sequence[Action]]:
        """Decide, and reserve. See ``RouterContract``."""
        self._last_ticket = ticket = self._last_ticket + 1
        if request.opening is not None:
            request = split_shared(self._table, request, now)
        key = request.conversation
        conversation = None if key is None else self._table.get(key)
        choice = self._decide(request, conversation, now)
        if not isinstance(choice, Choice):  # a question about an Enum's members would go through its metaclass
            self._refused += 1
            return ticket, (Refuse(ticket, choice, RETRY_AFTER_S),)
        door = self._door
        if door is not None:
            instead = door.came(ticket, request, conversation, choice, now)
            if instead is not None:
                return ticket, instead
        return ticket, (self._send(ticket, request, conversation, choice, now),)

    def _send(
        self, ticket: Ticket, request: RoutingRequest, conversation: Conversation | None, choice: Choice, now: float
    ) -> Dispatch:
        """Carry a choice out: reserve."""
        key = request.conversation
        entry = OpenTurn(request, key if choice.binds else None, choice, now, choice.engine.runs)
        self._open[ticket] = entry
        if entry.key is not None:
            if conversation is None:
                conversation = self._table.add(entry.key, now)
                conversation.opening = request.opening
            self._begin_turn(entry, conversation, now)
        self._reserve(choice)
        if self._door is not None and self._door.thrash.engaged:
            self._door.went(ticket, request, entry.key, choice, now)
        replica = choice.replica
        return Dispatch(ticket, None if replica is None else replica.id, choice.engine.name, choice.decision)

    def failed_before_response(self, ticket: Ticket, now: float) -> Sequence[Action]:
        """See ``RouterContract``."""
        entry = self._open.get(ticket)
        if entry is None:
            return ()
        failed = entry.choice
        if entry.run == failed.engine.runs:
            for replica in failed.engine.replicas:
                self._fleet.failed(replica, now, certain=True)
        if entry.retried:
            return self._give_up(ticket, entry, RefuseReason.RETRY_EXHAUSTED, now)
        choice = self._decider.decide_again(entry.request, entry.conversation, failed, now)
        if isinstance(choice, RefuseReason):
            return self._give_up(ticket, entry, choice, now)
        entry.retried = True
        self._release(failed)
        entry.choice = choice
        entry.run = choice.engine.runs
        entry.sent_at = now
        if entry.conversation is not None:
            self._table.detach(entry.conversation)
            self._bind(entry, entry.conversation)
            self._table.attach(entry.conversation)
            assert entry.key is not None
            self._table.note(entry.key)
        self._reserve(choice)
        if self._door is not None:
            self._door.moved(ticket, entry.request, entry.key, choice, now)
        return (Dispatch(ticket, choice.replica_id, choice.engine.name, choice.decision),)

    def first_byte(self, ticket: Ticket, now: float) -> None:
        """See ``RouterContract``."""
        entry = self._open.get(ticket)
        if entry is not None:
            entry.first_byte_at = now
            if self._door is not None and self._door.thrash.engaged:
                self._door.room.places.has_read(ticket)

    def finished(self, ticket: Ticket, outcome: Outcome, usage: Usage | None, now: float) -> Sequence[Action]:
        """See ``RouterContract``."""
        entry = self._open.get(ticket)
        if entry is not None:
            replica = entry.choice.replica
            if replica is not None and entry.run == replica.engine.runs:
                if outcome is _OK or outcome is _CLIENT_ERROR:
                    if replica.failures:
                        replica.succeeded()
                elif outcome is _TIMEOUT or outcome is _FAILED:
                    self._fleet.failed(replica, now, certain=outcome is _TIMEOUT)
            self._end_reservation(entry.choice)
            if self._door is not None and outcome is _OK and usage is not None:
                self._door.ends.note(ticket, entry, usage, now)
            return self._close(ticket, entry, usage, now)
        return ()

    def cancelled(self, ticket: Ticket, now: float) -> Sequence[Action]:
        """See ``RouterContract``."""
        entry = self._open.get(ticket)
        if entry is not None:
            self._end_reservation(entry.choice)
            if entry.conversation is not None:
                entry.conversation.returns = False  # whoever breaks a turn off may be gone
            return self._close(ticket, entry, None, now)
        actions = None if self._door is None else self._door.gave_up(ticket, now)
        if actions is None:
            return ()
        self._left_room += 1
        return actions

    def wants_opening(self, conversation: ConversationKey) -> bool:
        """See ``RouterContract``: unknown ids (forks), young ones and overlapping turns (shared constants)."""
        if not self._settings.affinity:
            return False
        known = self._table.get(conversation)
        return known is None or known.shared or known.in_flight > 0 or known.turns < OPENING_TURNS

    # The rest of the contract

    def configure(self, settings: RoutingSettings, now: float) -> Sequence[Action]:
        """See ``RouterContract``."""
        self._settings = settings
        self._table.max_conversations = settings.max_conversations
        self._table.live_s = settings.live_s
        self._table.expire(now)
        self._decider.configure(settings)
        self._update_threshold()
        return self._open_door(now)

    def _open_door(self, now: float) -> Sequence[Action]:
        """Have a waiting room, or none, as the settings say; whoever waits goes where there is none any more."""
        settings, door = self._settings, self._door
        if settings.admission == "auto" and settings.affinity:
            if door is None:
                self._door = Door(settings, self._fleet, self._table, self, now)
                return ()
            return door.configure(settings, now)
        self._door = None
        return () if door is None else door.open(now)

    def tick(self, now: float) -> Sequence[Action]:
        """See ``RouterContract``."""
        self._table.expire(now)
        return () if self._door is None else self._door.tick(now)

    def next_deadline(self) -> float | None:
        """See ``RouterContract``."""
        if self._door is None:
            return self._table.next_expiry
        at = self._door.next_deadline
        return at if self._table.next_expiry is None else min(at, self._table.next_expiry)

    def export_homes(self) -> list[Home]:
        """See ``RouterContract``."""
        return export_homes(self._table)

    def take_home_changes(self) -> HomeChanges:
        """See ``RouterContract`` and ``homes.take_changes``."""
        return take_changes(self._table)

    def restore_homes(self, homes: Iterable[Home], boot_ids: Mapping[ReplicaId, str], now: float) -> int:
        """See ``RouterContract`` and ``homes.restore_homes``."""
        return restore_homes(self._table, self._fleet, homes, boot_ids, now)

    def view(self, now: float) -> RouterView:
        """See ``RouterContract``."""
        self._table.expire(now)
        return router_view(
            self._fleet,
            self._settings,
            now,
            threshold=(self._decider.threshold, self._threshold_source),
            in_flight=len(self._open),
            decisions=self._decisions,
            refused=self._refused,
            wait_expired=self._wait_expired,
            conversations=len(self._table),
            room=None if self._door is None else self._door.view(now),
            places=None if self._door is None else self._door.room.places,
        )

    def explain(self, ticket: Ticket) -> Explanation:
        """See ``RouterContract``."""
        entry = self._open.get(ticket)
        if entry is None and self._door is not None:
            return self._door.explain(ticket, self._decider.threshold)
        return explanation(ticket, self._open[ticket].choice, self._open[ticket].retried)

    def grounds(self, ticket: Ticket) -> Grounds | None:
        """See ``RouterContract``."""
        entry = self._open.get(ticket)
        return None if entry is None else grounds(entry.request.conversation, entry.choice)

    def conversations(self, now: float, most: int) -> tuple[ConversationView, ...]:
        """See ``RouterContract``."""
        return last_used(self._table, now, most)

    # What the door of the waiting room asks for

    def decide(self, request: RoutingRequest, now: float) -> Choice | RefuseReason:
        """Decide for a request that waited."""
        conversation = None if request.conversation is None else self._table.get(request.conversation)
        return self._decide(request, conversation, now)

    def send(self, ticket: Ticket, request: RoutingRequest, choice: Choice, now: float) -> Dispatch:
        """Send a request that waited."""
        conversation = None if request.conversation is None else self._table.get(request.conversation)
        return self._send(ticket, request, conversation, choice, now)

    def refuse(self, ticket: Ticket, reason: RefuseReason, retry_after_s: int) -> Refuse:
        """Refuse a request that waits, or would."""
        self._refused += 1
        return Refuse(ticket, reason, retry_after_s)

    def wait_expired(self) -> None:
        """Count one that goes because it has waited for ``max_wait_s``: here, because rooms come and go."""
        self._wait_expired += 1

    def open_turns(self) -> Collection[tuple[Ticket, OpenTurn]]:
        """Everything that was sent and has not ended."""
        return self._open.items()

    # Reservations

    def _decide(self, request: RoutingRequest, conversation: Conversation | None, now: float) -> Choice | RefuseReason:
        return self._decider.decide(request, conversation, now)

    def _reserve(self, choice: Choice) -> None:
        decision, replica = choice.decision, choice.replica
        self._decisions[decision] += 1
        if replica is None:
            self._fleet.unrouted(choice.engine, +1)
            return
        replica.in_flight += 1
        replica.decisions[decision] += 1
        if decision is not _STICKY and decision is not _CLIENT_PINNED:
            self._fleet.assigned(replica)

    def _release(self, choice: Choice) -> None:
        """Undo a reservation that moves elsewhere: only the final decision is counted."""
        self._decisions[choice.decision] -= 1
        if choice.replica is not None:
            choice.replica.decisions[choice.decision] -= 1
        self._end_reservation(choice)

    def _end_reservation(self, choice: Choice) -> None:
        if choice.replica is None:
            self._fleet.unrouted(choice.engine, -1)
        else:
            choice.replica.in_flight -= 1

    def _give_up(self, ticket: Ticket, entry: OpenTurn, reason: RefuseReason, now: float) -> Sequence[Action]:
        self._refused += 1
        self._release(entry.choice)
        actions = self._close(ticket, entry, None, now)
        conversation = entry.conversation
        if conversation is not None and conversation.turns == 1 and entry.key is not None:
            self._table.remove(entry.key, conversation)  # it never had a turn
        return (Refuse(ticket, reason, RETRY_AFTER_S), *actions)

    def _begin_turn(self, entry: OpenTurn, conversation: Conversation, now: float) -> None:
        assert entry.key is not None
        entry.conversation = conversation
        conversation.parent, conversation.derived = entry.request.parent, entry.request.derived
        if entry.request.opening is None:
            conversation.opening = None  # not looked at any more: an old one must not be compared with a later one
        decision = entry.choice.decision
        if decision is _STICKY or decision is _SPILLED:
            self._table.resume(entry.key, conversation, now)
            self._bind(entry, conversation)
        else:
            self._table.detach(conversation)
            self._table.touch(entry.key, conversation, now)
            conversation.in_flight += 1
            self._bind(entry, conversation)
            self._table.attach(conversation)
        conversation.turns += 1

    def _bind(self, entry: OpenTurn, conversation: Conversation) -> None:
        """Carry a choice over to its conversation; while detached, if that moves its home."""
        replica, decision = entry.choice.replica, entry.choice.decision
        assert replica is not None
        if decision is _SPILLED:
            conversation.spill_to(replica)
        elif decision is _STICKY:
            conversation.spilled = False
        else:
            conversation.bind(replica)
        opening, parent = conversation.opening, entry.request.parent
        if opening is not None or parent is not None:
            assert conversation.home is not None
            self._decider.kin.remember(opening, parent, conversation.home)

    def _close(self, ticket: Ticket, entry: OpenTurn, usage: Usage | None, now: float) -> Sequence[Action]:
        """Close a ticket whose reservation has ended; nothing can release it again."""
        del self._open[ticket]
        conversation, returns = entry.conversation, False
        if conversation is not None:
            assert entry.key is not None
            context_tokens, returns = conversation.context_tokens, conversation.returns
            if usage is not None and usage.prompt_tokens is not None:
                context_tokens = usage.prompt_tokens + (usage.completion_tokens or 0)
                returns = usage.finish_reason in RETURNS
                conversation.body_bytes = entry.request.body_bytes
            self._table.end_turn(entry.key, conversation, context_tokens, returns, now)
        door = self._door
        if door is None:
            return ()
        if not self._open:
            door.ends.lull()
        return door.ended(ticket, returns, now) if door.thrash.engaged else ()
