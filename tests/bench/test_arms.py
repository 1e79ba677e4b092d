"""Arms and levels as written on the command line."""

from __future__ import annotations

import pytest

from lmwarden.bench.arms import console_patch, needs_console, parse_arms, parse_levels, routing_settings
from lmwarden.bench.errors import PlanError


def test_arms_say_what_the_console_is_told() -> None:
    assert parse_arms("off, hash,on", as_is=False) == ["off", "hash", "on"]
    assert console_patch("off") == {"affinity": False}
    assert console_patch("hash") == {"affinity": True, "placement": "hash", "admission": "off"}
    assert console_patch("on") == {"affinity": True, "placement": "least-loaded", "admission": "off"}
    assert console_patch("on+admission") == {"affinity": True, "placement": "least-loaded", "admission": "auto"}
    assert console_patch("as-is") == {}


def test_virtual_time_sets_the_same() -> None:
    assert not routing_settings("off").affinity
    assert (routing_settings("hash").affinity, routing_settings("hash").placement) == (True, "hash")
    assert routing_settings("on").placement == "least-loaded"


def test_the_waiting_room_is_an_arm() -> None:
    assert parse_arms("on,on+admission", as_is=True) == ["on", "on+admission"]
    settings = routing_settings("on+admission", "median")
    assert (settings.affinity, settings.admission, settings.prefer) == (True, "auto", "median")
    assert routing_settings("on").admission == "off"


def test_only_as_is_needs_no_console() -> None:
    assert needs_console(["off", "on"])
    assert not needs_console(["as-is"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("off,onn", "allowed are off, hash, on, on[+]admission, as-is"),
        ("", "allowed are"),
        ("on,on", "twice"),
        ("as-is,on", "stands alone"),
    ],
)
def test_an_unusable_arm_is_one_line_and_exit_status_2(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says) as caught:
        parse_arms(text, as_is=True)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


def test_levels() -> None:
    assert parse_levels("4,8, 16") == [4, 8, 16]


@pytest.mark.parametrize("text", ["", "4,x", "0", "-1", "4,4", "10001", "1.5"])
def test_unusable_levels(text: str) -> None:
    with pytest.raises(PlanError, match="--levels"):
        parse_levels(text)


def test_as_is_is_an_arm_only_where_something_runs_already() -> None:
    assert parse_arms("as-is", as_is=True) == ["as-is"]
    with pytest.raises(PlanError, match=r"unknown arm; allowed are off, hash, on, on\+admission$"):
        parse_arms("as-is", as_is=False)
