"""Least loaded: each term of the sum alone, the worked example, ties, kin, hash."""

from __future__ import annotations

import math

import pytest
from tests.routing.driver import Driver, key

from lmwarden.routing.placement import compare, rendezvous
from lmwarden.routing.replicas import Fleet, Weights
from lmwarden.routing.router import Router
from lmwarden.types import CandidateScore, ReplicaCapacity, ReplicaId, ReplicaSample, RoutingSettings


def fleet_of(ranks: int, weights: Weights = Weights()) -> Fleet:  # noqa: B008
    fleet = Fleet({"e0": ranks}, seed=0, weights=weights)
    for replica in fleet:
        replica.up = True
    fleet.changed()
    return fleet


def test_the_worked_example_of_the_docstring() -> None:
    fleet = fleet_of(4, Weights(warm=1.0, live=0.5, kv=0.5, held=1.0))
    now = 100.0
    numbers = [(2, 1.2, 6, 0.56), (3, 0.1, 5, 0.70), (2, 0.9, 5, 0.50), (3, 0.4, 4, 0.60)]
    for replica, (in_flight, warm, live, kv_used) in zip(fleet, numbers, strict=True):
        replica.in_flight = in_flight
        for _ in range(live):
            fleet.hold(replica, +1, 0)
        fleet.hold_idle(replica, warm, 0.0, idle_since=now)
        fleet.sampled(replica, ReplicaSample(taken_at=now, kv_used_ratio=kv_used), now)
    comparison = compare(fleet.ready, fleet, now)
    assert [round(candidate.score, 2) for candidate in comparison.frozen()] == [4.08, 3.95, 3.65, 4.1]
    assert comparison.least.id == ReplicaId("e0", 2)


def test_in_flight_outweighs_nothing_else() -> None:
    driver = Driver()
    tickets = [ticket for rank in (0, 1, 3) for ticket in driver.hold(f"e0/{rank}", 1)]
    assert driver.turn("a")[1] == "e0/2"
    for ticket in tickets:
        driver.cancel(ticket)


def test_an_idle_conversation_counts_until_it_is_unlikely_to_return() -> None:
    driver = Driver({"e0": 2}, kv_cache_tokens=None)
    first = driver.turn("a")[1]
    other = "e0/1" if first == "e0/0" else "e0/0"
    driver.hold(other, 2)
    now = driver.offer(auxiliary=True)
    assert driver.went[1] == other, "2 in flight there; 1 warm here and all of the live ones: a tie in favour of fewer"
    driver.cancel(now)
    driver.later(20.0)
    later = driver.offer(auxiliary=True)
    assert driver.went[1] == first
    driver.cancel(later)


def test_kv_use_counts_if_every_replica_has_a_fresh_scrape() -> None:
    driver = Driver()
    for rank, kv_used_ratio in enumerate((0.9, 0.8, 0.7, 0.1)):
        driver.sample(f"e0/{rank}", kv_used_ratio=kv_used_ratio)
    ticket = driver.offer("a")
    assert driver.went[1] == "e0/3"
    assert [candidate.kv_used_ratio for candidate in driver.explain(ticket).candidates] == [0.9, 0.8, 0.7, 0.1]
    driver.finish(ticket)


@pytest.mark.parametrize("kind", ["stale", "missing", "not reported", "no number", "out of range", "grown stale"])
def test_kv_use_is_left_out_for_all_if_it_is_not_fresh_for_one(kind: str) -> None:
    driver = Driver()
    for rank in range(4):
        driver.sample(f"e0/{rank}", kv_used_ratio=1.0 - rank / 4)
    match kind:
        case "stale":
            driver = Driver()
            for rank in range(4):
                driver.sample(f"e0/{rank}", kv_used_ratio=1.0 - rank / 4, age_s=6.0 if rank == 1 else 0.0)
        case "missing":
            driver = Driver()
            driver.sample("e0/0", kv_used_ratio=0.9)
        case "not reported":
            driver.sample("e0/1", running=1)
        case "no number":
            driver.sample("e0/1", kv_used_ratio=math.nan)
        case "out of range":
            driver.sample("e0/1", kv_used_ratio=90.0)
        case "grown stale":
            warm_up = driver.offer("x", auxiliary=True)
            driver.cancel(warm_up)
            driver.later(5.5)
    ticket = driver.offer("a")
    assert {candidate.kv_used_ratio for candidate in driver.explain(ticket).candidates} == {None}


