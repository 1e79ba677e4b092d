"""Request rows as somebody looks through them: the latest ones, filtered, in one of a few orders, page by page.

A page goes on where the one before ended: at the value of the order and, among equals, at the number of the row. So
rows that come meanwhile shift nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from lmwarden.ledger import schema
from lmwarden.types import RequestRecord

LOOKED_THROUGH = 10_000
"""So many of the latest rows are looked through: what is older is for SQLite's own shell."""


class RequestFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows. None: any."""

    model: str | None = None
    key_name: str | None = None
    outcome: str | None = None
    decision: str | None = None
    """``refused`` and ``left``: those without one, by whether we ended them or their client did."""
    replica: str | None = None
    client: str | None = None
    endpoint: str | None = None


class Mark(NamedTuple):
    """A place in an order."""

    value: float
    """Of the order: seconds or tokens; for ``newest`` the number itself."""
    number: int


class NumberedRecord(msgspec.Struct, frozen=True):
    """A row and its place; a later row has a higher number."""

    mark: Mark
    record: RequestRecord

    @property
    def number(self) -> int:
        """Of the row."""
        return self.mark.number


REFUSED = "refused"
LEFT = "left"
_UNDECIDED = {
    REFUSED: "decision IS NULL AND outcome != 'cancelled'",
    LEFT: "decision IS NULL AND outcome = 'cancelled'",
}
NEWEST = "newest"
ORDERS = {
    NEWEST: "id",
    # Of an answer in one piece the first byte is the last: no figure beside those of streams.
    "first_byte": "CASE WHEN streamed THEN first_byte_s END",
    "duration": "duration_s",
    "waited": "waited_s",
    "computed": "prompt_tokens - cached_tokens",
}
"""By name what stands first is large in. Rows in which that is not known are left out."""


def latest(
    wanted: RequestFilter, limit: int, before: Mark | None = None, order: str = NEWEST
) -> Callable[[sqlite3.Connection], list[NumberedRecord]]:
    """A question for ``Reader.ask``.

    Args:
        wanted: which rows.
        limit: at most so many.
        before: after the row of this mark, in the order; None: from the first.
        order: a name in ``ORDERS``.

    Returns:
        What carries it out; the newest row first, or the largest.
    """
    value = ORDERS[order]
    conditions = ["id > (SELECT max(id) FROM requests) - ?"]
    values: list[Any] = [LOOKED_THROUGH]
    if order != NEWEST:
        conditions.append(f"{value} IS NOT NULL")
    if before is not None:
        # One comparison for the numbers, so that SQLite finds the place by its key.
        conditions.append("id < ?" if order == NEWEST else f"({value}, id) < (?, ?)")
        values += (before.number,) if order == NEWEST else before
    for name in wanted.__struct_fields__:
        asked = getattr(wanted, name)
        if name == "decision" and asked in _UNDECIDED:
            conditions.append(_UNDECIDED[asked])
        elif asked is not None:
            conditions.append(f"{name} = ?")
            values.append(asked)
    query = (
        f"SELECT {value}, id, {', '.join(schema.FIELDS)} FROM requests WHERE {' AND '.join(conditions)}"
        f" ORDER BY {value} DESC, id DESC LIMIT ?"
    )

    def carry_out(connection: sqlite3.Connection) -> list[NumberedRecord]:
        rows = connection.execute(query, (*values, limit))
        return [NumberedRecord(Mark(place, number), schema.from_row(tuple(row))) for place, number, *row in rows]

    return carry_out
