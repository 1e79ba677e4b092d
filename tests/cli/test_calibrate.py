"""``lmwarden calibrate`` as a command: arguments, the profile, what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.refusing import refusal
from tests.own_loop import on_its_own_loop

from lmwarden.bench import calibrate_probe
from lmwarden.bench.calibrate import HostFacts, PromptTime, StepModel, StepTime
from lmwarden.bench.calibrate_probe import Probe
from lmwarden.cli import main
from lmwarden.cli.calibrate import summary
from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving


@pytest.fixture
def engine() -> Iterator[str]:
    """A simulated engine on a loop of its own: the command runs its own loop in this thread."""
    with on_its_own_loop(serving(SimulatedEngineOptions(replicas=1, model="m"))) as (url, _):
        yield url


HOST = StepModel(0.002, 0.005, 0.012, 1e-4, 1e-9, 1e-8, 2048)


async def measured(probe: Probe, *_: object) -> tuple[list[PromptTime], list[StepTime]]:
    """What a host without anybody else takes: a busy machine must not decide over a test of the command.

    One real prompt is sent; ``test_calibrate_probe`` takes real timings.
    """
    assert (await probe.prompt(64)).seconds > 0
    prompts = [PromptTime(tokens, HOST.first_token_s(tokens)) for tokens in (64, 600, 2000, 4000)]
    groups = ((1, 64), (1, 2000), (3, 500))
    return prompts, [StepTime(count, tokens, HOST.step_s(count, tokens)) for count, tokens in groups]


def test_the_profile_is_one_that_simulate_takes(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate_probe, "measure", measured)
    file = tmp_path / "mine.toml"
    arguments = ["calibrate", "--url", engine, "--model", "m", "--max-num-seqs", "32"]
    assert main([*arguments, "--out", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "KV cache of a replica: 44000 tokens" in printed
    assert "The step model is off by 0.0 % on the average" in printed
    assert "Not measured: max_num_seqs (32)" in printed
    profile = load_profile(str(file))
    assert (profile.name, profile.kv_cache_tokens, profile.max_num_seqs) == ("mine", 44_000, 32)
    assert main(["simulate", "--hardware", str(file), "--levels", "2", "--seconds", "30", "--seeds", "1"]) == 0
    assert "simulated, mine" in capsys.readouterr().out
    assert main(arguments) == 0
    assert 'name = "calibrated"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "nowhere"], "--url: 'nowhere': expected http://host:port"),
        (["--engine", "nowhere"], "--engine: 'nowhere'"),
        (["--max-num-seqs", "0"], "must be at least 1"),
        (["--out", "profile.json"], "expected a .toml file in a folder that exists"),
        (["--out", "/no/such/folder/p.toml"], "expected a .toml file in a folder that exists"),
    ],
)
def test_unusable_arguments_are_one_line_and_exit_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = [] if "--url" in arguments else ["--url", "http://127.0.0.1:9"]
    assert says in refusal(capsys, "calibrate", "--model", "m", *url, *arguments)


def test_what_cannot_be_reached_is_one_line_and_status_1(dead_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    refusal(capsys, "calibrate", "--model", "m", "--url", f"http://127.0.0.1:{dead_port}", status=1)


MODEL = StepModel(0.0, 0.01, 0.02, 1e-4, 0.0, 0.0, 2048)


def said(facts: HostFacts, *, pinned: bool = True, step_s: float = 0.03) -> str:
    prompts = [PromptTime(1000, MODEL.first_token_s(1000))]
    return "\n".join(summary(MODEL, prompts, [StepTime(1, 100, step_s)], facts, pinned=pinned))


def test_it_says_what_it_could_not_measure() -> None:
    known = HostFacts(44_000, 16, 32_768, 32, 2048)
    assert "Could not be measured" not in said(known)
    assert "Could not be measured: the size of the KV cache" in said(known._replace(kv_cache_tokens=None))
    assert "takes no rank" in said(known, pinned=False)
    assert "poor fit" not in said(known)
    assert "poor fit" in said(known, step_s=0.06)
