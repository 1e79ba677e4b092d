"""Homes over a restart of the warden."""

from __future__ import annotations

from tests.routing.driver import Driver

from lmwarden.types import Decision


def test_homes_come_back() -> None:
    before, after = Driver(), Driver(up=False)
    homes = {name: before.turn(name)[1] for name in "abcdef"}
    boots = dict.fromkeys(before.replicas, "boot1")
    assert after.router.restore_homes(before.router.export_homes(), boots, after.now) == 6
    for replica in after.replicas:
        after.up(replica)
    assert {name: after.turn(name)[1] for name in homes} == homes
    assert after.count(Decision.STICKY) == 6


def test_not_those_of_a_run_that_is_over_here() -> None:
    before, after = Driver(), Driver(up=False)
    before.turn("a")
    for replica in after.replicas:
        after.up(replica, "boot2")
    boots = dict.fromkeys(before.replicas, "boot1")
    assert after.router.restore_homes(before.router.export_homes(), boots, after.now) == 0


def test_not_those_of_an_engine_that_restarted_nor_what_is_known_already() -> None:
    before, after = Driver(), Driver()
    before.turn("a")
    before.turn("b")
    known = after.turn("b")
    boots = dict.fromkeys(before.replicas, "boot1")
    homes = before.router.export_homes()
    elsewhere = {**boots, homes[0].replica: "boot2"}
    assert after.router.restore_homes(homes, elsewhere, after.now) == 0
    assert after.router.restore_homes(homes, {}, after.now) == 0
    assert after.router.restore_homes(homes, boots, after.now) == 1
    assert after.turn("b") == ("sticky", known[1])


def test_a_conversation_without_a_living_home_is_not_exported() -> None:
    driver = Driver()
    home = driver.turn("a")[1]
    driver.up(home, "boot2")
    assert driver.router.export_homes() == []
