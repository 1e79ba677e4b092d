"""The command: exit statuses, one-line errors, and what its start may not cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.refusing import refusal

from lmwarden.cli import main

SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without lmwarden.toml, and a data folder of our own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], 'Unknown command "frobnicate"'),
        (
            ["frobnicate"],
            "Available commands: demo, serve, simulated-engine, bench, simulate, calibrate, connect, doctor, keys (lmw",
        ),
        (["keys", "frobnicate"], "Available commands: create, list, revoke (lmwarden keys --help"),
        (["serve", "--port", "x"], 'Invalid value for --port: unable to convert "x" into int'),
        (["serve", "--frob"], "Unknown option: --frob"),
        (["serve", "extra"], "unexpected argument 'extra' (lmwarden serve --help lists what is allowed)"),
        (["keys", "create"], "lmwarden: NAME is missing (lmwarden keys create --help lists what is allowed)"),
        (["simulated-engine"], "lmwarden: --port is missing (lmwarden simulated-engine --help lists"),
        (["simulated-engine", "--port"], "parameter --port requires an argument (lmwarden simulated-engine --help"),
        (["frobnicate"], "(lmwarden --help lists what is allowed)"),
        (["serve"], "no engine given; use --engine URL"),
        (["serve", "--engine", "nonsense"], "--engine: 'nonsense': expected http://host:port"),
        (["serve", "--engine", "http://h", "--port", "70000"], "--port: must be an integer from 0 to 65535, not 70000"),
        (["serve", "--engine", "http://h", "--max-num-seqs", "0"], "--max-num-seqs: must be an integer from 1 to"),
        (["serve", "--max-num-seqs", "3"], "--max-num-seqs: goes with --engine"),
        (["serve", "--config", "absent.toml"], "absent.toml: cannot be read: No such file"),
        (["connect", "emacs"], 'Invalid value "emacs" for CLIENT. Choose from: "claude-code"'),
        (["connect", "curl", "--url", "nonsense"], "--url: 'nonsense': expected http://host:port"),
    ],
)
def test_unusable_arguments_are_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refusal(capsys, *arguments)


def test_a_file_here_is_found_and_its_mistakes_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lmwarden.toml").write_text("[client]\nprot = 1\n[[models]]\n[models.engine]\nattach = ['http://h']\n")
    assert main(["serve"]) == 2
    assert "lmwarden.toml: client.prot: unknown key; allowed here: host, port" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lmwarden ")
    for arguments in (["--help"], [], ["keys"], ["serve", "--help"]):
        assert main(arguments) == 0
        assert "Usage: lmwarden" in capsys.readouterr().out


def test_looking_at_the_help_loads_no_heavy_room() -> None:
    code = (
        "import sys, lmwarden.cli; lmwarden.cli.make_app();"
        "heavy = {'aiohttp', 'asyncio', 'starlette', 'uvicorn', 'uvloop', 'prometheus_client', 'rich', 'structlog'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    environment = {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
