"""How commands refuse: the same way, all of them."""

from __future__ import annotations

import pytest

from lmwarden.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 2) -> str:
    """What a command that cannot begin says: one line of ours, and nothing before it."""
    assert main(list(arguments)) == status
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("lmwarden: ")
    assert errors.count("\n") == 1
    return errors