def test_a_scrape_never_outweighs_what_we_know_ourselves() -> None:
    # The herd: a stale-but-fresh-enough scrape calls e0/3 idle, while we have sent it four requests.
    driver = Driver()
    for rank in range(4):
        driver.sample(f"e0/{rank}", kv_used_ratio=0.0 if rank == 3 else 0.5)
    tickets = [driver.offer(f"c{number}") for number in range(8)]
    assert sorted(driver.in_flight().values()) == [2, 2, 2, 2]
    for ticket in tickets:
        driver.finish(ticket)


def test_held_context_is_a_refinement() -> None:
    driver = Driver({"e0": 2})
    heavy = driver.turn("heavy", prompt=30_000)[1]
    light = driver.turn("light", prompt=500)[1]
    assert heavy != light
    ticket = driver.offer("a")
    assert driver.went[1] == light
    held = {str(candidate.replica): candidate.held_ratio for candidate in driver.explain(ticket).candidates}
    assert held[heavy] == pytest.approx(30_100 / 40_000)
    driver.finish(ticket)


def test_held_context_is_left_out_where_one_replica_reports_no_capacity() -> None:
    driver = Driver({"e0": 2})
    driver.router.replica_up(ReplicaId("e0", 1), ReplicaCapacity(), "boot1", driver.now)
    ticket = driver.offer("a")
    assert {candidate.held_ratio for candidate in driver.explain(ticket).candidates} == {None}


def test_ties_go_to_fewest_conversations_then_least_recently_assigned() -> None:
    fleet = fleet_of(3, Weights(live=0.0))
    replicas = list(fleet)
    fleet.hold(replicas[0], +1, 0)
    for replica in (replicas[2], replicas[1]):
        fleet.assigned(replica)
    assert compare(fleet.ready, fleet, 0.0).least is replicas[2]
    fleet.hold(replicas[1], +1, 0)
    fleet.hold(replicas[2], +1, 0)
    fleet.assigned(replicas[0])
    assert compare(fleet.ready, fleet, 0.0).least is replicas[2]


def test_what_was_warm_minutes_ago_does_not_decide() -> None:
    driver = Driver()
    for name in "abcd":
        driver.turn(name)
        driver.later(1.0)
    driver.later(200.0)
    went = [driver.turn()[1] for _ in range(8)]
    assert len(set(went)) > 1


def test_conversations_of_a_lost_replica_do_not_shrink_the_shares_of_others() -> None:
    driver = Driver({"e0": 1, "e1": 1, "e2": 1})
    for number in range(6):
        driver.turn(f"c{number}")
    driver.down("e0/0")
    candidates = driver.explain(driver.offer("new")).candidates
    assert [candidate.live_share for candidate in candidates] == [1.0, 1.0]


def test_a_later_scrape_counts_at_once() -> None:
    driver = Driver({"e0": 2})
    for rank in range(2):
        driver.sample(f"e0/{rank}", kv_used_ratio=0.5)
    driver.cancel(driver.offer())
    driver.sample("e0/1", kv_used_ratio=0.75)
    candidates = driver.explain(driver.offer()).candidates
    assert [candidate.kv_used_ratio for candidate in candidates] == [0.5, 0.75]
    assert candidates[1].score - candidates[0].score == pytest.approx(Weights().kv * 0.25)


def test_an_older_scrape_does_not_replace_a_later_one() -> None:
    driver = Driver({"e0": 1})
    driver.sample("e0/0", running=1)
    driver.sample("e0/0", running=9, age_s=2.0)
    sample = driver.view.replicas[0].sample
    assert sample is not None
    assert sample.running == 1


