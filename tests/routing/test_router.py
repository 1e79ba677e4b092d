"""The router, as transcripts: what is offered, where it goes, what is counted."""

from __future__ import annotations

import pytest
from tests.routing.driver import Driver, key

from lmwarden.routing.router import Router
from lmwarden.types import Decision, Outcome, ReplicaId, ReplicaState, RoutingRequest, RoutingSettings


def test_a_conversation_stays_where_it_was_placed() -> None:
    driver = Driver()
    decision, home = driver.turn("a")
    assert decision == "placed"
    for _ in range(5):
        assert driver.turn("a") == ("sticky", home)
    assert driver.view.sticky_ratio == 1.0
    assert driver.count(Decision.STICKY) == 5


def test_conversations_spread_over_all_replicas() -> None:
    driver = Driver()
    homes = [driver.turn(name)[1] for name in "abcdefgh"]
    assert {homes.count(home) for home in homes} == {2}
    assert len(set(homes)) == 4


@pytest.mark.parametrize("seed", range(4))
def test_the_first_replica_is_not_always_the_first_in_the_list(seed: int) -> None:
    firsts = {Driver(seed=other).turn("a")[1] for other in range(12)}
    assert len(firsts) > 1
    assert Driver(seed=seed).turn("a") == Driver(seed=seed).turn("a")


def test_sequential_requests_without_a_conversation_are_spread_too() -> None:
    driver = Driver()
    went = [driver.turn() for _ in range(8)]
    assert {decision for decision, _ in went} == {"balanced"}
    assert sorted(replica for _, replica in went) == sorted([f"e0/{rank}" for rank in range(4)] * 2)


def test_in_flight_is_counted_and_comes_back_to_zero() -> None:
    driver = Driver()
    tickets = [driver.offer(name) for name in "abcde"]
    assert driver.view.in_flight == 5
    assert sorted(driver.in_flight().values()) == [1, 1, 1, 2]
    for ticket in tickets:
        driver.finish(ticket)
    assert driver.view.in_flight == 0
    assert set(driver.in_flight().values()) == {0}


@pytest.mark.parametrize("again", ["finish", "cancel"])
@pytest.mark.parametrize("first", ["finish", "cancel"])
def test_a_reservation_is_released_exactly_once(first: str, again: str) -> None:
    driver = Driver()
    other = driver.offer("b")
    ticket = driver.offer("a")
    for what in (first, again, again):
        driver.finish(ticket) if what == "finish" else driver.cancel(ticket)
    assert driver.view.in_flight == 1
    driver.finish(other)
    assert driver.router.failed_before_response(ticket, driver.now) == ()
    with pytest.raises(KeyError):
        driver.explain(ticket)


def test_a_client_that_left_says_nothing_about_the_replica() -> None:
    driver = Driver()
    for _ in range(3):
        driver.finish(driver.offer("a"), outcome=Outcome.CANCELLED)
    assert not any(row.suspect for row in driver.view.replicas)


def test_an_auxiliary_call_neither_binds_nor_moves() -> None:
    driver = Driver()
    assert driver.turn("a", auxiliary=True)[0] == "balanced"
    home = driver.turn("a")[1]
    driver.hold(home, 3)
    assert driver.turn("a", auxiliary=True)[1] != home
    assert driver.turn("a") == ("sticky", home)


def test_a_client_pin_is_obeyed_and_binds_nothing() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    elsewhere = next(str(replica) for replica in driver.replicas if str(replica) != home)
    pin = ReplicaId.parse(elsewhere)
    assert driver.turn("a", pin=pin) == ("client_pinned", elsewhere)
    assert driver.turn("a") == ("sticky", home)
    driver.drain(pin)
    assert driver.turn("b", pin=pin) == ("client_pinned", elsewhere)
    driver.down(pin)
    driver.offer("b", pin=pin)
    assert driver.refused == "pinned_replica_down"
    driver.offer("b", pin=ReplicaId("e9", 0))
    assert driver.refused == "pinned_replica_down"


