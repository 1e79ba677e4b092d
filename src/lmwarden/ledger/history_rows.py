"""What request rows add up to, counted by SQLite.

A busy host writes tens of thousands of rows between two writes of the history, and whoever draws a chart has to add
those that are not counted in yet. In Python that took longer than all the rest of the writer's work and held the
interpreter's lock, for which the data loop waits; one statement counts them while the loop runs on.
"""

from __future__ import annotations

import sqlite3

import msgspec

from lmwarden.ledger import histogram
from lmwarden.ledger.history_sums import MOST_TOKENS, TICK_S, WHOLE, Spot, Sums, Tallies, add
from lmwarden.types import Decision, Outcome

_REQUESTS = [f"sum(decision IS '{word}') AS {word}" for word in Decision]
_REQUESTS += [f"sum(outcome = '{word}') AS {word}" for word in Outcome]
_COUNTED = (
    "cached_tokens", "computed_tokens", "unknown_tokens", "completion_tokens", *Decision, *Outcome, "first_byte_sum_s",
)  # fmt: skip
_UNCOUNTED = f"""
WITH uncounted AS (
    SELECT model, coalesce(replica, '{WHOLE}') AS replica, CAST(finished_at AS INTEGER) / {TICK_S} * {TICK_S} AS t,
        CASE WHEN prompt_tokens <= {MOST_TOKENS} THEN prompt_tokens END AS prompt, cached_tokens AS told,
        CASE WHEN completion_tokens <= {MOST_TOKENS} THEN completion_tokens END AS completion,
        decision, outcome, first_byte_s, {histogram.bucket_sql("first_byte_s")} AS bucket
    FROM requests WHERE id > (SELECT row FROM history_upto)
), by_bucket AS (
    SELECT model, replica, t, bucket, count(*) AS requests,
        sum(min(coalesce(told, 0), prompt)) AS cached_tokens,
        sum(prompt - min(coalesce(told, 0), prompt)) AS computed_tokens,
        sum(CASE WHEN told IS NULL THEN prompt END) AS unknown_tokens,
        sum(completion) AS completion_tokens,
        {", ".join(_REQUESTS)},
        sum(first_byte_s) AS first_byte_sum_s
    FROM uncounted GROUP BY model, replica, t, bucket
)
SELECT model, replica, t, json_group_object(bucket, requests) FILTER (WHERE bucket IS NOT NULL),
    {", ".join(f"coalesce(sum({name}), 0)" for name in _COUNTED)}
FROM by_bucket GROUP BY model, replica, t
"""
"""What is not known counts nothing: an engine that did not tell what was cached, tokens that no engine can mean. What
is not known to be cached counts as computed."""
_counts = msgspec.json.Decoder(histogram.Counts)


def uncounted(connection: sqlite3.Connection) -> Tallies:
    """The sums of all rows behind ``history_upto``, for models and for where requests went.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    tallies: Tallies = {}
    for model, replica, t, counts, *values in connection.execute(_UNCOUNTED):
        sums = Sums(**dict(zip(_COUNTED, values, strict=True)), first_byte_counts=_counts.decode(counts))
        if replica != WHOLE:
            tallies[Spot(model, replica, t)] = sums
        add(tallies.setdefault(Spot(model, WHOLE, t), Sums()), sums)
    return tallies
