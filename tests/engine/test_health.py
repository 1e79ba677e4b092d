"""Which engines are offered: tables of what watches say and what the router hears."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.engine.health import FleetHealth, Up
from lmwarden.engine.pins import PinReport
from lmwarden.types import ReplicaCapacity, ReplicaId, ReplicaSample


class Recorder:
    """A sink that writes down who goes up and down, and keeps who is up."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.up: dict[str, str] = {}

    def observe(self, replica: ReplicaId, sample: ReplicaSample) -> None:
        raise AssertionError("not of the fleet's business")

    def engine_lost(self, engine: str) -> None:
        raise AssertionError("not of the fleet's business")

    def pins(self, engine: str, path: str, report: PinReport) -> None:
        raise AssertionError("not of the fleet's business")

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str) -> None:
        self.news.append(f"+{replica.engine}")
        self.up[replica.engine] = boot_id

    def replica_down(self, replica: ReplicaId) -> None:
        self.news.append(f"-{replica.engine}")
        self.up.pop(replica.engine, None)


def ups(engine: str, boot_id: str = "boot-1") -> list[Up]:
    return [Up(ReplicaId(engine, 0), ReplicaCapacity(kv_cache_tokens=1000), boot_id)]


def replay(words: Iterable[str]) -> tuple[Recorder, FleetHealth]:
    """``ready a``, ``failing a``, ``gone a``, ``expect a``."""
    recorder = Recorder()
    fleet = FleetHealth(recorder)
    for word in words:
        say(fleet, word)
    return recorder, fleet


def say(fleet: FleetHealth, word: str) -> None:
    verb, engine = word.split()
    if verb == "ready":
        fleet.ready(engine, ups(engine))
    elif verb == "expect":
        fleet.expect(engine, ups(engine, ""))
    else:
        getattr(fleet, verb)(engine, [ReplicaId(engine, 0)])


@pytest.mark.parametrize(
    ("words", "up", "panic"),
    [
        ("ready a, ready b", "a b", False),
        ("ready a, ready b, failing a", "b", False),
        ("ready a, ready b, failing a, failing b", "a b", True),
        ("ready a, ready b, failing a, failing b, ready a", "a", False),
        ("ready a, ready b, failing a, ready a, failing b", "a", False),
        ("ready a, ready b, gone a", "b", False),
        # Who is known dead is not tried; the other is, although its probes fail.
        ("ready a, ready b, gone a, failing b", "b", True),
        ("ready a, ready b, failing b, gone a", "b", True),
        ("ready a, ready b, failing a, failing b, gone a", "b", True),
        ("ready a, ready b, failing a, failing b, gone a, gone b", "", False),
        ("ready a, ready b, gone a, gone b", "", False),
        # An engine that was never ready is not tried, and does not end a panic.
        ("expect a, failing a", "", False),
        ("expect a, ready b, failing a, failing b", "b", True),
        ("failing a", "", False),
        # One that died and starts again is such an engine.
        ("ready a, gone a, failing a", "", False),
        ("ready a, failing a", "a", True),
    ],
)
def test_who_is_offered(words: str, up: str, panic: bool) -> None:
    recorder, fleet = replay(words.split(", "))
    assert sorted(recorder.up) == up.split()
    assert fleet.panic is panic
    assert [engine for engine in ("a", "b") if fleet.offered(engine)] == up.split()


def test_a_panic_offers_the_same_run_again_and_its_end_takes_it_back() -> None:
    recorder, fleet = replay(["ready a", "ready b", "failing a"])
    assert recorder.news == ["+a", "+b", "-a"]
    recorder.news.clear()
    say(fleet, "failing b")
    assert (recorder.news, recorder.up) == (["+a"], {"a": "boot-1", "b": "boot-1"})
    recorder.news.clear()
    say(fleet, "ready b")
    assert recorder.news == ["+b", "-a"]


def test_what_is_said_twice_is_heard_once() -> None:
    recorder, _ = replay(["ready a", "ready b", "failing a", "failing a", "gone a", "gone a", "failing a"])
    assert recorder.news == ["+a", "+b", "-a"]


def test_begin_and_end_of_a_panic_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, fleet = replay(["ready a", "failing a", "failing a"])
    assert capsys.readouterr().out.count("all probes of a model fail") == 1
    say(fleet, "ready a")
    assert "probes decide again" in capsys.readouterr().out


@given(st.lists(st.sampled_from([f"{v} {e}" for v in ("expect", "ready", "failing", "gone") for e in "abc"])))
def test_the_rule_holds_after_any_history(words: list[str]) -> None:
    recorder, fleet = replay(words)
    standing: dict[str, str] = {}
    for word in words:
        verb, engine = word.split()
        if verb != "failing" or standing.get(engine) in ("ready", "failing"):
            standing[engine] = verb
    ready = {engine for engine, verb in standing.items() if verb == "ready"}
    failing = {engine for engine, verb in standing.items() if verb == "failing"}
    assert set(recorder.up) == (ready or failing)
    assert fleet.panic is bool(failing and not ready)
