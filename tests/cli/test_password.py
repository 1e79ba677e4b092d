"""The console's password as commands get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmwarden.cli.errors import UsageError
from lmwarden.cli.password import read_password

FLAG = "--password-file"


def test_it_is_the_first_line_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("open sesame\r\nand more\n")
    assert read_password(FLAG, tmp_path / "p") == "open sesame"
    assert read_password(FLAG, None) is None


def test_files_that_hold_none(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name, says in (
        ("empty", "first line must hold the password"),
        ("bytes", "not UTF-8 text"),
        ("absent", "No such file"),
    ):
        with pytest.raises(UsageError, match=says) as caught:
            read_password(FLAG, tmp_path / name)
        assert str(caught.value).startswith(f"{FLAG} {tmp_path / name}: ")
