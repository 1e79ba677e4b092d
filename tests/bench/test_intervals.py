"""Student's t, against values from its published table and against a simulation of repeats."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest

from lmwarden.bench.intervals import half_width


def test_known_values() -> None:
    assert half_width([1.0, 3.0]) == pytest.approx(12.706)
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert half_width([5.0] * 4) == 0.0


def test_what_was_not_measured_does_not_count_and_one_value_says_nothing() -> None:
    assert half_width([1.0, None, 3.0]) == half_width([1.0, 3.0])
    assert half_width([1.0, None]) is None
    assert half_width([]) is None


@pytest.mark.parametrize("repeats", [2, 3, 8, 40])
def test_the_interval_holds_the_truth_as_often_as_it_says(repeats: int) -> None:
    random = Random(repeats)
    held = 0
    for _ in range(3000):
        values = [random.gauss(10.0, 3.0) for _ in range(repeats)]
        width = half_width(values)
        assert width is not None
        held += abs(mean(values) - 10.0) <= width
    assert held / 3000 == pytest.approx(0.95, abs=0.015)
