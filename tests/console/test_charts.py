"""The charts: rates, shares and gaps of a stretch, as JSON and as CSV."""

from __future__ import annotations

import csv
from typing import Any

import msgspec
import pytest

from lmwarden.console.charts import as_csv, latency_chart, replicas_chart, requests_chart, tokens_chart
from lmwarden.ledger.histogram import bucket_of
from lmwarden.ledger.history import Means, Step, Stretch
from lmwarden.ledger.history_sums import Sums

UNSEEN = Means(
    ready=None, in_flight=None, conversations=None, held_tokens=None, busy=None, running=None, waiting=None,
    kv_used_ratio=None,
)  # fmt: skip
SEEN = Means(
    ready=4.0, in_flight=5.5, conversations=9.0, held_tokens=38_000.0, busy=3.7, running=5.0, waiting=0.5,
    kv_used_ratio=0.6,
)  # fmt: skip


def stretch(*sums: Sums | None, means: Means = UNSEEN, last_s: float = 10.0) -> Stretch:
    """Steps of 10 s from 1000 on."""
    steps = [
        Step(t=1000 + 10 * number, seconds=10.0, sums=one, means=UNSEEN if one is None else means)
        for number, one in enumerate(sums)
    ]
    steps[-1] = msgspec.structs.replace(steps[-1], seconds=last_s)
    return Stretch(begin=1000, end=1000 + 10 * len(sums), step_s=10, steps=steps)


def as_json(chart: msgspec.Struct) -> Any:
    return msgspec.json.decode(msgspec.json.encode(chart))


def test_tokens_are_per_second_and_their_sums_to_the_token() -> None:
    busy = Sums(cached_tokens=700, computed_tokens=300, completion_tokens=55, ok=1)
    chart = tokens_chart(stretch(busy, None, Sums(samples=3)), 1.0)
    assert as_json(chart) == {
        "from": 1000, "to": 1030, "step_s": 10, "cached_ratio": 0.7,
        "totals": {"cached": 700, "computed": 300, "completion": 55},
        "points": [
            {"t": 1000, "cached": 70.0, "computed": 30.0, "completion": 5.5},
            {"t": 1010, "cached": None, "computed": None, "completion": None},
            {"t": 1020, "cached": 0.0, "computed": 0.0, "completion": 0.0},
        ],
    }  # fmt: skip


def test_without_a_prompt_there_is_no_cached_ratio() -> None:
    assert tokens_chart(stretch(Sums(completion_tokens=5)), 1.0).cached_ratio is None


def test_rates_are_per_modelled_second_and_per_what_is_over_of_a_step() -> None:
    busy = stretch(Sums(cached_tokens=700, sticky=20), last_s=5.0)
    assert tokens_chart(busy, 1.0).points[0].cached == 140.0
    assert tokens_chart(busy, 10.0).points[0].cached == 14.0
    assert requests_chart(busy, 10.0).points[0].sticky == 0.4


def test_latency_of_each_step_and_of_all_together() -> None:
    fast = {bucket_of(0.25): 98, bucket_of(8.0): 2}
    slow = {bucket_of(64.0): 100}
    chart = latency_chart(
        stretch(Sums(first_byte_counts=fast, first_byte_sum_s=40.5), None, Sums(first_byte_counts=slow), Sums())
    )
    first, gap, last, quiet = chart.points
    assert (first.p50, first.p95, first.p99) == pytest.approx((0.25, 0.25, 8.0), rel=0.045)
    assert (first.count, last.count, quiet.count, gap.count) == (100, 100, 0, None)
    assert (gap.p50, quiet.p50) == (None, None)
    assert (chart.totals.p50, chart.totals.p95) == pytest.approx((8.0, 64.0), rel=0.045)
    assert (chart.totals.count, chart.totals.mean) == (200, 40.5 / 200)


def test_requests_by_decision_and_by_outcome() -> None:
    chart = requests_chart(stretch(Sums(placed=10, sticky=30, ok=38, failed=1, timeout=1, refused=5), None), 1.0)
    point, gap = chart.points
    assert (point.placed, point.sticky, point.ok, point.failed, point.refused) == (1.0, 3.0, 3.8, 0.2, 0.5)
    assert {getattr(gap, name) for name in gap.__struct_fields__ if name != "t"} == {None}
    assert (chart.totals.sticky, chart.totals.failed, chart.totals.cancelled) == (30, 2, 0)


def test_replicas() -> None:
    chart = replicas_chart(stretch(Sums(samples=10), None, means=SEEN), 4)
    assert as_json(chart)["points"] == [
        {"t": 1000, "ready": 4.0, "busy": 3.7, "kv_used": 0.6, "running": 5.0, "waiting": 0.5, "in_flight": 5.5,
         "conversations": 9.0, "held_tokens": 38_000.0},
        {"t": 1010, "ready": None, "busy": None, "kv_used": None, "running": None, "waiting": None, "in_flight": None,
         "conversations": None, "held_tokens": None},
    ]  # fmt: skip
    assert chart.replicas == 4


def test_csv_has_a_line_per_step_and_nothing_in_a_gap() -> None:
    text = as_csv(tokens_chart(stretch(Sums(cached_tokens=700), None), 1.0).points)
    assert list(csv.reader(text.splitlines())) == [
        ["time", "t", "cached", "computed", "completion"],
        ["1970-01-01T00:16:40+00:00", "1000", "70.0", "0.0", "0.0"],
        ["1970-01-01T00:16:50+00:00", "1010", "", "", ""],
    ]
