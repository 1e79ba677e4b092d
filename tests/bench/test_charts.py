"""What is drawn, as data."""

from __future__ import annotations

from tests.bench.test_results import row

from lmwarden.bench.charts import BarChart, Chart, LineChart, charts
from lmwarden.bench.counters import EngineCounters
from lmwarden.bench.results import AS_RECORDED, BenchResult, LevelResult, RunFacts, TtfbSeconds, WaitSeconds


def drawn(*rows: LevelResult) -> dict[str, Chart]:
    result = BenchResult(source="measured", hardware=None, workload="w", levels=list(rows))
    return {chart.key: chart for chart in charts(result)}


def lines(chart: Chart) -> LineChart:
    assert isinstance(chart, LineChart)
    return chart


def bars(chart: Chart) -> BarChart:
    assert isinstance(chart, BarChart)
    return chart


def test_a_line_for_each_arm_and_figure_with_levels_in_rising_order() -> None:
    found = drawn(row(16, "off"), row(16), row(4, "off"), row(4))
    chart = lines(found["ttfb"])
    assert chart.levels == (4, 16)
    assert [(line.label, line.dashed) for line in chart.lines] == [
        ("off p50", False), ("off p95", True), ("on p50", False), ("on p95", True),
    ]  # fmt: skip
    assert chart.logarithmic and chart.lines[0].values == (0.48, 0.48)


def test_a_missing_cell_is_a_gap_and_an_unmeasured_figure_no_chart() -> None:
    found = drawn(row(4, "off", replicas_busy=None), row(8, "off", replicas_busy=None), row(8, replicas_busy=None))
    assert lines(found["hits"]).lines[1].values == (None, 86.1)
    assert "busy" not in found
    assert "room" not in found
    assert "room" in drawn(row(room_wait_s=WaitSeconds(p95=3.0)))


def test_repeats_have_intervals() -> None:
    chart = lines(drawn(row(ttfb_s=TtfbSeconds(p50=1.0)), row(seed=2, ttfb_s=TtfbSeconds(p50=3.0)))["ttfb"])
    assert chart.lines[0].values == (2.0,)
    (half,) = chart.lines[0].half_widths
    assert half is not None and half > 12


def test_bars_are_shares_of_requests() -> None:
    found = drawn(row(decisions={"placed": 1, "sticky": 3, "spilled": 0}, requests_by_replica={"e0/0": 1, "e0/1": 1}))
    assert bars(found["decisions"]).parts == ("placed", "sticky")
    assert bars(found["decisions"]).shares == ((25.0, 75.0),)
    assert bars(found["spread"]).bars == ("8 on",)
    assert bars(found["spread"]).shares == ((50.0, 50.0),)


def test_the_engine_s_own_spread_is_preferred_where_every_cell_has_it() -> None:
    counted = EngineCounters(requests_by_rank={"0": 1.0, "1": 3.0})
    named = {"e0/0": 1, "e0/1": 1}
    both = drawn(row(arm="off", engine=counted), row(engine=counted, requests_by_replica=named))
    assert bars(both["spread"]).parts == ("rank 0", "rank 1")
    assert bars(both["spread"]).shares == ((25.0, 75.0), (25.0, 75.0))
    assert bars(drawn(row(arm="off"), row(engine=counted, requests_by_replica=named))["spread"]).bars == ("8 on",)


def test_one_replica_is_no_spread() -> None:
    assert "spread" not in drawn(row(requests_by_replica={"e0/0": 9}))
    assert "decisions" not in drawn(row(decisions=None))


def test_beside_no_other_level_a_bar_has_its_arm_s_name() -> None:
    recorded = row(AS_RECORDED, loop="open", decisions={"placed": 1})
    assert bars(drawn(recorded)["decisions"]).bars == ("on",)


def test_the_axis_of_busy_replicas_ends_with_as_many_as_there_are() -> None:
    """As the run knew; else as many as answered; else where the line does."""
    cells = [row(4, requests_by_replica={"e0/0": 1}), row(8, requests_by_replica={"e0/0": 1, "e0/1": 1})]
    assert lines(drawn(*cells)["busy"]).most == 2
    assert lines(drawn(row(4))["busy"]).most is None
    run = RunFacts(command="c", started="s", machine="m", versions={}, replicas=4)
    known = BenchResult(source="measured", hardware=None, workload="w", levels=cells, run=run)
    assert [lines(chart).most for chart in charts(known) if chart.key == "busy"] == [4]
