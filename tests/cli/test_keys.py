"""``lmwarden keys``."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.cli.refusing import refusal

from lmwarden.access.keys import KeyStore, StoredKey
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
    ("file", "models", "noted"),
    [
        ('name = "m"\naliases = ["small"]\n', "m", False),
        ('name = "m"\naliases = ["small"]\n', "m,small", True),
        ("", "m", False),  # the engine will tell its name
        ('nmae = "m"\n', "x", False),  # for the warden to say
    ],
)
def test_names_that_the_file_does_not_serve_are_noted(
    file: str, models: str, noted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lmwarden.toml").write_text(f'[[models]]\n{file}[models.engine]\nattach = ["http://h:1"]\n')
    assert main(["keys", "create", "anna", "--models", models]) == 0
    written = capsys.readouterr()
    assert written.out.startswith("lmw_")
    assert ("lmwarden: keys: note: the file serves m (an alias is no name)\n" in written.err) is noted


def test_the_file_that_a_warden_started_here_reads_is_read_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lmwarden.toml").write_text('[storage]\ndir = "here"\n')
    assert main(["keys", "create", "anna"]) == 0
    assert (tmp_path / "here" / "keys.json").exists()
    assert not (tmp_path / "data").exists()
    assert main(["keys", "create", "ben", "--data-dir", "there"]) == 0
    assert (tmp_path / "there" / "keys.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["revoke", "nobody"], "there is no key 'nobody'; existing: none"),
        (["create", "two words"], "'two words' cannot be a name; allowed: 1 to 64 letters"),
        (["create", "anna", "--models", "a,,b"], "the models of a key are 1 to 100 names of served models"),
        (["create", "anna", "--data-dir", ""], "--data-dir: must be a text of 1 to 4096 characters, not ''"),
        (["create", "anna", "--data-dir", "/dev/null/x"], "--data-dir: cannot make /dev/null/x: Not a directory"),
    ],
)
def test_mistakes(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(capsys, "keys", *arguments)


def test_only_making_a_key_makes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The usual reason that one is not there is that the warden's is another."""
    folder = tmp_path / "data" / "lmwarden"
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr()
    assert listed.out == ""
    assert f"no warden has used {folder} yet" in listed.err
    assert "there is no key 'ben'" in refusal(capsys, "keys", "revoke", "ben")
    assert not folder.exists()
    (tmp_path / "w.toml").write_text('[storage]\ndir = "other"\n')
    for arguments, made in (([], folder), (["--config", "w.toml"], tmp_path / "other")):
        assert main(["keys", "create", "anna", *arguments]) == 0
        assert f"made a new data folder, {made}: only a warden on this folder" in capsys.readouterr().err
        for command in (["create", "ben"], ["list"], ["revoke", "ben"]):
            assert main(["keys", *command, *arguments]) == 0
            assert capsys.readouterr().err == ""


def test_root_acts_as_the_user_of_the_warden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes itself no warden could read: new keys would not be good, and revoked ones would stay so."""
    folder = tmp_path / "folder"
    assert main(["keys", "create", "anna", "--data-dir", str(folder)]) == 0
    changes: list[tuple[str, int]] = []
    users, write = [0], KeyStore._write

    def become(user: int) -> None:
        users.append(user)
        changes.append(("user", user))

    def noted(store: KeyStore, keys: list[StoredKey]) -> None:
        changes.append(("writes", len(keys)))
        write(store, keys)

    monkeypatch.setattr("lmwarden.access.secrets.owner_of", lambda folder, place: (1234, 5678))
    monkeypatch.setattr(os, "geteuid", lambda: users[-1])
    monkeypatch.setattr(os, "seteuid", become)
    monkeypatch.setattr(os, "getegid", lambda: 0)
    monkeypatch.setattr(os, "setegid", lambda group: changes.append(("group", group)))
    monkeypatch.setattr(KeyStore, "_write", noted)
    assert main(["keys", "create", "ben", "--data-dir", str(folder)]) == 0
    acting, back = [("group", 5678), ("user", 1234)], [("user", 0), ("group", 0)]
    assert changes == [*acting, ("writes", 2), *back]
    changes.clear()
    assert main(["keys", "revoke", "nobody", "--data-dir", str(folder)]) == 2
    assert changes == [*acting, *back]
    changes.clear()
    users.append(1000)
    assert main(["keys", "revoke", "ben", "--data-dir", str(folder)]) == 0
    assert changes == [("writes", 1)]


def test_a_folder_that_is_not_ours_to_see_has_no_file_for_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``sudo -u lmwarden lmwarden keys …`` from root's own folder."""
    exists = Path.exists

    def seen(path: Path) -> bool:
        if path == Path("lmwarden.toml"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", seen)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["keys", "list"]) == 0
    assert "Traceback" not in capsys.readouterr().err
