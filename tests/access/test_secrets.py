"""The installation's secret: made once, private, and never shown."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from lmwarden.access.secrets import InstallationSecrets, StorageError, is_used, load_secrets, owner_of
from lmwarden.files import write_private


def test_made_once_and_the_same_ever_after(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    first = load_secrets(folder)
    assert load_secrets(folder) == first
    assert load_secrets(tmp_path / "other") != first
    assert first.identity != first.keys
    assert len(first.identity) == len(first.keys) == 32


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    load_secrets(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_two_processes_at_once_agree(tmp_path: Path) -> None:
    found: list[InstallationSecrets] = []
    barrier = threading.Barrier(8)

    def load() -> None:
        barrier.wait()
        found.append(load_secrets(tmp_path))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({secret.identity for secret in found}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_damaged_secret_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(StorageError, match="must hold 32 bytes, not 5"):
        load_secrets(tmp_path)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--data-dir: cannot make"):
        load_secrets(tmp_path / "file" / "data")


def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for mode, is_fine in ((0o700, True), (0o2775, True), (0o777, False), (0o1777, False)):
        folder.chmod(mode)
        if is_fine:
            load_secrets(folder)
        else:
            with pytest.raises(StorageError, match=r"^--data-dir: everybody may write to .+; set its mode to 700"):
                load_secrets(folder)


def test_repr_shows_nothing(tmp_path: Path) -> None:
    secrets = load_secrets(tmp_path)
    assert repr(secrets) == "InstallationSecrets(...)"
    assert str(secrets) == "InstallationSecrets(...)"


def test_a_private_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_private(path, b"one")
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    with pytest.raises(FileNotFoundError):
        write_private(tmp_path / "absent" / "f", b"x")
    with pytest.raises(IsADirectoryError):
        (tmp_path / "folder").mkdir()
        write_private(tmp_path / "folder", b"x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["f", "folder"]


def test_the_owner_of_a_folder_that_no_warden_has_used_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert owner_of(folder, "here") is None
    folder.mkdir()
    whose = folder.stat()
    assert owner_of(folder, "here") == (whose.st_uid, whose.st_gid)
    assert not is_used(folder)
    load_secrets(folder, "here")
    assert is_used(folder)
