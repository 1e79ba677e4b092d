"""The conversation table: bounded, and hard to flush.

Conversations stand in three orders of last use, so that everything is O(1) and a flood of ids that are
used once cannot push out those that come back:

* ``fresh``: live, one turn so far;
* ``established``: live, came back at least once;
* ``dormant``: were established, then unused for ``live_s``; their home may still hold the prefix in the morning.

Eviction takes the oldest of ``fresh`` while they are more than half of the table; else of ``dormant``, then of
``fresh``, then of ``established``. A conversation with a request in flight is never evicted. A fresh one that never
came back is dropped when it stops being live.

What a live conversation adds to its home's sums (see replicas.py) depends on its fields alone; so every change
of them goes ``detach``, change, ``attach``. ``resume`` and ``end_turn`` are that for the usual case, a turn at home,
and only touch the sums that change.

Whose home is to be written down again is noted by key alone (``touched``): what became of it is looked up when
somebody asks (homes.py), so a turn pays for one entry in a set.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeAlias

from lmwarden.routing.replicas import Fleet, Replica
from lmwarden.types import ConversationKey

RETURNS = ("tool_calls", "tool_use")
"""Finish reasons after which the next turn is about to come."""

UNCERTAIN_WEIGHT = 0.25
"""How much an idle conversation counts whose last turn did not end in a tool call: it may be over."""
IDLE_WEIGHT = (UNCERTAIN_WEIGHT, 1.0)
"""By ``returns``: how likely a conversation comes back soon, just after a turn."""

EARLIER_OPENINGS = 16
"""How many openings of an id are remembered, to find that it is a constant."""

EXPIRE_AT_ONCE = 2000
"""Bound of the work that one call does: the rest waits for the next one, and no stream for the rest."""

DORMANT_S = 24 * 3600.0
"""After this long unused a conversation is forgotten."""

MOST_FORGOTTEN = 100_000
"""Bound of ``touched`` beyond the table's own: whoever does not ask for so long is told everything anew."""


Order: TypeAlias = "OrderedDict[ConversationKey, Conversation]"


class Conversation:
    """What the router remembers of one conversation (about 450 bytes with its place in the table)."""

    __slots__ = (
        "base_opening",
        "body_bytes",
        "context_tokens",
        "derived",
        "earlier",
        "epoch",
        "gap_turns",
        "home",
        "in_flight",
        "last_used",
        "live",
        "opening",
        "order",
        "parent",
        "returns",
        "second",
        "second_epoch",
        "shared",
        "spilled",
        "turns",
        "waits",
    )

    def __init__(self, last_used: float, order: Order) -> None:
        self.order = order
        """Which of the table's orders it stands in."""
        self.home: Replica | None = None
        """Bound replica; None before the first dispatch."""
        self.epoch = 0
        """The home's epoch when it was bound; another one means that its cache was lost."""
        self.second: Replica | None = None
        """Second home: where it spilled last."""
        self.second_epoch = 0
        self.spilled = False
        """Its last turn went to its second home."""
        self.in_flight = 0
        """Its requests in flight, anywhere."""
        self.turns = 0
        self.gap_turns = 0
        """Its turns when the gap before its next one was noted."""
        self.waits = 0
        """How often it waited for a place (admission.py)."""
        self.context_tokens = 0
        """Prompt and completion of its last finished turn: what its home holds for it."""
        self.body_bytes = 0
        """Size of that turn's request; 0: not known."""
        self.last_used = last_used
        self.returns = False
        """Its last turn ended in a tool call: the next one is about to come."""
        self.live = True
        self.parent: ConversationKey | None = None
        """Of a subagent: the conversation that started it. Only for people, as is the next one."""
        self.derived = False
        """Its key is a fingerprint of its opening."""
        self.opening: bytes | None = None
        self.earlier: tuple[bytes, ...] = ()
        """Openings that its id had before."""
        self.shared = False
        """Its id turned out to be a constant that several clients send."""
        self.base_opening: bytes | None = None
        """Of a shared id: the opening that keeps this conversation and its home; every other becomes one of its own."""

    @property
    def has_home(self) -> bool:
        """Bound, and the home's cache is still the one it was bound to."""
        return self.home is not None and self.home.epoch == self.epoch

    def bind(self, home: Replica) -> None:
        """Make ``home`` its home. Only while detached."""
        self.home = home
        self.epoch = home.epoch
        self.spilled = False

    def spill_to(self, second: Replica) -> None:
        """Remember its second home."""
        self.second = second
        self.second_epoch = second.epoch
        self.spilled = True

    def note_opening(self, opening: bytes) -> None:
        """Compare this turn's opening with those that its id had before.

        A conversation's opening changes rarely and hardly ever back (compaction, more tools). An id whose turns
        return to an earlier opening, or have two openings in flight at once, is taken for a constant that several
        clients share. If that is wrong, one of the two openings starts anew, once.
        """
        if opening == self.opening:
            return
        if self.opening is not None:
            if self.in_flight or opening in self.earlier:
                self.shared = True
                # The one that comes back is the conversation; what came in between was a guest (a title call).
                self.base_opening = opening if opening in self.earlier else self.opening
            self.earlier = (*self.earlier[1 - EARLIER_OPENINGS :], self.opening)
        self.opening = opening


