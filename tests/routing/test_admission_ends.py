"""What the ends of turns teach, at once or together."""

from __future__ import annotations

import pytest
from tests.routing.driver import Driver

from lmwarden.routing.admission_ends import MOST_NOTED
from lmwarden.routing.door import LOOK_S, Door
from lmwarden.types import Outcome, RoutingSettings, Usage


def opened() -> tuple[Driver, Door]:
    """A router whose waiting room is not engaged."""
    driver = Driver(settings=RoutingSettings(admission="auto"))
    door = driver.router._door
    assert door is not None and not door.thrash.engaged
    return driver, door


def end_turns(driver: Driver, count: int, completion: int) -> None:
    for number in range(count):
        ticket = driver.offer(f"c{number % 7}", body_bytes=8_000)
        driver.finish(ticket, prompt=2_000, completion=completion, cached=500)


def test_an_open_room_learns_when_it_looks() -> None:
    driver, door = opened()
    end_turns(driver, 20, 40)
    assert door.room.learned.output_tokens == 256
    driver.later(LOOK_S)
    assert door.room.learned.output_tokens < 100
    assert door.room.learned.tokens_per_byte == pytest.approx(0.25)


def test_ends_are_learned_from_once() -> None:
    driver, door = opened()
    end_turns(driver, 20, 40)
    driver.later(LOOK_S)
    learned = door.room.learned.output_tokens
    driver.later(10 * LOOK_S)
    assert door.room.learned.output_tokens == learned


def test_of_many_ends_the_latest_count() -> None:
    """However many turns end between two looks, so few are looked at, and they are those that say how it is now."""
    driver, door = opened()
    end_turns(driver, 3 * MOST_NOTED, 1_000)
    end_turns(driver, MOST_NOTED, 40)
    assert len(door.ends._noted) == MOST_NOTED
    driver.later(LOOK_S)
    assert door.room.learned.output_tokens == pytest.approx(40, rel=0.01)
    assert not door.ends._noted


def test_a_lull_between_two_ends_is_no_pace() -> None:
    """Although both are learned from together."""
    driver, door = opened()
    driver.finish(driver.offer("a"), prompt=100, completion=10)  # nothing runs after it
    driver.now += 0.4 * LOOK_S
    first, second = driver.offer("a"), driver.offer("b")
    driver.finish(first, prompt=100, completion=10)
    driver.now += 0.1
    driver.finish(second, prompt=100, completion=10)
    driver.later(LOOK_S)
    assert door.room.learned.between_ends_s == pytest.approx(0.1)


def test_a_turn_without_a_first_byte_says_nothing_about_reading() -> None:
    driver, door = opened()
    driver.turn("a", prompt=500)
    ticket = driver.offer("a")
    usage = Usage(prompt_tokens=9_000, cached_tokens=0, completion_tokens=10, finish_reason="tool_calls")
    driver.router.finished(ticket, Outcome.OK, usage, driver.now + 5.0)
    driver.later(LOOK_S)
    assert door.room.learned.reading_s(1_000) == 0.0
    ticket = driver.offer("a")
    driver.router.first_byte(ticket, driver.now + 3.0)
    driver.router.finished(ticket, Outcome.OK, usage, driver.now + 5.0)
    driver.later(10.0)
    assert door.room.learned.reading_s(9_000) == pytest.approx(3.0)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CLIENT_ERROR, Outcome.CANCELLED, Outcome.TIMEOUT])
def test_only_a_turn_that_ended_well_teaches(outcome: Outcome) -> None:
    """Even where the engine had counted something before it broke off."""
    driver, door = opened()
    for _ in range(20):
        usage = Usage(prompt_tokens=9_000, cached_tokens=0, completion_tokens=10)
        driver.router.finished(driver.offer("a", body_bytes=8_000), outcome, usage, driver.now)
    driver.later(LOOK_S)
    assert door.room.learned.output_tokens == 256
    assert door.room.learned.tokens_per_byte == 0.25


@pytest.mark.parametrize(("stay_away", "comes_back"), [(0, True), (60, False)])
def test_ends_after_which_nobody_came_weigh_against_those_after_which_somebody_did(
    stay_away: int, comes_back: bool
) -> None:
    driver, door = opened()
    for _ in range(20):
        driver.finish(driver.offer("a"), finish_reason="stop")
        driver.later(1.0)
    for number in range(stay_away):
        driver.finish(driver.offer(f"once {number}"), finish_reason="stop")
    assert door.room.learned.comes_back is comes_back


def test_what_a_turn_adds_is_learned_from_turns_that_went_home() -> None:
    driver, door = opened()
    for prompt in (2_000, 2_600, 3_200):
        driver.turn("a", prompt=prompt)
    driver.later(LOOK_S)
    assert door.room.learned.growth_tokens == pytest.approx(600)


def test_a_turn_that_was_sent_again_took_as_long_as_the_second_time() -> None:
    driver = Driver({"e0": 1, "e1": 1}, settings=RoutingSettings(admission="auto"))
    door = driver.router._door
    assert door is not None
    ticket = driver.offer("a")
    driver.now += 30.0
    driver.fail(ticket)
    driver.now += 2.0
    driver.finish(ticket, prompt=4_000)
    driver.later(LOOK_S)
    assert door.room.learned.reading_s(4_000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("prompt", "busy", "cached", "lost_ratio", "turn_s"),
    [
        (2_000, 0, 2_000, 0.0, 3.0),
        (2_000, 0, 100, 1.0, 0.0),  # it was read again: how long that took is no turn's time
        (300, 0, 0, None, 0.0),  # so little context says nothing
        (2_000, 20, 0, None, 0.0),  # it was sent away from its home, which knows nothing of it
    ],
)
def test_what_was_kept_is_learned_from_turns_at_home_that_had_something_to_keep(
    prompt: int, busy: int, cached: int, lost_ratio: float | None, turn_s: float
) -> None:
    driver, door = opened()
    for name in "abcdef":
        _, home = driver.turn(name, prompt=prompt)
        held = driver.hold(home, busy)
        ticket = driver.offer(name)
        assert driver.went[0] == ("spilled" if busy else "sticky")
        driver.router.first_byte(ticket, driver.now)
        driver.now += 3.0
        usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=10, finish_reason="tool_calls")
        driver.router.finished(ticket, Outcome.OK, usage, driver.now)
        for other in held:
            driver.cancel(other)
    driver.later(LOOK_S)
    assert door.room.thrash.lost_ratio == lost_ratio
    assert door.room.learned.turn_s == pytest.approx(turn_s)
