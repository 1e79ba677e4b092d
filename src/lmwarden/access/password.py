"""The console's password: one line of a file, checked slowly, and read anew when the file changes.

Kept in memory is only what scrypt makes of it under a salt of this process, so that neither a memory dump nor
a log shows it. A wrong guess costs 16 MiB and some tens of milliseconds; how many are let through is for ``throttle``.
The password that was accepted last is remembered as a keyed hash too: a script that sends it with every
request pays microseconds, and the comparison takes as long whatever is compared.

A file that cannot be read any more, or does not hold a password any more, leaves the last good one in place: a slip of
an editor must neither lock everybody out nor let everybody in. It is tried again each time, because what was wrong may
end without a change of its content (its mode, its owner, or too many open files here).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

import structlog

log = structlog.get_logger("lmwarden.access")

LEAST_CHARACTERS = 8
MOST_BYTES = 1024
"""Longer ones are wrong without being hashed."""
_SCRYPT_N = 2**14
_SCRYPT_R = 8
_SCRYPT_MEMORY_BYTES = 64 << 20
"""OpenSSL refuses more than 32 MiB unless told; these parameters take 16 and a little."""


class PasswordError(Exception):
    """The password file cannot be used. One line that names the place, the file and what is allowed."""

    exit_status = 2


class PasswordFile:
    """One file with one password. ``matches`` may run in several threads; the rest on one."""

    def __init__(self, path: Path, place: str) -> None:
        """Args:
        path: the file.
        place: where it was named, for messages.

        Raises:
            PasswordError: it cannot be read, others may read it, or it holds no password.
        """
        self._path = path.expanduser().absolute()
        self._place = place
        self._stamp = self._stat()
        self._secret = _Secret(self._read())
        self._complaint: tuple[object, str] | None = None
        """Of which state of the file, and what; None: it could be used."""

    def refresh(self) -> bool:
        """Re-read the file if it changed. Returns whether the password is another one now. Never raises."""
        stamp = self._stat()
        if stamp == self._stamp and self._complaint is None:
            return False
        try:
            password = self._read()
        except PasswordError as error:
            complaint = (stamp, str(error))
            if complaint != self._complaint:
                self._complaint = complaint
                log.error("the console's password was not re-read; the last good one stays", reason=str(error))
            return False
        self._stamp, self._complaint = stamp, None
        if self._secret.matches(password):
            return False
        self._secret = _Secret(password)
        log.info("the console's password was changed; who is signed in must sign in again")
        return True

    def matches(self, password: str) -> bool:
        """Whether this is the password. Takes tens of milliseconds: call it in a thread of its own."""
        return self._secret.matches(password.encode("utf-8", "surrogateescape"))

    def is_known(self, password: str) -> bool:
        """Whether this is the password that ``matches`` accepted before. Microseconds; False tells nothing."""
        return self._secret.is_known(password.encode("utf-8", "surrogateescape"))

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _read(self) -> bytes:
        where = f"{self._place}: {self._path}"
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(MOST_BYTES + 2)
        except OSError as error:
            raise PasswordError(f"{where}: cannot be read: {error.strerror}") from None
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise PasswordError(f"{where}: others may read or change it; set its mode to 600 (chmod 600)")
        password = content.partition(b"\n")[0].rstrip(b"\r")
        try:
            characters = len(password.decode())
        except UnicodeDecodeError:
            raise PasswordError(f"{where}: its first line must be UTF-8 text") from None
        if characters < LEAST_CHARACTERS or len(password) > MOST_BYTES:
            raise PasswordError(
                f"{where}: its first line must hold the password, {LEAST_CHARACTERS} characters to {MOST_BYTES} bytes"
            )
        return password


class _Secret:
    """One password, hashed."""

    def __init__(self, password: bytes) -> None:
        self._salt = secrets.token_bytes(32)
        self._slow = self._slow_hash(password)
        self._known: bytes | None = None

    def matches(self, password: bytes) -> bool:
        if len(password) > MOST_BYTES or not hmac.compare_digest(self._slow_hash(password), self._slow):
            return False
        self._known = self._fast_hash(password)
        return True

    def is_known(self, password: bytes) -> bool:
        known = self._known
        return known is not None and hmac.compare_digest(self._fast_hash(password), known)

    def _slow_hash(self, password: bytes) -> bytes:
        return hashlib.scrypt(
            password, salt=self._salt, n=_SCRYPT_N, r=_SCRYPT_R, p=1, maxmem=_SCRYPT_MEMORY_BYTES, dklen=32
        )

    def _fast_hash(self, password: bytes) -> bytes:
        return hashlib.blake2b(password, key=self._salt, digest_size=32).digest()
