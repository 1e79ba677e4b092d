"""Finds what of a transaction no disk would take, by halves.

A row that SQLite refuses for its content is a mistake of ours, and is not to take others with it. So a transaction that
was refused is tried again with half of its rows and nothing else; each one that goes doubles the next, each one that
does not halves it, and a row that is refused alone is found. Some dozen transactions for two thousand rows: one by one,
the rows of a busy host would come faster than they go. When all rows go again, what else waited (homes, settings) is
tried without any: if that is refused, it was there.
"""

from __future__ import annotations


class Halves:
    """What the next transaction may hold."""

    def __init__(self, most_rows: int) -> None:
        """Args:
        most_rows: of one transaction, as long as nothing is sought.
        """
        self._most_rows = most_rows
        self._next_rows = most_rows
        self._rest_waits = False

    @property
    def rows_only(self) -> bool:
        """Nothing but rows."""
        return self._next_rows < self._most_rows

    @property
    def rows(self) -> int:
        """So many rows; 0: all but rows."""
        return 0 if self._rest_waits and not self.rows_only else self._next_rows

    def written(self) -> None:
        """The transaction is committed."""
        if not self.rows_only:
            self._rest_waits = False
        self._next_rows = min(self._most_rows, 2 * self._next_rows)

    def refused(self, rows: int) -> bool:
        """The transaction was refused for its content. Returns whether it is found: it is all that was in there.

        Args:
            rows: that were in it.
        """
        if rows == 1 and self.rows_only:
            return True
        if rows:
            self._next_rows, self._rest_waits = max(1, rows // 2), True
            return False
        self._rest_waits = False
        return True
