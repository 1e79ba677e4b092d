"""The script ``run``: where its jobs run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / "run"
SAY = '#!/bin/sh\necho "$(basename "$0") in $(pwd): $*"\n'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with an environment that is up to date; its programs say where they run."""
    clone = tmp_path / "the clone"
    programs = clone / ".venv" / "bin"
    programs.mkdir(parents=True)
    (clone / "requirements").mkdir()
    shutil.copy(RUN, clone / "run")
    for name in ("runtime", "dev"):
        (clone / "requirements" / f"{name}.txt").write_text(name)
        (clone / ".venv" / f"{name}.stamp").write_text(name)
    for name in ("lmwarden", "python", "ruff", "mypy"):
        (programs / name).write_text(SAY)
        (programs / name).chmod(0o755)
    return clone


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lmwarden", "serve", "--config", "mine.toml"], "lmwarden in {here}: serve --config mine.toml"),
        (["demo", "--json", "r.json"], "lmwarden in {here}: demo --json r.json"),
        (["python", "mine.py"], "python in {here}: mine.py"),
        (["test", "-x"], "python in {clone}: -m pytest -m not real and not clients and not page -x"),
        (["bench-gateway"], "python in {clone}: benchmarks/gateway/run.py"),
    ],
)
@pytest.mark.parametrize("way", ["absolute", "relative", "link"])
def test_relative_paths_are_the_callers(clone: Path, arguments: list[str], says: str, way: str) -> None:
    here = clone.parent / "elsewhere"
    here.mkdir()
    (here / "link").symlink_to(clone / "run")
    program = {"absolute": str(clone / "run"), "relative": "../the clone/run", "link": "./link"}[way]
    done = subprocess.run([program, *arguments], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == says.format(here=here, clone=clone)


@pytest.mark.parametrize(
    ("job", "script", "marker"),
    [("test-real", "real-vllm-env.sh", "real"), ("test-claude", "clients-env.sh", "clients")],
)
@pytest.mark.parametrize(
    ("ends", "status", "says"),
    [
        ("echo /an/environment", 0, "python in {clone}: -m pytest tests/{marker} -m {marker} -x\n"),
        ("echo 'SKIPPED: no network' >&2; exit 3", 0, ""),
        ("exit 4", 4, ""),
    ],
    ids=["installed", "can not be installed", "broken"],
)
def test_a_suite_that_needs_an_environment_is_skipped_only_where_it_can_not_be_had(
    clone: Path, job: str, script: str, marker: str, ends: str, status: int, says: str
) -> None:
    scripts = clone / "scripts"
    scripts.mkdir()
    for name in ("real-vllm-env.sh", "clients-env.sh"):
        (scripts / name).write_text(f"#!/bin/sh\n{ends if name == script else 'exit 3'}\n")
        (scripts / name).chmod(0o755)
    done = subprocess.run([clone / "run", job, "-x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, says.format(clone=clone, marker=marker))
    assert ("SKIPPED" in done.stderr) is ("SKIPPED" in ends)
