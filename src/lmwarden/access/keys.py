"""API keys: made, listed, revoked by the command line; checked by the gateway.

A key is ``lmw_`` and 32 random bytes in base 64. It is shown once, when it is made; ``keys.json`` (mode 0600)
keeps only its blake2b hash under the installation's secret. A check is one hash and one dictionary look-up.
The look-up's timing tells nothing: without the secret nobody can choose which hash is looked up; the found
digest is compared in constant time all the same.

A key may be good for some models only; an alias goes with its model.

The running gateway re-reads the file when it changed: at the next request where this process changed it (the console),
within a second where another one did (``refresh``). So a revoked key stops working without a restart. A file that
cannot be read leaves the last good keys in place, says so, and is tried again each time: what was wrong with it may
end without a change of the file (who owns it, or too many open files here).

Console and command line may change the file at the same time: each reads, changes and writes it under a lock on a file
beside it, so that no key that was revoked comes back with what another one wrote.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from lmwarden.access.secrets import StorageError
from lmwarden.files import write_private
from lmwarden.types import KeyIdentity

log = structlog.get_logger("lmwarden.access")

MAX_CREDENTIAL_BYTES = 4096
"""Longer ones are wrong without being hashed."""
_FILE = "keys.json"
_LOCK = "keys.lock"
_NAME_ALLOWED = "1 to 64 letters, digits, '.', '_' or '-', at least one of them a letter or digit"
"""Browsers take ``.`` and ``..`` for steps in a path: such a key could not be revoked on the console."""
MOST_MODELS = 100
"""That one key may be limited to."""
_MOST_MODEL_CHARACTERS = 256


class KeyNameError(ValueError):
    """The name of a key, or of a model that it is limited to, cannot be used. One line for a person."""

    exit_status = 2


class StoredKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``keys.json``."""

    name: str
    digest: str
    """Keyed hash of the key, hexadecimal."""
    created: str
    """When, ISO 8601 in UTC."""
    models: list[str] | None = None
    """Names of the models that it may use, sorted; None: all."""


