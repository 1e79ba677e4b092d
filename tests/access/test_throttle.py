"""How many passwords may be tried: the guesser is stopped, everybody else is not."""

from __future__ import annotations

import pytest
from tests.access.clock import Now

from lmwarden.access.throttle import (
    MOST_SOURCES,
    TRIES,
    TRIES_OF_ALL,
    TRIES_OF_ALL_PER_S,
    TRIES_PER_S,
    Throttle,
    source_of,
)


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def throttle(now: Now) -> Throttle:
    return Throttle(now)


def guesses(throttle: Throttle, source: str, most: int = 10_000) -> int:
    """Wrong tries until it is stopped."""
    for count in range(most):
        if throttle.begin(source) > 0:
            return count
    return most


def test_a_guesser_is_stopped_and_goes_on_slowly(throttle: Throttle, now: Now) -> None:
    assert guesses(throttle, "10.0.0.1") == TRIES
    assert throttle.begin("10.0.0.1") == pytest.approx(1 / TRIES_PER_S)
    now.s += 1 / TRIES_PER_S + 0.001
    assert throttle.begin("10.0.0.1") == 0
    assert throttle.begin("10.0.0.1") > 0
    now.s += 1e6
    assert guesses(throttle, "10.0.0.1") == TRIES


def test_ten_at_once_then_four_a_minute(throttle: Throttle, now: Now) -> None:
    """What docs/security.md promises, in figures."""
    assert guesses(throttle, "10.0.0.1") == 10
    let_through = 0
    for _ in range(600):
        now.s += 1.0
        let_through += throttle.begin("10.0.0.1") == 0
    assert let_through in (39, 40)


def test_another_address_does_not_feel_it(throttle: Throttle) -> None:
    for _ in range(1000):
        throttle.begin("10.0.0.1")
    assert throttle.begin("10.0.0.2") == 0


def test_the_right_password_costs_nothing(throttle: Throttle) -> None:
    for _ in range(10 * TRIES_OF_ALL):
        assert throttle.begin("10.0.0.1") == 0
        throttle.succeeded("10.0.0.1")


def test_many_addresses_slow_down_newcomers_but_not_who_is_known(throttle: Throttle, now: Now) -> None:
    assert throttle.begin("10.0.0.9") == 0
    throttle.succeeded("10.0.0.9")
    tried = 0
    while throttle.begin(f"10.1.{tried // 256}.{tried % 256}") == 0:
        tried += 1
    assert tried == TRIES_OF_ALL
    assert throttle.begin("10.0.0.8") > 0
    assert throttle.begin("10.0.0.9") == 0
    assert throttle.begin("mark", marked=True) == 0
    now.s += 1 / TRIES_OF_ALL_PER_S + 0.001
    assert throttle.begin("10.0.0.8") == 0


def test_a_known_browser_is_let_in_from_the_guessers_address(throttle: Throttle) -> None:
    guesses(throttle, "127.0.0.1")
    assert throttle.begin("127.0.0.1") > 0
    assert throttle.begin("mark", marked=True) == 0
    throttle.succeeded("mark", marked=True)
    # A stolen mark is throttled like an address.
    assert sum(throttle.begin("mark", marked=True) == 0 for _ in range(100)) == TRIES


def test_memory_is_bounded(throttle: Throttle, now: Now) -> None:
    for number in range(MOST_SOURCES + 100):
        now.s += 1.0
        source = f"host{number}"
        assert throttle.begin(source) == 0
        throttle.succeeded(source)
    assert len(throttle._sources) == len(throttle._trusted) == MOST_SOURCES
    assert next(reversed(throttle._sources)) == next(reversed(throttle._trusted)) == source, "the oldest went"


def test_who_forgets_his_bucket_finds_the_shared_one(throttle: Throttle) -> None:
    assert sum(throttle.begin(f"host{number}") == 0 for number in range(2 * MOST_SOURCES)) < 2 * TRIES_OF_ALL


def test_one_address_is_one_source() -> None:
    assert source_of("10.0.0.1") == source_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert source_of("2001:db8:1:2::5") == source_of("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert source_of("2001:db8:1:3::5") != source_of("2001:db8:1:2::5")
    assert source_of("fe80::1%eth0") == "fe80::/64"
    assert source_of(None) == ""
    assert source_of("testclient") == "testclient"