class TestKin:
    def test_a_fork_starts_where_its_prefix_is(self) -> None:
        driver = Driver()
        home = driver.turn("original", opening=key("o"))[1]
        driver.turn("original", opening=key("o"))
        ticket = driver.offer("fork", opening=key("o"), resumed=True)
        assert driver.went == ("placed", home)
        assert "fork" in driver.explain(ticket).reason
        driver.finish(ticket)

    def test_new_conversations_that_begin_alike_are_no_forks(self) -> None:
        driver = Driver()
        homes = [driver.turn(f"c{number}", opening=key("o"))[1] for number in range(8)]
        assert {homes.count(home) for home in homes} == {2}

    def test_unless_there_is_no_room(self) -> None:
        driver = Driver(max_num_seqs=8)
        home = driver.turn("original", opening=key("o"))[1]
        busy = driver.hold(home, 3)
        assert driver.turn("fork", opening=key("o"), resumed=True)[1] != home
        for ticket in busy:
            driver.finish(ticket)

    def test_or_its_cache_is_gone(self) -> None:
        driver = Driver()
        home = driver.turn("original", opening=key("o"))[1]
        for name in "abc":
            driver.turn(name)
        driver.turn("d")
        driver.up(home, "boot2")
        ticket = driver.offer("fork", opening=key("o"), resumed=True)
        assert "fork" not in driver.explain(ticket).reason
        driver.finish(ticket)

    def test_fourteen_siblings_start_near_each_other_up_to_the_threshold(self) -> None:
        driver = Driver()
        driver.turn("main")
        tickets = [driver.offer(f"agent{number}", parent=key("main")) for number in range(14)]
        counts = sorted(driver.in_flight().values())
        assert counts[-1] == 9  # the ninth finds eight in flight, which does not exceed the threshold
        assert sum(counts) == 14
        assert "sibling" in driver.explain(tickets[1]).reason
        for ticket in tickets:
            driver.finish(ticket)

    def test_siblings_follow_a_turn_that_was_sent_elsewhere(self) -> None:
        driver = Driver({"e0": 1, "e1": 1})
        ticket = driver.offer("agent0", parent=key("main"))
        driver.fail(ticket)
        moved_to = driver.went[1]
        driver.later(10.0)
        assert driver.turn("agent1", parent=key("main"))[1] == moved_to
        driver.finish(ticket)

    def test_the_memory_of_kin_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lmwarden.routing.deciding.KNOWN_KIN", 3)
        driver = Driver()
        for number in range(10):
            driver.turn(f"c{number}", opening=key(f"o{number}"), parent=key(f"p{number}"))
        kin = driver.router._decider.kin
        assert len(kin._by_opening) == len(kin._by_parent) == 3

    def test_no_more_kin_are_remembered_than_conversations(self) -> None:
        driver = Driver(settings=RoutingSettings(max_conversations=5))
        for number in range(10):
            driver.turn(f"c{number}", opening=key(f"o{number}"))
        kin = driver.router._decider.kin
        assert len(kin._by_opening) == 5
        driver.configure(max_conversations=7)
        for number in range(10, 20):
            driver.turn(f"c{number}", opening=key(f"o{number}"))
        assert len(kin._by_opening) == 7
        driver.configure(max_conversations=2)
        driver.turn("last", opening=key("last"))
        assert len(kin._by_opening) == 2


class TestHash:
    def test_a_session_is_placed_by_its_hash_alone(self) -> None:
        def homes() -> list[str]:
            driver = Driver(settings=RoutingSettings(placement="hash"))
            return [driver.turn(f"session{number}")[1] for number in range(40)]

        assert homes() == homes()
        assert len(set(homes())) == 4

    def test_with_spill_at_the_threshold_also_for_the_first_turn(self) -> None:
        driver = Driver(settings=RoutingSettings(placement="hash"), max_num_seqs=8)
        ticket = driver.offer("a")
        home = driver.went[1]
        assert "hash" in driver.explain(ticket).reason
        driver.finish(ticket)
        driver.down(home)
        driver.up(home, "boot2")
        busy = driver.hold(home, 3)
        decision, elsewhere = driver.turn("a")
        assert (decision, elsewhere != home) == ("rehomed", True)
        for open_ticket in busy:
            driver.finish(open_ticket)

    def test_losing_a_replica_moves_only_its_own_sessions(self) -> None:
        fleet = fleet_of(5)
        replicas = list(fleet)
        keys = [key(f"s{number}") for number in range(200)]
        before = {k: rendezvous(k, replicas) for k in keys}
        after = {k: rendezvous(k, replicas[:4]) for k in keys}
        assert all(after[k] is before[k] for k in keys if before[k] is not replicas[4])