class TestUnrouted:
    def test_affinity_off_on_one_multi_rank_engine_leaves_the_rank_to_it(self) -> None:
        driver = Driver({"e0": 4}, settings=RoutingSettings(affinity=False))
        ticket = driver.offer("a")
        assert driver.went == ("unrouted", "e0")
        assert set(driver.in_flight().values()) == {0}
        assert driver.view.in_flight == 1
        assert driver.view.balancer == "engine"
        driver.finish(ticket)

    def test_affinity_off_across_engines_imitates_the_balancer(self) -> None:
        driver = Driver({"e0": 1, "e1": 1, "e2": 1}, settings=RoutingSettings(affinity=False))
        driver.sample("e1/0", running=3, waiting=0, kv_used_ratio=0.9)
        tickets = [driver.offer("a") for _ in range(4)]
        assert driver.in_flight() == {"e0/0": 2, "e1/0": 0, "e2/0": 2}
        assert driver.view.balancer == "emulated"
        for ticket in tickets:
            driver.finish(ticket)

    def test_affinity_off_across_multi_rank_engines_chooses_only_the_engine(self) -> None:
        driver = Driver({"e0": 2, "e1": 2}, settings=RoutingSettings(affinity=False))
        went = set()
        for _ in range(4):
            driver.offer()
            went.add(driver.went)
        assert went == {("unrouted", "e0"), ("unrouted", "e1")}

    def test_an_endpoint_that_ignores_ranks_is_unrouted_only_on_a_multi_rank_engine(self) -> None:
        ranks, single = Driver({"e0": 2}), Driver({"e0": 1, "e1": 1})
        assert ranks.turn("a", pinnable=False) == ("unrouted", "e0")
        decision, home = single.turn("a", pinnable=False)
        assert decision == "placed"
        assert single.turn("a", pinnable=False) == ("sticky", home)

    def test_across_engines_ranks_are_compared_not_engines(self) -> None:
        driver = Driver({"e0": 4, "e1": 1}, settings=RoutingSettings(affinity=False))
        went = [driver.went[1] for _ in range(20) if driver.offer()]
        assert went.count("e1/0") == 4

    def test_a_stale_scrape_says_nothing_about_an_engine(self) -> None:
        driver = Driver({"e0": 1, "e1": 1}, settings=RoutingSettings(affinity=False))
        driver.sample("e0/0", age_s=3600.0, running=100)
        assert {driver.turn()[1] for _ in range(4)} == {"e0/0", "e1/0"}

    def test_a_pin_that_the_endpoint_would_ignore_is_not_called_obeyed(self) -> None:
        driver = Driver({"e0": 2, "e1": 1})
        assert driver.turn("a", pinnable=False, pin=ReplicaId("e0", 1)) == ("unrouted", "e0")
        assert driver.turn("a", pinnable=False, pin=ReplicaId("e1", 0)) == ("client_pinned", "e1/0")

    def test_unrouted_load_counts_for_the_ranks_of_its_engine(self) -> None:
        driver = Driver({"e0": 2, "e1": 1})
        tickets = [driver.offer(pinnable=False) for _ in range(9)]
        on_e0 = driver.router.view(driver.now).in_flight - sum(driver.in_flight().values())
        assert on_e0 > 0
        for ticket in tickets:
            driver.finish(ticket)
        assert driver.view.in_flight == 0

    def test_homes_survive_switching_affinity_off_and_on(self) -> None:
        driver = Driver()
        home = driver.turn("a")[1]
        driver.configure(affinity=False)
        assert driver.turn("a") == ("unrouted", "e0")
        assert driver.view.sticky_ratio is None
        driver.configure(affinity=True)
        assert driver.turn("a") == ("sticky", home)


