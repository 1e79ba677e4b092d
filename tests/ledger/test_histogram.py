"""Histograms: close to the truth, and as close when they were merged."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing

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


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


def bucket_in(connection: sqlite3.Connection, seconds: float | None) -> int | None:
    found: int | None = connection.execute(
        f"SELECT {histogram.bucket_sql('seconds')} FROM (SELECT ? AS seconds)", (seconds,)
    ).fetchone()[0]
    return found


@given(seconds=SECONDS | st.floats(allow_nan=False) | st.integers(-10, 12).map(lambda power: 2.0**power))
def test_the_database_finds_the_same_bucket(database: sqlite3.Connection, seconds: float) -> None:
    # SQLite reads a bound with 15 digits exactly and is free in the last ones.
    near = {bucket_of(seconds * (1 - 1e-14)), bucket_of(seconds), bucket_of(seconds * (1 + 1e-14))}
    assert bucket_in(database, seconds) in near


@pytest.mark.parametrize("power", range(-9, 13))
def test_the_bounds_between_buckets_are_the_same(database: sqlite3.Connection, power: int) -> None:
    for seconds in (2.0**power, math.nextafter(2.0**power, math.inf)):
        assert bucket_in(database, seconds) == bucket_of(seconds)


def test_no_duration_is_in_no_bucket(database: sqlite3.Connection) -> None:
    assert bucket_in(database, None) is None
