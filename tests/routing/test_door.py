"""The waiting room as the router uses it: who is held, who goes, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.routing.driver import Driver, key

from lmwarden.routing import admission
from lmwarden.types import (
    Decision,
    Dispatch,
    Outcome,
    Refuse,
    RefuseReason,
    ReplicaCapacity,
    ReplicaId,
    RoomView,
    RoutingSettings,
    Ticket,
    Usage,
)

BODY = 40_000
"""Bytes of a request of 10,000 tokens."""
KV_TOKENS = 41_200
"""With the scale that the room begins with, 42,000: four such conversations."""


class Crowd:
    """Two replicas of 42,000 tokens; ``count`` conversations of 10,000, all of them in flight."""

    def __init__(self, count: int = 12, *, prefer: str = "balanced", max_wait_s: float = 240.0, **more: object) -> None:
        more.setdefault("kv_cache_tokens", KV_TOKENS)
        settings = RoutingSettings(admission="auto", prefer=prefer, max_wait_s=max_wait_s, spill_threshold=100)
        self.driver = Driver({"e0": 2}, settings=settings, **more)  # type: ignore[arg-type]
        self.names = [f"c{number}" for number in range(count)]
        self.tickets: dict[str, Ticket] = {}
        for _ in range(2):
            for name in self.names:
                if name in self.tickets:
                    self.end(name)
            for name in self.names:
                self.tickets[name] = self.driver.offer(name, body_bytes=BODY)
        self.wait(4.0)

    def wait(self, seconds: float) -> None:
        """Time passes, deadline by deadline."""
        end = self.driver.now + seconds
        while (deadline := self.driver.router.next_deadline()) is not None and deadline <= end:
            self.driver.later(max(0.0, deadline - self.driver.now))
        self.driver.later(max(0.0, end - self.driver.now))

    def end(self, name: str, *, finish_reason: str = "tool_calls", cached: int | None = None) -> None:
        """Its turn ends. It had lost its context while the room was open, and found it since."""
        if cached is None:
            cached = 9_500 if self.room.engaged else 0
        self.driver.finish(
            self.tickets.pop(name), prompt=10_000, completion=50, cached=cached, finish_reason=finish_reason
        )

    def turn(self, name: str) -> str | None:
        """The conversation's next turn, at once; its decision, or None: it waits."""
        if name in self.tickets:
            self.end(name)
        self.tickets[name] = self.driver.offer(name, body_bytes=BODY)
        return None if self.driver.last is None else self.driver.went[0]

    def everybody(self) -> None:
        """Everybody's turn ends, and the next one comes."""
        for name in self.names:
            if self.tickets[name] in self.driver.router._open:
                self.turn(name)

    @property
    def room(self) -> RoomView:
        room = self.driver.view.room
        assert room is not None
        return room

    def went_to(self, name: str) -> str:
        """Where its turn runs."""
        return str(self.driver.explain(self.tickets[name]).replica)

    def running(self) -> list[str]:
        """Who is in flight."""
        return [name for name in self.names if self.tickets[name] in self.driver.router._open]

    def let_out(self) -> list[str]:
        """Who went since the last look, in words."""
        actions, self.driver.let_out = self.driver.let_out, []
        names = {ticket: name for name, ticket in self.tickets.items()}
        return [f"{names[action.ticket]} {word(action)}" for action in actions]


def word(action: object) -> str:
    return str(action.decision if isinstance(action, Dispatch) else action.reason)  # type: ignore[attr-defined]