class TestLostAndReturning:
    def test_nothing_is_ready(self) -> None:
        driver = Driver(up=False)
        ticket = driver.offer("a")
        assert driver.refused == "no_replica"
        assert driver.view.refused == 1
        driver.cancel(ticket)

    def test_a_lost_home_is_replaced_on_the_next_turn_and_does_not_flap_back(self) -> None:
        driver = Driver()
        home = driver.turn("a")[1]
        driver.down(home)
        decision, new_home = driver.turn("a")
        assert decision == "rehomed"
        assert new_home != home
        driver.up(home, "boot2")
        assert driver.turn("a") == ("sticky", new_home)

    def test_a_home_that_was_only_unreachable_keeps_its_conversations(self) -> None:
        driver = Driver()
        home = driver.turn("a")[1]
        driver.down(home)
        driver.up(home, "boot1")
        assert driver.turn("a") == ("sticky", home)

    def test_a_restarted_engine_has_an_empty_cache(self) -> None:
        driver = Driver()
        home = driver.turn("a")[1]
        driver.up(home, "boot2")
        assert driver.turn("a")[0] == "rehomed"
        row = next(row for row in driver.view.replicas if str(row.replica) == home)
        assert row.resident_tokens == row.conversations * 1100

    def test_an_open_request_on_a_lost_replica_stays_reserved_until_its_end(self) -> None:
        driver = Driver()
        ticket = driver.offer("a")
        home = driver.went[1]
        driver.down(home)
        assert driver.in_flight()[home] == 1
        driver.up(home, "boot2")
        assert driver.in_flight()[home] == 1
        driver.finish(ticket, outcome=Outcome.FAILED)
        assert driver.in_flight()[home] == 0

    def test_a_replica_that_returns_empty_is_filled_gradually(self) -> None:
        driver = Driver()
        for turn in range(2):
            for number in range(16):
                driver.turn(f"old{number}", prompt=4000 * (turn + 1))
        driver.down("e0/2")
        driver.later(1.0)
        for number in range(16):
            driver.turn(f"old{number}", prompt=9000)
        driver.up("e0/2", "boot2")
        soon = [driver.turn(f"new{number}")[1] for number in range(4)]
        assert soon.count("e0/2") <= 2
        driver.later(120.0)
        assert driver.turn("later")[1] == "e0/2"

    def test_a_killed_replica_costs_only_its_own_and_fills_gradually_when_it_is_back(self) -> None:
        """Four isolated replicas, 40 streams; one is killed, restarted by its supervisor, and takes its share again."""
        driver = Driver({f"e{number}": 1 for number in range(4)})
        for number in range(40):
            driver.turn(f"c{number}", prompt=1000)
        tickets = {}
        for number in range(40):
            ticket = driver.offer(f"c{number}")
            tickets[ticket] = driver.went[1]
        its_own = [ticket for ticket, replica in tickets.items() if replica == "e2/0"]
        assert len(its_own) == 10
        before = driver.in_flight()
        driver.down("e2/0")
        no_byte_yet, streaming = its_own[:4], its_own[4:]
        for ticket in no_byte_yet:
            driver.fail(ticket)
            assert driver.went[0] == "rehomed"
            assert driver.went[1] != "e2/0"
        for ticket in streaming:
            driver.finish(ticket, outcome=Outcome.FAILED)
        now = driver.in_flight()
        assert now["e2/0"] == 0
        assert sum(now.values()) == sum(before.values()) - len(streaming)
        for ticket in tickets:
            if ticket not in streaming:
                driver.finish(ticket)
        assert driver.view.in_flight == 0
        driver.later(20.0)
        driver.up("e2/0", "boot2")

        def share(moment: str) -> int:
            """Of 20 new conversations that start within ten seconds, how many it gets."""
            got = 0
            for number in range(20):
                got += driver.turn(f"{moment}{number}")[1] == "e2/0"
                driver.later(0.5)
            return got

        assert 0 < share("soon") <= 8, "not all at once, although it is the emptiest"
        driver.later(60.0)
        assert share("later") >= 5, "its share, and no more suspicion"

    def test_an_engine_without_ranks_of_ours_is_idle_when_both_counts_are_0(self) -> None:
        driver = Driver({"e0": 2})
        ticket = driver.offer("a", pinnable=False)
        for row in driver.view.replicas:
            driver.drain(row.replica)
        assert [(row.in_flight, row.unrouted_in_flight) for row in driver.view.replicas] == [(0, 1), (0, 1)]
        driver.finish(ticket)
        assert [(row.in_flight, row.unrouted_in_flight) for row in driver.view.replicas] == [(0, 0), (0, 0)]

    def test_a_rolling_restart_moves_conversations_only_when_they_come_and_ends_no_request(self) -> None:
        driver = Driver({f"e{number}": 1 for number in range(3)})
        for number in range(9):
            driver.turn(f"c{number}")
        for boot, replica in enumerate(driver.replicas):
            open_here = driver.offer(pin=replica)
            driver.drain(replica)
            for number in range(9):
                assert driver.turn(f"c{number}")[1] != str(replica)
            assert driver.turn("x", pin=replica) == ("client_pinned", str(replica)), "pins are still obeyed"
            driver.finish(open_here)
            assert driver.in_flight()[str(replica)] == 0
            driver.down(replica)
            driver.up(replica, f"again{boot}")
            driver.undrain(replica)
        assert driver.view.refused == 0
        assert {row.state for row in driver.view.replicas} == {ReplicaState.READY}

    def test_draining_moves_conversations_on_their_next_turn(self) -> None:
        driver = Driver()
        home = driver.turn("a")[1]
        driver.drain(home)
        driver.drain(home)
        decision, new_home = driver.turn("a")
        assert (decision, new_home != home) == ("rehomed", True)
        assert all(driver.turn(f"n{number}")[1] != home for number in range(8))
        driver.up(home)
        assert next(row.state for row in driver.view.replicas if str(row.replica) == home) == "draining"
        driver.undrain(home)
        driver.undrain(home)
        assert driver.turn("a") == ("sticky", new_home)
        assert home in [driver.turn(f"m{number}")[1] for number in range(8)]

    def test_a_drain_holds_over_a_restart_and_then_the_ramp_begins(self) -> None:
        driver = Driver({f"e{number}": 1 for number in range(4)})
        for _ in range(2):
            for number in range(16):
                driver.turn(f"c{number}", prompt=4000)
        driver.drain("e2/0")
        driver.down("e2/0")
        driver.up("e2/0", "boot2")
        assert next(row.state for row in driver.view.replicas if str(row.replica) == "e2/0") == "draining"
        for number in range(16):
            driver.turn(f"c{number}", prompt=4000)
        driver.undrain("e2/0")
        soon = [driver.turn(f"new{number}")[1] for number in range(4)]
        assert soon.count("e2/0") <= 2

    def test_a_drain_of_what_is_not_up_yet_holds(self) -> None:
        driver = Driver(up=False)
        driver.drain("e0/0")
        for replica in driver.replicas:
            driver.up(replica)
        assert "e0/0" not in [driver.turn(f"c{number}")[1] for number in range(8)]


