"""Carries out what a router decides.

The router is a state machine that does nothing by itself. The driver calls it with the time, hands each returned
action to the exchange that it names, and keeps one timer for the router's next deadline. The timer is only ever
moved forward to an earlier deadline: if a deadline was put off, the tick at the old time does no harm. While
nothing waits, deadlines only expire memories, which may be a second late; so the router is asked for its
deadline after every call only while something waits, and otherwise once per sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lmwarden.routing.contract import RouterContract
from lmwarden.types import Action, Clock, ConversationKey, Dispatch, Outcome, Refuse, RoutingRequest, Ticket, Usage

_SHORTEST_S = 0.001
"""A deadline that is due already comes after this: a router that names one again and again must not spin."""


class HeldRequest(NamedTuple):
    """A request that waits for a place."""

    conversation: ConversationKey | None
    parent: ConversationKey | None
    derived: bool
    since: float
    """The gateway's clock."""
    key_name: str | None
    """Of the API key; None: it came without one."""


class Routed(Protocol):
    """A request on its way through the router."""

    def dispatched(self, action: Dispatch) -> None:
        """Send it now."""
        ...

    def refused(self, action: Refuse) -> None:
        """Answer it; its ticket is closed."""
        ...

    def held(self) -> HeldRequest:
        """As it stands in the waiting room."""
        ...


class RouterDriver:
    """One router, its open requests and its timer. Lives on the data loop."""

    __slots__ = ("_armed_for", "_clock", "_clock_rate", "_closed", "_loop", "_open", "_timer", "_waiting", "router")

    def __init__(
        self, router: RouterContract, clock: Clock, clock_rate: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.router = router
        self._clock = clock
        self._clock_rate = clock_rate
        self._loop = loop
        self._open: dict[Ticket, Routed] = {}
        self._waiting: set[Ticket] = set()
        """Those of them without an action so far."""
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._closed = False

    @property
    def open_tickets(self) -> int:
        """Requests offered and not ended."""
        return len(self._open)

    @property
    def waiting(self) -> list[Routed]:
        """Requests without a decision so far, the oldest first."""
        return [self._open[ticket] for ticket in sorted(self._waiting)]

    def offer(self, routed: Routed, request: RoutingRequest, now: float) -> Ticket:
        """Offer a request and return its ticket. Its first action may be carried out before this returns."""
        ticket, actions = self.router.offer(request, now)
        self._open[ticket] = routed
        if len(actions) == 1 and not self._waiting:
            first = actions[0]
            if type(first) is Dispatch and first.ticket == ticket:
                routed.dispatched(first)
                return ticket
        self._waiting.add(ticket)  # until an action names it; those of others come with it
        self.perform(actions)
        return ticket

    def failed_before_response(self, ticket: Ticket) -> None:
        """Have the router choose another replica, or refuse."""
        self.perform(self.router.failed_before_response(ticket, self._clock()))

    def finished(self, ticket: Ticket, outcome: Outcome, usage: Usage | None, now: float) -> None:
        """Close a ticket. Again is harmless."""
        self._open.pop(ticket, None)
        actions = self.router.finished(ticket, outcome, usage, now)
        if actions or self._waiting:
            self.perform(actions)

    def cancelled(self, ticket: Ticket) -> None:
        """Close a ticket whose client left. Again is harmless."""
        self._waiting.discard(ticket)
        self._open.pop(ticket, None)
        self.perform(self.router.cancelled(ticket, self._clock()))

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out actions, also those that another room's call to the router returned."""
        if self._closed:
            return
        for action in actions:
            if type(action) is Dispatch:
                if self._waiting:
                    self._waiting.discard(action.ticket)
                routed = self._open.get(action.ticket)
                if routed is not None:
                    routed.dispatched(action)
            elif type(action) is Refuse:
                self._waiting.discard(action.ticket)
                routed = self._open.pop(action.ticket, None)
                if routed is not None:
                    routed.refused(action)
        if self._waiting:
            self.rearm()

    def rearm(self) -> None:
        """Ask for the next deadline and see to it."""
        if self._closed:
            return
        deadline = self.router.next_deadline()
        if deadline is not None and (self._timer is None or deadline < self._armed_for):
            self._arm(deadline)

    def close(self) -> None:
        """Carry out nothing any more: what is still open is about to be ended."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = deadline
        delay_s = max(_SHORTEST_S, (deadline - self._clock()) / self._clock_rate)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.perform(self.router.tick(self._clock()))
        self.rearm()
