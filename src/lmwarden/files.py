"""Writing a file that nobody else may read, and that is never there by half.

The new content is written beside the old one and takes its name in one step, so a reader, and whoever comes after a
kill at any moment, finds the one or the other. Both the content and the name are forced to the disk.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Replace a file in one step that survives a loss of power; mode 0600 from its first moment on.

    Raises:
        OSError: as the system says; the file is then as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