class TestEngaging:
    """Nothing is felt before."""

    @pytest.mark.parametrize(("gap_s", "comes_back"), [(2.0, True), (100.0, False)])
    def test_who_comes_back_late_was_not_about_to(self, gap_s: float, comes_back: bool) -> None:
        crowd = Crowd(2)
        door = crowd.driver.router._door
        assert door is not None
        for _ in range(8):
            crowd.end("c0", finish_reason="stop")
            crowd.driver.later(gap_s)
            crowd.turn("c0")
        assert door.room.learned.comes_back is comes_back

    def test_an_auxiliary_call_is_no_next_turn(self) -> None:
        crowd = Crowd(2)
        gaps = crowd.driver.router._door.room.learned.gaps  # type: ignore[union-attr]
        crowd.end("c0")
        before = list(gaps)
        crowd.driver.later(0.5)
        crowd.driver.offer("c0", body_bytes=2_000, auxiliary=True)
        assert list(gaps) == before
        crowd.turn("c0")
        assert list(gaps) == [*before, 0.5]

    def test_after_a_night_turns_end_as_often_as_before(self) -> None:
        crowd = Crowd()
        learned = crowd.driver.router._door.room.learned  # type: ignore[union-attr]
        for _ in range(5):
            crowd.everybody()
            crowd.wait(2.0)
        before = learned.between_ends_s
        for name in crowd.names:
            crowd.driver.cancel(crowd.tickets[name])
        crowd.driver.later(9 * 3_600.0)
        crowd.tickets["c0"] = crowd.driver.offer("c0", body_bytes=BODY)
        crowd.end("c0")
        assert learned.between_ends_s == before > 0.0

    def test_off_there_is_no_room(self) -> None:
        driver = Driver()
        assert driver.view.room is None
        assert {(row.residents, row.reserved_tokens) for row in driver.view.replicas} == {(None, None)}
        with pytest.raises(KeyError):
            driver.explain(7)

    def test_below_capacity_it_stays_open(self) -> None:
        crowd = Crowd(6)
        crowd.everybody()
        assert not crowd.room.engaged
        assert crowd.room.waiting == crowd.driver.view.waiting == 0
        assert crowd.room.room_for is not None
        assert crowd.room.why.startswith("Open: the conversations in use need 0.7")
        assert crowd.room.why_code == "open"
        assert {(row.residents, row.reserved_tokens) for row in crowd.driver.view.replicas} == {(0, 0)}

    def test_above_it_engages_and_says_why(self) -> None:
        crowd = Crowd()
        assert crowd.room.engaged
        assert crowd.room.why.startswith("Engaged: the conversations in use need 1.4")
        assert crowd.room.residents == 12
        assert crowd.room.why_code == "engaged"
        assert crowd.room.gap_s == 0.0
        assert crowd.room.room_for == 0
        rows = crowd.driver.view.replicas
        assert sum(row.residents or 0 for row in rows) == crowd.room.residents
        assert sum(row.reserved_tokens or 0 for row in rows) == crowd.room.reserved_tokens > 0

    def test_unknown_capacity_never_engages(self) -> None:
        crowd = Crowd(kv_cache_tokens=None)
        assert not crowd.room.engaged
        assert "no KV capacity" in crowd.room.why
        assert crowd.room.why_code == "no_capacity"
        assert crowd.room.room_for is None

    def test_a_tier_keeps_it_open_unless_the_median_is_preferred(self) -> None:
        def engaged(prefer: str) -> bool:
            crowd = Crowd(1, prefer=prefer)
            crowd.driver.capacity = ReplicaCapacity(kv_cache_tokens=KV_TOKENS, cpu_cache_tokens=150_000)
            for replica in crowd.driver.replicas:
                crowd.driver.up(replica)
            for number in range(12):
                crowd.driver.offer(f"d{number}", body_bytes=BODY)
            crowd.driver.router._door.room.learned.gaps.extend([0.1] * 4)  # type: ignore[union-attr]
            crowd.wait(4.0)
            assert crowd.room.tier_tokens == 300_000
            return crowd.room.engaged

        assert not engaged("balanced")
        assert engaged("median")

    @pytest.mark.parametrize(
        ("gap_s", "cached", "code", "says"), [(1.5, 0, "gaps", "pause"), (0.0, 9_500, "kept", "find their context")]
    )
    def test_it_says_why_it_stays_open(self, gap_s: float, cached: int, code: str, says: str) -> None:
        crowd = Crowd(6)
        for _ in range(2):
            for name in crowd.names:
                crowd.end(name, cached=cached)
            crowd.driver.later(gap_s)
            for name in crowd.names:
                crowd.turn(name)
        for number in range(8):
            crowd.driver.offer(f"d{number}", body_bytes=BODY)
        crowd.wait(4.0)
        assert not crowd.room.engaged
        assert says in crowd.room.why
        assert crowd.room.why_code == code
        assert crowd.room.tier_tokens is None

    def test_it_disengages_when_the_crowd_has_gone(self) -> None:
        crowd = Crowd()
        for name in crowd.names:
            crowd.end(name)
        crowd.wait(5.0)
        assert (crowd.room.engaged, crowd.room.waiting, crowd.room.why_code) == (True, 0, "emptying")
        assert crowd.room.why.startswith("Emptying: the conversations in use need 0.")
        crowd.wait(10.0)
        assert not crowd.room.engaged
        assert crowd.room.why_code == "open"
        assert crowd.room.residents == 0

    def test_whoever_was_about_to_come_has_a_place(self) -> None:
        crowd = Crowd(8)
        for number in range(8):
            crowd.driver.offer(f"d{number}", body_bytes=BODY)
        crowd.driver.offer("unrouted", pinnable=False)
        crowd.wait(3.2)
        crowd.end("c0")
        crowd.end("c1", finish_reason="stop")
        crowd.wait(0.5)
        assert crowd.room.engaged
        places = crowd.driver.router._door.room.places.by_key  # type: ignore[union-attr]
        assert key("c0") in places
        assert key("c1") not in places


