"""Draws stay within their bounds and follow their form; a constant draws nothing."""

from __future__ import annotations

import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.bench.distributions import Distribution, Lognormal, Mixture, Part, check, draw, smallest

LONG_TAIL = Lognormal(median=400, sigma=1.0, least=16, most=12_000)
TWO_KINDS = Mixture(parts=(Part(share=0.8, of=(100, 400)), Part(share=0.2, of=6000)))


@given(st.integers(), st.sampled_from([LONG_TAIL, TWO_KINDS, (3, 9), 7]))
def test_no_draw_is_out_of_bounds(seed: int, distribution: Distribution) -> None:
    drawn = draw(distribution, Random(seed))
    assert smallest(distribution) <= drawn <= 12_000


def test_the_same_seed_draws_the_same() -> None:
    first, again = Random(3), Random(3)
    assert [draw(LONG_TAIL, first) for _ in range(20)] == [draw(LONG_TAIL, again) for _ in range(20)]


def test_half_of_a_lognormal_is_below_its_median() -> None:
    random = Random(1)
    assert statistics.median(draw(LONG_TAIL, random) for _ in range(4000)) == pytest.approx(400, rel=0.08)


def test_parts_of_a_mixture_come_by_their_share() -> None:
    random = Random(1)
    large = sum(draw(TWO_KINDS, random) == 6000 for _ in range(4000)) / 4000
    assert large == pytest.approx(0.2, abs=0.02)


def test_a_constant_leaves_the_random_source_alone() -> None:
    random, untouched = Random(5), Random(5)
    assert draw(7, random) == 7
    assert random.random() == untouched.random()


@pytest.mark.parametrize(
    ("distribution", "says"), [((9, 3), r"\[low, high\]"), (0, "at least 1"), ((0, 5), "at least 1")]
)
def test_what_could_draw_too_little_is_refused(distribution: Distribution, says: str) -> None:
    with pytest.raises(ValueError, match=f"turns must be {says}"):
        check("turns", distribution, 1)


def test_bounds_and_shares_are_checked() -> None:
    with pytest.raises(ValueError, match="least <= median <= most"):
        Lognormal(median=10, sigma=1.0, least=11, most=20)
    with pytest.raises(ValueError, match="sum to 1"):
        Mixture(parts=(Part(share=0.5, of=3),))
    with pytest.raises(ValueError, match="above 0"):
        Mixture(parts=(Part(share=0.0, of=3), Part(share=1.0, of=4)))