class TestRamp:
    """A replica that came back empty."""

    def test_it_is_scored_like_the_others_at_first_and_then_less_and_less(self) -> None:
        driver = Driver({"e0": 1, "e1": 1, "e2": 1})
        for number in range(30):
            driver.turn(f"c{number}")
        driver.up("e2/0", "boot2")

        def scores() -> list[float]:
            ticket = driver.offer(f"probe-{driver.now}")
            candidates = {str(one.replica): one.score for one in driver.explain(ticket).candidates}
            driver.finish(ticket)
            return [candidates[name] for name in ("e0/0", "e1/0", "e2/0")]

        first, second, returned = scores()
        assert returned == pytest.approx((first + second) / 2)
        driver.later(30.0)
        first, second, returned = scores()
        assert 0.3 < returned / ((first + second) / 2) < 0.8
        driver.later(31.0)
        first, second, returned = scores()
        assert returned < 0.3 * (first + second) / 2

    @pytest.mark.parametrize("streams_end", [True, False])
    def test_it_fills_gradually_whether_the_others_are_busy_or_just_were(self, streams_end: bool) -> None:
        driver = Driver({"e0": 1, "e1": 1, "e2": 1})
        streams = [driver.offer(f"stream-{number}") for number in range(60)]
        driver.up("e2/0", "boot2")
        if not streams_end:
            # They have twenty requests each in flight, and it has none: then it is simply the least loaded one.
            streams.append(driver.offer("new"))
            assert driver.went == ("placed", "e2/0")
        for ticket in streams:
            driver.finish(ticket)
        if not streams_end:
            return
        went = [driver.turn(f"new-{number}")[1] for number in range(30)]
        assert 0 < sum(str(replica) == "e2/0" for replica in went) <= 15

    def test_of_two_the_others_are_the_measure_and_without_others_there_is_none(self) -> None:
        driver = Driver({"e0": 1, "e1": 1, "e2": 1})
        for number in range(30):
            driver.turn(f"c{number}")
        driver.up("e1/0", "boot2")
        driver.up("e2/0", "boot2")
        scores = {str(one.replica): one.score for one in driver.explain(driver.offer("new")).candidates}
        assert scores["e1/0"] == pytest.approx(scores["e0/0"]) == scores["e2/0"]
        driver.up("e0/0", "boot2")
        scores = {str(one.replica): one.score for one in driver.explain(driver.offer("newer")).candidates}
        assert scores["e0/0"] <= 1


def test_score_of_a_replica_that_was_no_candidate() -> None:
    fleet = fleet_of(2)
    comparison = compare(fleet.ready[:1], fleet, 0.0)
    assert comparison.score_of(fleet.ready[1]) is None
    assert isinstance(comparison.frozen()[0], CandidateScore)


def test_an_explanation_adds_up() -> None:
    driver = Driver({"e0": 2, "e1": 1})
    for number in range(7):
        driver.turn(f"c{number}", prompt=900 * number)
        driver.later(1.3)
    for replica in driver.replicas:
        driver.sample(replica, kv_used_ratio=0.25)
    driver.offer(pinnable=False)
    driver.up("e1/0", "boot2")  # empty again: on its ramp
    candidates = driver.explain(driver.offer("new")).candidates
    weights = Weights()
    for candidate in candidates:
        assert candidate.kv_used_ratio == 0.25
        assert candidate.held_ratio is not None
        assert candidate.score == pytest.approx(
            candidate.in_flight
            + weights.warm * candidate.warm
            + weights.live * candidate.live_share
            + weights.kv * candidate.kv_used_ratio
            + weights.held * candidate.held_ratio
            + candidate.other
        )
    assert any(candidate.other > 0.1 for candidate in candidates)


def test_the_sum_survives_hours_without_a_decision() -> None:
    driver = Driver()
    driver.turn("a")
    ticket = driver.offer("b")
    driver.later(7200.0)
    driver.finish(ticket)
    assert driver.turn("c")[0] == "placed"
    router = Router(RoutingSettings(), engines={"e0": 1})
    router.replica_up(ReplicaId("e0", 0), ReplicaCapacity(), "b", 1e6)
    assert router.view(1e6).replicas[0].conversations == 0


def test_a_conversation_whose_turn_was_broken_off_is_not_about_to_come_back() -> None:
    """What the load tester cancelled at the end of a run drove the next run's sessions to the other replicas."""
    driver = Driver({"e0": 1, "e1": 1})
    for number in range(4):
        ticket = driver.offer(f"c{number}")
        driver.finish(ticket, finish_reason="tool_calls")

    def warm() -> float:
        ticket = driver.offer()
        candidates = driver.explain(ticket).candidates
        driver.finish(ticket)
        return sum(candidate.warm for candidate in candidates)

    before = warm()
    for number in range(4):
        driver.cancel(driver.offer(f"c{number}"))
    assert warm() == pytest.approx(before / 4)
