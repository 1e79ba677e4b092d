"""Each decision can be told in a sentence with its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.routing.driver import Driver, key

from lmwarden.routing.explain import CODES, MOST_CANDIDATES, Choice, Why, explanation
from lmwarden.types import Decision, Grounds, Outcome, ReplicaId, RoutingSettings


def test_placed_names_the_score_and_the_number_of_candidates() -> None:
    driver = Driver()
    ticket = driver.offer("a")
    found = driver.explain(ticket)
    assert found.reason == f"New conversation: least loaded, {found.replica} with a score of 0.00 among 4."
    assert len(found.candidates) == 4
    assert found.home is None


def test_sticky() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    driver.hold(home, 2)
    found = driver.explain(driver.offer("a"))
    assert found.decision is Decision.STICKY
    assert found.home_in_flight == 2
    assert home in found.reason
    assert found.candidates == ()


def test_sticky_above_the_threshold_says_why_it_stayed() -> None:
    driver = Driver({"e0": 1})
    home = driver.turn("a")[1]
    driver.hold(home, 9)
    assert "9 in flight (spill threshold 8), but no other" in driver.explain(driver.offer("a")).reason


def test_spilled_with_hysteresis_does_not_claim_to_be_above() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    busy = driver.hold(home, 9)
    driver.turn("a")
    driver.finish(busy.pop())
    driver.finish(busy.pop())
    assert "7 in flight, not yet well below" in driver.explain(driver.offer("a")).reason


def test_rehomed_retried() -> None:
    driver = Driver({"e0": 1, "e1": 1})
    driver.turn("a")
    ticket = driver.offer("a")
    driver.fail(ticket)
    assert "second time" in driver.explain(ticket).reason
    assert "is lost" in driver.explain(ticket).reason


@pytest.mark.parametrize(("engines", "words"), [({"e0": 2}, "own balancer"), ({"e0": 1, "e1": 1}, "as vLLM's")])
def test_unrouted(engines: dict[str, int], words: str) -> None:
    driver = Driver(engines, settings=RoutingSettings(affinity=False))
    assert words in driver.explain(driver.offer("a")).reason


def test_an_endpoint_that_ignores_ranks_is_not_called_affinity_off() -> None:
    driver = Driver({"e0": 2})
    reason = driver.explain(driver.offer("a", pinnable=False)).reason
    assert reason == "No rank was chosen by us because this endpoint ignores a rank: e0, its own balancer decides."


def test_rehomed_from_a_draining_replica_says_so() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    driver.drain(home)
    assert f"Its home {home} is being drained" in driver.explain(driver.offer("a")).reason


def test_a_home_that_just_failed_is_not_called_busy() -> None:
    driver = Driver({"e0": 1, "e1": 1})
    home = driver.turn("a")[1]
    driver.router.finished(driver.offer("a"), Outcome.TIMEOUT, None, driver.now)
    assert driver.explain(driver.offer("a")).reason.startswith(f"Its home {home} had just failed;")


def test_pinned_and_balanced() -> None:
    driver = Driver()
    assert "named e0/1" in driver.explain(driver.offer("a", pin=ReplicaId("e0", 1))).reason
    assert "No conversation" in driver.explain(driver.offer()).reason


def test_a_choice_without_a_comparison_names_the_replica_alone() -> None:
    driver = Driver()
    replica = next(iter(driver.router._fleet))
    found = explanation(1, Choice(Decision.BALANCED, replica.engine, replica, 8, Why.LEAST_LOADED), retried=False)
    assert found.reason == "No conversation to keep: e0/0, least loaded."


def test_the_documented_example() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-routing-decides.md").read_text()
    driver = Driver()
    for name in "abcdef":
        driver.turn(name, prompt=8000)
        driver.later(0.5)
    driver.offer("a")
    driver.offer("b")
    for rank, kv_used_ratio in enumerate((0.31, 0.22, 0.05, 0.04)):
        driver.sample(f"e0/{rank}", kv_used_ratio=kv_used_ratio)
    ticket = driver.offer("new")
    found = driver.explain(ticket)
    for candidate in found.candidates:
        line = (
            f"{candidate.replica}  score {candidate.score:.2f}  in flight {candidate.in_flight}  "
            f"warm {candidate.warm:.2f}  live share {candidate.live_share:.2f}  "
            f"kv used {candidate.kv_used_ratio:.2f}  held {candidate.held_ratio:.2f}"
        )
        assert line in text
    assert found.reason in text
    driver.finish(ticket)
    driver.later(2.0)
    ticket = driver.offer("new")
    assert driver.explain(ticket).reason in text
    busy = driver.hold("e0/2", 9)
    spilled = driver.offer("new")
    assert driver.explain(spilled).reason in text
    for other in (spilled, ticket, *busy):
        driver.finish(other)
    driver.turn("new")  # home again: else its new home would be where it spilled
    driver.down("e0/2")
    assert driver.explain(driver.offer("new")).reason in text


def test_the_books_get_the_numbers_of_a_decision_without_its_sentence() -> None:
    driver = Driver()
    placed = driver.router.grounds(driver.offer("a"))
    assert placed is not None
    assert (placed.conversation, placed.why, placed.home, placed.home_in_flight) == (
        key("a"),
        "least_loaded",
        None,
        None,
    )
    assert placed.candidates is not None
    assert [candidate.score for candidate in placed.candidates] == sorted(score.score for score in placed.candidates)
    home = driver.went[1]
    driver.hold(home, 2)
    sticky = driver.router.grounds(driver.offer("a"))
    assert sticky == Grounds(key("a"), "not_above", home, 3, 8, None)


def test_of_many_candidates_the_books_get_the_least_loaded() -> None:
    driver = Driver({"e0": 3 * MOST_CANDIDATES})
    ticket = driver.offer("a")
    found = driver.router.grounds(ticket)
    assert found is not None and found.candidates is not None
    assert len(found.candidates) == MOST_CANDIDATES
    assert str(found.candidates[0].replica) == driver.went[1]
    assert found.candidates[0] in driver.explain(ticket).candidates


def test_the_books_tell_how_things_stood_however_late_they_are_read() -> None:
    driver = Driver()
    driver.hold("e0/1", 2)
    ticket = driver.offer("a")
    found, then = driver.router.grounds(ticket), driver.explain(ticket).candidates
    assert found is not None and found.candidates is not None
    driver.hold("e0/1", 3)
    driver.hold("e0/2", 1)
    driver.finish(ticket)
    assert set(found.candidates) == set(then)
    assert found.candidates[:1] == (found.candidates[0],)
    assert list(found.candidates) == list(found.candidates)


def test_a_request_of_no_conversation_leaves_no_candidates_in_the_books() -> None:
    driver = Driver()
    found = driver.router.grounds(driver.offer(None))
    assert found == Grounds(None, "least_loaded", None, None, 8, None)


def test_a_closed_ticket_has_no_grounds() -> None:
    driver = Driver()
    ticket = driver.offer("a")
    driver.finish(ticket)
    assert driver.router.grounds(ticket) is None


def test_a_shared_id_is_booked_under_the_conversation_that_it_was_split_into() -> None:
    driver = Driver()
    for opening in (b"x", b"y", b"x", b"y"):
        ticket = driver.offer("constant", opening=opening * 16)
        found = driver.router.grounds(ticket)
        driver.finish(ticket)
    assert found is not None and found.conversation is not None
    assert found.conversation != key("constant")
    assert found.conversation in [view.key for view in driver.router.conversations(driver.now, 10)]


def test_every_reason_has_a_code() -> None:
    assert len(set(CODES.values())) == len(Why)
    assert CODES[Why.NOT_YET_BACK] == "not_yet_back"
