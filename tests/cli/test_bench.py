"""``lmwarden bench`` as a command: arguments, exit status, files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.stub_endpoint import StubEndpoint, serving
from tests.bench.test_results import row
from tests.cli.refusing import refusal
from tests.own_loop import on_its_own_loop
from tests.steady import SteadyTime

from lmwarden.bench.language import language
from lmwarden.bench.plan import Caches, Plan
from lmwarden.bench.runner import RunOutcome
from lmwarden.bench.workload import load_workload
from lmwarden.cli import main
from lmwarden.cli.bench import default_console, exit_status, introduction, run_notes


@pytest.fixture
def stub() -> Iterator[StubEndpoint]:
    """A stub endpoint on a loop of its own: the command runs its own loop in this thread."""
    endpoint = StubEndpoint()
    with on_its_own_loop(serving(endpoint)):
        yield endpoint


def test_a_run_prints_its_table_and_writes_its_files(
    stub: StubEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmwarden.cli.bench.time", SteadyTime())
    status = main(
        [
            *("bench", "--url", stub.url, "--model", "m", "--console", stub.url, "--levels", "2"),
            *("--seconds", "2", "--rest", "0", "--seed", "5", "--out", str(tmp_path)),
        ]
    )
    printed = capsys.readouterr().out
    assert status == 0
    assert "seed 5" in printed
    assert "90.0→90.0" in printed
    levels = json.loads((tmp_path / "results.json").read_text())["levels"]
    assert [(level["arm"], level["seed"]) for level in levels] == [("off", 5), ("on", 5)]
    assert "| 2 |" in (tmp_path / "report.md").read_text()
    page = (tmp_path / "report.html").read_text()
    assert "off → on" in page
    facts = json.loads((tmp_path / "results.json").read_text())["run"]
    assert (facts["caches"], facts["replicas"], facts["interrupted"]) == ("fresh", 2, False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--arms", "sideways"], "allowed are off, hash, on, on+admission, as-is"),
        (["--levels", "0"], "--levels"),
        (["--levels", "four"], "--levels"),
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "nan"], "--seconds"),
        (["--warmup", "inf"], "--warmup"),
        (["--rest", "-1"], "--rest"),
        (["--console", "zzz"], "--console: 'zzz': expected http://host:port"),
        (["--engine", "zzz"], "--engine: 'zzz': expected http://host:port"),
        (["--url", "http://h:x"], "--url: 'http://h:x': expected http://host:port"),
        (["--workload", "none"], "claude-code"),
        (["--url", "127.0.0.1:8080"], "http://host:port"),
        (["--repeats", "0"], "--repeats"),
        (["--levels", "4", "--open-loop", "60"], "--levels and --open-loop exclude each other"),
        (["--open-loop", "many"], "--open-loop many: expected sessions per hour"),
        (["--network", "-1"], "--network -1: allowed are 0 to 60 seconds"),
        (["--caches", "cold"], "caches"),
        (["--prompt-reuse", "always"], "prompt-reuse"),
        (["--console-password-file", "/nowhere/at/all"], "--console-password-file /nowhere/at/all: No such file"),
        (["--api", "smoke-signals"], "api"),
        (["--sekonds", "3"], "sekonds"),
    ],
)
def test_unusable_arguments_are_one_line_and_exit_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = [] if "--url" in arguments else ["--url", "http://127.0.0.1:9"]
    assert says in refusal(capsys, "bench", "--model", "m", *url, *arguments)


def dead(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def run_one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a run that cannot begin says."""
    run = ("bench", "--model", "m", "--levels", "1", "--seconds", "1", *arguments)
    error = refusal(capsys, *run, status=1)
    assert "Error" not in error
    return error


def test_whatever_cannot_be_reached_is_one_line_and_status_1(
    stub: StubEndpoint, dead_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = dead(dead_port)
    assert f"--url {nobody}: GET /v1/models failed: connection refused" in run_one_line(capsys, "--url", nobody)
    said = run_one_line(capsys, "--url", stub.url, "--console", nobody)
    assert f"--console {nobody}: connection refused; --console names" in said
    for arms in ("off,on", "as-is"):
        said = run_one_line(capsys, "--url", stub.url, "--console", stub.url, "--engine", nobody, "--arms", arms)
        assert f"--engine {nobody}: no prefix-cache counters of vLLM" in said
    assert stub.patches == []


def test_arms_of_an_endpoint_that_is_no_warden_are_no_comparison(
    stub: StubEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.decision = None
    said = run_one_line(capsys, "--url", stub.url, "--console", stub.url)
    assert "no warden is there" in said
    assert stub.patches == []


def test_the_length_of_a_run_and_whom_it_touches_are_said_before_it() -> None:
    plan = Plan(
        url="", model="m", workload=load_workload("claude-code"), levels=[4, 8], arms=["off", "on"],
        seconds=180.0, warmup_s=20.0, repeats=3, clock=time.monotonic, seed=7,
    )  # fmt: skip
    assert introduction(plan) == [
        "12 runs of 200 s: about 40 min; seed 7",
        "The routing of m is switched for everybody who uses it, and set back at the end.",
    ]
    with_console = replace(plan, console_url="http://h:8081")  # and so eleven rests of half a minute
    assert introduction(with_console)[0] == "12 runs of 200 s: about 46 min; seed 7"
    alone = replace(plan, arms=["as-is"], levels=[1], repeats=1)
    assert introduction(alone) == ["1 run of 200 s: about 3 min; seed 7"]


def test_emptying_caches_is_said_before_the_run() -> None:
    plan = Plan(
        url="", model="m", workload=load_workload("claude-code"), levels=[4], arms=["as-is"], seconds=1.0,
        clock=time.monotonic, engine_url="http://e",
    )  # fmt: skip
    assert "The caches of http://e are emptied before each run" in introduction(plan)[-1]
    assert len(introduction(replace(plan, caches=Caches.WARM))) == 1


def test_the_console_is_beside_the_endpoint() -> None:
    assert default_console("https://warden.lan:8080/x") == "http://warden.lan:8081"
    assert default_console("http://[::1]:8080") == "http://[::1]:8081"


def test_the_exit_status_tells_failed_and_interrupted_runs() -> None:
    silent = row(ttfb_s=type(row().ttfb_s)())
    assert exit_status(RunOutcome(levels=[silent])) == 1
    assert exit_status(RunOutcome(levels=[silent, row()])) == 0
    assert exit_status(RunOutcome(levels=[row()], interrupted=True)) == 130


def test_notes_name_lag_failures_and_interruption() -> None:
    plan = Plan(
        url="",
        model="m",
        workload=load_workload("claude-code"),
        levels=[8],
        arms=["on"],
        seconds=180.0,
        clock=time.monotonic,
        speed=10.0,
    )
    outcome = RunOutcome(
        levels=[row(seconds=61.0)],
        interrupted=True,
        lag_p99_s=0.03,
        first_error="status 503",
        content_later_s=1.5,
    )
    notes = " ".join(map(language("en").say, run_notes(outcome, plan)))
    assert "p99 30.0 ms of wall time, 300 ms of modelled time" in notes
    assert "too busy" in notes
    assert "status 503" in notes
    assert "interrupted; the table holds what was measured, its last run 61 of 180 s" in notes
    assert "1.50 s later" in notes
    assert run_notes(RunOutcome(), plan) == []
