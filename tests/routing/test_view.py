"""What the router shows of its conversations."""

from __future__ import annotations

import pytest
from tests.routing.driver import Driver, key

from lmwarden.types import ConversationView, ReplicaId


def listed(driver: Driver, most: int = 100) -> list[ConversationView]:
    return list(driver.router.conversations(driver.now, most))


def test_the_conversation_used_last_comes_first_whatever_order_it_stands_in() -> None:
    driver = Driver()
    for name in ("once", "twice", "asleep"):
        driver.turn(name)
        driver.turn(name) if name != "once" else None
        driver.later(1)
    driver.later(1800)
    driver.turn("twice")
    driver.later(1)
    driver.turn("new")
    assert [view.key for view in listed(driver)] == [key("new"), key("twice"), key("asleep")]
    assert [view.live for view in listed(driver)] == [True, True, False]
    assert [view.key for view in listed(driver, 1)] == [key("new")]


def test_a_conversation_is_shown_with_its_home_and_its_size() -> None:
    driver = Driver()
    _, home = driver.turn("a", prompt=500)
    driver.later(5)
    driver.offer("a")
    assert listed(driver) == [
        ConversationView(
            key=key("a"),
            parent=None,
            derived=False,
            home=ReplicaId.parse(home),
            turns=2,
            context_tokens=600,
            in_flight=1,
            live=True,
            last_used=1005.0,
        )
    ]


def test_who_started_it_and_how_it_is_known_are_shown() -> None:
    driver = Driver()
    driver.turn("child", parent=key("parent"))
    driver.turn("guessed", derived=True)
    views = {view.key: view for view in listed(driver)}
    assert (views[key("child")].parent, views[key("child")].derived) == (key("parent"), False)
    assert (views[key("guessed")].parent, views[key("guessed")].derived) == (None, True)


def test_a_home_whose_cache_is_lost_is_none() -> None:
    driver = Driver()
    _, home = driver.turn("a")
    driver.up(home, "boot2")
    assert listed(driver)[0].home is None


@pytest.mark.parametrize("still_open", [True, False])
def test_live_is_what_was_used_in_time_even_before_the_table_expires_it(still_open: bool) -> None:
    driver = Driver()
    ticket = driver.offer("a")
    if not still_open:
        driver.finish(ticket)
    driver.now += 1801
    assert [view.live for view in listed(driver)] == [still_open]
