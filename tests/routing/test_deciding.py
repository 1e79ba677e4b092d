"""Requests that only one engine can serve, and homes that take no turns."""

from __future__ import annotations

import pytest
from tests.routing.driver import Driver

from lmwarden.types import Decision, Outcome, ReplicaId

THREE = {"e0": 1, "e1": 1, "e2": 1}


class TestOnlyOneEngineCanServe:
    """``/v1/responses`` that continues a response: the engine that made it keeps it."""

    def test_home_is_there(self) -> None:
        driver = Driver(THREE)
        home = ReplicaId.parse(driver.turn("a")[1])
        ticket = driver.offer("a", engine=home.engine)
        assert driver.went == ("sticky", str(home))
        assert driver.explain(ticket).reason == (
            f"It continues a response that only {home.engine} keeps, where its home {home} is."
        )

    def test_home_even_above_the_threshold(self) -> None:
        driver = Driver(THREE)
        home = ReplicaId.parse(driver.turn("a")[1])
        driver.hold(home, 20)
        assert driver.turn("a", engine=home.engine) == ("sticky", str(home))
        assert driver.turn("a")[0] == "spilled"

    def test_elsewhere_it_is_as_named_and_moves_nothing(self) -> None:
        driver = Driver(THREE)
        home = driver.turn("a")[1]
        other = next(name for name in THREE if not home.startswith(name))
        ticket = driver.offer("a", engine=other)
        assert driver.went == ("client_pinned", f"{other}/0")
        assert driver.explain(ticket).reason == f"It continues a response that only {other} keeps: {other}/0."
        assert driver.explain(ticket).candidates
        driver.finish(ticket)
        assert driver.turn("a") == ("sticky", home)
        assert driver.turn("new", engine=other) == ("client_pinned", f"{other}/0")
        assert driver.turn(None, engine=other) == ("client_pinned", f"{other}/0")
        assert driver.view.conversations == 1

    def test_an_auxiliary_call_is_no_turn(self) -> None:
        driver = Driver(THREE)
        home = ReplicaId.parse(driver.turn("a")[1])
        assert driver.turn("a", engine=home.engine, auxiliary=True) == ("client_pinned", str(home))

    def test_the_least_loaded_rank_of_the_engine(self) -> None:
        driver = Driver({"e0": 2, "e1": 2})
        driver.hold("e1/0", 1)
        assert driver.turn("new", engine="e1") == ("client_pinned", "e1/1")

    def test_a_rank_that_is_ready_before_one_that_is_drained(self) -> None:
        driver = Driver({"e0": 2, "e1": 2})
        driver.drain("e1/0")
        driver.hold("e1/1", 5)
        assert driver.turn("new", engine="e1") == ("client_pinned", "e1/1")

    def test_where_a_rank_is_ignored_the_engine_chooses(self) -> None:
        driver = Driver({"e0": 2, "e1": 2})
        ticket = driver.offer("a", engine="e1", pinnable=False)
        assert driver.went == ("unrouted", "e1")
        assert "this endpoint ignores a rank: e1" in driver.explain(ticket).reason
        driver.finish(ticket)

    def test_beside_a_multi_rank_engine_a_single_rank_one_keeps_affinity(self) -> None:
        driver = Driver({"e0": 2, "e1": 1})
        assert driver.turn("a", engine="e1", pinnable=False) == ("client_pinned", "e1/0")

    @pytest.mark.parametrize(
        ("engines", "went"), [(THREE, ("client_pinned", "e1/0")), ({"e0": 2, "e1": 2}, ("unrouted", "e1"))]
    )
    def test_affinity_off(self, engines: dict[str, int], went: tuple[str, str]) -> None:
        driver = Driver(engines)
        for name in "abcdef":
            driver.turn(name)
        driver.configure(affinity=False)
        assert {driver.turn(name, engine="e1") for name in "abcdef"} == {went}, "also for those at home there"

    def test_a_drained_engine_still_serves_what_only_it_can(self) -> None:
        driver = Driver(THREE)
        home = ReplicaId.parse(driver.turn("a")[1])
        for name in THREE:
            driver.drain(f"{name}/0")
        assert driver.turn("a", engine=home.engine) == ("sticky", str(home))
        assert driver.turn("new", engine="e1") == ("client_pinned", "e1/0")

    def test_a_home_whose_cache_was_lost_is_none(self) -> None:
        driver = Driver(THREE)
        home = ReplicaId.parse(driver.turn("a")[1])
        driver.up(home, "boot2")
        assert driver.turn("a", engine=home.engine) == ("client_pinned", str(home))

    @pytest.mark.parametrize("engine", ["e1", "e7"])
    def test_gone_it_is_refused_whatever_else_is_up(self, engine: str) -> None:
        driver = Driver(THREE)
        driver.down("e1/0")
        driver.offer("a", engine=engine)
        assert driver.refused == "response_lost"
        assert driver.view.refused == 1

    def test_a_pin_goes_first(self) -> None:
        driver = Driver(THREE)
        assert driver.turn("a", engine="e1", pin=ReplicaId("e2", 0)) == ("client_pinned", "e2/0")


