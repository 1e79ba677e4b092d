"""``lmwarden simulate`` as a command: arguments, table, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench.test_results import row
from tests.bench.test_virtual_replay import trace
from tests.cli.refusing import refusal

from lmwarden.bench import virtual
from lmwarden.bench.language import language
from lmwarden.bench.plan import Cell
from lmwarden.bench.results import LevelResult
from lmwarden.cli import main
from lmwarden.cli.simulate import spread_notes


def test_a_run_prints_its_table_and_the_range_over_seeds_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    status = main(
        [
            "simulate",
            "--levels",
            "2,3",
            "--seconds",
            "30",
            "--seeds",
            "4,5",
            "--arms",
            "off,hash,on",
            "--json",
            str(file),
        ]
    )
    printed = capsys.readouterr().out
    assert status == 0
    assert "off → hash → on (claude-code, simulated, a4000-qwen3-4b)" in printed
    assert "2 sessions, hash, least to most over 2 seeds: " in printed
    assert "From off to on: at 2 sessions" in printed
    result = json.loads(file.read_text())
    assert result["source"] == "simulated"
    assert [(level["sessions"], level["arm"], level["seed"]) for level in result["levels"]] == [
        (sessions, arm, seed) for seed in (4, 5) for sessions in (2, 3) for arm in ("off", "hash", "on")
    ]


def test_a_report_can_be_handed_on(tmp_path: Path) -> None:
    assert main(["simulate", "--levels", "2", "--seconds", "20", "--seeds", "1", "--out", str(tmp_path / "o")]) == 0
    assert "Virtual time" in (tmp_path / "o" / "report.md").read_text()


def test_a_rate_of_sessions_takes_the_place_of_levels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--open-loop", "60", "--seconds", "60", "--seeds", "1", "--arms", "on"]) == 0
    assert "60" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--arms", "nobody"], "allowed are off, hash, on"),
        (["--arms", "as-is"], "allowed are off, hash, on"),
        (["--levels", "0"], "--levels"),
        (["--seeds", "1,x"], "--seeds 1,x: expected different whole numbers"),
        (["--seeds", "1,1"], "--seeds"),
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "inf"], "--seconds"),
        (["--warmup", "-1"], "--warmup"),
        (["--network-s", "-1"], "--network-s must be 0 or more"),
        (["--hardware", "abacus"], "allowed are 5090-qwen3-27b"),
        (["--hardware", "no/such.toml"], "no/such.toml"),
        (["--replicas", "0"], "--replicas must be above 0"),
        (["--kv-cache-tokens", "1"], "--kv-cache-tokens must hold at least two blocks"),
        (["--kv-cache-tokens", "1600"], "--kv-cache-tokens: a request of"),
        (["--kv-cache-tokens", "1600"], "never fits into 99 blocks"),
        (["--cpu-cache-tokens", "-1"], "--cpu-cache-tokens"),
        (["--balancer", "0.99"], "balancer"),
        (["--workload", "nothing"], "claude-code"),
        (["--think", "deep"], "none, agent"),
        (["--prompt-reuse", "always"], "across_arms"),
        (["--open-loop", "60", "--levels", "4"], "--open-loop"),
        (["--json", "/nowhere/at/all.json"], "--json"),
    ],
)
def test_unusable_arguments_are_one_line_and_exit_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [] if {"--levels", "--open-loop"} & set(arguments) else ["--levels", "2"]
    assert says in refusal(capsys, "simulate", *base, *arguments)


def test_what_was_played_is_kept_after_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[Cell] = []
    play = virtual.SimulationRun.play

    def interrupted(run: virtual.SimulationRun, cell: Cell) -> LevelResult:
        if len(played) == 2:
            raise KeyboardInterrupt
        played.append(cell)
        return play(run, cell)

    monkeypatch.setattr(virtual.SimulationRun, "play", interrupted)
    file = tmp_path / "results.json"
    assert main(["simulate", "--levels", "2,3", "--seconds", "20", "--seeds", "1", "--json", str(file)]) == 130
    assert len(json.loads(file.read_text())["levels"]) == 2
    printed = capsys.readouterr().out
    assert "interrupted" in printed
    assert "From off to on" not in printed


def test_the_range_over_seeds_leaves_out_what_was_not_measured() -> None:
    rows = [row(seed=1, replicas_busy=None), row(seed=2, replicas_busy=None), row(seed=3, arm="off")]
    (note,) = spread_notes(rows)
    said = language("en").say(note)
    assert said.startswith(f"{rows[0].sessions} sessions, {rows[0].arm}, least to most over 2 seeds: ")
    assert "busy –" in said


def test_what_stands_below_the_table_is_in_the_report_in_both_languages(tmp_path: Path) -> None:
    arguments = ["--levels", "2", "--seconds", "20", "--arms", "off,on", "--out", str(tmp_path)]
    assert main(["simulate", *arguments, "--seeds", "1,2"]) == 0
    english, chinese = (tmp_path / "report.md").read_text(), (tmp_path / "report.zh.md").read_text()
    assert "In off, the balancer of vLLM 0.26 chooses." in english
    assert "2 sessions, on, least to most over 2 seeds" in english
    assert "2 个会话，on，2 个种子" in chinese
    sentences = [line for line in chinese.splitlines() if line.startswith("- ")]
    assert sentences
    assert [line for line in sentences if line.isascii()] == []


def test_without_off_nothing_is_said_of_its_balancer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--levels", "2", "--seconds", "20", "--arms", "on", "--seeds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "Virtual time on 4 replicas" in printed
    assert "balancer" not in printed


def test_a_trace_can_be_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(tmp_path / "t.jsonl", ("a", 0.0, 100, 50), ("b", 5.0, 80, 50), ("a", 12.0, 130, 50))
    arguments = ["simulate", "--workload", f"trace:{tmp_path / 't.jsonl'}", "--seconds", "30", "--seeds", "1"]
    assert main([*arguments, "--levels", "1"]) == 0
    assert main([*arguments, "--open-loop", "recorded", "--think", "recorded"]) == 0
    printed = capsys.readouterr().out
    assert "trace:t.jsonl" in printed
    assert "as recorded" in printed
    assert "0 sessions" not in printed
    assert main(["simulate", "--open-loop", "recorded"]) == 2
    assert "--open-loop recorded needs --workload trace:FILE" in capsys.readouterr().err
