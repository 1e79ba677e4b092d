"""The console's password as commands get it: the first line of a file, never an argument that others can see."""

from __future__ import annotations

from pathlib import Path

from lmwarden.cli.errors import UsageError


def read_password(flag: str, path: Path | None) -> str | None:
    """The first line of a file; None of no file.

    Args:
        flag: that named the file, for messages.
        path: the file.

    Raises:
        UsageError: it cannot be read, or its first line is empty.
    """
    if path is None:
        return None
    try:
        password = path.read_text("utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{flag} {path}: {reason}") from error
    if not password:
        raise UsageError(f"{flag} {path}: its first line must hold the password")
    return password
