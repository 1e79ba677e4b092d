"""Log files of engines: one per engine, appended to by the engine itself.

The engine holds the file open for its whole life and outlives us, so the file cannot be renamed away from under it:
it would go on writing into the renamed one. So rotation copies the file and truncates it. The engine writes with
``O_APPEND``, whose writes go to wherever the end is at that moment, so it continues at the new beginning. What it
writes between the copy and the truncation, some milliseconds, is lost; it is output for reading, not a journal.

A pipe instead of a file would end the engine with us (a write to a pipe without a reader), which is what must not
happen.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

_SEARCHED_BYTES = 1 << 20
_MOST_LINE_CHARACTERS = 2000
_MOST_NEW_LINES = 1000
_MOST_NEW_LINE_CHARACTERS = 300
"""Of new lines: an engine that floods its log must not keep the reader of its progress busy."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_EXCEPTION = re.compile(r"(?:^|\s)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S.*)")
_ERROR = re.compile(rf"\b(?:ERROR|CRITICAL|FATAL)\b|^Traceback |{_EXCEPTION.pattern}")
_LESSER = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b|Warning:")
_MOST_CAUSE_CHARACTERS = 300
MARK_LINE = "=== lmwarden: "
"""What our own lines in these files begin with."""


class EngineLog:
    """The output of one engine, over all its runs."""

    def __init__(self, folder: Path, engine: str, *, max_bytes: int, files: int) -> None:
        """Args:
        folder: where it lies.
        engine: whose it is.
        max_bytes: rotate beyond this size.
        files: how many older ones are kept, ``<engine>.log.1`` being the newest.
        """
        self.path = folder / f"{engine}.log"
        self._max_bytes = max_bytes
        self._files = files
        self._read_to = 0

    def begin_run(self, sentence: str) -> tuple[int, int]:
        """Open the file for a new run and write a line of ours into it.

        Returns:
            A descriptor for the engine's output, which the caller closes, and where the run begins in the file.

        Raises:
            OSError: it cannot be opened.
        """
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        offset = os.fstat(descriptor).st_size
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            os.write(descriptor, f"{MARK_LINE}{moment} {sentence}\n".encode(errors="replace"))
        except OSError:
            pass  # a full disk: the engine runs all the same
        self._read_to = offset
        return descriptor, offset

    def begin_reading(self, offset: int) -> None:
        """Continue with a run whose output begins there."""
        self._read_to = offset

    def new_lines(self) -> list[str]:
        """Complete lines that were written since the last call; of too many the latest, of long ones the heads."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._read_to:
                    self._read_to = 0  # rotated
                start = max(self._read_to, size - _SEARCHED_BYTES)
                file.seek(start)
                data = file.read(_SEARCHED_BYTES)
        except OSError:
            return []
        # A progress bar rewrites its line and ends it late: what it says is complete at each carriage return.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._read_to = start + end
        lines = re.split(r"[\r\n]+", data[:end].decode(errors="replace"))[-_MOST_NEW_LINES - 1 :]
        return [cleaned(line)[:_MOST_NEW_LINE_CHARACTERS] for line in lines if line]

    def rotate_if_large(self) -> bool:
        """Rotate if the file is too large. Blocks for as long as it takes to copy it.

        Of a flood (a file twice as large as that, or larger) only the end is kept, so that it cannot fill the disk.

        Returns:
            Whether it was.

        Raises:
            OSError: it cannot be done; the file is as it was, or rotated.
        """
        try:
            size = self.path.stat().st_size
            if size <= self._max_bytes:
                return False
        except FileNotFoundError:
            return False
        for number in range(self._files, 1, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        copy = self._numbered(1)
        copy.unlink(missing_ok=True)
        with self.path.open("rb") as source, os.fdopen(_private(copy), "wb") as target:
            left = min(size, 2 * self._max_bytes)  # not to the file's end: its writer may be faster than we are
            source.seek(size - left)
            while left > 0 and (chunk := source.read(min(left, 1 << 20))):
                target.write(chunk)
                left -= len(chunk)
        os.truncate(self.path, 0)
        return True

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def tail(path: Path, max_lines: int, max_bytes: int = _SEARCHED_BYTES, *, offset: int = 0) -> list[str]:
    """The last lines of a log file, cleaned, oldest first. Blocks for one read.

    Args:
        path: the file; none: no lines.
        max_lines: how many.
        max_bytes: how much of the file's end is looked at.
        offset: nothing before it; beyond the end of the file: it was rotated, and counts as 0.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            first = offset if offset <= size else 0
            start = max(first, size - max_bytes)
            file.seek(start)
            data = file.read(max_bytes)
    except OSError:
        return []
    lines = data.decode(errors="replace").split("\n")
    if start > first:
        lines = lines[1:]  # begins in the middle
    shown = (line for line in map(cleaned, reversed(lines)) if line)
    return list(islice(shown, max(0, max_lines)))[::-1]


def why_it_ended(lines: Sequence[str], most: int) -> list[str]:
    """The lines that tell most of an end: up to the last one that speaks of an error.

    What follows it is what libraries have to say at an exit (leaks that nobody can mend), and can fill a screen. Where
    no line speaks of an error, the last ones.
    """
    for end in range(len(lines), 0, -1):
        if _ERROR.search(lines[end - 1]):
            return list(lines[:end][-most:])
    return list(lines[-most:])


def first_error(lines: Sequence[str]) -> str | None:
    """The first exception that a run logged, without what stands before it: later ones tend to be its consequences."""
    for line in lines:
        found = None if _LESSER.search(line) else _EXCEPTION.search(line)
        if found is not None:
            return found[1][:_MOST_CAUSE_CHARACTERS]
    return None


def cleaned(line: str) -> str:
    """A line as a person would see it: no colours, the last state of a progress bar, not endless."""
    shown = _ESCAPES.sub("", line).rstrip("\r\n").rpartition("\r")[2]
    return _CONTROLS.sub("", shown).rstrip()[:_MOST_LINE_CHARACTERS]


def _private(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