class TestHolding:
    """Beyond what fits, turns wait; places are given up at turns' boundaries, the oldest goes first."""

    def test_residents_go_on_until_as_many_are_left_as_fit(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        assert 6 <= crowd.room.residents <= 8
        assert crowd.room.waiting == 12 - crowd.room.residents
        assert crowd.room.reserved_tokens <= 1.05 * 2 * KV_TOKENS
        assert crowd.room.longest_wait_s == 0.0

    def test_a_newcomer_waits_and_goes_when_a_session_ends(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        assert crowd.turn("new") is None
        explanation = crowd.driver.explain(crowd.tickets["new"])
        assert (explanation.decision, explanation.replica) == (None, None)
        assert "waits for a place" in explanation.reason
        with pytest.raises(KeyError):
            crowd.driver.explain(12_345)
        crowd.let_out()
        waiting = crowd.room.waiting
        running = crowd.running()
        for name in running[:waiting]:
            crowd.end(name, finish_reason="stop")
        went = crowd.let_out()
        assert went[-1] == "new placed"
        assert crowd.room.waiting == 0
        assert {text.split()[1] for text in went} <= {"placed", "sticky", "rehomed"}

    def test_moved_by_the_room_is_explained(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        running = [name for name in crowd.running() if crowd.went_to(name) == "e0/0"]
        crowd.let_out()
        for name in running:
            crowd.end(name, finish_reason="stop")
        reasons = [
            crowd.driver.explain(crowd.tickets[text.split()[0]]).reason
            for text in crowd.let_out()
            if text.endswith("rehomed")
        ]
        assert reasons
        assert all("waited for a place" in reason and "had room" in reason for reason in reasons)

    def test_pins_auxiliary_calls_and_requests_of_nobody_are_counted_not_held(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        guests: Sequence[dict[str, object]] = [{"pin": crowd.driver.replicas[0]}, {"auxiliary": True}, {}]
        for fields in guests:
            crowd.driver.offer(None, body_bytes=4_000, **fields)
            assert isinstance(crowd.driver.last, Dispatch)
        floors = crowd.driver.router._door.room.places.floors.values()  # type: ignore[union-attr]
        assert sum(floor.guest_tokens for floor in floors) > 3_000

    def test_without_a_rank_it_is_not_counted(self) -> None:
        crowd = Crowd()
        crowd.driver.offer("c0", pinnable=False, body_bytes=BODY)
        assert crowd.driver.went == ("unrouted", "e0")

    def test_a_second_turn_of_a_resident_that_runs_goes_too(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        running = crowd.running()[0]
        crowd.driver.offer(running, body_bytes=BODY)
        assert crowd.driver.went[0] == "sticky"

    def test_what_waits_of_one_conversation_goes_together(self) -> None:
        """To the same place, in the order in which it came: one context, and none overtakes."""
        crowd = Crowd()
        crowd.everybody()
        name = next(name for name in crowd.names if name not in crowd.running())
        beside = [crowd.driver.offer(name, body_bytes=size * BODY) for size in (2, 1)]
        crowd.driver.let_out.clear()
        while name not in crowd.running():
            running = crowd.running()[0]
            crowd.end(running, finish_reason="stop")
            crowd.names.remove(running)
        replica = crowd.went_to(name)
        assert [str(crowd.driver.explain(ticket).replica) for ticket in beside] == [replica] * 2
        went = [action.ticket for action in crowd.driver.let_out]
        at = went.index(crowd.tickets[name])
        assert went[at : at + 3] == [crowd.tickets[name], *beside]
        place = crowd.driver.router._door.room.places.of(key(name))  # type: ignore[union-attr]
        assert place is not None
        assert (place.in_flight, place.tokens > 15_000) == (3, True), "as large as the largest of them"
        assert place.waits == 1

    def test_who_has_waited_for_too_long_may_spill_and_has_no_place_then(self) -> None:
        crowd = Crowd(max_wait_s=20.0)
        crowd.everybody()
        waiting = len(crowd.names) - len(crowd.running())
        assert waiting > 1
        for _ in range(6):
            crowd.driver.offer(pin=ReplicaId("e0", 0), body_bytes=BODY)
        crowd.driver.configure(admission="auto", max_wait_s=20.0, spill_threshold=0)
        crowd.driver.let_out.clear()
        crowd.wait(21.0)
        words = [went.split()[1] for went in crowd.let_out()]
        assert len(words) == waiting
        assert "spilled" in words
        assert len(crowd.running()) == len(crowd.names)

    def test_while_nobody_waits_a_drain_and_a_failure_are_no_business_of_the_room(self) -> None:
        crowd = Crowd(2)
        crowd.driver.drain("e0/0")
        deadline = crowd.driver.router.next_deadline()
        assert deadline is not None
        assert deadline > crowd.driver.now
        crowd.driver.undrain("e0/0")
        assert isinstance(crowd.driver.fail(crowd.tickets["c0"]), Dispatch)
        assert crowd.room.residents == 0

    def test_what_continues_a_response_goes_to_its_engine_at_once(self) -> None:
        """No other engine knows the response. Who has a place uses it, who has none is a guest."""
        crowd = Crowd()
        crowd.everybody()
        places = crowd.driver.router._door.room.places  # type: ignore[union-attr]
        resident = crowd.running()[0]
        waiting = next(name for name in crowd.names if name not in crowd.running())
        home = crowd.driver.router._table.get(key(waiting)).home  # type: ignore[union-attr]
        crowd.end(resident)
        for name in (resident, waiting):
            crowd.driver.offer(name, body_bytes=BODY, engine="e0")
            assert crowd.driver.went[0] == "sticky"
        assert crowd.driver.went[1] == str(home.id)  # type: ignore[union-attr]
        assert places.of(key(waiting)) is None
        assert sum(floor.guest_tokens for floor in places.floors.values()) > 9_000
        resident_place = places.of(key(resident))
        assert resident_place is not None
        assert resident_place.in_flight == 1

    def test_a_picture_does_not_stop_the_others(self) -> None:
        """Its 3 MB are no 750,000 tokens."""
        crowd = Crowd()
        for _ in range(3):
            crowd.everybody()
            crowd.wait(2.0)
        before = len(crowd.running())
        ticket = crowd.driver.offer("picture", body_bytes=3_000_000)
        least = before
        for _ in range(60):
            crowd.everybody()
            crowd.wait(2.0)
            least = min(least, len(crowd.running()))
        assert ticket in crowd.driver.router._open
        assert least >= before - 2

    def test_a_place_that_is_dear_to_read_again_is_kept_for_more_turns(self) -> None:
        crowd = Crowd()
        learned = crowd.driver.router._door.room.learned  # type: ignore[union-attr]
        least_turns = crowd.driver.router._door.room.least_turns  # type: ignore[union-attr]
        assert least_turns(10_000) == 1
        learned.turn_s = 10.0
        learned._reads.clear()
        learned.served(10_000, 5.0, 10.0, kept=False)
        assert least_turns(7_900) == 1
        assert least_turns(10_000) == 2
        assert least_turns(100_000) == 25
        assert least_turns(10_000_000) == admission.MOST_TURNS

    def test_an_overdue_waiter_makes_residents_give_way(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        running = crowd.running()
        first = next(name for name in crowd.names if name not in running)
        crowd.wait(60.0)
        crowd.let_out()
        assert crowd.turn(running[0]) is None
        assert crowd.let_out()[0].startswith(first)

    def test_waits_are_counted_when_they_end(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        assert crowd.turn("new") is None
        while "new" not in crowd.running() and crowd.running():
            crowd.end(crowd.running()[0], finish_reason="stop")
            crowd.names = [name for name in crowd.names if name in crowd.tickets] + ["new"]
        table, places = crowd.driver.router._table, crowd.driver.router._door.room.places  # type: ignore[union-attr]
        conversation = table.get(key("new"))
        assert conversation is not None
        assert conversation.waits == places.by_key[key("new")].waits == 1

    def test_preferring_the_median_nobody_gives_way(self) -> None:
        crowd = Crowd(prefer="median")
        crowd.everybody()
        running = crowd.running()
        crowd.wait(60.0)
        assert crowd.turn(running[0]) == "sticky"

    def small(self, waited_s: float) -> list[str]:
        """Nobody fits; then a resident of 10,000 tokens goes while large requests and a small one wait."""
        crowd = Crowd(prefer="tail")
        crowd.everybody()
        crowd.tickets["small"] = crowd.driver.offer("small", body_bytes=8_000)
        assert crowd.driver.last is None
        crowd.wait(waited_s)
        crowd.let_out()
        crowd.end(crowd.running()[0], finish_reason="stop")
        return crowd.let_out()

    def test_what_is_small_does_not_stand_behind_what_is_large(self) -> None:
        assert self.small(1.0)[0] == "small placed"

    def test_what_is_large_goes_first_when_it_lost_its_patience(self) -> None:
        assert self.small(60.0)[0] == "c0 sticky"


class TestLeaving:
    """However a waiter leaves, it leaves once."""

    def held(self, **more: object) -> tuple[Crowd, str]:
        crowd = Crowd(**more)  # type: ignore[arg-type]
        crowd.everybody()
        assert crowd.turn("new") is None
        crowd.let_out()
        return crowd, "new"

    def test_max_wait_is_the_hard_bound(self) -> None:
        crowd, name = self.held(max_wait_s=30.0)
        waiting = crowd.room.waiting
        crowd.wait(30.0)
        assert crowd.room.waiting == 0
        assert crowd.driver.view.wait_expired == waiting > 0
        assert f"{name} placed" in crowd.let_out()

    @pytest.mark.parametrize("change", [{"admission": "off"}, {"admission": "auto", "affinity": False}])
    def test_who_went_at_the_bound_stays_counted_when_the_room_is_switched(self, change: dict[str, object]) -> None:
        crowd, _ = self.held(max_wait_s=30.0)
        waiting = crowd.room.waiting
        crowd.wait(30.0)
        crowd.driver.configure(**change)
        assert crowd.driver.view.room is None
        assert crowd.driver.view.wait_expired == waiting > 0
        crowd.driver.configure(admission="auto", affinity=True)
        assert not crowd.room.engaged
        assert crowd.driver.view.wait_expired == waiting

    def test_a_client_that_leaves(self) -> None:
        crowd, name = self.held()
        waiting = crowd.room.waiting
        crowd.driver.cancel(crowd.tickets[name])
        crowd.driver.cancel(crowd.tickets[name])
        assert crowd.room.waiting == waiting - 1

    @pytest.mark.parametrize("change", [{"admission": "off"}, {"admission": "auto", "affinity": False}])
    def test_when_it_is_switched_off_all_go(self, change: dict[str, object]) -> None:
        crowd, _ = self.held()
        waiting = crowd.room.waiting
        crowd.driver.configure(**change)
        assert len(crowd.driver.let_out) == waiting
        assert all(isinstance(action, Dispatch) for action in crowd.driver.let_out)
        assert crowd.driver.view.room is None

    def test_other_settings_leave_them_waiting(self) -> None:
        crowd, _ = self.held()
        waiting = crowd.room.waiting
        crowd.driver.configure(admission="auto", prefer="tail", max_wait_s=100.0)
        assert crowd.room.waiting == waiting

    def test_no_replica_left(self) -> None:
        """They are told at once, as those who come then are."""
        crowd, _ = self.held()
        waiting = crowd.room.waiting
        for replica in crowd.driver.replicas:
            crowd.driver.down(replica)
        refused = [action for action in crowd.driver.let_out if isinstance(action, Refuse)]
        assert len(refused) == waiting
        assert {action.reason for action in refused} == {RefuseReason.NO_REPLICA}

    def test_a_replica_that_returns_takes_waiters(self) -> None:
        crowd, _ = self.held()
        waiting = crowd.room.waiting
        crowd.driver.up("e0/1", "boot2")
        assert len(crowd.driver.let_out) == min(waiting, 4)

    def test_draining_and_the_end_of_it_are_felt_within_one_tick(self) -> None:
        crowd, _ = self.held()
        crowd.driver.drain("e0/1")
        drained = next(row for row in crowd.driver.view.replicas if str(row.replica) == "e0/1")
        assert drained.residents == 0
        for name in crowd.running():
            crowd.end(name, finish_reason="stop")
        waiting = crowd.room.waiting
        assert waiting > 0
        crowd.let_out()
        crowd.driver.undrain("e0/1")
        assert crowd.driver.router.next_deadline() == crowd.driver.now
        crowd.driver.later(0.0)
        assert crowd.let_out()
        assert crowd.room.waiting < waiting

    def test_when_all_replicas_are_drained_nobody_is_kept(self) -> None:
        """Who comes is refused then, and so are they."""
        crowd, _ = self.held()
        waiting = crowd.room.waiting
        for replica in crowd.driver.replicas:
            crowd.driver.drain(replica)
        crowd.driver.later(0.0)
        assert crowd.room.waiting == 0
        assert len(crowd.driver.let_out) == waiting
        assert all(isinstance(action, Refuse) for action in crowd.driver.let_out)
        crowd.wait(1.0)
        assert len(crowd.running()) == crowd.driver.view.in_flight > 0, "what runs goes on"

    def test_while_the_room_is_full_a_resident_keeps_its_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A waiter is late; but who gave way to it would be refused."""
        crowd, _ = self.held()
        crowd.wait(60.0)
        monkeypatch.setattr(admission, "MOST_WAITING_EACH", 0)
        monkeypatch.setattr(admission, "MOST_WAITING", crowd.room.waiting)
        resident = crowd.running()[0]
        assert crowd.turn(resident) == "sticky"
        monkeypatch.setattr(admission, "MOST_WAITING", crowd.room.waiting + 1)
        assert crowd.turn(resident) is None

    def test_in_a_full_room_who_outgrew_its_place_waits_if_that_lets_another_go(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        crowd, _ = self.held()
        waiting = crowd.room.waiting
        monkeypatch.setattr(admission, "MOST_WAITING", waiting)
        resident = crowd.running()[0]
        crowd.end(resident)
        crowd.tickets[resident] = crowd.driver.offer(resident, body_bytes=3 * BODY)
        assert crowd.driver.last is None
        assert len(crowd.let_out()) == 1
        assert crowd.room.waiting == waiting

    def test_clients_that_are_refused_and_come_again_do_not_open_the_room(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their pauses are the room's doing."""
        crowd, _ = self.held()
        door = crowd.driver.router._door
        assert door is not None
        monkeypatch.setattr(admission, "MOST_WAITING_EACH", 0)
        monkeypatch.setattr(admission, "MOST_WAITING", crowd.room.waiting)
        name = crowd.running()[0]
        crowd.end(name)
        place = door.room.places.of(key(name))
        assert place is not None
        door.room.places.leave(place)
        crowd.driver.offer("another", pin=crowd.driver.replicas[0], body_bytes=BODY * 4)
        before = len(door.room.learned.gaps)
        for _ in range(5):
            crowd.driver.offer(name, body_bytes=BODY)
            assert crowd.driver.refused == "room_full"
            crowd.driver.later(3.0)
        assert len(door.room.learned.gaps) <= before + 1
        assert crowd.room.gap_s == 0.0

    def test_a_full_room_refuses_and_says_when_to_come_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        crowd, _ = self.held()
        monkeypatch.setattr(admission, "MOST_WAITING_EACH", 0)
        monkeypatch.setattr(admission, "MOST_WAITING", crowd.room.waiting)
        crowd.driver.offer("another", body_bytes=BODY)
        assert crowd.driver.refused == "room_full"
        assert isinstance(crowd.driver.last, Refuse)
        assert 1 <= crowd.driver.last.retry_after_s <= 60


class TestLearning:
    """Only from what was reported."""

    def test_an_answer_without_a_first_byte_or_without_cached_tokens(self) -> None:
        crowd = Crowd(2)
        learned = crowd.driver.router._door.room.learned  # type: ignore[union-attr]
        reads = len(learned._reads)
        usage = Usage(prompt_tokens=10_000, completion_tokens=50)
        crowd.driver.router.finished(crowd.tickets["c0"], Outcome.OK, usage, crowd.driver.now)
        usage = Usage(prompt_tokens=10_000, completion_tokens=50, cached_tokens=0)
        crowd.driver.router.finished(crowd.tickets["c1"], Outcome.OK, usage, crowd.driver.now)
        assert len(learned._reads) == reads


class TestFailing:
    """A turn that is sent again keeps its account."""

    def test_sent_again(self) -> None:
        crowd = Crowd()
        ticket = crowd.tickets["c0"]
        assert isinstance(crowd.driver.fail(ticket), Dispatch)
        crowd.driver.finish(ticket, outcome=Outcome.OK)

    def test_given_up_lets_somebody_in(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        running = crowd.running()[0]
        crowd.driver.fail(crowd.tickets[running])
        assert isinstance(crowd.driver.fail(crowd.tickets[running]), Refuse)

    def test_a_turn_that_spills_is_a_guest(self) -> None:
        crowd = Crowd()
        home = str(crowd.driver.router._table.get(key("c0")).home.id)  # type: ignore[union-attr]
        crowd.end("c0")
        crowd.driver.sample(home, running=1, stalled=True)
        crowd.driver.offer("c0", body_bytes=BODY)
        assert crowd.driver.went[0] == Decision.SPILLED
        floors = crowd.driver.router._door.room.places.floors.values()  # type: ignore[union-attr]
        assert sum(floor.guest_tokens for floor in floors) > 0


class TestAccounts:
    """What stands in the room's books while somebody goes, and what is said of who does not."""

    def test_who_is_let_in_reads_until_its_first_byte(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        crowd.turn("new")
        while "new" not in crowd.running():
            crowd.end(crowd.running()[0], finish_reason="stop")
            crowd.names = [name for name in crowd.names if name in crowd.tickets] + ["new"]
        floors = crowd.driver.router._door.room.places.floors  # type: ignore[union-attr]
        floor = next(floor for replica, floor in floors.items() if replica.name == crowd.went_to("new"))
        before = floor.reading_tokens
        crowd.driver.router.first_byte(crowd.tickets["new"], crowd.driver.now)
        assert before - floor.reading_tokens == pytest.approx(10_000, rel=0.1)

    def test_who_waits_is_told_how_many_are_before_it(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        waiting = [name for name in crowd.names if name not in crowd.running()]
        assert len(waiting) > 2
        said = [crowd.driver.explain(crowd.tickets[name]).reason for name in waiting]
        assert ["with 0 req" in said[0], "with 1 req" in said[1], "with 2 req" in said[2]] == [True] * 3

    def test_the_next_deadline_is_never_after_the_end_of_a_conversations_life(self) -> None:
        driver = Driver(settings=RoutingSettings(admission="auto"))
        driver.turn("a")
        dies_at = driver.now + RoutingSettings().live_s
        driver.later(RoutingSettings().live_s - 0.1)
        assert driver.router.next_deadline() == dies_at
