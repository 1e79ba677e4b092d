"""Any order of events with the waiting room on: nobody starves, and its accounts always balance.

The driver checks the invariants after each event: reserved tokens are the sum over residents, nobody waits for longer
than ``max_wait_s``, and a request that waits is not in flight. At the end all events are told to a second router, which
must answer the same, and when everybody has left, the room is open and empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.routing.driver import Driver

from lmwarden.routing import admission
from lmwarden.routing.admission import KEEP_MAX_S
from lmwarden.routing.admission_demand import STAY_S
from lmwarden.routing.router import Router
from lmwarden.types import Action, Dispatch, Outcome, ReplicaId, RoutingSettings, Ticket

MAX_WAIT_S = 60.0
names = st.sampled_from([f"c{number}" for number in range(16)])
EVENTS = (
    "offer",
    "failed_before_response",
    "first_byte",
    "finished",
    "cancelled",
    "observe",
    "replica_up",
    "replica_down",
    "drain",
    "undrain",
    "configure",
    "tick",
    "view",
)
"""``view`` too: what has expired by then is taken out."""


class Recorded:
    """A router that keeps what it was told, and what it answered."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.events: list[tuple[str, tuple[Any, ...], str]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.router, name)
        if name not in EVENTS:
            return found
        return lambda *arguments: self._told(name, found, arguments)

    def _told(self, name: str, event: Callable[..., object], arguments: tuple[Any, ...]) -> object:
        answer = event(*arguments)
        self.events.append((name, arguments, repr(answer)))
        return answer


