"""Results as CSV: one line per run, one column per figure, for a spreadsheet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec

from lmwarden.bench.results import BenchResult


def write_csv(result: BenchResult, path: Path) -> None:
    """Write one line per run. What was not measured is empty; nested figures are ``ttfb_s.p50`` and so on.

    Raises:
        OSError: the file cannot be written.
    """
    rows = [_flat(msgspec.to_builtins(row)) for row in result.levels]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = "" if item is None else item
    return flat
