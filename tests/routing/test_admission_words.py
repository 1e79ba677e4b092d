"""Why the room is engaged or open: a code, and a sentence that does not contradict the numbers in it."""

from __future__ import annotations

import pytest

from lmwarden.routing.admission_demand import HOLD_S, STAY_S, Thrash
from lmwarden.routing.admission_words import why, why_code


def seen(demand: float, *, engaged: bool = False, lost: int = 0, kept: int = 0) -> Thrash:
    thrash = Thrash()
    thrash.demand_ratio = demand
    if engaged:
        thrash.switch(engaged=True, now=0.0)
    for number in range(lost + kept):
        thrash.kept(0.1 if number < lost else 0.9, now=0.0)
    return thrash


def code(thrash: Thrash, gap_s: float | None = 0.2, *, capacity_known: bool = True, though_kept: bool = False) -> str:
    return why_code(thrash, gap_s, capacity_known=capacity_known, though_kept=though_kept)


@pytest.mark.parametrize(
    ("thrash", "gap_s", "expected", "says"),
    [
        (seen(1.42, engaged=True), 0.2, "engaged", "Engaged: the conversations in use need 1.42 times"),
        (seen(1.0, engaged=True), 0.2, "engaged", "the others wait"),
        (seen(0.0, engaged=True), 0.2, "emptying", "so all fit again"),
        (seen(0.7), 0.2, "open", "need 0.70 times what the replicas hold."),
        (seen(1.1), 0.2, "open", "too little above to hold anybody"),
        (seen(1.15), 0.2, "open", "too little above to hold anybody"),
        (seen(1.15, lost=4, kept=3), 0.2, "settling", "engages if that stays so"),
        (seen(1.3), 0.2, "settling", "engages if that stays so"),
        (seen(1.3), None, "settling", "it is not known yet how long agents pause"),
        (seen(1.3), 1.5, "gaps", "a quarter of the pauses exceeds 1.5 s"),
        (seen(1.3, kept=6), 0.2, "kept", "they find their context there"),
        (seen(1.3, kept=6), 1.5, "gaps", "agents pause"),
    ],
)
def test_every_state_has_its_reason(thrash: Thrash, gap_s: float | None, expected: str, says: str) -> None:
    found = code(thrash, gap_s)
    assert found == expected
    assert says in why(found, thrash.demand_ratio, gap_s)


def test_pauses_that_are_long_beside_the_turns_are_pauses() -> None:
    thrash = seen(1.3)
    thrash.idle_ratio = 0.3
    assert code(thrash, 0.4) == "gaps"
    assert "a quarter of the pauses exceeds 0.4 s" in why("gaps", 1.3, 0.4)


def test_without_a_capacity_nothing_can_be_compared() -> None:
    assert code(seen(0.0), capacity_known=False) == "no_capacity"
    assert why("no_capacity", 0.0, None) == "Open: an engine reports no KV capacity."


def test_where_the_median_is_preferred_kept_context_is_no_reason() -> None:
    assert code(seen(1.3, kept=6), though_kept=True) == "settling"


def test_what_settles_engages_and_what_empties_opens() -> None:
    """The words tell what the switch does next."""
    thrash = Thrash()
    for half in range(int(2 * HOLD_S)):
        thrash.look(1.3, 0.2, 0, 100.0 + half / 2)
        assert code(thrash) == "settling"
    assert thrash.look(1.3, 0.2, 0, 100.0 + HOLD_S)
    assert code(thrash) == "engaged"
    thrash.look(0.2, 0.2, 0, 101.0 + HOLD_S)
    assert code(thrash) == "emptying"
    assert thrash.look(0.2, 0.2, 0, 100.0 + HOLD_S + STAY_S)
    assert code(thrash) == "open"
