"""Counters across restarts of an engine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmwarden.engine.totals import GrowingTotal, PrefixCacheTotals


def test_a_restart_adds_what_grew_since_it() -> None:
    total = GrowingTotal()
    for value in (0, 1000, 50):
        total.read(value)
    assert total.total == 1050


def test_what_was_there_before_us_does_not_count() -> None:
    total = GrowingTotal()
    total.read(900)
    total.read(None)
    total.read(1000)
    assert total.total == 100


@given(st.lists(st.integers(0, 1 << 40) | st.none()))
def test_totals_never_fall(values: list[int | None]) -> None:
    total = GrowingTotal()
    before = 0
    for value in values:
        total.read(value)
        assert total.total >= before
        before = total.total


def test_the_hit_ratio_is_unknown_until_something_was_asked() -> None:
    totals = PrefixCacheTotals()
    ratios: list[float | None] = []
    for queries, hits in ((100, 50), (200, 125), (40, 40)):
        totals.read(queries, hits)
        ratios.append(totals.hit_ratio)
    assert ratios == [None, 0.75, (75 + 40) / 140]