class RoomMachine(RuleBasedStateMachine):
    """Two replicas that hold three conversations each, and sixteen conversations."""

    @initialize(
        prefer=st.sampled_from(["balanced", "median", "tail"]),
        ranks=st.sampled_from([1, 2]),
        most_waiting=st.sampled_from([3, 8, admission.MOST_WAITING]),
    )
    def start(self, prefer: str, ranks: int, most_waiting: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(admission, "MOST_WAITING", most_waiting)
        self.patch.setattr(admission, "MOST_WAITING_EACH", 0)
        self.most_waiting = most_waiting
        self.prefer = prefer
        self.first_settings = self.settings("auto")
        self.engines = {"e0": ranks} if ranks == 2 else {"e0": 1, "e1": 1}
        self.recorded = Recorded(self.router())
        self.driver = Driver(self.engines, router=self.recorded)  # type: ignore[arg-type]
        self.open: list[Ticket] = []
        self.waiting: set[Ticket] = set()
        for _ in range(2):  # so that the room knows sizes and gaps, and more is in use than fits
            while self.open:
                self.finish(0, Outcome.OK, 10_000, 3_000)
            for number in range(16):
                self.offer(f"c{number}", None, False, 40_000)
        self.later(4.0)
        assert self.driver.view.room is not None
        assert self.driver.view.room.engaged

    def router(self) -> Router:
        return Router(self.first_settings, engines=self.engines)

    def settings(self, admission: str) -> RoutingSettings:
        return RoutingSettings(admission=admission, prefer=self.prefer, max_wait_s=MAX_WAIT_S, live_s=120.0)

    def take_actions(self) -> None:
        """What a call let out beside the request that it was about."""
        actions, self.driver.let_out = self.driver.let_out, []
        for action in actions:
            self.waiting.remove(action.ticket)  # nobody is let out twice
            self.went(action)

    def went(self, action: Action) -> None:
        if isinstance(action, Dispatch):
            self.open.append(action.ticket)

    @rule(
        name=names | st.none(),
        pin=st.sampled_from([None, None, None, 0, 1]),
        auxiliary=st.sampled_from([False, False, False, True]),
        body_bytes=st.sampled_from([0, 400, 40_000, 60_000, 1_000_000]),
        engine=st.sampled_from([None, None, None, 0, 1]),
    )
    def offer(
        self, name: str | None, pin: int | None, auxiliary: bool, body_bytes: int, engine: int | None = None
    ) -> None:
        pinned = None if pin is None else self.driver.replicas[pin]
        named = None if engine is None else self.driver.replicas[engine].engine
        ticket = self.driver.offer(
            name, pin=pinned, auxiliary=auxiliary, body_bytes=body_bytes, max_output_tokens=500, engine=named
        )
        self.take_actions()  # a full room lets somebody out, and takes this one
        if self.driver.last is None:
            assert name is not None and pin is None and not auxiliary and engine is None, "counted, not held"
            assert len(self.waiting) < self.most_waiting, "more wait than may"
            self.waiting.add(ticket)
            assert self.driver.explain(ticket).decision is None
            assert "waits" in self.driver.explain(ticket).reason
            assert self.driver.router.grounds(ticket) is None
        else:
            self.went(self.driver.last)

    @rule(order=st.lists(names, min_size=6, max_size=16))
    def turns(self, order: list[str]) -> None:
        for name in order:
            self.offer(name, None, False, 40_000)

    @precondition(lambda self: self.open)
    @rule(
        which=st.integers(0, 50),
        outcome=st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, *Outcome]),
        prompt=st.integers(0, 20_000),
        cached=st.integers(0, 10_000),
    )
    def finish(self, which: int, outcome: Outcome, prompt: int, cached: int) -> None:
        ticket = self.open.pop(which % len(self.open))
        self.driver.finish(ticket, outcome=outcome, prompt=prompt, cached=min(prompt, cached))
        self.take_actions()

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 50), count=st.integers(1, 20), cached=st.sampled_from([3_000, 9_000]))
    def finish_some(self, which: int, count: int, cached: int) -> None:
        """And their next turns come."""
        for _ in range(min(count, len(self.open))):
            conversation = self.driver.router._open[self.open[which % len(self.open)]].key
            self.finish(which, Outcome.OK, 10_000, cached)
            if conversation is not None:
                self.offer(conversation.rstrip(b".").decode(), None, False, 41_000)

    @precondition(lambda self: self.open or self.waiting)
    @rule(which=st.integers(0, 50), twice=st.booleans())
    def cancel(self, which: int, twice: bool) -> None:
        everyone = [*self.open, *sorted(self.waiting)]
        ticket = everyone[which % len(everyone)]
        for _ in range(1 + twice):
            self.driver.cancel(ticket)
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        else:
            self.open.remove(ticket)
        self.take_actions()

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 50))
    def fail(self, which: int) -> None:
        ticket = self.open.pop(which % len(self.open))
        self.went(self.driver.fail(ticket))
        self.take_actions()

    @rule(number=st.integers(0, 1), event=st.sampled_from(["up", "up", "restart", "down", "drain", "undrain"]))
    def replica(self, number: int, event: str) -> None:
        replica: ReplicaId = self.driver.replicas[number]
        match event:
            case "up":
                self.driver.up(replica)
            case "restart":
                self.driver.up(replica, f"boot{self.driver.now}")
            case "down":
                self.driver.down(replica)
            case "drain":
                self.driver.drain(replica)
            case "undrain":
                self.driver.undrain(replica)
        self.take_actions()

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0, 4.0, 20.0, 70.0]))
    def later(self, seconds: float) -> None:
        """As a driver does it: every deadline on the way is kept."""
        end = self.driver.now + seconds
        for _ in range(100):
            deadline = self.driver.router.next_deadline()
            if deadline is None:
                assert self.driver.view.room is None, "a room has always something to look at"
                break
            if deadline > end:
                break
            self.driver.later(max(0.0, deadline - self.driver.now))
            self.take_actions()
        self.driver.later(max(0.0, end - self.driver.now))
        self.take_actions()

    @rule(admission=st.sampled_from(["auto", "auto", "off"]), prefer=st.sampled_from(["balanced", "median", "tail"]))
    def configure(self, admission: str, prefer: str) -> None:
        self.prefer = prefer
        self.driver.router_configure(self.settings(admission))
        self.take_actions()
        if admission == "off":
            assert not self.waiting

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        try:
            self.all_leave()
        finally:
            self.patch.undo()

    def all_leave(self) -> None:
        assert self.driver.view.waiting == len(self.waiting)
        self.later(MAX_WAIT_S)
        assert not self.waiting, "somebody starves"
        while self.open:
            self.driver.cancel(self.open.pop())
        assert set(self.driver.in_flight().values()) == {0}
        self.later(STAY_S + 2 * KEEP_MAX_S)
        room = self.driver.view.room
        if room is not None:
            assert (room.engaged, room.residents, room.reserved_tokens) == (False, 0, 0), "somebody left a place behind"
        again = self.router()
        for name, arguments, answer in self.recorded.events:
            assert repr(getattr(again, name)(*arguments)) == answer, "the same events, another decision"
            if name not in ("first_byte", "view"):
                again._fleet.decay(arguments[-1])  # as the invariants did: it drops traces


RoomMachine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRoom = RoomMachine.TestCase
