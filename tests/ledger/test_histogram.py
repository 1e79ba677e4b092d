"""Histograms: close to the truth, and as close when they were merged."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.ledger import histogram
from lmwarden.ledger.histogram import GROWTH, LONGEST_S, SHORTEST_S, Counts, bucket_of, percentiles

SECONDS = st.floats(min_value=SHORTEST_S, max_value=LONGEST_S)


def counts_of(seconds: list[float]) -> Counts:
    counts: Counts = {}
    for one in seconds:
        histogram.merge(counts, {bucket_of(one): 1})
    return counts


@given(st.lists(SECONDS, min_size=1, max_size=50), st.floats(min_value=0.0, max_value=1.0))
def test_a_percentile_is_the_nearest_rank_within_half_a_bucket(seconds: list[float], ratio: float) -> None:
    (found,) = percentiles(counts_of(seconds), [ratio])
    exact = sorted(seconds)[max(1, math.ceil(ratio * len(seconds))) - 1]
    assert found is not None
    assert found / exact == pytest.approx(1.0, rel=GROWTH**0.5 - 1 + 1e-9)


@given(st.lists(SECONDS), st.lists(SECONDS))
def test_merged_is_what_one_histogram_of_all_would_be(one: list[float], other: list[float]) -> None:
    merged = histogram.merged(histogram.encoded(counts_of(one)), histogram.encoded(counts_of(other)))
    assert histogram.decoded(merged) == counts_of(one + other)


def test_nothing_has_no_percentiles() -> None:
    assert percentiles({}, [0.5, 0.95]) == [None, None]
    assert histogram.encoded({}) is None
    assert histogram.decoded(None) == {}
    assert histogram.merged(None, None) is None


def test_many_at_once() -> None:
    chance = random.Random(1)
    seconds = [chance.lognormvariate(0.0, 1.5) for _ in range(10_000)]
    p50, p95, p99 = percentiles(counts_of(seconds), [0.5, 0.95, 0.99])
    ordered = sorted(seconds)
    assert (p50, p95, p99) == pytest.approx((ordered[4999], ordered[9499], ordered[9899]), rel=0.045)


@pytest.mark.parametrize(
    ("seconds", "counts_as"),
    [(0.0, SHORTEST_S), (-1.0, SHORTEST_S), (math.nan, SHORTEST_S), (1e9, LONGEST_S), (math.inf, LONGEST_S)],
)
def test_what_is_out_of_range_counts_as_the_end_of_it(seconds: float, counts_as: float) -> None:
    assert bucket_of(seconds) == bucket_of(counts_as)
    assert bucket_of(counts_as) >= 0


def test_a_few_requests_take_a_few_bytes() -> None:
    stored = histogram.encoded(counts_of([0.3, 0.3, 4.0]))
    assert stored is not None
    assert len(stored) <= 6
