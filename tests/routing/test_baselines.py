"""Routers without a memory keep the contract too."""

from __future__ import annotations

from collections import Counter

from tests.routing.driver import Driver

from lmwarden.routing.baselines import PerRequestRouter, random_choice, round_robin
from lmwarden.types import ReplicaId, RoutingSettings


def per_request(choose: str, *, affinity: bool = True) -> Driver:
    rule = random_choice(1) if choose == "random" else round_robin()
    router = PerRequestRouter(RoutingSettings(affinity=affinity), engines={"e0": 4}, choose=rule)
    return Driver(router=router)


def test_round_robin() -> None:
    driver = per_request("round robin")
    assert [driver.turn("a")[1] for _ in range(5)] == ["e0/0", "e0/1", "e0/2", "e0/3", "e0/0"]


def test_random_reaches_every_replica_and_keeps_no_conversation() -> None:
    driver = per_request("random")
    counts = Counter(driver.turn("a")[1] for _ in range(80))
    assert len(counts) == 4
    assert max(counts.values()) < 40


def test_pins_the_switch_and_an_empty_fleet_are_as_always() -> None:
    driver = per_request("random")
    assert driver.turn("a", pin=ReplicaId("e0", 2)) == ("client_pinned", "e0/2")
    assert driver.turn("a", engine="e0")[0] == "client_pinned"
    assert per_request("random", affinity=False).turn("a") == ("unrouted", "e0")
    for replica in driver.replicas:
        driver.down(replica)
    driver.offer("a")
    assert driver.refused == "no_replica"