class _KeyFile(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[StoredKey]
    version: int = 1


class KeyStore:
    """The keys of one data folder."""

    def __init__(self, data_dir: Path, secret: bytes) -> None:
        self._path = data_dir / _FILE
        self._secret = secret
        self.changes = 0
        """How often this object has changed the file."""

    def create(self, name: str, models: Sequence[str] | None = None) -> str:
        """Make a key and return it; it cannot be shown again.

        Args:
            name: what to call it.
            models: names of the models that it may use; None: all.

        Raises:
            KeyNameError: the name is taken or has another form than allowed, or the models cannot be names.
            StorageError: the file cannot be read or written.
        """
        plain = name.replace(".", "").replace("_", "").replace("-", "")
        if not (name and len(name) <= 64 and name.isascii() and plain.isalnum()):
            raise KeyNameError(f"keys: {name!r:.80} cannot be a name; allowed: {_NAME_ALLOWED}")
        scope = None if models is None else _scope(models)
        credential = "lmw_" + secrets.token_urlsafe(32)
        digest = digest_of(credential.encode(), self._secret).hex()
        created = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        with self._alone():
            keys = self.stored()
            if any(key.name == name for key in keys):
                raise KeyNameError(f"keys: {name!r} exists already; revoke it first or take another name")
            self._write([*keys, StoredKey(name=name, digest=digest, created=created, models=scope)])
        return credential

    def revoke(self, name: str) -> None:
        """Delete a key.

        Raises:
            KeyNameError: there is none of that name.
            StorageError: the file cannot be read or written.
        """
        self._without(name)  # for a key that is not there not even a lock is made
        with self._alone():
            self._write(self._without(name))

    def stored(self) -> list[StoredKey]:
        """All keys, oldest first.

        Raises:
            StorageError: the file cannot be read.
        """
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_KeyFile).keys
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be read: {_reason(error)}") from None
        except msgspec.DecodeError as error:
            raise StorageError(f"{self._path}: is damaged: {error}") from None

    def trouble(self) -> str | None:
        """Why the file cannot be read, in a sentence; None: it can. Reads it: not for the data loop."""
        try:
            self.digests()
        except StorageError as error:
            return str(error)
        return None

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does; None: no file."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def digests(self) -> Mapping[bytes, KeyIdentity]:
        """Digest to owner, for checks.

        Raises:
            StorageError: the file cannot be read.
        """
        try:
            pairs = [(bytes.fromhex(key.digest), key) for key in self.stored()]
        except ValueError:
            raise StorageError(f"{self._path}: is damaged: a digest is not hexadecimal") from None
        return {
            digest: KeyIdentity(key.name, digest, None if key.models is None else frozenset(key.models))
            for digest, key in pairs
        }

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes the file meanwhile. The kernel gives the lock back if the process is killed."""
        lock = self._path.with_name(_LOCK)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{lock}: cannot be opened: {_reason(error)}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _without(self, name: str) -> list[StoredKey]:
        keys = self.stored()
        kept = [key for key in keys if key.name != name]
        if len(kept) == len(keys):
            names = ", ".join(key.name for key in keys) or "none"
            raise KeyNameError(f"keys: there is no key {name!r:.80}; existing: {names}")
        return kept

    def _write(self, keys: list[StoredKey]) -> None:
        try:
            write_private(self._path, msgspec.json.format(msgspec.json.encode(_KeyFile(keys=keys))) + b"\n")
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from None
        self.changes += 1  # only now: who sees the number finds the file


class Authenticator:
    """Checks credentials for the gateway; lives on the data loop."""

    def __init__(self, store: KeyStore, secret: bytes, *, required: bool) -> None:
        self.required = required
        """Whether a request without a valid key is refused."""
        self._store = store
        self._secret = secret
        self._stamp: tuple[int, int, int] | None = None
        self._changes = store.changes
        self._complaint: tuple[object, str] | None = None
        """Of which state of the file, and what; None: it could be read."""
        self._by_digest: Mapping[bytes, KeyIdentity] = {}
        self.refresh()

    @property
    def key_count(self) -> int:
        """Keys that would be accepted now."""
        return len(self._by_digest)

    def check(self, credential: bytes) -> KeyIdentity | None:
        """Whose key this is; None: nobody's."""
        if not credential or len(credential) > MAX_CREDENTIAL_BYTES:
            return None
        if self._store.changes != self._changes:
            self.refresh()
        digest = digest_of(credential, self._secret)
        found = self._by_digest.get(digest)
        return found if found is not None and hmac.compare_digest(found.digest, digest) else None

    def still_good(self, key: KeyIdentity) -> KeyIdentity | None:
        """The key as it is now, for whoever compared the credential of ``check`` itself; None: it was revoked."""
        if self._store.changes != self._changes:
            self.refresh()
        return self._by_digest.get(key.digest)

    def refresh(self) -> None:
        """Re-read the file if it changed. Never raises: one that cannot be read leaves the last good keys."""
        self._changes = self._store.changes  # before the look: a change in between is seen next time
        stamp = self._store.stamp()
        if stamp == self._stamp and self._complaint is None:
            return
        try:
            self._by_digest = self._store.digests()
        except StorageError as error:
            complaint = (stamp, str(error))
            if complaint != self._complaint:
                self._complaint = complaint
                log.error("keys not re-read; the last good ones stay", reason=str(error))
        else:
            self._stamp, self._complaint = stamp, None


def digest_of(credential: bytes, secret: bytes) -> bytes:
    """16-byte keyed hash of a credential."""
    return hashlib.blake2b(credential, key=secret, digest_size=16).digest()


def _reason(error: OSError) -> str:
    owner = "; the user that runs the warden must own it" if isinstance(error, PermissionError) else ""
    return f"{error.strerror}{owner}"


def _scope(models: Sequence[str]) -> list[str]:
    """The names of models that a key is limited to, as they are kept."""
    names = sorted(set(models))
    good = all(name and len(name) <= _MOST_MODEL_CHARACTERS and name.isprintable() for name in names)
    if not (good and 0 < len(names) <= MOST_MODELS and all(name == name.strip() for name in names)):
        raise KeyNameError(
            f"keys: the models of a key are 1 to {MOST_MODELS} names of served models,"
            f" of 1 to {_MOST_MODEL_CHARACTERS} printable characters each"
        )
    return names
