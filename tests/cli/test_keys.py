"""``lmwarden keys``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.refusing import refusal

from lmwarden.cli import main


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_keys_are_shown_once_listed_and_revoked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "anna"]) == 0
    key = capsys.readouterr().out.strip()
    assert key.startswith("lmw_")
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("anna\t")
    assert key not in listed
    assert main(["keys", "revoke", "anna"]) == 0
    assert main(["keys", "list"]) == 0
    assert capsys.readouterr().out == ""


def test_a_key_for_some_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "anna", "--models", "small, big"]) == 0
    assert main(["keys", "create", "ben"]) == 0
    capsys.readouterr()
    assert main(["keys", "list"]) == 0
    assert [line.split("\t")[2] for line in capsys.readouterr().out.splitlines()] == ["big, small", "all models"]


def test_the_data_folder_is_named_by_flag_or_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (tmp_path / "w.toml").write_text(f'[storage]\ndir = "{two}"\n')
    assert main(["keys", "create", "anna", "--data-dir", str(one)]) == 0
    assert main(["keys", "create", "ben", "--config", "w.toml"]) == 0
    capsys.readouterr()
    for folder, name in ((one, "anna"), (two, "ben")):
        assert main(["keys", "list", "--data-dir", str(folder)]) == 0
        assert capsys.readouterr().out.startswith(f"{name}\t")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["revoke", "nobody"], "there is no key 'nobody'; existing: none"),
        (["create", "two words"], "'two words' cannot be a name; allowed: 1 to 64 letters"),
        (["create", "anna", "--models", "a,,b"], "the models of a key are 1 to 100 names of served models"),
        (["list", "--data-dir", "/dev/null/x"], "--data-dir: cannot make /dev/null/x: Not a directory"),
    ],
)
def test_mistakes(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(capsys, "keys", *arguments)
