"""Writes traces of the traffic (``trace_format``) into the data folder: lengths, keyed hashes, times, and no text.

``traces/`` holds files of about ``_FILE_BYTES``; a full one is followed by a new one, and of those only the latest
``_FILES`` are kept. Each can be replayed by itself. The secret of the hashes and of the conversations' short ids is
made anew in each process and never written, so that two recordings cannot be joined and no text can be tried against
them.

Everything here runs on the worker thread of ``prefix_watch``. A disk that refuses is told once; what could not be
written is counted and the next request tries again.
"""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import structlog

from lmwarden.trace_format import BlockHasher, TraceHead, TraceRequest, TraceWriter

log = structlog.get_logger("lmwarden.gateway")

FOLDER = "traces"
BLOCK_BYTES = 256
"""About 64 tokens: four of vLLM's blocks."""
_FILE_BYTES = 64 * 1024 * 1024
_FILES = 8


class TraceRecorder:
    """One recording.

    Args:
        data_dir: the data folder.
        file_bytes: size at which a file is full.
        files: how many are kept.
    """

    def __init__(self, data_dir: Path, *, file_bytes: int = _FILE_BYTES, files: int = _FILES) -> None:
        self.folder = data_dir / FOLDER
        self.lost = 0
        """Requests that could not be written."""
        self._file_bytes = file_bytes
        self._files = files
        self._key = os.urandom(32)
        self._file: BinaryIO | None = None
        self._writer: TraceWriter | None = None
        self._in_trouble = False
        self._number = 0

    def hasher(self) -> BlockHasher:
        """For one prompt."""
        return BlockHasher(self._key, BLOCK_BYTES)

    def label(self, key: bytes) -> str:
        """The short id of a conversation in this recording."""
        return blake2b(key, digest_size=6, key=self._key).hexdigest()

    def add(self, request: TraceRequest, prompt: BlockHasher) -> None:
        """Write one request."""
        try:
            if self._writer is None:
                self._writer = self._open()
            self._writer.add(request, prompt.hashes)
            if self._writer.written_bytes >= self._file_bytes:
                self.close()
        except OSError as error:
            self.lost += 1
            if not self._in_trouble:
                self._in_trouble = True
                log.error("a trace cannot be written", folder=str(self.folder), reason=error.strerror)
            self.close()
        else:
            self._in_trouble = False

    def flush(self) -> None:
        """Have what was added in the file."""
        try:
            if self._file is not None:
                self._file.flush()
        except OSError:
            self.close()

    def close(self) -> None:
        """End the file; the next request begins another."""
        file, self._file, self._writer = self._file, None, None
        if file is not None:
            try:
                file.close()
            except OSError:  # what was buffered is lost with the disk; the descriptor is closed all the same
                log.error("a trace file could not be completed", folder=str(self.folder))

    def _open(self) -> TraceWriter:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._number += 1
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}-{self._number:03}.jsonl"
        self._file = os.fdopen(os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        for surplus in sorted(self.folder.glob("*.jsonl"), key=_written_at)[: -self._files]:
            surplus.unlink(missing_ok=True)
        return TraceWriter(self._file, TraceHead(unit="bytes", block=BLOCK_BYTES), self._key)


def _written_at(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, path.name
