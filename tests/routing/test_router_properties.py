"""Any order of events: the invariants hold (the driver checks them after each), and at rest nothing is in flight.

Beside the router stands what a ledger would hold, and for each conversation the run of the engine that it was bound
under: whatever restarts in between, a turn that goes home finds the very run that read it before.
"""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.routing.driver import Driver, key

from lmwarden.types import (
    ConversationKey,
    Decision,
    Dispatch,
    Home,
    Outcome,
    ReplicaId,
    ReplicaState,
    RoutingSettings,
    Ticket,
)

names = st.sampled_from([f"c{number}" for number in range(12)])
openings = st.sampled_from([None, *(key(f"o{number}") for number in range(4))])
parents = st.sampled_from([None, None, key("p0"), key("p1")])
REPLICA_EVENTS = ("up", "up", "restarts", "restarts unseen", "expected", "down", "drain", "undrain", "undrain")
mostly = st.sampled_from([True, True, True, False])


class RouterMachine(RuleBasedStateMachine):
    """Drives a router with arbitrary events."""

    @initialize(
        engines=st.sampled_from([{"e0": 4}, {"e0": 1, "e1": 1, "e2": 1}, {"e0": 2, "e1": 1}, {"e0": 1}]),
        max_conversations=st.sampled_from([4, 10, 1000]),
        max_num_seqs=st.sampled_from([None, 4, 32]),
    )
    def start(self, engines: dict[str, int], max_conversations: int, max_num_seqs: int | None) -> None:
        self.engines = engines
        self.max_conversations = max_conversations
        self.max_num_seqs = max_num_seqs
        self.boots = 1
        self.running: dict[ReplicaId, str] = {}
        """The run that each replica is in, whether the router has heard of it or not."""
        self.bound: dict[ConversationKey, tuple[ReplicaId, str]] = {}
        """Home of each conversation, and the run in which it got there."""
        self.written: dict[ConversationKey, Home] = {}
        """What a ledger would hold."""
        self.start_warden(now=1000.0)
        for replica in self.driver.replicas:
            self.running[replica] = "boot1"
            self.driver.up(replica, "boot1")

    def start_warden(self, now: float) -> None:
        self.driver = Driver(
            self.engines,
            settings=RoutingSettings(max_conversations=self.max_conversations, live_s=120.0),
            max_num_seqs=self.max_num_seqs,
            up=False,
        )
        self.driver.now = now
        self.open: list[Ticket] = []

    def replica(self, number: int) -> ReplicaId:
        return self.driver.replicas[number % len(self.driver.replicas)]

    @rule(
        name=st.none() | names,
        opening=openings,
        parent=parents,
        resumed=st.booleans(),
        auxiliary=st.booleans(),
        pinnable=mostly,
        pin=st.none() | st.integers(0, 9),
        engine=st.sampled_from([None, None, None, "e0", "e1", "e9"]),
    )
    def offer(
        self,
        name: str | None,
        opening: bytes | None,
        parent: bytes | None,
        resumed: bool,
        auxiliary: bool,
        pinnable: bool,
        pin: int | None,
        engine: str | None,
    ) -> None:
        ticket = self.driver.offer(
            name,
            opening=opening,
            parent=parent,
            resumed=resumed,
            auxiliary=auxiliary,
            pinnable=pinnable,
            pin=None if pin is None or pin > 3 else self.replica(pin),
            engine=engine,
        )
        if isinstance(self.driver.last, Dispatch):
            self.open.append(ticket)
            self.went(self.driver.last)
            if engine is not None and (pin is None or pin > 3):
                assert self.driver.last.engine == engine
            explanation = self.driver.explain(ticket)
            assert explanation.replica == self.driver.last.replica
            assert explanation.reason

    @rule(order=st.lists(names, min_size=3, max_size=12))
    def turns(self, order: list[str]) -> None:
        """Plain ones, so that conversations come back often enough to find their home, or not."""
        for name in order:
            ticket = self.driver.offer(name)
            if isinstance(self.driver.last, Dispatch):
                self.went(self.driver.last)
                self.driver.finish(ticket)

    def went(self, action: Dispatch) -> None:
        """A turn that goes home goes to the run that it was bound under; others bind anew."""
        conversation = self.driver.router._open[action.ticket].key
        if conversation is None or action.replica is None:
            return
        here = (action.replica, self.running[action.replica])
        if action.decision is Decision.STICKY:
            assert self.bound[conversation] == here
        elif action.decision is not Decision.SPILLED:
            self.bound[conversation] = here

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 50), outcome=st.sampled_from(list(Outcome)), prompt=st.integers(0, 50_000))
    def finish(self, which: int, outcome: Outcome, prompt: int) -> None:
        self.driver.finish(self.open.pop(which % len(self.open)), outcome=outcome, prompt=prompt)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 50), twice=st.booleans())
    def cancel(self, which: int, twice: bool) -> None:
        ticket = self.open.pop(which % len(self.open))
        for _ in range(1 + twice):
            self.driver.cancel(ticket)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 50))
    def fail(self, which: int) -> None:
        ticket = self.open[which % len(self.open)]
        action = self.driver.fail(ticket)
        if isinstance(action, Dispatch):
            self.went(action)
        else:
            self.open.remove(ticket)

    @rule(events=st.lists(st.tuples(st.sampled_from(REPLICA_EVENTS), st.integers(0, 9)), min_size=1, max_size=5))
    def replicas(self, events: list[tuple[str, int]]) -> None:
        """One rule for all of them: hypothesis chooses rules evenly, and most steps should be requests."""
        for event, number in events:
            replica = self.replica(number)
            if event in ("restarts", "restarts unseen"):
                # Before anybody hears of it the router believes it down: nobody is served by a run that is not known.
                self.boots += 1
                self.driver.down(replica)
                self.running[replica] = f"boot{self.boots}"
            match event:
                case "up" | "restarts":
                    self.driver.up(replica, self.running[replica])
                case "expected" if self.driver.state_of(replica) is ReplicaState.STARTING:
                    # What a watch says of an engine that has not answered yet: its capacity, no run, down.
                    self.driver.up(replica, "")
                    self.driver.down(replica)
                case "down":
                    self.driver.down(replica)
                case "drain":
                    self.driver.drain(replica)
                case "undrain":
                    self.driver.undrain(replica)

    @rule(number=st.integers(0, 9), kv=st.none() | st.floats(0, 1), age=st.floats(0, 10), stalled=st.booleans())
    def sample(self, number: int, kv: float | None, age: float, stalled: bool) -> None:
        numbers = {} if kv is None else {"kv_used_ratio": kv}
        self.driver.sample(self.replica(number), age_s=age, running=1, stalled=stalled, **numbers)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 7.0, 60.0, 500.0, 90_000.0]))
    def later(self, seconds: float) -> None:
        self.driver.later(seconds)

    @rule(
        affinity=mostly,
        placement=st.sampled_from(["least-loaded", "hash"]),
        threshold=st.sampled_from([None, 0, 1, 8]),
    )
    def configure(self, affinity: bool, placement: str, threshold: int | None) -> None:
        self.driver.configure(
            affinity=affinity,
            placement=placement,
            spill_threshold=threshold,
            max_conversations=self.max_conversations,
            live_s=120.0,
        )

    @rule()
    def write_down(self) -> None:
        """What was written, less what another run made worthless, is what the router would export."""
        changes = self.driver.router.take_home_changes()
        self.written.update({home.conversation: home for home in changes.changed})
        for conversation in changes.forgotten:
            self.written.pop(conversation, None)
        exported = {home.conversation: home for home in self.driver.router.export_homes()}
        alive = {c: home for c, home in self.written.items() if c in exported or self.in_its_run(home)}
        assert alive == exported
        assert self.driver.router.take_home_changes() == ([], [])

    def in_its_run(self, home: Home) -> bool:
        return self.driver.router._fleet[home.replica].boot_id == home.boot_id

    @rule(written=st.booleans(), seconds=st.sampled_from([0.0, 5.0, 4000.0]))
    def restart_the_warden(self, written: bool, seconds: float) -> None:
        """Killed: requests are gone, and so is what was not written down. No replica has been heard of."""
        if written:
            self.write_down()
        self.start_warden(now=self.driver.now + seconds)
        router, homes = self.driver.router, list(self.written.values())
        taken = router.restore_homes(homes, {}, self.driver.now)
        self.driver.check()
        assert len(router.export_homes()) == min(taken, self.max_conversations)
        assert router.restore_homes(router.export_homes(), {}, self.driver.now) == 0, "all known already"
        self.bound = {home.conversation: (home.replica, home.boot_id) for home in homes}

    @invariant()
    def in_flight_is_what_is_open(self) -> None:
        if hasattr(self, "driver"):
            assert self.driver.view.in_flight == len(self.open)

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        while self.open:
            self.driver.cancel(self.open.pop())
        assert set(self.driver.in_flight().values()) == {0}
        assert self.driver.view.in_flight == 0


RouterMachine.TestCase.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
TestRouter = RouterMachine.TestCase