class TestFailedBeforeResponse:
    def test_it_is_sent_to_another_engine_and_stays_there(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        home = driver.turn("a")[1]
        ticket = driver.offer("a")
        assert driver.went == ("sticky", home)
        driver.fail(ticket)
        assert driver.went[0] == "rehomed"
        new_home = driver.went[1]
        assert new_home != home
        assert driver.explain(ticket).retried
        driver.finish(ticket)
        assert driver.turn("a") == ("sticky", new_home)
        assert driver.count(Decision.STICKY) == 1  # the first, failed sending is not counted

    def test_at_most_once(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        ticket = driver.offer("a")
        driver.fail(ticket)
        driver.fail(ticket)
        assert driver.refused == "retry_exhausted"
        assert driver.view.in_flight == 0
        assert driver.view.refused == 1
        assert sum(driver.view.decisions.values()) == 0

    def test_a_placement_that_fails_is_still_a_placement(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        ticket = driver.offer("a")
        first = driver.went[1]
        driver.fail(ticket)
        assert driver.went[0] == "placed"
        assert driver.went[1] != first
        driver.finish(ticket)

    def test_without_a_conversation(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        ticket = driver.offer()
        first = driver.went[1]
        driver.fail(ticket)
        assert driver.went == ("balanced", "e1/0" if first == "e0/0" else "e0/0")
        driver.finish(ticket)

    def test_a_single_engine_gets_it_once_more(self) -> None:
        driver = Driver({"e0": 2})
        ticket = driver.offer("a")
        home = driver.went[1]
        driver.fail(ticket)
        assert driver.went == ("placed", home)
        driver.finish(ticket)

    def test_a_dead_single_engine_does_not(self) -> None:
        driver = Driver({"e0": 2})
        ticket = driver.offer("a")
        driver.down("e0/0")
        driver.down("e0/1")
        driver.fail(ticket)
        assert driver.refused == "no_replica"
        assert driver.view.in_flight == 0

    def test_a_client_pin_is_never_sent_elsewhere(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        ticket = driver.offer("a", pin=ReplicaId("e1", 0))
        driver.fail(ticket)
        assert driver.went == ("client_pinned", "e1/0")
        driver.finish(ticket)

    def test_unrouted_goes_to_another_engine(self) -> None:
        driver = Driver({"e0": 1, "e1": 1}, settings=RoutingSettings(affinity=False))
        ticket = driver.offer("a")
        first = driver.went[1]
        driver.fail(ticket)
        assert driver.went[0] == "unrouted"
        assert driver.went[1] != first
        driver.finish(ticket)

    def test_unrouted_on_a_single_engine_stays(self) -> None:
        driver = Driver({"e0": 2}, settings=RoutingSettings(affinity=False))
        ticket = driver.offer("a")
        driver.fail(ticket)
        assert driver.went == ("unrouted", "e0")
        driver.finish(ticket)
        assert driver.view.in_flight == 0

    @pytest.mark.parametrize("home_too", [False, True])
    def test_a_spilled_turn_goes_home_if_the_home_is_another_engine(self, home_too: bool) -> None:
        driver = Driver({"e0": 2, "e1": 2} if home_too else {"e0": 1, "e1": 1, "e2": 1}, max_num_seqs=8)
        home = driver.turn("a")[1]
        busy = driver.hold(home, 3)
        ticket = driver.offer("a")
        assert driver.went[0] == "spilled"
        second = driver.went[1]
        driver.fail(ticket)
        if second.split("/")[0] == home.split("/")[0]:
            assert driver.went[0] == "rehomed"
            assert driver.went[1].split("/")[0] != home.split("/")[0]
        else:
            assert driver.went == ("sticky", home)
        for open_ticket in (ticket, *busy):
            driver.finish(open_ticket)

    def test_a_spilled_turn_whose_home_is_lost_too_is_served_by_a_third(self) -> None:
        driver = Driver({"e0": 1, "e1": 1, "e2": 1})
        home = driver.turn("a")[1]
        busy = driver.hold(home, 9)
        ticket = driver.offer("a")
        second = driver.went[1]
        driver.down(home)
        driver.fail(ticket)
        assert driver.went[0] == "rehomed"
        assert driver.went[1] not in (home, second)
        for other in (ticket, *busy):
            driver.cancel(other)

    def test_another_rank_of_the_same_engine_will_do(self) -> None:
        driver = Driver({"e0": 2})
        ticket = driver.offer("a")
        first = driver.went[1]
        driver.down(first)
        driver.fail(ticket)
        assert driver.went == ("placed", "e0/1" if first == "e0/0" else "e0/0")
        driver.finish(ticket)

    def test_unrouted_with_every_rank_down_is_refused(self) -> None:
        driver = Driver({"e0": 2}, settings=RoutingSettings(affinity=False))
        ticket = driver.offer("a")
        driver.down("e0/0")
        driver.down("e0/1")
        driver.fail(ticket)
        assert driver.refused == "no_replica"

    def test_a_pinned_replica_that_went_down_is_refused(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        ticket = driver.offer("a", pin=ReplicaId("e1", 0))
        driver.down("e1/0")
        driver.fail(ticket)
        assert driver.refused == "pinned_replica_down"

    def test_a_first_turn_that_was_never_served_leaves_no_home(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        ticket = driver.offer("a")
        driver.fail(ticket)
        driver.fail(ticket)
        assert driver.view.conversations == 0
        assert driver.turn("a")[0] == "placed"

    def test_a_later_turn_that_was_never_served_keeps_the_conversation(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        driver.turn("a")
        ticket = driver.offer("a")
        driver.fail(ticket)
        driver.fail(ticket)
        assert driver.view.conversations == 1


class TestSuspicion:
    def test_a_silent_replica_gets_no_new_conversation_for_a_while(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        ticket = driver.offer("a")
        silent = driver.went[1]
        driver.router.finished(ticket, Outcome.TIMEOUT, None, driver.now)
        assert all(driver.turn(f"n{number}")[1] != silent for number in range(4))
        assert driver.turn("a")[0] == "spilled"  # its conversations are served elsewhere meanwhile
        driver.later(10.0)
        assert driver.turn("a") == ("sticky", silent)

    def test_suspicion_grows_and_ends_with_the_first_answer(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        for wait in (2.0, 4.0, 8.0, 15.0):
            ticket = driver.offer(pin=ReplicaId("e0", 0))
            driver.router.finished(ticket, Outcome.TIMEOUT, None, driver.now)
            driver.later(wait)
        assert [row.suspect for row in driver.view.replicas] == [True, False]
        driver.finish(driver.offer(pin=ReplicaId("e0", 0)))
        assert [row.suspect for row in driver.view.replicas] == [False, False]

    def test_when_all_are_suspect_we_still_try(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        home = driver.turn("a")[1]
        for engine in ("e0", "e1"):
            ticket = driver.offer(pin=ReplicaId(engine, 0))
            driver.router.finished(ticket, Outcome.TIMEOUT, None, driver.now)
        assert driver.turn("a") == ("sticky", home)
        assert driver.turn("b")[0] == "placed"

    def test_an_engine_that_fails_at_once_does_not_attract_everything(self) -> None:
        driver = Driver({f"e{number}": 1 for number in range(4)})
        to_bad = 0
        for number in range(200):
            ticket = driver.offer(f"c{number}")
            bad = driver.went[1] == "e0/0"
            to_bad += bad
            driver.finish(ticket, outcome=Outcome.FAILED if bad else Outcome.OK)
            driver.later(0.05)
        assert to_bad < 20

    def test_one_request_that_fails_everywhere_makes_nothing_suspect(self) -> None:
        driver = Driver()
        for _ in range(2):
            driver.finish(driver.offer("poison"), outcome=Outcome.FAILED)
            for replica in driver.replicas:
                driver.finish(driver.offer(pin=replica))
        assert not any(row.suspect for row in driver.view.replicas)

    def test_what_an_earlier_run_did_is_not_the_new_ones_fault(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        lost = [driver.offer(pin=ReplicaId("e0", 0)) for _ in range(3)]
        driver.up("e0/0", "boot2")
        driver.fail(lost[0])
        driver.finish(lost[1], outcome=Outcome.FAILED)
        driver.finish(lost[2], outcome=Outcome.TIMEOUT)
        assert not any(row.suspect for row in driver.view.replicas)

    def test_an_unrouted_timeout_suspects_no_rank(self) -> None:
        driver = Driver(settings=RoutingSettings(affinity=False))
        driver.router.finished(driver.offer(), Outcome.TIMEOUT, None, driver.now)
        assert not any(row.suspect for row in driver.view.replicas)


class TestThreshold:
    def test_auto_is_a_quarter_of_max_num_seqs(self) -> None:
        view = Driver(max_num_seqs=32).view
        assert (view.spill_threshold, view.spill_threshold_source) == (8, "auto")
        assert Driver(max_num_seqs=2).view.spill_threshold == 1

    def test_unknown_max_num_seqs(self) -> None:
        view = Driver(max_num_seqs=None).view
        assert (view.spill_threshold, view.spill_threshold_source) == (8, "default")

    def test_set(self) -> None:
        driver = Driver()
        driver.configure(spill_threshold=3)
        assert (driver.view.spill_threshold, driver.view.spill_threshold_source) == (3, "set")
        driver.configure()
        assert driver.view.spill_threshold_source == "auto"


class TestWantsOpening:
    def test_unknown_young_or_overlapping(self) -> None:
        driver = Driver()
        assert driver.router.wants_opening(key("a"))
        for _ in range(7):
            driver.turn("a")
            assert driver.router.wants_opening(key("a"))
        ticket = driver.offer("a")
        assert driver.router.wants_opening(key("a"))
        driver.finish(ticket)
        assert not driver.router.wants_opening(key("a"))

    def test_not_while_affinity_is_off(self) -> None:
        driver = Driver(settings=RoutingSettings(affinity=False))
        assert not driver.router.wants_opening(key("a"))


def test_deadline_is_the_next_expiry() -> None:
    driver = Driver(settings=RoutingSettings(live_s=60.0))
    assert driver.router.next_deadline() is None
    driver.turn("a")
    assert driver.router.next_deadline() == driver.now + 60.0
    driver.later(60.0)
    assert driver.router.next_deadline() is None


def test_observations_of_unknown_replicas_are_ignored() -> None:
    driver = Driver()
    driver.sample("e7/0", running=1)
    assert all(row.sample is None for row in driver.view.replicas)


def test_the_same_events_give_the_same_decisions() -> None:
    def play() -> list[tuple[str, str]]:
        driver = Driver(seed=7)
        went = []
        for number in range(60):
            went.append(driver.turn(f"c{number % 13}", prompt=100 * number))
            driver.later(0.7)
        return went

    assert play() == play()


def test_the_router_implements_the_contract() -> None:
    from lmwarden.routing.contract import RouterContract

    router: RouterContract = Router(RoutingSettings(), engines={"e0": 1})
    router.replica_up(ReplicaId("e0", 0), Driver().capacity, "b", 0.0)
    ticket, actions = router.offer(RoutingRequest(), 0.0)
    assert actions[0].ticket == ticket


@pytest.mark.parametrize("reported", [{}, {"running": 0}, {"waiting": 0}, {"kv_used_ratio": 0.4}])
def test_what_an_engine_does_not_report_counts_as_nothing(reported: dict[str, float]) -> None:
    driver = Driver({"e0": 1, "e1": 1}, settings=RoutingSettings(affinity=False))
    driver.sample("e0/0", **reported)
    assert [driver.turn()[1] for _ in range(4)].count("e0/0") == 2