def by_last_used(item: tuple[ConversationKey, Conversation]) -> float:
    """For sorting: the one used last is the largest."""
    return item[1].last_used


class ConversationTable:
    """All conversations of one model, and what they add to their homes."""

    def __init__(self, fleet: Fleet, max_conversations: int, live_s: float) -> None:
        self._fleet = fleet
        self.max_conversations = max_conversations
        self.live_s = live_s
        self._fresh: Order = OrderedDict()
        self._established: Order = OrderedDict()
        self._dormant: Order = OrderedDict()
        self.next_expiry: float | None = None
        """When ``expire`` has something to do at the earliest; None: nothing is live."""
        self.touched: set[ConversationKey] | None = None
        """Bound, used or forgotten since ``homes.take_changes`` was last called; None: all are to be told."""

    def __len__(self) -> int:
        return len(self._fresh) + len(self._established) + len(self._dormant)

    def __iter__(self) -> Iterator[tuple[ConversationKey, Conversation]]:
        """All of them, the next to be evicted first."""
        return itertools.chain(self._dormant.items(), self._fresh.items(), self._established.items())

    def latest(self, most: int) -> list[tuple[ConversationKey, Conversation]]:
        """So many of them, the one used last first."""
        orders = (self._fresh, self._established, self._dormant)
        newest = [item for order in orders for item in itertools.islice(reversed(order.items()), most)]
        newest.sort(key=by_last_used, reverse=True)
        return newest[:most]

    def used_since(self, since: float) -> Iterator[tuple[ConversationKey, Conversation]]:
        """Those used at ``since`` or later; lazily. None of them is dormant."""
        for order in (self._fresh, self._established):
            for item in reversed(order.items()):
                if item[1].last_used < since:
                    break
                yield item

    def get(self, key: ConversationKey) -> Conversation | None:
        """The conversation, or None if it is unknown."""
        return self._established.get(key) or self._fresh.get(key) or self._dormant.get(key)

    def add(self, key: ConversationKey, now: float) -> Conversation:
        """Add an unknown conversation, evicting one if the table is full."""
        self._make_room()
        conversation = Conversation(now, self._fresh)
        self._fresh[key] = conversation
        return conversation

    def restore(self, key: ConversationKey, last_used: float) -> Conversation:
        """Add one from before a restart: dormant until its next turn."""
        self._make_room()
        conversation = Conversation(last_used, self._dormant)
        conversation.live = False
        self._dormant[key] = conversation
        return conversation

    def attach(self, conversation: Conversation) -> None:
        """Add it to its home's sums."""
        self._count(conversation, +1)

    def detach(self, conversation: Conversation) -> None:
        """Take it out of its home's sums; its fields may change now."""
        self._count(conversation, -1)

    def _count(self, conversation: Conversation, sign: int) -> None:
        home = conversation.home
        if home is None or home.epoch != conversation.epoch or not conversation.live:
            return
        tokens = conversation.context_tokens
        self._fleet.hold(home, sign, tokens)
        if conversation.in_flight:
            self._fleet.hold_open(home, sign * tokens)
        else:
            weight = sign * IDLE_WEIGHT[conversation.returns]
            self._fleet.hold_idle(home, weight, weight * tokens, conversation.last_used)

    def touch(self, key: ConversationKey, conversation: Conversation, now: float) -> None:
        """It is used now. Only while detached."""
        order = conversation.order
        if order is self._established or not conversation.turns:
            order.move_to_end(key)
        else:  # a second turn, or it was dormant
            conversation.order = self._established
            self._established[key] = order.pop(key)
        conversation.live = True
        conversation.last_used = now
        if self.touched is not None:
            self.touched.add(key)
        if self.next_expiry is None:
            self.next_expiry = now + self.live_s

    def resume(self, key: ConversationKey, conversation: Conversation, now: float) -> None:
        """A turn begins and its home stays: what was idle there is in use."""
        home = conversation.home
        if home is not None and not conversation.in_flight and conversation.live and home.epoch == conversation.epoch:
            weight, tokens = IDLE_WEIGHT[conversation.returns], conversation.context_tokens
            self._fleet.hold_idle(home, -weight, -weight * tokens, conversation.last_used, tokens)
            conversation.in_flight = 1
            self.touch(key, conversation, now)
            return
        self.detach(conversation)
        conversation.in_flight += 1
        self.touch(key, conversation, now)
        self.attach(conversation)

    def end_turn(
        self, key: ConversationKey, conversation: Conversation, context_tokens: int, returns: bool, now: float
    ) -> None:
        """A turn ended: it may be idle now, with another context."""
        home, before = conversation.home, conversation.context_tokens
        conversation.in_flight -= 1
        conversation.context_tokens = context_tokens
        conversation.returns = returns
        conversation.last_used = now
        conversation.order.move_to_end(key)
        if self.touched is not None:
            self.touched.add(key)
        if home is None or home.epoch != conversation.epoch or not conversation.live:
            return
        home.resident_tokens += context_tokens - before
        if conversation.in_flight:
            self._fleet.hold_open(home, context_tokens - before)
        else:
            weight = IDLE_WEIGHT[returns]
            self._fleet.hold_idle(home, weight, weight * context_tokens, now, -before)

    def remove(self, key: ConversationKey, conversation: Conversation) -> None:
        """Forget one that is not in use."""
        self.detach(conversation)
        del conversation.order[key]
        self.note(key)

    def note(self, key: ConversationKey) -> None:
        """Its home moved or was forgotten, or there is none of that key: to be told."""
        if self.touched is not None:
            self.touched.add(key)
            if len(self.touched) > self.max_conversations + MOST_FORGOTTEN:
                self.touched = None

    def expire(self, now: float) -> None:
        """Conversations that went unused for too long stop being live, or are forgotten; so many per call."""
        left = EXPIRE_AT_ONCE
        for order in (self._fresh, self._established, self._dormant):
            keep_s = DORMANT_S if order is self._dormant else self.live_s
            while order and left:
                left -= 1
                key, conversation = next(iter(order.items()))
                if conversation.last_used + keep_s > now:
                    break
                if conversation.in_flight:
                    order.move_to_end(key)
                    conversation.last_used = now
                    self.note(key)
                    continue
                self.detach(conversation)
                conversation.live = False
                del order[key]
                if order is self._established:
                    conversation.order = self._dormant
                    self._dormant[key] = conversation
                else:
                    self.note(key)
        oldest = [next(iter(order.values())).last_used for order in (self._fresh, self._established) if order]
        self.next_expiry = min(oldest) + self.live_s if oldest else None

    def _make_room(self) -> None:
        """Evict until there is room for one more, or until only conversations in use are left; so many per call."""
        for _ in range(EXPIRE_AT_ONCE):
            if len(self) < self.max_conversations or not self._evict():
                return

    def _evict(self) -> bool:
        orders = [self._dormant, self._fresh, self._established]
        if len(self._fresh) > self.max_conversations // 2:
            orders = [self._fresh, self._dormant, self._established]
        for order in orders:
            for _ in range(len(order)):
                key, conversation = next(iter(order.items()))
                if conversation.in_flight:
                    order.move_to_end(key)  # in use, so it is not the oldest
                    continue
                self.remove(key, conversation)
                return True
        return False
