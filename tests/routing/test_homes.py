"""Homes over a restart of the warden: written down as they change, taken back, confirmed by the engine's run."""

from __future__ import annotations

import msgspec
import pytest
from tests.routing.driver import Driver, key

from lmwarden.routing.replicas import AWAITED_S
from lmwarden.types import Decision, Home, ReplicaId, RoutingSettings

FOUR = {f"e{number}": 1 for number in range(4)}


class Notebook:
    """What a ledger would hold: every change that the router told, in order."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.homes: dict[bytes, Home] = {}

    def write(self) -> tuple[int, int]:
        """Returns how many homes changed and how many were forgotten."""
        changes = self.driver.router.take_home_changes()
        self.homes.update({home.conversation: home for home in changes.changed})
        for conversation in changes.forgotten:
            self.homes.pop(conversation, None)
        return len(changes.changed), len(changes.forgotten)


def restarted(homes: list[Home], engines: dict[str, int] | None = None, **options: object) -> Driver:
    """A new warden that was given the homes and has heard of no replica yet."""
    driver = Driver(engines, up=False, **options)  # type: ignore[arg-type]
    driver.router.restore_homes(homes, {}, driver.now)
    driver.check()
    return driver


class TestTakingChanges:
    def test_the_first_time_all_then_what_changed(self) -> None:
        driver = Driver()
        notebook = Notebook(driver)
        driver.turn("a")
        driver.turn("b")
        assert notebook.write() == (2, 0)
        assert notebook.write() == (0, 0)
        driver.turn("b", prompt=5000)
        driver.turn("c")
        assert notebook.write() == (2, 0)
        assert notebook.homes[key("b")].context_tokens == 5100
        assert list(notebook.homes.values()) == sorted(driver.router.export_homes(), key=lambda home: home.conversation)

    def test_a_binding_is_told_before_its_turn_ends(self) -> None:
        driver = Driver()
        notebook = Notebook(driver)
        notebook.write()
        driver.offer("a")
        assert notebook.write() == (1, 0)
        assert str(notebook.homes[key("a")].replica) == driver.went[1]

    def test_what_happened_often_is_told_once(self) -> None:
        driver = Driver()
        notebook = Notebook(driver)
        notebook.write()
        for _ in range(10):
            driver.turn("a")
        assert notebook.write() == (1, 0)

    def test_a_move_is_told(self) -> None:
        driver = Driver(FOUR)
        notebook = Notebook(driver)
        home = driver.turn("a")[1]
        notebook.write()
        driver.drain(home)
        moved = driver.turn("a")[1]
        assert notebook.write() == (1, 0)
        assert str(notebook.homes[key("a")].replica) == moved

    def test_a_move_because_the_first_engine_failed_is_told(self) -> None:
        driver = Driver(FOUR)
        notebook = Notebook(driver)
        ticket = driver.offer("a")
        notebook.write()
        driver.fail(ticket)
        moved = driver.went[1]
        assert notebook.write() == (1, 0)
        assert str(notebook.homes[key("a")].replica) == moved

    def test_a_first_turn_that_was_never_served_is_forgotten(self) -> None:
        driver = Driver(FOUR)
        notebook = Notebook(driver)
        ticket = driver.offer("a")
        notebook.write()
        driver.fail(ticket)
        driver.fail(ticket)
        assert notebook.write() == (0, 1)
        assert not notebook.homes

    @pytest.mark.parametrize(("turns", "idle_s"), [(1, 60.0), (2, 24 * 3600.0)])
    def test_an_expired_one_is_forgotten(self, turns: int, idle_s: float) -> None:
        driver = Driver(settings=RoutingSettings(live_s=60.0))
        notebook = Notebook(driver)
        for _ in range(turns):
            driver.turn("a")
        notebook.write()
        driver.later(idle_s - 1.0)
        driver.later(0.0)
        assert notebook.write() == (0, 0)
        driver.later(1.0)
        assert notebook.write() == (0, 1)

    def test_evicted_ones_are_forgotten(self) -> None:
        driver = Driver(settings=RoutingSettings(max_conversations=10))
        notebook = Notebook(driver)
        for number in range(10):
            driver.turn(f"old{number}")
        notebook.write()
        for number in range(4):
            driver.turn(f"new{number}")
        assert notebook.write() == (4, 4)
        assert len(notebook.homes) == 10

    def test_one_in_use_for_longer_than_the_live_window_is_told_as_used(self) -> None:
        driver = Driver(settings=RoutingSettings(live_s=60.0))
        notebook = Notebook(driver)
        driver.offer("a")
        notebook.write()
        driver.later(60.0)
        assert notebook.write() == (1, 0)
        assert notebook.homes[key("a")].last_used == driver.now

    def test_one_whose_cache_was_lost_is_forgotten_when_it_is_touched(self) -> None:
        driver = Driver({"e0": 1})
        notebook = Notebook(driver)
        ticket = driver.offer("a")
        notebook.write()
        driver.up("e0/0", "boot2")
        driver.finish(ticket)
        assert notebook.write() == (0, 1)

    def test_auxiliary_calls_and_pins_change_no_home(self) -> None:
        driver = Driver()
        notebook = Notebook(driver)
        driver.turn("a")
        notebook.write()
        driver.turn("a", auxiliary=True)
        driver.turn("a", pin=ReplicaId("e0", 1))
        assert notebook.write() == (0, 0)

    def test_who_never_asks_costs_a_bounded_memory_and_is_told_everything_then(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lmwarden.routing.conversations.MOST_FORGOTTEN", 5)
        driver = Driver(settings=RoutingSettings(max_conversations=10))
        notebook = Notebook(driver)
        notebook.write()
        for number in range(26):
            driver.turn(f"once{number}")
        assert driver.router._table.touched is None
        assert notebook.write() == (10, 0)
        assert notebook.write() == (0, 0)


class TestRestoring:
    def test_homes_come_back(self) -> None:
        before = Driver()
        homes = {name: before.turn(name)[1] for name in "abcdef"}
        after = restarted(before.router.export_homes())
        for replica in after.replicas:
            after.up(replica)
        assert {name: after.turn(name) for name in homes} == {name: ("sticky", home) for name, home in homes.items()}

    def test_where_the_boot_id_is_known_already(self) -> None:
        before, after = Driver(), Driver()
        before.turn("a")
        before.turn("b")
        known = after.turn("b")
        homes = before.router.export_homes()
        assert after.router.restore_homes(homes, {}, after.now) == 1, "b is known"
        assert after.turn("b") == ("sticky", known[1])
        assert after.turn("a")[0] == "sticky"

    def test_not_those_of_another_run(self) -> None:
        before, after, told = Driver(), Driver(up=False), Driver(up=False)
        before.turn("a")
        homes = before.router.export_homes()
        for replica in after.replicas:
            after.up(replica, "boot2")
        assert after.router.restore_homes(homes, {}, after.now) == 0
        assert told.router.restore_homes(homes, dict.fromkeys(told.replicas, "boot2"), told.now) == 0
        assert told.router.restore_homes(homes, dict.fromkeys(told.replicas, "boot1"), told.now) == 1

    def test_those_of_a_run_that_turns_out_to_be_over_are_lost(self) -> None:
        before = Driver(FOUR)
        names = [f"c{number}" for number in range(8)]
        homes = {name: before.turn(name)[1] for name in names}
        after = restarted(before.router.export_homes(), FOUR)
        for replica in after.replicas:
            after.up(replica, "boot2" if replica.engine == "e1" else "boot1")
        for name, home in homes.items():
            decision, went = after.turn(name)
            assert decision == ("rehomed" if home == "e1/0" else "sticky")
            assert went == home or home == "e1/0"

    def test_of_several_runs_the_latest(self) -> None:
        driver = Driver({"e0": 1})
        driver.turn("old")
        older = driver.router.export_homes()
        driver.later(5.0)
        driver.up("e0/0", "boot2")
        driver.turn("new")
        homes = [*driver.router.export_homes(), *older]
        after = Driver({"e0": 1}, up=False)
        assert after.router.restore_homes(homes, {}, after.now) == 1
        after.up("e0/0", "boot2")
        assert after.turn("new")[0] == "sticky"
        assert after.turn("old")[0] == "placed"

    def test_not_those_of_a_replica_that_is_gone_nor_without_a_run(self) -> None:
        before = Driver(FOUR)
        for name in "abcdefgh":
            before.turn(name)
        homes = before.router.export_homes()
        after = Driver({"e0": 1}, up=False)
        assert after.router.restore_homes(homes, {}, after.now) == 2
        nameless = [msgspec.structs.replace(home, boot_id="") for home in homes]
        assert Driver(FOUR, up=False).router.restore_homes(nameless, {}, 0.0) == 0

    def test_a_home_from_the_future_was_used_now(self) -> None:
        before = Driver()
        before.turn("a")
        [home] = before.router.export_homes()
        after = restarted([msgspec.structs.replace(home, last_used=1e9)])
        assert after.router.export_homes()[0].last_used == after.now

    def test_what_was_restored_is_no_change_and_what_was_not_is_forgotten(self) -> None:
        before = Driver(FOUR)
        before.turn("a")
        before.turn("b")
        homes = before.router.export_homes()
        after = Driver(FOUR, up=False)
        after.up("e0/0")
        known = after.turn("known")
        gone = msgspec.structs.replace(homes[0], conversation=key("gone"), replica=ReplicaId("e9", 0))
        after.router.restore_homes([*homes, gone], {}, after.now)
        changes = after.router.take_home_changes()
        assert [(home.conversation, str(home.replica)) for home in changes.changed] == [(key("known"), known[1])]
        assert changes.forgotten == [key("gone")]

    def test_more_than_the_table_holds_leaves_the_latest(self) -> None:
        before = Driver()
        for name in "abcdef":
            before.turn(name)
            before.later(1.0)
        homes = before.router.export_homes()
        after = restarted(homes[::-1], settings=RoutingSettings(max_conversations=3))
        assert {home.conversation for home in after.router.export_homes()} == {key(name) for name in "def"}

    def test_a_conversation_without_a_living_home_is_not_exported(self) -> None:
        driver = Driver()
        home = driver.turn("a")[1]
        driver.up(home, "boot2")
        assert driver.router.export_homes() == []

    def test_an_engine_that_is_expected_confirms_nothing(self) -> None:
        """A watch announces what it expects: capacity, no run, down."""
        before = Driver({"e0": 1})
        before.turn("a")
        after = restarted(before.router.export_homes(), {"e0": 1})
        after.up("e0/0", "")
        after.down("e0/0")
        assert len(after.router.export_homes()) == 1
        after.up("e0/0", "boot1")
        assert after.turn("a") == ("sticky", "e0/0")


class TestUntilTheHomeIsHeardOf:
    """The warden serves again while some engines have not answered yet."""

    def play(self) -> tuple[Driver, str]:
        before = Driver(FOUR)
        before.turn("a")
        [home] = before.router.export_homes()
        after = restarted([home], FOUR)
        for replica in after.replicas:
            if replica != home.replica:
                after.up(replica)
        return after, str(home.replica)

    def test_its_turns_go_to_one_other_and_then_home(self) -> None:
        after, home = self.play()
        ticket = after.offer("a")
        decision, elsewhere = after.went
        assert decision == "spilled"
        assert elsewhere != home
        assert after.explain(ticket).reason == (
            f"Its home {home} was not heard of yet since the warden started; {elsewhere} took this turn."
        )
        after.finish(ticket)
        assert after.turn("a") == ("spilled", elsewhere), "warm there now"
        after.up(home)
        assert after.turn("a") == ("sticky", home)

    def test_if_its_cache_is_lost_it_stays_where_it_went(self) -> None:
        after, home = self.play()
        elsewhere = after.turn("a")[1]
        after.up(home, "boot2")
        assert after.turn("a") == ("rehomed", elsewhere)

    def test_not_for_long(self) -> None:
        after, _ = self.play()
        elsewhere = after.turn("a")[1]
        after.later(AWAITED_S)
        assert after.turn("a") == ("rehomed", elsewhere)
        assert after.turn("a") == ("sticky", elsewhere)

    def test_not_where_the_home_is_to_be_drained(self) -> None:
        after, home = self.play()
        after.drain(home)
        assert after.turn("a")[0] == "rehomed"

    def test_once_heard_of_it_is_a_replica_like_any_other(self) -> None:
        after, home = self.play()
        after.up(home)
        after.down(home)
        assert after.turn("a")[0] == "rehomed"


def test_after_a_restart_nearly_all_go_home() -> None:
    """Killed at any moment, with changes written down every few turns; the engines answer one after the other."""
    before = Driver(FOUR)
    notebook = Notebook(before)
    homes = {}
    for number in range(150):
        homes[f"c{number}"] = before.turn(f"c{number}")[1]
        before.later(0.01)
        if number % 50 == 48:
            notebook.write()
    assert len(notebook.homes) == 149, "one was bound since the last write"
    after = restarted(list(notebook.homes.values()), FOUR)
    after.up("e0/0")
    early = {after.turn(name)[0] for name in list(homes)[:40]}
    assert early == {"sticky", "spilled"}
    for engine in ("e1", "e2", "e3"):
        after.up(f"{engine}/0")
    went = {name: after.turn(name) for name in homes}
    assert sum(went[name] == ("sticky", home) for name, home in homes.items()) >= 149
    assert after.count(Decision.REHOMED) == 0
