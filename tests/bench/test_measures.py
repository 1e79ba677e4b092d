"""The figures of a table."""

from __future__ import annotations

from tests.bench.test_results import row

from lmwarden.bench import measures
from lmwarden.bench.language import language


def test_a_figure_is_averaged_over_the_runs_that_measured_it() -> None:
    runs = [row(replicas_busy=3.0), row(replicas_busy=None), row(replicas_busy=4.0)]
    value, half = measures.BUSY.over(runs)
    assert value == 3.5
    assert half is not None
    assert measures.BUSY.over([]) == (None, None)


def test_figures_are_written_with_their_digits_and_a_dash_for_none() -> None:
    assert measures.TTFB_P50.written(0.4849) == "0.48"
    assert measures.OUTPUT.written(10752.4) == "10752"
    assert measures.HITS.written(None) == "–"
    assert measures.HITS.read(row()) == 86.1


def test_every_figure_has_a_name_in_the_texts() -> None:
    for measure in (*measures.TABLE, *measures.MORE, measures.ROOM_P95):
        assert language("en").has(f"column.{measure.key}")
