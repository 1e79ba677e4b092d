"""Results as CSV."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.bench.test_results import row

from lmwarden.bench.results import BenchResult
from lmwarden.bench.spreadsheet import write_csv


def test_one_line_per_run_with_every_figure(tmp_path: Path) -> None:
    rows = [row(arm="off", decisions={"unrouted": 5}), row(stayed_ratio=None)]
    write_csv(BenchResult(source="measured", hardware=None, workload="w", levels=rows), tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        off, on = csv.DictReader(file)
    assert (off["arm"], on["arm"]) == ("off", "on")
    assert (off["ttfb_s.p50"], on["ttfb_s.p50"]) == ("0.48", "0.48")
    assert (off["decisions.unrouted"], on["decisions.unrouted"]) == ("5", "")
    assert on["stayed_ratio"] == ""
