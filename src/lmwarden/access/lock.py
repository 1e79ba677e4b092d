"""One warden per data folder.

Two wardens on one folder would be two truths: two writers of the history, two tables of conversations. So a
running one holds a lock (``flock``) on the file ``lock`` in its folder. The kernel releases it when the process
ends, however it ends; what the file says then is only history. Commands that read or write keys take no lock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lmwarden.access.secrets import StorageError

_FILE = "lock"


class DataFolderLock:
    """Held from ``acquire`` to ``release``."""

    def __init__(self, data_dir: Path, place: str) -> None:
        """Args:
        data_dir: an existing folder.
        place: where it was named, for messages: a flag, or a file and its key.
        """
        self._path = data_dir / _FILE
        self._place = place
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or find that another warden has it.

        Raises:
            StorageError: somebody has it, or the file cannot be locked.
        """
        descriptor = -1
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
        except OSError as error:
            holder = _holder(descriptor)
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise StorageError(
                    f"{self._place}: {self._path.parent} is in use by another warden{holder}; give each its own folder"
                ) from None
            raise StorageError(f"{self._path}: cannot be locked: {error.strerror}") from None
        self._descriptor = descriptor

    def release(self) -> None:
        """Give it back; nothing happens where it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _holder(descriptor: int) -> str:
    """`` (process 123)``, where the file says so."""
    text = os.pread(descriptor, 32, 0).strip() if descriptor >= 0 else b""
    return f" (process {int(text)})" if text.isdigit() else ""
