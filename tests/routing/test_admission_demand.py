"""The switch: thrash only, and hysteresis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.routing.admission_demand import EVIDENCE_S, EVIDENCE_TURNS, Thrash
from lmwarden.routing.admission_places import KEPT_LOW_RATIO


def look(thrash: Thrash, demand: float, *, seconds: int, since: float = 100.0, **more: object) -> float | None:
    """Show the same demand for so long, twice a second; returns when the state changed."""
    gap_s, waiting = more.pop("gap_s", 0.2), more.pop("waiting", 0)
    for half in range(2 * seconds + 1):
        now = since + half / 2
        if thrash.look(demand, gap_s, waiting, now, **more):  # type: ignore[arg-type]
            return now
    return None


@pytest.mark.parametrize(("demand", "at"), [(1.1, None), (1.18, None), (1.19, 103.0)])
def test_demand_must_stand_above_a_level(demand: float, at: float | None) -> None:
    assert look(Thrash(), demand, seconds=10) == at


def test_a_peak_does_not_engage() -> None:
    thrash = Thrash()
    assert look(thrash, 1.3, seconds=2) is None
    assert look(thrash, 1.0, seconds=1, since=103.0) is None
    assert look(thrash, 1.3, seconds=2, since=105.0) is None


@pytest.mark.parametrize(("gap_s", "at"), [(None, None), (1.0, 103.0), (1.5, None)])
def test_not_where_agents_pause_between_their_turns(gap_s: float | None, at: float | None) -> None:
    assert look(Thrash(), 2.0, seconds=10, gap_s=gap_s) == at


@pytest.mark.parametrize(("idle_ratio", "at"), [(0.0, 103.0), (0.12, 103.0), (0.13, None)])
def test_not_where_pauses_are_long_beside_the_turns(idle_ratio: float, at: float | None) -> None:
    assert look(Thrash(), 2.0, seconds=10, idle_ratio=idle_ratio) == at


class TestEvidence:
    """What turns found of their context."""

    def shown(self, lost: int, kept: int) -> Thrash:
        thrash = Thrash()
        for number in range(lost + kept):
            thrash.kept(0.1 if number < lost else 0.9, now=99.0)
        return thrash

    def test_losing_engages_earlier(self) -> None:
        assert look(self.shown(lost=4, kept=3), 1.15, seconds=10) == 103.0
        assert look(self.shown(lost=3, kept=3), 1.15, seconds=10) is None

    def test_keeping_does_not_engage_whatever_the_demand(self) -> None:
        assert look(self.shown(lost=1, kept=5), 3.0, seconds=10) is None
        assert look(self.shown(lost=1, kept=5), 3.0, seconds=10, though_kept=True) == 103.0

    def test_few_or_old_turns_say_nothing(self) -> None:
        assert self.shown(lost=0, kept=5).lost_ratio is None
        thrash = self.shown(lost=0, kept=6)
        assert thrash.lost_ratio == 0.0
        assert look(thrash, 3.0, seconds=10, since=130.0) == 133.0
        assert thrash.lost_ratio is None


class TestDisengaging:
    """Not before a while, and not while somebody waits."""

    def engaged(self) -> Thrash:
        thrash = Thrash()
        thrash.switch(engaged=True, now=100.0)
        return thrash

    @pytest.mark.parametrize(
        ("demand", "waiting", "gap_s", "at"),
        [(0.9, 0, 0.2, 110.0), (1.0, 0, 0.2, None), (0.9, 1, 0.2, None), (2.0, 5, 2.5, 110.0), (0.9, 0, None, 110.0)],
    )
    def test_when(self, demand: float, waiting: int, gap_s: float | None, at: float | None) -> None:
        assert look(self.engaged(), demand, seconds=20, waiting=waiting, gap_s=gap_s) == at

    @pytest.mark.parametrize(("idle_ratio", "at"), [(0.2, None), (0.21, 110.0)])
    def test_when_places_stand_idle(self, idle_ratio: float, at: float | None) -> None:
        assert look(self.engaged(), 2.0, seconds=20, waiting=5, idle_ratio=idle_ratio) == at


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 1.0)), max_size=60))
def test_the_share_of_turns_that_lost_their_context_is_that_of_the_last_half_minute(
    turns: list[tuple[float, float]],
) -> None:
    thrash, seen, now = Thrash(), [], 100.0
    for pause_s, kept_ratio in turns:
        now += pause_s
        thrash.kept(kept_ratio, now)
        seen.append((now, kept_ratio < KEPT_LOW_RATIO))
        recent = [lost for at, lost in seen if at >= now - EVIDENCE_S]
        assert thrash.lost_ratio == (None if len(recent) < EVIDENCE_TURNS else sum(recent) / len(recent))
