"""The stream that log lines go to: it never makes its writer wait, and never fails.

Lines are written from the data loop. A standard error that is a pipe holds 64 KB, and where its reader stands still (a
log shipper that is stuck, a pager), the next write would wait for it, and with it every stream that is relayed. Where
the reader has gone, the write would raise in whatever code had something to say. So each write asks first whether the
descriptor takes more, and what it does not take is dropped and counted: the next line that fits is preceded by one that
says how many are missing.

A pipe says that it takes more as long as ``PIPE_BUF`` bytes fit, so a piece of that size does not wait. Longer lines go
out in such pieces; one that had to be given up in the middle is ended, so that the next line stands alone. A terminal
makes no such promise: who pauses one (Ctrl-S) pauses the warden that writes to it.
"""

from __future__ import annotations

import io
import json
import os
import select
import threading
from typing import TextIO

_PIECE_BYTES = 4096
"""``PIPE_BUF`` on Linux; the least that it may be is 512, on systems that are not meant for this."""


class LogStream(io.TextIOBase):
    """Writes whole lines to the descriptor of another stream. Any thread."""

    def __init__(self, stream: TextIO) -> None:
        """Args:
        stream: whose descriptor; one without (a test's) is written to as it is.
        """
        self._stream = stream
        self.lost_lines = 0
        """Since the last line that told of them."""
        self._unended = False
        """The last thing written is the beginning of a line that was given up."""
        self._lock = threading.Lock()
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):
            self._descriptor = None
        if self._descriptor is not None:
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLOUT)

    def isatty(self) -> bool:
        """Whether a person watches."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, line: str, /) -> int:
        """Write a line with its end, or drop it. Never waits, never raises.

        Returns:
            The length of the text, also of what was dropped: nobody could do anything about it.
        """
        with self._lock:
            if self._descriptor is None:
                self._stream.write(line)
            else:
                self._write_or_drop(self._descriptor, line)
        return len(line)

    def flush(self) -> None:
        """Nothing is kept here."""
        if self._descriptor is None:
            self._stream.flush()

    def _write_or_drop(self, descriptor: int, line: str) -> None:
        before = "\n" if self._unended else ""
        if self.lost_lines:
            before += json.dumps({"event": "log lines are missing: nobody read them", "lines": self.lost_lines}) + "\n"
        if before and not self._pieces(descriptor, before):
            self.lost_lines += 1
            return
        if before:
            self.lost_lines = 0
            self._unended = False
        if not self._pieces(descriptor, line):
            self.lost_lines += 1

    def _pieces(self, descriptor: int, text: str) -> bool:
        """Write a text; False: not, or not to its end."""
        data = text.encode("utf-8", "backslashreplace")
        for at in range(0, len(data), _PIECE_BYTES):
            if not self._piece(descriptor, data[at : at + _PIECE_BYTES]):
                self._unended = self._unended or at > 0
                return False
        return True

    def _piece(self, descriptor: int, piece: bytes) -> bool:
        try:
            if not any(events & select.POLLOUT for _, events in self._poll.poll(0)):
                return False
            while piece:  # a socket may take a part
                piece = piece[os.write(descriptor, piece) :]
        except OSError:  # nobody is there any more, or the disk is full
            return False
        return True
