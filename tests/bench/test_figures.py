"""Charts as drawn: everything is on the paper, and the plot keeps most of it."""

from __future__ import annotations

import pytest
from tests.bench.test_results import row

from lmwarden.bench.charts import charts
from lmwarden.bench.figures import draw
from lmwarden.bench.results import BenchResult, SessionSeconds, TtfbSeconds, WaitSeconds

ARMS = ("off", "hash", "on", "on+admission")


def result(arms: tuple[str, ...], replicas: int) -> BenchResult:
    rows = [
        row(
            level,
            arm,
            ttfb_s=TtfbSeconds(p50=0.5, p95=5.0, first_turn_p95=9.0, later_turn_p95=4.0),
            session_s=SessionSeconds(p50=70.0, p95=90.0),
            room_wait_s=WaitSeconds(p50=1.0, p95=2.0, max=3.0),
            requests_by_replica={f"e{number}/0": 10 for number in range(replicas)},
            decisions={"placed": 10, "sticky": 80, "spilled": 3, "client_pinned": 2, "rehomed": 2, "balanced": 20},
        )
        for level in (4, 8, 16)
        for arm in arms
    ]
    return BenchResult(source="simulated", hardware="a4000", workload="claude-code", levels=rows)


@pytest.mark.parametrize("arms", [ARMS[:1], (ARMS[0], *ARMS[2:]), ARMS])
@pytest.mark.parametrize("replicas", [2, 16])
def test_the_legend_is_on_the_paper_and_leaves_room_for_the_plot(arms: tuple[str, ...], replicas: int) -> None:
    drawn = charts(result(arms, replicas))
    assert {chart.key for chart in drawn} >= {"ttfb", "turns", "session", "room", "spread", "decisions"}
    for chart in drawn:
        figure = draw(chart)
        figure.draw_without_rendering()
        (legend,) = figure.legends
        paper, words = figure.bbox, legend.get_window_extent()
        assert paper.x0 <= words.x0
        assert words.x1 <= paper.x1
        assert words.y1 <= paper.y1
        plot = figure.axes[0].get_window_extent()
        assert plot.width > 0.6 * paper.width
        assert plot.y1 <= words.y0


def test_a_line_begins_at_zero_and_ends_below_the_top() -> None:
    """A cut axis would make a gain of a twentieth look like a half. Seconds are drawn by their logarithm."""
    linear = [draw(chart).axes[0] for chart in charts(result(ARMS, 4)) if chart.key in ("hits", "busy", "output")]
    assert len(linear) == 3
    for axes in linear:
        bottom, top = axes.get_ylim()
        assert bottom == 0
        assert axes.dataLim.ymax < top
