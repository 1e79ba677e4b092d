"""The order of the cells, and rates of the open loop."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lmwarden.bench.errors import PlanError
from lmwarden.bench.plan import Plan, parse_rates, plan_cells, run_seconds
from lmwarden.bench.workload import load_workload


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {"levels": [4, 8], "arms": ["off", "on"], "seconds": 1.0, "seed": 7, **changes}
    return Plan(url="", model="m", workload=load_workload("claude-code"), clock=time.monotonic, **fields)


def test_arms_of_a_level_follow_each_other() -> None:
    assert [(cell.sessions, cell.arm, cell.seed) for cell in plan_cells(plan())] == [
        (4, "off", 7), (4, "on", 7), (8, "off", 7), (8, "on", 7),
    ]  # fmt: skip


def test_repeats_have_seeds_of_their_own_and_each_begins_with_another_arm() -> None:
    cells = plan_cells(plan(levels=[4], arms=["off", "hash", "on"], repeats=4))
    by_seed = {seed: [cell.arm for cell in cells if cell.seed == seed] for seed in (7, 8, 9, 10)}
    assert by_seed == {
        7: ["off", "hash", "on"],
        8: ["hash", "on", "off"],
        9: ["on", "off", "hash"],
        10: ["off", "hash", "on"],
    }


def test_a_cell_says_what_its_number_counts() -> None:
    assert str(plan_cells(plan())[0]) == "4 sessions, off"
    assert str(plan_cells(plan(open_loop=True))[0]) == "4 sessions an hour, off"


def test_rates_are_sessions_per_hour() -> None:
    assert parse_rates("240,480") == [240, 480]


@pytest.mark.parametrize("text", ["", "ten", "0", "240,0", "1.5", "240,240", "2000000"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="--open-loop"):
        parse_rates(text)


def test_how_long_a_run_takes_is_known_before_it() -> None:
    """A warden rests between two cells, an endpoint without one does not."""
    four_cells: dict[str, Any] = {"seconds": 100.0, "warmup_s": 20.0, "rest_s": 7.0}
    assert run_seconds(plan(**four_cells)) == 4 * 120.0
    assert run_seconds(plan(**four_cells, console_url="http://c")) == 4 * 120.0 + 3 * 7.0
