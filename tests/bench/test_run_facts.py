"""The facts of a run: nothing secret, and enough to repeat it."""

from __future__ import annotations

import re

import psutil
import pytest
from tests.bench.test_results import row

from lmwarden.bench.language import language
from lmwarden.bench.results import BenchResult, RunFacts
from lmwarden.bench.run_facts import command_line, fact_rows, machine, utc_now, versions


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["bench", "--key", "secret", "--levels", "4,8"], "lmwarden bench --key '***' --levels 4,8"),
        (["bench", "--key=secret"], "lmwarden bench '--key=***'"),
        (["bench", "--key", "--key"], "lmwarden bench --key '***'"),
        (["bench", "--out", "my folder"], "lmwarden bench --out 'my folder'"),
    ],
)
def test_a_command_line_hides_keys(arguments: list[str], shown: str) -> None:
    assert command_line(arguments) == shown


def test_machine_versions_and_time_are_named() -> None:
    assert re.search(rf", \d+ cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, ", machine())
    assert {"lmwarden", "python", "aiohttp"} <= set(versions())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", utc_now())


def facts(**changes: object) -> dict[str, str]:
    run = RunFacts(command="c", started="s", machine="m", versions={}, **changes)  # type: ignore[arg-type]
    rows = [row(caches_emptied=True), row(seed=2, caches_emptied=True)]
    result = BenchResult(source="measured", hardware=None, workload="w", levels=rows, run=run)
    return dict(fact_rows(result, language("en")))


def test_how_it_was_measured_is_said() -> None:
    found = facts(warmup_s=20.0, network_s=0.12, tester_lag_p99_s=0.0031)
    assert found["Window of each cell"] == "180 s after 20 s of warm-up"
    assert found["Caches"] == "fresh: emptied before each cell"
    assert found["Order of the arms"] == "on; each repeat began with another arm"
    assert found["Seeds"] == "1, 2"
    assert found["The tester's own lag, p99"] == "3.1 ms"
    assert "Speed" not in found
    assert "cells before it had left" in facts(caches="warm")["Caches"]
    assert facts(prompt_reuse="across_arms")["Prompts that come again"].startswith("the arms of one level")


def test_a_result_without_facts_has_those_of_its_rows() -> None:
    result = BenchResult(source="measured", hardware="h", workload="w", levels=[row()])
    assert dict(fact_rows(result, language("en")))["Modelled hardware"] == "h"
