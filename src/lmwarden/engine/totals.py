"""Counters of an engine since the warden's start, across the engine's restarts.

An engine's counters begin at 0 with each of its runs, and had some value when we first looked. What we show
is the growth since then: after a fall from 1,000 to 50 the growth of that step is 50, never -950.
"""

from __future__ import annotations


class GrowingTotal:
    """Growth of one cumulative counter since the first reading."""

    __slots__ = ("_last", "total")

    def __init__(self) -> None:
        self._last: int | None = None
        self.total = 0
        """Growth since the first reading, in the counter's unit."""

    def read(self, value: int | None) -> None:
        """Take the counter's present value; None (not reported) changes nothing."""
        if value is None:
            return
        if self._last is not None:
            self.total += value - self._last if value >= self._last else value
        self._last = value


class PrefixCacheTotals:
    """Prefix-cache tokens of one replica since the warden's start."""

    __slots__ = ("_hits", "_queries")

    def __init__(self) -> None:
        self._queries = GrowingTotal()
        self._hits = GrowingTotal()

    def read(self, queries_tokens: int | None, hits_tokens: int | None) -> None:
        """Take both counters of one scrape."""
        self._queries.read(queries_tokens)
        self._hits.read(hits_tokens)

    @property
    def hit_ratio(self) -> float | None:
        """0..1, or None while nothing was asked of the cache."""
        if self._queries.total <= 0:
            return None
        return min(1.0, self._hits.total / self._queries.total)
