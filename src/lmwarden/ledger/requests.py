"""Request rows as somebody looks through them: the latest ones, newest first, filtered, page by page."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

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
    """``refused``: those without one."""
    replica: str | None = None


class NumberedRecord(msgspec.Struct, frozen=True):
    """A row and its number; a later row has a higher one."""

    number: int
    record: RequestRecord


REFUSED = "refused"


def latest(
    wanted: RequestFilter, limit: int, before: int | None = None
) -> Callable[[sqlite3.Connection], list[NumberedRecord]]:
    """A question for ``Reader.ask``.

    Args:
        wanted: which rows.
        limit: at most so many.
        before: below this number; None: from the newest.

    Returns:
        What carries it out; the newest row first.
    """
    conditions = ["id > (SELECT max(id) FROM requests) - ?"]
    values: list[Any] = [LOOKED_THROUGH]
    if before is not None:
        conditions.append("id < ?")
        values.append(before)
    for name in wanted.__struct_fields__:
        value = getattr(wanted, name)
        if name == "decision" and value == REFUSED:
            conditions.append("decision IS NULL")
        elif value is not None:
            conditions.append(f"{name} = ?")
            values.append(value)
    query = (
        f"SELECT id, {', '.join(schema.FIELDS)} FROM requests WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?"
    )

    def carry_out(connection: sqlite3.Connection) -> list[NumberedRecord]:
        rows = connection.execute(query, (*values, limit))
        return [NumberedRecord(number, schema.from_row(tuple(row))) for number, *row in rows]

    return carry_out
