"""The shipped service unit and image: what must agree with the sources, and what systemd itself says of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "packaging"
DEFAULTS = tomllib.loads((ROOT / "src" / "lmwarden" / "defaults.toml").read_text())


def unit() -> dict[str, str]:
    """The unit's settings; each key stands once."""
    lines = (PACKAGING / "lmwarden.service").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    settings = {key: value for key, _, value in pairs}
    assert len(settings) == len(pairs)
    return settings


def test_a_stop_has_time_for_open_streams_and_engines() -> None:
    stop_s = float(unit()["TimeoutStopSec"])
    launch = DEFAULTS["launch"]
    assert stop_s > DEFAULTS["client"]["drain_s"] + launch["stop_grace_s"] + launch["kill_grace_s"]


def test_engines_outlive_the_warden_and_not_the_other_way_round() -> None:
    settings = unit()
    assert settings["KillMode"] == "process"
    assert settings["OOMPolicy"] == "continue"
    # Each of these would harm an engine that was launched.
    assert not {"PrivateTmp", "PrivateDevices", "MemoryDenyWriteExecute", "NoNewPrivileges"} & set(settings)


def test_it_waits_for_engines_and_does_not_repeat_a_mistake() -> None:
    settings = unit()
    assert (settings["Type"], settings["TimeoutStartSec"]) == ("notify", "infinity")
    assert (settings["Restart"], settings["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert float(settings["WatchdogSec"]) >= 10


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("attach_only", [False, True])
def test_systemd_understands_it(tmp_path: Path, attach_only: bool) -> None:
    text = (PACKAGING / "lmwarden.service").read_text()
    # The program and the user of an installation are not here.
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE).replace(
        "User=lmwarden", "User=root"
    )
    path = tmp_path / "lmwarden.service"
    path.write_text(text)
    if attach_only:
        drop_in = tmp_path / "lmwarden.service.d"
        drop_in.mkdir()
        shutil.copy(PACKAGING / "lmwarden-attach-only.conf", drop_in / "attach-only.conf")
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_is_built_from_what_is_there_and_let_in() -> None:
    dockerfile = (PACKAGING / "Dockerfile").read_text()
    copied = [
        line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ") and "--from" not in line
    ]
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = {source for sources in copied for source in sources}
    assert sources == let_in
    assert all((ROOT / source).exists() for source in sources)
    assert "--require-hashes" in dockerfile
    assert re.search(r"^USER lmwarden$", dockerfile, flags=re.MULTILINE)
