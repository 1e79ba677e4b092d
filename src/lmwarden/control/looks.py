"""Lists of conversations, looked at on the data loop only while somebody asks, once a second for all who ask.

A list is not part of the snapshot: 5,000 conversations take about 5 ms of the data loop, in which no byte is
relayed. Nobody pays for that while no page shows conversations, and twenty pages pay once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import msgspec

from lmwarden.gateway.driver import HeldRequest
from lmwarden.types import ConversationKey, ConversationView

MOST_CONVERSATIONS = 5000
SHARED_S = 1.0
"""For so long (real seconds) those who ask get what was seen already."""


class ConversationList(msgspec.Struct, frozen=True, kw_only=True):
    """The conversations of one model that were used last, at one moment."""

    taken_at: float
    """Unix seconds."""
    now: float
    """The same moment on the router's clock."""
    clock_rate: float
    """The router's seconds per second."""
    total: int
    """Conversations that the router knows."""
    conversations: tuple[ConversationView, ...]
    """The latest first; at most MOST_CONVERSATIONS, and those whose first turn waits for a place: the router does not
    know them yet."""
    waiting: Mapping[ConversationKey, HeldRequest] = {}
    """Those with a request in the waiting room, each with the one that waits longest."""

    def wall(self, moment: float) -> float:
        """A moment of the router's clock in Unix seconds."""
        return self.taken_at - (self.now - moment) / self.clock_rate


def list_conversations(
    known: Sequence[ConversationView], held: Sequence[HeldRequest], *, now: float, clock_rate: float, total: int
) -> ConversationList:
    """Put the list together.

    Args:
        known: those that the router knows, the latest first.
        held: what stands in the waiting room, the oldest first.
        now: the router's clock.
        clock_rate: its seconds per second.
        total: how many it knows.
    """
    waiting = {one.conversation: one for one in reversed(held) if one.conversation is not None}
    new = waiting.keys() - {view.key for view in known} if waiting else set()
    first_turns = [
        ConversationView(
            key=key,
            parent=one.parent,
            derived=one.derived,
            home=None,
            turns=0,
            context_tokens=0,
            in_flight=0,
            live=True,
            last_used=one.since,
        )
        for key, one in waiting.items()
        if key in new
    ]
    latest_first = sorted((*first_turns, *known), key=lambda view: -view.last_used) if first_turns else known
    return ConversationList(
        taken_at=time.time(),
        now=now,
        clock_rate=clock_rate,
        total=total + len(first_turns),
        conversations=tuple(latest_first),
        waiting=waiting,
    )


class _Look(NamedTuple):
    asked_s: float
    result: Future[ConversationList]


class Looks:
    """Shares one look per model and second. ``ask`` from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[str], ConversationList]) -> None:
        """Args:
        loop: the data loop.
        look: makes a model's list; called on that loop.
        """
        self._loop = loop
        self._look = look
        self._latest: dict[str, _Look] = {}
        self._lock = threading.Lock()

    def ask(self, model: str) -> Future[ConversationList]:
        """The list of an existing model, at most SHARED_S old. Cancelling the future changes nothing."""
        now_s = time.monotonic()
        with self._lock:
            latest = self._latest.get(model)
            if latest is not None and now_s - latest.asked_s < SHARED_S:
                return latest.result
            result: Future[ConversationList] = Future()
            result.set_running_or_notify_cancel()  # others may wait for it: from here on nobody can cancel it
            self._latest[model] = _Look(now_s, result)
        self._loop.call_soon_threadsafe(self._carry_out, model, result)
        return result

    def _carry_out(self, model: str, result: Future[ConversationList]) -> None:
        try:
            result.set_result(self._look(model))
        except Exception as error:
            result.set_exception(error)
