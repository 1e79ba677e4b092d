"""The secret of one installation: 32 random bytes in the data folder, made once, readable by its owner only.

Two keys are derived from it, so that a hash of one kind can never be taken for one of the other: one for the
hashes of conversation ids, one for the hashes of API keys. Whoever has the database but not this file can
neither guess ids nor keys from the hashes. Losing the file makes all API keys invalid.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path

import msgspec

from lmwarden.files import write_private

_FILE = "secret"
_SIZE_BYTES = 32


class StorageError(Exception):
    """The data folder cannot be used. One line for a person."""

    exit_status = 2


class InstallationSecrets(msgspec.Struct, frozen=True):
    """The derived keys, 32 bytes each."""

    identity: bytes
    """For hashes of conversation ids."""
    keys: bytes
    """For hashes of API keys."""

    def __repr__(self) -> str:
        return "InstallationSecrets(...)"


def prepare_data_dir(data_dir: Path, place: str) -> None:
    """Make the data folder (mode 0700) if it is not there.

    One that is there may be open to a group (a volume of Kubernetes is), but not to everybody: who may rename files in
    it could put API keys of their own there.

    Args:
        data_dir: the folder.
        place: where it was named, for messages: a flag, or a file and its key.

    Raises:
        StorageError: it cannot be made or written, or everybody may write to it.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = data_dir.stat().st_mode
    except OSError as error:
        raise StorageError(f"{place}: cannot make {data_dir}: {error.strerror}") from None
    if mode & stat.S_IWOTH:
        raise StorageError(f"{place}: everybody may write to {data_dir}; set its mode to 700 (chmod 700)")
    if not os.access(data_dir, os.W_OK | os.X_OK):
        raise StorageError(f"{place}: {data_dir} is not writable")


def load_secrets(data_dir: Path, place: str = "--data-dir") -> InstallationSecrets:
    """Read the secret, making it at the first call.

    Args:
        data_dir: the data folder; made if it is not there.
        place: where it was named, for messages.

    Raises:
        StorageError: the folder or the file cannot be used, or the file was damaged.
    """
    prepare_data_dir(data_dir, place)
    path = data_dir / _FILE
    try:
        try:
            root = path.read_bytes()
        except FileNotFoundError:
            root = _create(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read or made: {error.strerror}") from None
    if len(root) != _SIZE_BYTES:
        raise StorageError(f"{path}: must hold {_SIZE_BYTES} bytes, not {len(root)}; restore it or delete it")
    return InstallationSecrets(_derive(root, b"lmw-identity"), _derive(root, b"lmw-api-keys"))


def owner_of(data_dir: Path, place: str) -> tuple[int, int] | None:
    """User and group of a folder's warden: whoever made its secret, else whose the folder is; None: there is no folder.

    Args:
        data_dir: the data folder, there or not.
        place: where it was named, for messages.

    Raises:
        StorageError: it cannot be looked into.
    """
    for path in (data_dir / _FILE, data_dir):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StorageError(f"{place}: {data_dir}: {error.strerror}") from None
        return status.st_uid, status.st_gid
    return None


def is_used(data_dir: Path) -> bool:
    """Whether a warden, or its keys, have been in a folder."""
    return (data_dir / _FILE).exists()


def _create(path: Path) -> bytes:
    """Make the file; if another process was first, take that one's."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
    write_private(beside, secrets.token_bytes(_SIZE_BYTES))
    try:
        os.link(beside, path)  # unlike rename, fails if the name is taken
    except FileExistsError:
        pass
    finally:
        beside.unlink()
    return path.read_bytes()


def _derive(root: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(key=root, person=purpose, digest_size=32).digest()
