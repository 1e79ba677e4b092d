"""What request rows add up to: by the ledger's own SQL, and one by one to compare it with."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing

from lmwarden.ledger import schema
from lmwarden.ledger.histogram import bucket_of
from lmwarden.ledger.history_rows import uncounted
from lmwarden.ledger.history_sums import MOST_TOKENS, TICK_S, WHOLE, Spot, Sums, Tallies
from lmwarden.types import RequestRecord


def counted(records: Iterable[RequestRecord]) -> Tallies:
    """As the ledger counts them."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in schema.CREATE:
            connection.execute(statement)
        schema.write_all(connection, schema.INSERT, [schema.to_row(record) for record in records])
        return uncounted(connection)


def by_hand(records: Iterable[RequestRecord]) -> Tallies:
    """The same in the plainest way."""
    tallies: Tallies = {}
    for record in records:
        tick = int(record.finished_at // TICK_S) * TICK_S
        for replica in {WHOLE, record.replica or WHOLE}:
            _count(tallies.setdefault(Spot(record.model, replica, tick), Sums()), record)
    return tallies


def _count(sums: Sums, record: RequestRecord) -> None:
    for word in (record.decision, record.outcome):
        if word is not None:
            setattr(sums, word, getattr(sums, word) + 1)
    prompt, completion, first_byte_s = record.prompt_tokens, record.completion_tokens, record.first_byte_s
    if prompt is not None and prompt <= MOST_TOKENS:
        cached = min(record.cached_tokens or 0, prompt)
        sums.cached_tokens += cached
        sums.computed_tokens += prompt - cached
        sums.unknown_tokens += prompt if record.cached_tokens is None else 0
    if completion is not None and completion <= MOST_TOKENS:
        sums.completion_tokens += completion
    if first_byte_s is not None:
        sums.first_byte_sum_s += first_byte_s
        bucket = bucket_of(first_byte_s)
        sums.first_byte_counts[bucket] = sums.first_byte_counts.get(bucket, 0) + 1
