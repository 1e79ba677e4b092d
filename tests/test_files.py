"""Files that are replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lmwarden.files import write_private


def test_a_file_is_made_and_replaced_and_its_owner_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "one"
    for content in (b"first", b"second"):
        write_private(path, content)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["one"]


def test_a_disk_that_refuses_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one"
    write_private(path, b"first")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(path, b"second")
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["one"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "one"
    target.write_bytes(b"theirs")
    path.symlink_to(target)
    write_private(path, b"ours")
    assert (target.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"theirs", b"ours", False)