class TestFailedWhereOnlyOneEngineCanServe:
    @pytest.mark.parametrize("at_home", [True, False])
    def test_it_is_sent_there_once_more(self, at_home: bool) -> None:
        driver = Driver(THREE)
        home = ReplicaId.parse(driver.turn("a")[1])
        engine = next(name for name in THREE if (name == home.engine) is at_home)
        ticket = driver.offer("a", engine=engine)
        driver.fail(ticket)
        assert driver.went == ("sticky" if at_home else "client_pinned", f"{engine}/0")
        driver.fail(ticket)
        assert driver.refused == "retry_exhausted"

    def test_also_without_a_rank(self) -> None:
        driver = Driver({"e0": 2, "e1": 2})
        ticket = driver.offer("a", engine="e1", pinnable=False)
        driver.fail(ticket)
        assert driver.went == ("unrouted", "e1")
        driver.finish(ticket)

    @pytest.mark.parametrize("pinnable", [True, False])
    def test_not_where_that_engine_is_gone(self, pinnable: bool) -> None:
        driver = Driver({"e0": 2, "e1": 2})
        ticket = driver.offer("a", engine="e1", pinnable=pinnable)
        driver.down("e1/0")
        driver.down("e1/1")
        driver.fail(ticket)
        assert driver.refused == "response_lost"
        assert driver.view.in_flight == 0

    def test_a_named_replica_on_an_endpoint_that_ignores_ranks_keeps_its_engine(self) -> None:
        driver = Driver({"e0": 2, "e1": 2})
        ticket = driver.offer("a", pin=ReplicaId("e1", 1), pinnable=False)
        driver.fail(ticket)
        assert driver.went == ("unrouted", "e1")
        driver.finish(ticket)


class TestStalled:
    def test_no_new_conversation_and_its_own_go_elsewhere_meanwhile(self) -> None:
        driver = Driver(THREE)
        home = driver.turn("a")[1]
        driver.sample(home, stalled=True)
        ticket = driver.offer("a")
        decision, elsewhere = driver.went
        assert decision == "spilled"
        assert driver.explain(ticket).reason == (
            f"Its home {home} has work and makes no progress; {elsewhere} took this turn."
        )
        driver.finish(ticket)
        ticket = driver.offer("new")
        assert driver.explain(ticket).reason.endswith(f"among 2 (without {home}: work there and no progress).")
        driver.finish(ticket)
        assert all(driver.turn(f"n{number}")[1] != home for number in range(8))
        assert [str(row.replica) for row in driver.view.replicas if row.suspect] == [home]

    def test_progress_ends_it_at_once(self) -> None:
        driver = Driver(THREE)
        home = driver.turn("a")[1]
        driver.sample(home, stalled=True)
        driver.turn("a")
        driver.later(1.0)
        driver.sample(home)
        assert driver.turn("a") == ("sticky", home)

    def test_an_old_scrape_says_nothing(self) -> None:
        driver = Driver(THREE)
        home = driver.turn("a")[1]
        driver.sample(home, stalled=True, age_s=5.0)
        assert driver.turn("a") == ("sticky", home)
        driver.later(1.0)
        driver.sample(home, stalled=True)
        driver.later(5.0)
        assert driver.turn("a") == ("sticky", home)

    def test_answers_do_not_end_it(self) -> None:
        """One that was finished already may still arrive."""
        driver = Driver(THREE)
        tickets = driver.hold("e0/0", 2)
        driver.sample("e0/0", stalled=True)
        driver.finish(tickets.pop(), outcome=Outcome.TIMEOUT)
        driver.finish(tickets.pop())
        assert driver.view.replicas[0].suspect

    def test_where_all_stall_we_still_try(self) -> None:
        driver = Driver(THREE)
        home = driver.turn("a")[1]
        for replica in driver.replicas:
            driver.sample(replica, stalled=True)
        assert driver.turn("a") == ("sticky", home)
        ticket = driver.offer("new")
        assert driver.went[0] == "placed"
        assert "without" not in driver.explain(ticket).reason

    def test_the_only_replica_keeps_its_turns(self) -> None:
        driver = Driver({"e0": 1})
        driver.turn("a")
        driver.sample("e0/0", stalled=True)
        assert driver.turn("a") == ("sticky", "e0/0")
        assert driver.turn("b") == ("placed", "e0/0")

    def test_pins_are_obeyed(self) -> None:
        driver = Driver(THREE)
        driver.sample("e1/0", stalled=True)
        assert driver.turn("a", pin=ReplicaId("e1", 0)) == ("client_pinned", "e1/0")


class TestHomeIsLostAfterASpill:
    def spilled(self, driver: Driver) -> tuple[str, str]:
        """A conversation ``a`` whose last turn was spilled; its home and where it went."""
        home = driver.turn("a")[1]
        busy = driver.hold(home, 9)
        second = driver.turn("a")[1]
        for ticket in busy:
            driver.finish(ticket)
        return home, second

    def test_it_moves_to_where_its_last_turn_went(self) -> None:
        driver = Driver(THREE)
        home, second = self.spilled(driver)
        driver.hold(second, 3)
        driver.up(home, "boot2")
        ticket = driver.offer("a")
        assert driver.went == ("rehomed", second)
        assert driver.explain(ticket).reason == (
            f"Its home {home} is lost; new home {second}, where its last turn went."
        )

    @pytest.mark.parametrize("trouble", ["busy", "cold", "down", "hash"])
    def test_not_if_that_is_no_good(self, trouble: str) -> None:
        driver = Driver(THREE)
        home, second = self.spilled(driver)
        driver.drain(home)
        match trouble:
            case "busy":
                driver.hold(second, 9)
            case "cold":
                driver.up(second, "boot2")
            case "down":
                driver.down(second)
            case "hash":
                driver.configure(placement="hash")
        ticket = driver.offer("a")
        assert driver.went[0] == "rehomed"
        assert "where its last turn went" not in driver.explain(ticket).reason

    def test_nor_if_it_was_home_again_since(self) -> None:
        driver = Driver(THREE)
        home, _ = self.spilled(driver)
        driver.turn("a")
        driver.drain(home)
        ticket = driver.offer("a")
        assert "where its last turn went" not in driver.explain(ticket).reason
        assert driver.count(Decision.REHOMED) == 1
