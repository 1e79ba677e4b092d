"""What a warden leaves for the next one: which process serves which engine, on which port.

One file per engine, ``engines/<name>.json`` in the data folder, replaced in one step and synchronised. It is written
twice for each start: before it (the port and the command, no process yet) and after it (the process). If the warden is
killed in between, the next one finds the process by its mark and the rest in the first version. A file that cannot be
understood counts as none, and the log says so; processes are then found by their marks alone.

The mark (see ``launch``) names the data folder by a random id *and its path*: a copy of the folder must not claim the
engines of the original. So an engine that outlives its warden is not recognised if the folder is moved meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import structlog

from lmwarden.engine.processes import ProcessId, alive, mark_of, words_of
from lmwarden.files import write_private

log = structlog.get_logger("lmwarden.engine")

_ID_BYTES = 16


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One start of one engine."""

    engine: str
    identity: str
    """The plan's: what it serves, on which GPUs."""
    fingerprint: str
    """The plan's: by which command."""
    access: str
    """Digest of the key that it asks for."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    argv_digest: str
    argv_words: Annotated[int, msgspec.Meta(ge=1)]
    started_at: float
    """Unix seconds."""
    log_offset: Annotated[int, msgspec.Meta(ge=0)]
    """Where its output begins in the log file."""
    command: str | None = None
    """What was started, for a shell, secrets hidden; None: written by a version that did not keep it."""
    process: ProcessId | None = None
    """None: it was about to be started."""


def digest_of(argv: Sequence[str]) -> str:
    """Of the words of a command line."""
    return hashlib.blake2b("\0".join(argv).encode(errors="surrogateescape"), digest_size=16).hexdigest()


class EngineRecords:
    """The records of one data folder."""

    def __init__(self, data_folder: Path) -> None:
        """Args:
        data_folder: ``engines/`` in it is made (mode 0700).

        Raises:
            OSError: it cannot be made or written.
        """
        self.folder = data_folder / "engines"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.secret = self._secret()
        """Key of fingerprints, and the source of marks."""
        where = str(self.folder.resolve()).encode(errors="surrogateescape")
        self._owner = hashlib.blake2b(where, key=self.secret, digest_size=12).hexdigest()

    @property
    def mark_prefix(self) -> str:
        """What the marks of all engines of this folder begin with."""
        return f"{self._owner}/"

    def mark(self, engine: str) -> str:
        """The mark of one engine's processes."""
        return self.mark_prefix + engine

    def load(self, engine: str) -> EngineRecord | None:
        """The record of an engine; None: there is none that can be understood."""
        path = self._path(engine)
        try:
            record = msgspec.json.decode(path.read_bytes(), type=EngineRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("the record of an engine cannot be used", engine=engine, file=str(path), reason=str(error))
            return None
        return record if record.engine == engine else None

    def names(self) -> list[str]:
        """The engines that have a record, readable or not."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def save(self, record: EngineRecord) -> None:
        """Replace an engine's record; failing is said in the log, because a full disk must not end an engine."""
        path = self._path(record.engine)
        try:
            write_private(path, msgspec.json.encode(record))
        except OSError as error:
            log.warning(
                "the record of an engine cannot be written; a later warden may not take it over",
                engine=record.engine,
                file=str(path),
                reason=error.strerror,
            )

    def forget(self, engine: str) -> None:
        """Remove an engine's record, if there is one."""
        with contextlib.suppress(OSError):
            self._path(engine).unlink(missing_ok=True)

    def is_ours(self, record: EngineRecord) -> bool:
        """Whether the recorded process lives and is the one that was started, not another with its number.

        To be asked in a thread: one that has just been started is waited for (``mark_of``).
        """
        process = record.process
        if process is None or not alive(process):
            return False
        mark = mark_of(process.pid)
        if mark is not None:
            return mark == self.mark(record.engine)
        # Its environment may not be read: then its words must be the ones that we gave it. An interpreter may stand
        # before them, which the kernel adds for a script.
        words = words_of(process.pid)[-record.argv_words :]
        return len(words) == record.argv_words and digest_of(words) == record.argv_digest

    def _path(self, engine: str) -> Path:
        return self.folder / f"{engine}.json"

    def _secret(self) -> bytes:
        path = self.folder / "id"
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            found = b""
        if len(found) != _ID_BYTES:
            if found:
                log.warning("the id of the engines' folder is damaged; engines of before are not known", file=str(path))
            found = secrets.token_bytes(_ID_BYTES)
            write_private(path, found)
        return found
