"""The console's password: who may know it, and what happens when its file changes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lmwarden.access.password import MOST_BYTES, PasswordError, PasswordFile

PLACE = "lmwarden.toml: console.password_file"
PASSWORD = "correct horse"
_TICKS = itertools.count(10**18, 10**9)


def write(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    tick = next(_TICKS)  # two writes within one tick of the file system's clock must differ too
    os.utime(path, ns=(tick, tick))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "password", f"{PASSWORD}\r\nand a remark\n")


def test_the_first_line_is_the_password(path: Path) -> None:
    password = PasswordFile(path, PLACE)
    assert password.matches(PASSWORD)
    for wrong in ("", "correct", PASSWORD + "\n", PASSWORD.upper(), "x" * (MOST_BYTES + 1), "\udcff", "\0"):
        assert not password.matches(wrong)


def test_what_was_accepted_once_is_known(path: Path) -> None:
    password = PasswordFile(path, PLACE)
    assert not password.is_known(PASSWORD)
    assert password.matches(PASSWORD)
    assert password.is_known(PASSWORD)
    assert not password.matches("wrong guess")
    assert not password.is_known("wrong guess")
    assert password.is_known(PASSWORD)


def test_nothing_of_it_is_kept_in_clear(path: Path) -> None:
    password = PasswordFile(path, PLACE)
    assert password.matches(PASSWORD)
    kept = [value for thing in (password, password._secret) for value in vars(thing).values()]
    assert not any(PASSWORD.encode() in bytes(value) for value in kept if isinstance(value, bytes))
    assert PASSWORD not in repr(kept)


def test_another_password_is_taken_when_the_file_changes(path: Path) -> None:
    password = PasswordFile(path, PLACE)
    assert password.matches(PASSWORD)
    assert not password.refresh()
    write(path, "another horse\n")
    assert password.refresh()
    assert password.matches("another horse")
    assert not password.matches(PASSWORD)
    assert not password.is_known(PASSWORD)
    # Written anew with the same one: nobody is signed out.
    write(path, "another horse\n")
    assert not password.refresh()


def test_a_file_that_cannot_be_used_leaves_the_last_good_password(path: Path) -> None:
    password = PasswordFile(path, PLACE)
    for spoil in (lambda: write(path, ""), lambda: write(path, "another horse", 0o644), path.unlink):
        spoil()
        assert not password.refresh()
        assert password.matches(PASSWORD)
    write(path, "another horse")
    assert password.refresh()


def test_a_file_that_can_be_used_again_is_taken_without_another_change(path: Path) -> None:
    """Its mode was wrong, and is set right: neither changes what a look at its time and size tells."""
    password = PasswordFile(path, PLACE)
    write(path, "another horse", 0o644)
    assert not password.refresh()
    path.chmod(0o600)
    assert password.refresh()
    assert password.matches("another horse")


def test_a_file_is_read_once_for_each_change(path: Path) -> None:
    """It is looked at every few seconds: one that cannot be used is complained about once, and not each time."""
    password = PasswordFile(path, PLACE)
    with capture_logs() as logs:
        for content in ("", "short"):
            write(path, content)
            for _ in range(3):
                assert not password.refresh()
    assert [entry["log_level"] for entry in logs] == ["error", "error"]


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (PASSWORD, 0o644, "others may read or change it; set its mode to 600 (chmod 600)"),
        (PASSWORD, 0o620, "others may read or change it"),
        ("", 0o600, "its first line must hold the password, 8 characters to 1024 bytes"),
        ("\n" + PASSWORD, 0o600, "its first line must hold the password"),
        ("seven77", 0o600, "8 characters"),
        ("x" * (MOST_BYTES + 1), 0o600, "to 1024 bytes"),
        (b"\xff" * 20, 0o600, "its first line must be UTF-8 text"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: str | bytes, mode: int, says: str) -> None:
    path = write(tmp_path / "password", content, mode)
    with pytest.raises(PasswordError) as caught:
        PasswordFile(path, PLACE)
    assert str(caught.value).startswith(f"{PLACE}: {path}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for missing in (tmp_path / "absent", tmp_path):
        with pytest.raises(PasswordError, match="cannot be read: "):
            PasswordFile(missing, PLACE)


def test_a_group_may_read_it(tmp_path: Path) -> None:
    assert PasswordFile(write(tmp_path / "password", PASSWORD, 0o440), PLACE).matches(PASSWORD)


@pytest.mark.parametrize("password", ["eight888", "x" * MOST_BYTES])
def test_the_shortest_and_the_longest_that_may_be(tmp_path: Path, password: str) -> None:
    assert PasswordFile(write(tmp_path / "password", password), PLACE).matches(password)
