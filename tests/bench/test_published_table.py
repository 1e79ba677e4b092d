"""The simulation against the published table: a guard, with fewer seeds than the benchmark."""

from __future__ import annotations

import pytest
from benchmarks.published_table import COUNTED, Comparison, compare, print_comparison

from lmwarden.types import Decision


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(seeds=[1, 2, 3, 4], levels=COUNTED)


def test_it_stays_as_close_as_it_was(comparison: Comparison) -> None:
    misses = comparison.misses()
    assert len(misses) == 24
    assert sum(miss <= 1 for miss in misses) >= 20
    assert max(misses) < 2


def test_what_misses_is_marked(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(comparison)
    printed = capsys.readouterr().out
    table, summary = printed.rsplit("\n4, 8, 16", 1)
    marks = table.count("*") - table.count("**")
    assert f"{24 - marks} of 24 within tolerance" in summary


def test_the_router_that_stands_for_the_published_one_places_and_stays(comparison: Comparison) -> None:
    for row in comparison.cells[8, "on"]:
        assert row.decisions is not None
        assert row.decisions[Decision.PLACED] > 8
        assert row.stayed_ratio == 1.0
