"""Spill at the home's threshold, second home, hysteresis."""

from __future__ import annotations

import pytest
from tests.routing.driver import Driver

from lmwarden.routing.spill import return_level


@pytest.mark.parametrize(("threshold", "level"), [(0, 0), (1, 0), (2, 1), (4, 3), (8, 6), (32, 24)])
def test_return_level(threshold: int, level: int) -> None:
    assert return_level(threshold) == level


@pytest.mark.parametrize(("busy", "decision"), [(8, "sticky"), (9, "spilled")])
def test_the_home_must_exceed_the_threshold(busy: int, decision: str) -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    driver.hold(home, busy)
    assert driver.turn("a")[0] == decision


def test_not_if_no_other_has_strictly_fewer() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    for replica in driver.replicas:
        driver.hold(replica, 9)
    assert driver.turn("a") == ("sticky", home)


def test_only_the_home_is_looked_at() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    for replica in driver.replicas:
        if str(replica) != home:
            driver.hold(replica, 30)
    assert driver.turn("a") == ("sticky", home)


def test_second_home_is_remembered_and_the_home_is_not_rebound() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    busy = driver.hold(home, 12)
    decision, second = driver.turn("a")
    assert decision == "spilled"
    others = [str(replica) for replica in driver.replicas if str(replica) not in (home, second)]
    light = driver.hold(second, 2)  # the others are emptier now
    assert driver.turn("a") == ("spilled", second)
    overloaded = driver.hold(second, 8)
    assert driver.turn("a")[1] in others
    for ticket in (*busy, *light, *overloaded):
        driver.finish(ticket)
    assert driver.turn("a") == ("sticky", home)
    row = next(row for row in driver.view.replicas if str(row.replica) == second)
    assert row.spilled_in == 2


def test_return_with_hysteresis() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    driver.turn("b")
    busy = driver.hold(home, 9)
    second = driver.turn("a")[1]
    driver.finish(busy.pop())
    driver.finish(busy.pop())
    assert driver.turn("a") == ("spilled", second)  # 7 exceeds 6
    driver.finish(busy.pop())
    assert driver.turn("a") == ("sticky", home)
    refill = driver.hold(home, 2)
    assert driver.turn("a") == ("sticky", home)  # 8 does not exceed 8, now that it is back
    for ticket in (*busy, *refill):
        driver.finish(ticket)


@pytest.mark.parametrize("trouble", ["busy", "down", "cold"])
def test_in_the_band_it_goes_to_the_second_home_or_home_never_to_a_third(trouble: str) -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    busy = driver.hold(home, 9)
    second = driver.turn("a")[1]
    for _ in range(2):
        driver.finish(busy.pop())  # seven left: not above, but not yet down to six
    match trouble:
        case "busy":
            driver.hold(second, 7)
        case "down":
            driver.down(second)
        case "cold":
            driver.up(second, "boot2")
    assert driver.turn("a") == ("sticky", home)


def test_a_second_home_whose_cache_is_gone_is_not_preferred() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    driver.hold(home, 12)
    second = driver.turn("a")[1]
    driver.up(second, "boot2")
    ticket = driver.offer("a")
    assert driver.explain(ticket).candidates, "compared anew"
    driver.finish(ticket)


def test_a_single_replica_never_spills() -> None:
    driver = Driver({"e0": 1})
    home = driver.turn("a")[1]
    driver.hold(home, 40)
    assert driver.turn("a") == ("sticky", home)


def test_explained_with_its_numbers() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    driver.hold(home, 9)
    explanation = driver.explain(driver.offer("a"))
    assert explanation.home_in_flight == 9
    assert str(explanation.home) == home
    assert explanation.spill_threshold == 8
    assert len(explanation.candidates) == 3
    assert "9 in flight" in explanation.reason


def test_a_new_home_is_not_left_for_an_old_second_home() -> None:
    """In the band only whoever was spilled stays away, and it was not spilled since it has this home."""
    driver = Driver()
    home = driver.turn("a")[1]
    busy = driver.hold(home, 9)
    second = driver.turn("a")[1]
    for ticket in busy:
        driver.finish(ticket)
    assert driver.turn("a") == ("sticky", home)
    light = driver.hold(second, 3)
    driver.drain(home)
    decision, new = driver.turn("a")
    assert (decision, new in (home, second)) == ("rehomed", False)
    for ticket in light:
        driver.finish(ticket)
    driver.hold(new, 7)
    assert driver.turn("a") == ("sticky", new)
