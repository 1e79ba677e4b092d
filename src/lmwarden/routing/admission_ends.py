"""What the ends of turns teach the waiting room.

Turns end thousands of times a second on a busy host, and what they teach is asked for twice a second as long as the
room is open. So the ends are only noted then, and the latest of them are learned from together before demand is
compared with capacity: the running means and the windows of ``admission_learned`` hold no more of them anyway. While
the room is engaged every end is learned from at once, because the next decision depends on it.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from lmwarden.routing.admission import WaitingRoom
from lmwarden.routing.admission_learned import Before
from lmwarden.routing.admission_places import KEPT_LOW_RATIO, Place
from lmwarden.routing.conversations import RETURNS
from lmwarden.routing.open_turn import OpenTurn
from lmwarden.types import Decision, Ticket, Usage

KEPT_TOKENS = 500
"""With less context of its own a turn says nothing about what the engine kept."""
MOST_NOTED = 256
"""Ends that are kept until the next look."""

_STICKY = Decision.STICKY


_End: TypeAlias = tuple[OpenTurn, Usage, float, Before | None, bool, bool]
"""(turn, usage, when, its conversation as it was before, the conversation's first turn, after a lull). A plain tuple,
because every request makes one."""


class Ends:
    """Of one model."""

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        self._noted: deque[_End] = deque(maxlen=MOST_NOTED)
        self._lull = False

    def lull(self) -> None:
        """Nothing runs any more."""
        self._lull = True

    def note(self, ticket: Ticket, turn: OpenTurn, usage: Usage, now: float) -> None:
        """A turn ended well; called before its conversation knows."""
        conversation = turn.conversation
        before, first = None, False
        if conversation is not None:
            if usage.finish_reason not in RETURNS:
                self._room.learned.left_open()
            first = conversation.turns == 1 and not turn.request.resumed
            before = conversation.context_tokens, conversation.body_bytes
        end = turn, usage, now, before, first, self._lull
        self._lull = False
        if self._room.thrash.engaged:
            self._learn(end, self._room.places.riding(ticket))
        else:
            self._noted.append(end)

    def catch_up(self) -> None:
        """Learn from what was noted since the last time."""
        for end in self._noted:
            self._learn(end, None)
        self._noted.clear()

    def _learn(self, end: _End, place: Place | None) -> None:
        turn, usage, now, before, first, after_lull = end
        learned, thrash = self._room.learned, self._room.thrash
        learned.ended(turn.request, usage, first=first, now=now, before=before, after_lull=after_lull)
        prompt, cached = usage.prompt_tokens, usage.cached_tokens
        if before is None or prompt is None or cached is None:
            return
        shared, (context_tokens, _) = learned.shared_tokens, before
        own = min(prompt, context_tokens) - shared
        kept_ratio = None
        if turn.choice.decision is _STICKY and own >= KEPT_TOKENS:
            kept_ratio = (cached - shared) / own
            thrash.kept(kept_ratio, now)
            learned.grew(prompt + (usage.completion_tokens or 0) - context_tokens)
            if place is not None and place.turns > 1:
                self._room.places.floors[place.replica].kept(kept_ratio, now)
        if turn.first_byte_at is not None:
            kept = kept_ratio is not None and kept_ratio >= KEPT_LOW_RATIO
            learned.served(prompt - cached, turn.first_byte_at - turn.sent_at, now - turn.sent_at, kept=kept)
