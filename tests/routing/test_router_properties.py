"""Any order of events: the invariants hold (the driver checks them after each), and at rest nothing is in flight."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.routing.driver import Driver, key

from lmwarden.types import Dispatch, Outcome, ReplicaId, RoutingSettings, Ticket

names = st.sampled_from([f"c{number}" for number in range(12)])
openings = st.sampled_from([None, *(key(f"o{number}") for number in range(4))])
parents = st.sampled_from([None, None, key("p0"), key("p1")])


class RouterMachine(RuleBasedStateMachine):
    """Drives a router with arbitrary events."""

    @initialize(
        engines=st.sampled_from([{"e0": 4}, {"e0": 1, "e1": 1, "e2": 1}, {"e0": 2, "e1": 1}, {"e0": 1}]),
        max_conversations=st.sampled_from([4, 10, 1000]),
        max_num_seqs=st.sampled_from([None, 4, 32]),
    )
    def start(self, engines: dict[str, int], max_conversations: int, max_num_seqs: int | None) -> None:
        self.max_conversations = max_conversations
        self.driver = Driver(
            engines,
            settings=RoutingSettings(max_conversations=max_conversations, live_s=120.0),
            max_num_seqs=max_num_seqs,
        )
        self.open: list[Ticket] = []
        self.boots = 1

    def replica(self, number: int) -> ReplicaId:
        return self.driver.replicas[number % len(self.driver.replicas)]

    @rule(
        name=st.none() | names,
        opening=openings,
        parent=parents,
        resumed=st.booleans(),
        auxiliary=st.booleans(),
        pinnable=st.booleans(),
        pin=st.none() | st.integers(0, 9),
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
    ) -> None:
        ticket = self.driver.offer(
            name,
            opening=opening,
            parent=parent,
            resumed=resumed,
            auxiliary=auxiliary,
            pinnable=pinnable,
            pin=None if pin is None or pin > 3 else self.replica(pin),
        )
        if isinstance(self.driver.last, Dispatch):
            self.open.append(ticket)
            explanation = self.driver.explain(ticket)
            assert explanation.replica == self.driver.last.replica
            assert explanation.reason

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
        if not isinstance(self.driver.fail(ticket), Dispatch):
            self.open.remove(ticket)

    @rule(number=st.integers(0, 9))
    def down(self, number: int) -> None:
        self.driver.down(self.replica(number))

    @rule(number=st.integers(0, 9), restarted=st.booleans())
    def up(self, number: int, restarted: bool) -> None:
        self.boots += restarted
        self.driver.up(self.replica(number), f"boot{self.boots}")

    @rule(number=st.integers(0, 9), back=st.booleans())
    def drain(self, number: int, back: bool) -> None:
        (self.driver.undrain if back else self.driver.drain)(self.replica(number))

    @rule(number=st.integers(0, 9), kv=st.none() | st.floats(0, 1), age=st.floats(0, 10))
    def sample(self, number: int, kv: float | None, age: float) -> None:
        numbers = {} if kv is None else {"kv_used_ratio": kv}
        self.driver.sample(self.replica(number), age_s=age, running=1, **numbers)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 7.0, 60.0, 500.0, 90_000.0]))
    def later(self, seconds: float) -> None:
        self.driver.later(seconds)

    @rule(
        affinity=st.booleans(),
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
    def restart_the_warden(self) -> None:
        homes = self.driver.router.export_homes()
        boots = {home.replica: home.boot_id for home in homes}
        assert self.driver.router.restore_homes(homes, boots, self.driver.now) == 0, "all known already"
        self.driver.check()

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


RouterMachine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRouter = RouterMachine.TestCase
