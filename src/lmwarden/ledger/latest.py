"""What waits to be written where only the latest counts: a home, a setting.

The data loop puts, the writer takes. What is put again before it was written replaces what was there, so the queue is
bounded by the number of things and not by how often they change; beyond ``most`` of them, new ones are dropped and
counted. The lock is held by the writer only to take the dict away: the data loop never waits for a disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Latest(Generic[K, V]):
    """By key, the latest value that is not written yet."""

    def __init__(self, most: int) -> None:
        """Args:
        most: So many keys may wait.
        """
        self.dropped = 0
        """Values that were lost because too many waited."""
        self.accepted = 0
        """Calls of ``put``."""
        self.settled = 0
        """So many of those calls are written."""
        self._most = most
        self._lock = threading.Lock()
        self._fresh: dict[K, V] = {}
        self._taken: dict[K, V] = {}
        self._taken_accepted = 0

    def __len__(self) -> int:
        """About how many wait; the same key may count twice."""
        return len(self._fresh) + len(self._taken)

    def put(self, values: Iterable[tuple[K, V]]) -> None:
        """Take values to be written."""
        with self._lock:
            fresh = self._fresh
            for key, value in values:
                if len(fresh) < self._most or key in fresh:
                    fresh[key] = value
                else:
                    self.dropped += 1
            self.accepted += 1

    def take(self) -> Mapping[K, V]:
        """All that is to be written, what could not be written before included. Then call ``written``."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
            self._taken_accepted = self.accepted
        taken = self._taken
        for key, value in fresh.items():
            if len(taken) < self._most or key in taken:
                taken[key] = value
            else:
                self.dropped += 1
        return taken

    def written(self) -> None:
        """What was taken is written."""
        self._taken = {}
        self.settled = self._taken_accepted
