"""The ledger's tables, and how a record becomes a row and back.

One column per field of :class:`~lmwarden.types.RequestRecord`, by the same name, in the same order. The
schema's number is SQLite's ``user_version``; a file with another number is not touched.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from lmwarden.types import Decision, Outcome, RequestRecord

SCHEMA_VERSION = 1
FIELDS = RequestRecord.__struct_fields__

CREATE = """
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY,
    finished_at REAL NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL, key_name TEXT,
    conversation TEXT, derived INTEGER NOT NULL, decision TEXT, replica TEXT, outcome TEXT NOT NULL,
    status INTEGER NOT NULL, streamed INTEGER NOT NULL, retried INTEGER NOT NULL, waited_s REAL NOT NULL,
    first_byte_s REAL, duration_s REAL NOT NULL, prompt_tokens INTEGER, cached_tokens INTEGER,
    completion_tokens INTEGER, finish_reason TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS requests_by_time ON requests (finished_at);
"""
MAX_TOKENS = 2**53
"""Counts beyond this are no counts; SQLite would refuse them from 2**63 on."""
MAX_REASON_CHARACTERS = 40
"""A longer finish_reason is no reason, and might be text."""

INSERT = f"INSERT INTO requests ({', '.join(FIELDS)}) VALUES ({', '.join('?' * len(FIELDS))})"
RECENT = f"SELECT {', '.join(FIELDS)} FROM requests ORDER BY id DESC LIMIT ?"
FORGET_OLD = "DELETE FROM requests WHERE finished_at < ?"
FORGET_SURPLUS = "DELETE FROM requests WHERE id <= (SELECT max(id) FROM requests) - ?"


class LedgerError(Exception):
    """The ledger's file cannot be used. One line for a person."""


def connect(path: str, *, timeout_s: float) -> sqlite3.Connection:
    """Open the file and make its tables.

    Raises:
        LedgerError: it was written by another version.
        sqlite3.Error: it cannot be opened, is locked, or is no database.
    """
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version not in (0, SCHEMA_VERSION):
            raise LedgerError(f"{path}: has schema {version}, this version writes {SCHEMA_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(CREATE)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def to_row(record: RequestRecord) -> tuple[Any, ...]:
    """A record's values in the order of the columns. What an engine said and no engine can mean becomes NULL."""
    reason = record.finish_reason
    return msgspec.structs.astuple(
        msgspec.structs.replace(
            record,
            prompt_tokens=_count(record.prompt_tokens),
            cached_tokens=_count(record.cached_tokens),
            completion_tokens=_count(record.completion_tokens),
            finish_reason=reason if reason is not None and len(reason) <= MAX_REASON_CHARACTERS else None,
        )
    )


def _count(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= MAX_TOKENS else None


def from_row(row: tuple[Any, ...]) -> RequestRecord:
    """The record of a row."""
    values = dict(zip(FIELDS, row, strict=True))
    for name in ("derived", "streamed", "retried"):
        values[name] = bool(values[name])
    values["decision"] = Decision(values["decision"]) if values["decision"] is not None else None
    values["outcome"] = Outcome(values["outcome"])
    return RequestRecord(**values)
