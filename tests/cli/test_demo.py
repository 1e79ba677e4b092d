"""``lmwarden demo``: a gain with our router, none with random placement, and a clean end at any time."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console
from tests.bench.test_results import row
from tests.cli.refusing import refusal
from tests.steady import SteadyTime
from tests.waiting import PATIENCE_S

import lmwarden
from lmwarden.bench.language import Note
from lmwarden.bench.plan import Plan
from lmwarden.bench.results import BenchResult, LevelResult
from lmwarden.bench.runner import RunOutcome
from lmwarden.bench.workload import load_workload
from lmwarden.cli import main
from lmwarden.cli.demo import DemoOptions, DemoOutcome, demo_gain, demo_notes, run_demo
from lmwarden.routing.baselines import PerRequestRouter, random_choice
from lmwarden.routing.contract import RouterContract
from lmwarden.types import RoutingSettings

SHORT = DemoOptions(replicas=4, levels=[8], arms=["off", "on"], seconds=120.0, speed=20.0)
RUN = [sys.executable, "-m", "lmwarden", "demo", "--speed", "20"]
LONG = ("--seconds", "30", "--levels", "4,5,6,7,8,9,10,11")
"""Sixteen runs of a second and a half: whoever interrupts the second one may be late."""
SECOND = "[2/16] 4 sessions, on"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(lmwarden.__file__).parent.parent)}


def random_router(settings: RoutingSettings, *, engines: Mapping[str, int], seed: int = 0) -> RouterContract:
    return PerRequestRouter(settings, engines=engines, choose=random_choice(seed))


def hits(row: LevelResult) -> float:
    assert row.prefix_hit_ratio is not None
    return row.prefix_hit_ratio


def off_and_on(outcome: DemoOutcome) -> tuple[LevelResult, LevelResult]:
    off, on = outcome.result.levels
    assert (off.arm, on.arm) == ("off", "on")
    assert off.failed == on.failed == 0
    return off, on


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The levels are six real seconds: a machine that stands still for two of them leaves the sessions the others."""
    monkeypatch.setattr("lmwarden.cli.demo.time", SteadyTime())


@pytest.mark.usefixtures("steady")
async def test_affinity_shows_a_gain() -> None:
    """Hits only: seconds are the machine's, and those that the model gives are compared in virtual time."""
    out = io.StringIO()
    outcome = await run_demo(SHORT, Console(file=out, width=120))
    off, on = off_and_on(outcome)
    assert hits(on) > hits(off) + 0.2
    assert None not in (on.ttfb_s.p50, off.ttfb_s.p50, on.output_tokens_per_minute, off.output_tokens_per_minute)
    assert (off.balancer, on.stayed_ratio) == ("engine", 1.0)
    assert on.prefix_hit_ratio_engine is not None
    assert on.replicas_busy is not None
    assert outcome.result.source == "simulated"
    printed = out.getvalue()
    assert "console " in printed
    assert "Speed 20" in printed
    assert ("From off to on: at 8 sessions" in printed) is not ("Nothing is concluded: this machine" in printed)


@pytest.mark.usefixtures("steady")
async def test_with_random_placement_the_gain_vanishes() -> None:
    outcome = await run_demo(SHORT, Console(file=io.StringIO()), router_factory=random_router)
    off, on = off_and_on(outcome)
    assert hits(on) < hits(off) + 0.1


def demo_plan() -> Plan:
    return Plan(
        url="", model="m", workload=load_workload("claude-code"), levels=[8], arms=["off", "on"],
        seconds=180.0, clock=time.monotonic, speed=10.0,
    )  # fmt: skip


def test_a_conclusion_is_drawn_from_a_whole_run_only() -> None:
    plan = demo_plan()
    levels = [row(arm="off"), row()]
    (gain,) = demo_gain(RunOutcome(levels=levels), plan)
    assert isinstance(gain, str) and gain.startswith("From off to on: at 8 sessions")
    cut = RunOutcome(levels=levels, interrupted=True)
    assert demo_gain(cut, plan) == []
    assert Note("interrupted") in demo_notes(cut, plan)


@pytest.mark.parametrize(("lag_p99_s", "begins"), [(0.049, "From off to on"), (0.051, "Nothing is concluded: this")])
def test_a_machine_that_is_too_busy_for_the_speed_draws_none(lag_p99_s: float, begins: str) -> None:
    levels = [row(arm="off"), row()]
    (said,) = demo_gain(RunOutcome(levels=levels, lag_p99_s=lag_p99_s), demo_plan())
    assert isinstance(said, str) and said.startswith(begins)


def test_a_report_is_written_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = BenchResult(source="simulated", hardware="a4000", workload="claude-code", levels=[row(arm="off"), row()])

    async def measured(*_: object) -> DemoOutcome:
        return DemoOutcome(result, [Note("speed", {"speed": "10"})], interrupted=False)

    monkeypatch.setattr("lmwarden.cli.demo.run_demo", measured)
    assert main(["demo", "--out", str(tmp_path / "report")]) == 0
    assert "Speed 10" in (tmp_path / "report" / "report.html").read_text("utf-8")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], mark: str) -> str:
    """Read the output up to the line that holds ``mark``."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if mark in line:
            return seen
    raise AssertionError(f"the demo ended without {mark!r}: {seen}")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_prints_what_was_measured_and_leaves_no_child(number: signal.Signals) -> None:
    with start(*LONG) as process:
        read_until(process, SECOND)
        engine = children(process.pid)
        process.send_signal(number)
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "interrupted" in rest
    assert "tokens/min" in rest
    assert errors == ""
    assert len(engine) == 1
    assert not Path(f"/proc/{engine[0]}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_keep_stays_up_until_it_is_interrupted(tmp_path: Path) -> None:
    with start(
        "--levels", "4", "--seconds", "5", "--arms", "on", "--keep", "--json", str(tmp_path / "r.json")
    ) as process:
        read_until(process, "Still running")
        engine = children(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert (tmp_path / "r.json").exists()
    assert not Path(f"/proc/{engine[0]}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_engine_that_dies_ends_the_demo_with_one_line() -> None:
    with start(*LONG) as process:
        read_until(process, SECOND)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "Sessions" in rest
    assert errors.splitlines()[-1] == "lmwarden: the simulated engine ended by itself with status -9"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--arms", "as-is"], "off, hash, on"),
        (["--replicas", "0"], "1 to 64"),
        (["--speed", "0"], "--speed"),
        (["--seconds", "0"], "--seconds"),
        (["--levels", "x"], "--levels"),
    ],
)
def test_unusable_arguments_are_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(capsys, "demo", *arguments)
