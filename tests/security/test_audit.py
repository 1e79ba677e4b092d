"""``scripts/audit.sh``: what cannot be asked about is never good news."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[2] / "scripts" / "audit.sh"
FINE = {"dependencies": [{"name": "uvloop", "version": "1.0", "vulns": []}]}
KNOWN = {"dependencies": [{"name": "uvloop", "version": "1.0", "vulns": [{"id": "PYSEC-2026-1"}]}]}
NOT_ASKED = {"dependencies": [*FINE["dependencies"], {"name": "yarl", "skip_reason": "not found"}]}
NPM_FINE = {"vulnerabilities": {}, "metadata": {"dependencies": {"total": 7}}}
NPM_KNOWN = {"vulnerabilities": {"left-pad": {"severity": "high"}}, "metadata": {"dependencies": {"total": 7}}}
NPM_ERROR = {"error": {"summary": "405 Method Not Allowed"}}


def audit(folder: Path, python: Any, npm: Any) -> tuple[int, str, str]:
    """Run it with programs that report this; exit status, stdout and stderr."""
    for name, report in (("pip-audit", python), ("npm", npm)):
        (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(report)}\nEND\n")
        (folder / name).chmod(0o755)
    changes = {"PATH": f"{folder}:{os.environ['PATH']}", "LMWARDEN_PIP_AUDIT": str(folder / "pip-audit")}
    environ = os.environ | changes | {"LC_ALL": "C"}  # a shell warns of a locale that is not there
    done = subprocess.run([AUDIT], env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_nothing_is_known(tmp_path: Path) -> None:
    status, out, err = audit(tmp_path, FINE, NPM_FINE)
    assert (status, err) == (0, "")
    assert "requirements/runtime.txt: asked about 1 of 1 packages; known: 0\n" in out
    assert "console-ui: asked about 7 of 7 packages; known: 0\n" in out


def test_something_is_known(tmp_path: Path) -> None:
    status, out, err = audit(tmp_path, KNOWN, NPM_KNOWN)
    assert (status, err) == (1, "")
    assert "known: 1\n  uvloop 1.0 PYSEC-2026-1\n" in out
    assert "known: 1\n  left-pad high\n" in out


@pytest.mark.parametrize(("python", "npm"), [(NOT_ASKED, NPM_ERROR), ({"dependencies": []}, {})])
def test_what_could_not_be_asked_is_said_loudly(tmp_path: Path, python: Any, npm: Any) -> None:
    status, _, err = audit(tmp_path, python, npm)
    assert status == 0
    lines = err.splitlines()
    assert len(lines) == 5, "one for each lock"
    assert all(line.startswith("SKIPPED audit: ") for line in lines)
