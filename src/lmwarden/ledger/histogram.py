"""Durations as counts in buckets that grow by a fixed factor: two histograms are merged by adding, and percentiles of
the sum are as good as those of the parts.

A bucket is GROWTH times as wide as the one below it, so a percentile is off by at most 4.5 %, at 50 ms as at 80 s. Only
buckets that were hit are kept; on disk they are a MessagePack map of bucket to count, a few bytes for a few requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

GROWTH = 2 ** (1 / 8)
SHORTEST_S, LONGEST_S = 0.001, 4096.0
"""What is shorter or longer counts as this: nothing that we show is finer, no time-out is longer."""

Counts: TypeAlias = dict[int, int]
"""Bucket to number of durations in it."""

_LOG_GROWTH = math.log(GROWTH)
_OFFSET = math.ceil(math.log(SHORTEST_S) / _LOG_GROWTH)
"""Makes the lowest bucket 0, so that most buckets take one byte."""

_decode = msgspec.msgpack.Decoder(Counts).decode
_encode = msgspec.msgpack.Encoder().encode


def bucket_of(seconds: float) -> int:
    """The bucket of a duration."""
    # Written so that a NaN counts as the shortest.
    within = min(seconds, LONGEST_S) if seconds > SHORTEST_S else SHORTEST_S
    return math.ceil(math.log(within) / _LOG_GROWTH) - _OFFSET


def bucket_sql(seconds: str) -> str:
    """``bucket_of`` as an expression of SQL, NULL of NULL: a search by halves, as not every SQLite has logarithms."""

    def among(lowest: int, highest: int) -> str:
        if lowest == highest:
            return str(lowest)
        middle = (lowest + highest) // 2
        lower, upper = among(lowest, middle), among(middle + 1, highest)
        return f"CASE WHEN {seconds} <= {_longest_s(middle)!r} THEN {lower} ELSE {upper} END"

    return f"CASE WHEN {seconds} IS NOT NULL THEN {among(0, bucket_of(LONGEST_S))} END"


def _longest_s(bucket: int) -> float:
    """The longest duration of a bucket, to the last digit as ``bucket_of`` has it."""
    found = GROWTH ** (bucket + _OFFSET)
    while bucket_of(found) > bucket:
        found = math.nextafter(found, 0.0)
    while bucket_of(longer := math.nextafter(found, math.inf)) <= bucket:
        found = longer
    return found


def merge(into: Counts, more: Mapping[int, int]) -> None:
    """Add the counts of ``more``."""
    for bucket, count in more.items():
        into[bucket] = into.get(bucket, 0) + count


def encoded(counts: Counts) -> bytes | None:
    """As it stands in the file; None: no durations."""
    return _encode(counts) if counts else None


def decoded(stored: bytes | None) -> Counts:
    """What ``encoded`` made.

    Raises:
        msgspec.DecodeError: it is no such thing.
    """
    return _decode(stored) if stored is not None else {}


def merged(one: bytes | None, other: bytes | None) -> bytes | None:
    """The sum of two encoded histograms; SQLite calls it."""
    if one is None or other is None:
        return other if one is None else one
    counts = decoded(one)
    merge(counts, decoded(other))
    return encoded(counts)


def percentiles(counts: Mapping[int, int], ratios: Sequence[float]) -> list[float | None]:
    """Seconds below which a share of the durations lies (nearest rank; the middle of its bucket).

    Args:
        counts: the histogram.
        ratios: 0..1, ascending.

    Returns:
        One per ratio; None where there are no durations.
    """
    total = sum(counts.values())
    if not total:
        return [None] * len(ratios)
    found: list[float | None] = []
    below = 0
    ranks = [max(1, math.ceil(ratio * total)) for ratio in ratios]
    for bucket in sorted(counts):
        below += counts[bucket]
        while len(found) < len(ranks) and ranks[len(found)] <= below:
            found.append(GROWTH ** (bucket + _OFFSET - 0.5))
    return found
