"""One warden per data folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from lmwarden.access.lock import DataFolderLock
from lmwarden.access.secrets import StorageError

SOURCES = Path(__file__).parents[2] / "src"
HOLD = (
    "import sys, time; from pathlib import Path; from lmwarden.access.lock import DataFolderLock;"
    "lock = DataFolderLock(Path(sys.argv[1]), 'x'); lock.acquire(); print('held', flush=True); sys.stdin.read()"
)


def test_a_second_one_is_refused_with_the_place_and_the_holder(tmp_path: Path) -> None:
    first, second = DataFolderLock(tmp_path, "--data-dir"), DataFolderLock(tmp_path, "w.toml: storage.dir")
    first.acquire()
    with pytest.raises(StorageError) as caught:
        second.acquire()
    assert str(caught.value) == (
        f"w.toml: storage.dir: {tmp_path} is in use by another warden (process {os.getpid()}); give each its own folder"
    )
    first.release()
    second.acquire()
    second.release()
    second.release()


def test_the_kernel_releases_it_when_the_holder_is_killed(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(SOURCES)}
    lock = DataFolderLock(tmp_path, "--data-dir")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match=rf"process {holder.pid}\)"):
            lock.acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait(PATIENCE_S)
        lock.acquire()
        lock.release()


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StorageError, match="lock: cannot be locked: Is a directory"):
        DataFolderLock(tmp_path, "--data-dir").acquire()


@pytest.mark.parametrize("held", [True, False])
def test_what_could_not_be_locked_is_not_left_open(tmp_path: Path, held: bool) -> None:
    holder = DataFolderLock(tmp_path, "--data-dir")
    if held:
        holder.acquire()
    else:
        (tmp_path / "lock").mkdir()
    before = next_descriptor()
    with pytest.raises(StorageError):
        DataFolderLock(tmp_path, "--data-dir").acquire()
    assert next_descriptor() == before
    holder.release()


def next_descriptor() -> int:
    """The number that the next file gets: the lowest that is free."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor
