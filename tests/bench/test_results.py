"""The schema as documented, quantiles, and the averaging of repeats."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.bench.counters import EngineCounters
from lmwarden.bench.results import (
    BenchResult,
    ClientCounters,
    LevelResult,
    SessionSeconds,
    TtfbSeconds,
    cells,
    merged,
    quantile,
    read_json,
    write_json,
)


def row(sessions: int = 8, arm: str = "on", seed: int | None = 1, **changes: object) -> LevelResult:
    """A row with plausible figures."""
    base = LevelResult(
        sessions=sessions,
        arm=arm,
        seed=seed,
        seconds=180.0,
        sessions_per_hour=380.0,
        output_tokens_per_minute=10752.0,
        ttfb_s=TtfbSeconds(p50=0.48, p95=5.03),
        session_s=SessionSeconds(p50=70.0),
        replicas_busy=3.74,
        prefix_hit_ratio=0.861,
        prefix_hit_ratio_engine=None,
        stayed_ratio=1.0,
        requests=126,
        failed=0,
        unserved=2,
        balancer=None,
        decisions={"placed": 20, "sticky": 104},
        waited_in_room=0,
    )
    return msgspec.structs.replace(base, **changes)


def test_the_file_has_the_documented_keys(tmp_path: Path) -> None:
    result = BenchResult(source="measured", hardware=None, workload="claude-code", levels=[row()])
    path = tmp_path / "results.json"
    write_json(result, path)
    written = json.loads(path.read_text())
    assert list(written) == ["schema", "source", "hardware", "workload", "levels", "run"]
    assert written["schema"] == 1
    assert list(written["levels"][0]) == [
        *("sessions", "arm", "seed", "seconds", "sessions_per_hour", "output_tokens_per_minute", "ttfb_s"),
        *("session_s", "replicas_busy", "prefix_hit_ratio", "prefix_hit_ratio_engine", "stayed_ratio"),
        *("requests", "failed", "unserved", "balancer", "decisions", "waited_in_room"),
        *("loop", "open_at_start", "open_at_end", "left", "caches_emptied", "room_wait_s", "requests_by_replica"),
        *("client", "engine"),
    ]
    assert list(written["levels"][0]["ttfb_s"]) == [
        *("p50", "p95", "p99", "max", "mean", "first_turn_p95", "later_turn_p95", "p95_with_waiting"),
        *("first_turn_p50", "later_turn_p50"),
    ]
    assert list(written["levels"][0]["session_s"]) == ["p50", "p95"]
    assert written["levels"][0]["prefix_hit_ratio_engine"] is None
    assert read_json(path) == result


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0)])
def test_quantiles_interpolate(share: float, expected: float) -> None:
    assert quantile([4, 1, 3, 2], share) == pytest.approx(expected)


def test_the_quantile_of_nothing_is_none() -> None:
    assert quantile([], 0.5) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_within_the_values(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found is not None
    assert min(values) - 1e-6 <= found <= max(values) + 1e-6


def test_repeats_are_averaged_and_counts_summed() -> None:
    other = row(seed=2, output_tokens_per_minute=9000.0, ttfb_s=TtfbSeconds(p50=0.52), decisions={"spilled": 4})
    both = merged([row(), other])
    assert both.seed is None
    assert both.output_tokens_per_minute == 9876
    assert both.ttfb_s.p50 == pytest.approx(0.50)
    assert both.ttfb_s.p95 == 5.03
    assert (both.requests, both.unserved, both.seconds) == (252, 4, 360)
    assert both.decisions == {"placed": 20, "sticky": 104, "spilled": 4}
    assert both.prefix_hit_ratio_engine is None


def test_counters_of_repeats_are_summed_where_every_repeat_has_them() -> None:
    engine = EngineCounters(requests=4.0, requests_by_rank={"0": 4.0})
    counted = row(client=ClientCounters(requests=3, prompt_tokens=10), engine=engine)
    both = merged([counted, counted])
    assert both.client == ClientCounters(requests=6, prompt_tokens=20)
    assert both.engine == EngineCounters(requests=8.0, requests_by_rank={"0": 8.0})
    assert merged([counted, row()]).engine is None


def test_cells_keep_the_order_of_the_run() -> None:
    rows = [row(4, "off"), row(4, "on"), row(8, "off"), row(4, "off", seed=2)]
    assert list(cells(rows)) == [(4, "off"), (4, "on"), (8, "off")]
    assert cells(rows)[4, "off"].requests == 252
