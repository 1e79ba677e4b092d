"""The table: bounds, floods, expiry; ids that several clients share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.driver import Driver, key

from lmwarden.routing.conversations import ConversationTable
from lmwarden.routing.replicas import Fleet
from lmwarden.types import Decision, RoutingSettings


def test_one_shot_ids_change_nothing_for_conversations_that_return() -> None:
    driver = Driver(settings=RoutingSettings(max_conversations=100))
    homes = {f"real{number}": driver.turn(f"real{number}")[1] for number in range(20)}
    for name, home in homes.items():
        assert driver.turn(name) == ("sticky", home)
    for number in range(500):
        driver.turn(f"once{number}")
    assert driver.view.conversations == 100
    assert {name: driver.turn(name)[1] for name in homes} == homes
    assert driver.count(Decision.STICKY) == 40


def test_a_conversation_with_a_request_in_flight_is_never_evicted() -> None:
    driver = Driver(settings=RoutingSettings(max_conversations=5))
    tickets = {name: driver.offer(name) for name in "abcdefg"}
    assert driver.view.conversations == 7
    for number in range(20):
        driver.turn(f"once{number}")
    for name, ticket in tickets.items():
        driver.finish(ticket)
        assert driver.turn(name)[0] == "sticky"
    driver.turn("new")
    assert driver.view.conversations == 5


def test_dormant_ones_go_before_fresh_ones_unless_fresh_ones_flood() -> None:
    driver = Driver(settings=RoutingSettings(max_conversations=10, live_s=100.0))
    for name in ("old1", "old2", "old3", "old4"):
        driver.turn(name)
        driver.turn(name)
    driver.later(101.0)
    for number in range(7):  # the eleventh conversation: fresh ones are more than half, so the oldest of those goes
        driver.turn(f"once{number}")
    assert driver.view.conversations == 10
    assert driver.turn("once0")[0] == "placed"
    for number in range(200):
        driver.turn(f"flood{number}")
    assert [driver.turn(name)[0] for name in ("old3", "old4")] == ["sticky", "sticky"]
    assert driver.turn("flood0")[0] == "placed"


def test_few_fresh_ones_go_after_dormant_ones() -> None:
    driver = Driver(settings=RoutingSettings(max_conversations=6, live_s=100.0))
    for name in ("old1", "old2", "old3", "old4"):
        driver.turn(name)
        driver.turn(name)
    driver.later(101.0)
    for name in ("new1", "new2", "new3"):
        driver.turn(name)
    assert driver.turn("new1")[0] == "sticky"
    assert driver.turn("old1")[0] == "placed"


def test_a_flood_after_a_restart_leaves_the_restored_homes() -> None:
    before, after = Driver(), Driver(settings=RoutingSettings(max_conversations=100))
    for number in range(20):
        before.turn(f"real{number}")
    assert after.router.restore_homes(before.router.export_homes(), {}, after.now) == 20
    for number in range(500):
        after.turn(f"once{number}")
    assert {after.turn(f"real{number}")[0] for number in range(20)} == {"sticky"}


def test_work_per_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmwarden.routing.conversations.EXPIRE_AT_ONCE", 5)
    driver = Driver(settings=RoutingSettings(live_s=60.0))
    for number in range(12):
        driver.turn(f"c{number}")
    driver.later(60.0)
    assert driver.router.next_deadline() is not None
    driver.later(0.0)
    assert driver.view.conversations == 0
    for number in range(12):
        driver.turn(f"c{number}")
    driver.configure(max_conversations=1, live_s=60.0)
    driver.turn("x")
    assert driver.view.conversations == 12 - 5 + 1


def test_a_live_window_of_nothing_ends() -> None:
    driver = Driver(settings=RoutingSettings(live_s=0.0))
    ticket = driver.offer("a")
    driver.later(0.0)
    driver.finish(ticket)
    assert driver.view.in_flight == 0


def test_live_counts_end_with_the_live_window_but_the_home_is_kept() -> None:
    driver = Driver(settings=RoutingSettings(live_s=60.0))
    home = driver.turn("a")[1]
    driver.turn("a")
    driver.turn("once")
    driver.later(59.0)
    assert sum(row.conversations for row in driver.view.replicas) == 2
    driver.later(1.0)
    assert sum(row.conversations for row in driver.view.replicas) == 0
    assert driver.view.conversations == 1, "the one that never came back is forgotten"
    assert driver.turn("a") == ("sticky", home)
    assert sum(row.conversations for row in driver.view.replicas) == 1


def test_a_long_request_keeps_its_conversation_live() -> None:
    driver = Driver(settings=RoutingSettings(live_s=60.0))
    ticket = driver.offer("a")
    driver.later(300.0)
    assert sum(row.conversations for row in driver.view.replicas) == 1
    driver.finish(ticket)


def test_dormant_conversations_are_forgotten_after_a_day() -> None:
    driver = Driver(settings=RoutingSettings(live_s=60.0))
    driver.turn("a")
    driver.turn("a")
    driver.later(60.0)
    driver.later(24 * 3600.0 - 61.0)
    assert driver.view.conversations == 1
    driver.later(1.0)
    assert driver.view.conversations == 0


def test_resident_tokens_follow_the_last_usage() -> None:
    driver = Driver({"e0": 1})
    driver.turn("a", prompt=1000)
    driver.turn("a", prompt=2000)
    driver.turn("b", prompt=500)
    assert driver.view.replicas[0].resident_tokens == 2100 + 600
    driver.cancel(driver.offer("a"))
    assert driver.view.replicas[0].resident_tokens == 2100 + 600, "a turn without usage keeps what was known"


def test_restored_conversations_respect_the_bound() -> None:
    fleet = Fleet({"e0": 1}, seed=0)
    table = ConversationTable(fleet, max_conversations=2, live_s=60.0)
    for name in "abc":
        table.restore(key(name), 0.0)
    assert [k for k, _ in table] == [key("b"), key("c")]


class TestSharedConstants:
    """One id, several clients: each opening becomes a conversation of its own."""

    @staticmethod
    def play(driver: Driver, clients: int, turns: int) -> dict[str, set[str]]:
        homes: dict[str, set[str]] = {}
        for _ in range(turns):
            for client in range(clients):
                opening = key(f"opening{client}")
                homes.setdefault(f"client{client}", set()).add(driver.turn("constant", opening=opening)[1])
        return homes

    def test_interleaved_clients_do_not_pile_up(self) -> None:
        driver = Driver()
        self.play(driver, clients=8, turns=3)
        homes = self.play(driver, clients=8, turns=5)
        assert all(len(own) == 1 for own in homes.values()), "each client stays"
        spread = [next(iter(own)) for own in homes.values()]
        assert len(set(spread)) == 4

    def test_concurrent_clients_do_not_pile_up(self) -> None:
        driver = Driver()
        tickets = [driver.offer("constant", opening=key(f"opening{number}")) for number in range(8)]
        assert sorted(driver.in_flight().values()) == [2, 2, 2, 2]
        for ticket in tickets:
            driver.finish(ticket)

    def test_a_conversation_whose_opening_changes_stays_one(self) -> None:
        driver = Driver()
        homes = set()
        for opening in ("first", "more tools", "compacted", "compacted again", "tools again", "last"):
            for _ in range(2):
                homes.add(driver.turn("a", opening=key(opening))[1])
        assert len(homes) == 1

    def test_a_wrong_guess_costs_only_one_of_the_openings_its_home(self) -> None:
        driver = Driver()
        home = driver.turn("a", opening=key("A"))[1]
        assert driver.turn("a", opening=key("B")) == ("sticky", home)
        # A is back again: taken for two clients, of whom the one that comes back keeps the home.
        assert driver.turn("a", opening=key("A")) == ("sticky", home)
        decision, elsewhere = driver.turn("a", opening=key("B"))
        assert decision == "placed"
        for _ in range(3):
            assert driver.turn("a", opening=key("B")) == ("sticky", elsewhere)
            assert driver.turn("a", opening=key("A")) == ("sticky", home)

    @pytest.mark.parametrize("title_is_open", [True, False])
    def test_a_title_call_in_between_does_not_take_the_conversations_home(self, title_is_open: bool) -> None:
        driver = Driver()
        home = driver.turn("a", opening=key("main"))[1]
        title = driver.offer("a", opening=key("title"))
        if not title_is_open:
            driver.finish(title)
        assert driver.turn("a", opening=key("main")) == ("sticky", home)
        if title_is_open:
            driver.finish(title)
        assert driver.turn("a", opening=key("main")) == ("sticky", home)

    def test_an_opening_that_was_not_looked_at_is_not_compared_with(self) -> None:
        driver = Driver()
        home = driver.turn("a", opening=key("A"))[1]
        for _ in range(8):
            driver.turn("a")  # compacted meanwhile, unseen
        first = driver.offer("a", opening=key("C"))
        second = driver.offer("a", opening=key("C"))
        assert driver.went == ("sticky", home)
        for ticket in (first, second):
            driver.finish(ticket)
        assert driver.turn("a") == ("sticky", home)

    def test_without_an_opening_nothing_is_concluded(self) -> None:
        driver = Driver()
        home = driver.turn("a")[1]
        assert driver.turn("a") == ("sticky", home)
        conversation = driver.router._table.get(key("a"))
        assert conversation is not None
        assert not conversation.shared

    def test_an_id_whose_opening_was_not_known_yet_is_not_shared(self) -> None:
        driver = Driver()
        home = driver.turn("a")[1]
        assert driver.turn("a", opening=key("x")) == ("sticky", home)
        assert driver.turn("a", opening=key("x")) == ("sticky", home)

    @pytest.mark.parametrize("field", ["derived", "auxiliary"])
    def test_derived_and_auxiliary_requests_do_not_count(self, field: str) -> None:
        driver = Driver()
        driver.turn("a", opening=key("x"))
        for opening in ("y", "x", "y"):
            driver.turn("a", opening=key(opening), **{field: True})
        conversation = driver.router._table.get(key("a"))
        assert conversation is not None
        assert not conversation.shared


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0.0, 400.0)), max_size=30), st.floats(0.0, 400.0))
def test_those_used_since_a_moment_are_found_without_the_others(turns: list[tuple[str, float]], ago_s: float) -> None:
    """Whatever order they stand in: new ones, those that returned, those that are not live any more."""
    driver = Driver(settings=RoutingSettings(live_s=300.0))
    for name, pause_s in turns:
        driver.later(pause_s)
        driver.turn(name)
    since = driver.now - ago_s
    table = driver.router._table
    found = [known for known, _ in table.used_since(since)]
    assert len(found) == len(set(found))
    assert set(found) == {
        known for known, conversation in table if conversation.live and conversation.last_used >= since
    }
