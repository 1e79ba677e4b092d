"""The ledger's tables, and how records become rows and back.

``requests`` has one column per field of :class:`~lmwarden.types.RequestRecord`, by the same name, in the same order.
``homes`` has one row per conversation that is at home somewhere: its keyed hash, never an id or a text. ``settings``
has what an operator changed at run time, with what the configuration file said when he did. The tables of the history
are in history_tables.py.

The schema's number is SQLite's ``user_version``. A file of an earlier version is brought up to this one in one
transaction; a file with any other number is not touched.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from lmwarden.ledger import history_tables
from lmwarden.types import (
    CandidateScore,
    ConversationKey,
    Decision,
    Home,
    Outcome,
    PrefixChange,
    ReplicaId,
    RequestRecord,
)

SCHEMA_VERSION = 4
EARLIER_VERSIONS = (0, 1, 2, 3)
"""Those that are brought up: a new file, one without homes and settings, one without ``ADDED_COLUMNS``, and
one whose history lacks its ``ADDED_COLUMN``."""

FIELDS = RequestRecord.__struct_fields__

CREATE = (
    """
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY,
    finished_at REAL NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL, key_name TEXT,
    conversation TEXT, derived INTEGER NOT NULL, decision TEXT, replica TEXT, outcome TEXT NOT NULL,
    status INTEGER NOT NULL, streamed INTEGER NOT NULL, retried INTEGER NOT NULL, waited_s REAL NOT NULL,
    first_byte_s REAL, duration_s REAL NOT NULL, prompt_tokens INTEGER, cached_tokens INTEGER,
    completion_tokens INTEGER, finish_reason TEXT,
    conversation_key BLOB, parent BLOB, client TEXT, kind TEXT, body_bytes INTEGER NOT NULL DEFAULT 0,
    why TEXT, home TEXT, home_in_flight INTEGER, spill_threshold INTEGER, candidates TEXT,
    prefix_change TEXT, prefix_shared_ratio REAL, recomputed_tokens INTEGER
) STRICT
""",
    "CREATE INDEX IF NOT EXISTS requests_by_time ON requests (finished_at)",
    """
CREATE INDEX IF NOT EXISTS requests_by_conversation ON requests (conversation_key, kind)
    WHERE conversation_key IS NOT NULL
""",
    "CREATE INDEX IF NOT EXISTS requests_by_key ON requests (key_name, finished_at) WHERE key_name IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS requests_by_parent ON requests (parent, conversation_key) WHERE parent IS NOT NULL",
    """
CREATE TABLE IF NOT EXISTS homes (
    model TEXT NOT NULL, conversation BLOB NOT NULL, replica TEXT NOT NULL, boot_id TEXT NOT NULL,
    context_tokens INTEGER NOT NULL, last_used REAL NOT NULL,
    PRIMARY KEY (model, conversation)
) STRICT, WITHOUT ROWID
""",
    """
CREATE TABLE IF NOT EXISTS settings (
    model TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, configured TEXT NOT NULL,
    PRIMARY KEY (model, key)
) STRICT, WITHOUT ROWID
""",
    *history_tables.CREATE,
)

ADDED_COLUMNS = (
    "conversation_key BLOB", "parent BLOB", "client TEXT", "kind TEXT", "body_bytes INTEGER NOT NULL DEFAULT 0",
    "why TEXT", "home TEXT", "home_in_flight INTEGER", "spill_threshold INTEGER", "candidates TEXT",
    "prefix_change TEXT", "prefix_shared_ratio REAL", "recomputed_tokens INTEGER",
)  # fmt: skip
"""Of ``requests``, since version 3. Earlier rows have nothing there."""

MAX_TOKENS = 2**53
"""Counts beyond this are no counts; SQLite would refuse them from 2**63 on."""
MAX_REASON_CHARACTERS = 40
"""A longer finish_reason is no reason, and might be text."""

_COUNTS = tuple(
    FIELDS.index(name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "recomputed_tokens")
)
_FLAGS = tuple(FIELDS.index(name) for name in ("derived", "streamed", "retried"))
_WORDS = tuple(FIELDS.index(name) for name in ("decision", "outcome", "prefix_change"))
_REASON, _CANDIDATES = FIELDS.index("finish_reason"), FIELDS.index("candidates")
_candidates = msgspec.json.Decoder(tuple[CandidateScore, ...])

ROWS_AT_ONCE = (1, 16, 256)
"""Rows of one statement, as ``write_all`` cuts them. A statement gives up the interpreter's lock half a dozen times,
and a data loop that is busy gives it back after a whole switch interval: with one statement per row a warden at 2,200
requests/s wrote 900 rows (docs/measurements.md). With 256 the lock is held for about a millisecond."""

INSERT = f"INSERT INTO requests ({', '.join(FIELDS)}) SELECT * FROM ({{}}) LIMIT ?"
"""For ``write_all``, as are the other two that have such a place for rows."""
RECENT = f"SELECT {', '.join(FIELDS)} FROM requests ORDER BY id DESC LIMIT ?"
FORGET_OLD = (
    "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE finished_at < ? ORDER BY finished_at LIMIT ?)"
)
"""Of the rows before a moment, the oldest so many."""
FORGET_SURPLUS = (
    "DELETE FROM requests WHERE id IN (SELECT id FROM requests"
    " WHERE id <= (SELECT max(id) FROM requests) - ? ORDER BY id LIMIT ?)"
)
"""Of the rows beyond so many, the oldest so many."""

SAVE_HOME = "INSERT OR REPLACE INTO homes SELECT * FROM ({}) LIMIT ?"
FORGET_HOMES = "DELETE FROM homes WHERE model = ? AND conversation IN (SELECT * FROM ({}) LIMIT ?)"
FORGET_OLD_HOMES = "DELETE FROM homes WHERE last_used <= ?"
HOMES = (
    "SELECT conversation, replica, boot_id, context_tokens, last_used FROM homes"
    " WHERE model = ? AND last_used > ? ORDER BY last_used"
)

SAVE_SETTING = "INSERT OR REPLACE INTO settings VALUES (?, ?, ?, ?)"
FORGET_SETTING = "DELETE FROM settings WHERE model = ? AND key = ?"
SETTINGS = "SELECT key, value, configured FROM settings WHERE model = ?"

SettingValue: TypeAlias = bool | int | float | str | None


class LedgerError(Exception):
    """The ledger's file cannot be used. Says why, without the file's name and a full stop."""


def connect(path: str, *, timeout_s: float) -> sqlite3.Connection:
    """Open the file and make its tables.

    Raises:
        LedgerError: it was written by another version.
        sqlite3.Error: it cannot be opened, is locked, damaged, or no database.
    """
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    try:
        version = version_of(connection)
        if version not in (*EARLIER_VERSIONS, SCHEMA_VERSION):
            raise LedgerError(f"it has schema {version}, and this version of LM Warden writes {SCHEMA_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version != SCHEMA_VERSION:
            connection.execute("BEGIN IMMEDIATE")
            _bring_up(connection, version)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _bring_up(connection: sqlite3.Connection, version: int) -> None:
    """Make of the tables of an earlier version those of this one."""
    if version in (1, 2):
        for column in ADDED_COLUMNS:
            connection.execute(f"ALTER TABLE requests ADD COLUMN {column}")
    if version == 3:
        connection.execute(f"ALTER TABLE history ADD COLUMN {history_tables.ADDED_COLUMN}")
    for statement in CREATE:
        connection.execute(statement)


def is_sound(connection: sqlite3.Connection) -> bool:
    """Whether the whole file can be read and fits together; takes seconds for a large one.

    Raises:
        sqlite3.Error: it is too damaged to tell.
    """
    return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")


def version_of(connection: sqlite3.Connection) -> int:
    """The file's schema number; 0 for a new file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def write_all(
    connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]], *, of: tuple[Any, ...] = ()
) -> None:
    """Carry out a statement for all rows, many of them at a time.

    Args:
        connection: To the file.
        statement: One of those above.
        rows: Equally long.
        of: Values that the statement has before them.

    Raises:
        sqlite3.Error: the file does not take them.
    """
    for begin in range(0, len(rows), ROWS_AT_ONCE[-1]):
        some = rows[begin : begin + ROWS_AT_ONCE[-1]]
        columns, places = len(some[0]), next(number for number in ROWS_AT_ONCE if number >= len(some))
        unused = [None] * (columns * (places - len(some)))
        values = [*of, *chain.from_iterable(some), *unused, len(some)]
        connection.execute(_with_places(statement, columns, places), values)


@lru_cache(maxsize=32)
def _with_places(statement: str, columns: int, rows: int) -> str:
    return statement.format("VALUES " + ", ".join([f"({', '.join('?' * columns)})"] * rows))


def to_row(record: RequestRecord) -> tuple[Any, ...]:
    """A record's values in the order of the columns. What an engine said and no engine can mean becomes NULL.

    Only plain values: of each that is of a type derived from one, sqlite3 asks its adapters, which takes longer than
    the row.
    """
    values = list(msgspec.structs.astuple(record))
    for index in _COUNTS:
        if values[index] is not None:
            values[index] = _count(values[index])
    for index in _FLAGS:
        values[index] = int(values[index])
    for index in _WORDS:
        if values[index] is not None:
            values[index] = values[index]._value_  # ``value`` is a property that takes as long as all the rest
    reason = record.finish_reason
    if reason is not None and len(reason) > MAX_REASON_CHARACTERS:
        values[_REASON] = None
    if record.candidates is not None:
        values[_CANDIDATES] = msgspec.json.encode(tuple(record.candidates)).decode()
    return tuple(values)


def _count(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= MAX_TOKENS else None


def from_row(row: tuple[Any, ...]) -> RequestRecord:
    """The record of a row."""
    values = dict(zip(FIELDS, row, strict=True))
    for name in ("derived", "streamed", "retried"):
        values[name] = bool(values[name])
    values["decision"] = Decision(values["decision"]) if values["decision"] is not None else None
    values["outcome"] = Outcome(values["outcome"])
    if values["prefix_change"] is not None:
        values["prefix_change"] = PrefixChange(values["prefix_change"])
    if values["candidates"] is not None:
        values["candidates"] = candidates_of(values["candidates"])
    return RequestRecord(**values)


def candidates_of(text: str) -> tuple[CandidateScore, ...] | None:
    """What a decision compared, as its row has it; None if somebody wrote something else there."""
    try:
        return _candidates.decode(text)
    except msgspec.DecodeError:
        return None


def to_home_row(model: str, home: Home, wall_offset_s: float) -> tuple[Any, ...]:
    """A home's values in the order of the columns; ``wall_offset_s`` turns the router's clock into Unix time."""
    return (
        model,
        home.conversation,
        str(home.replica),
        home.boot_id,
        _count(home.context_tokens) or 0,
        home.last_used + wall_offset_s,
    )


def write_homes(
    connection: sqlite3.Connection, homes: Mapping[tuple[str, ConversationKey], tuple[Home, float] | None]
) -> None:
    """Write down what became of homes.

    Args:
        connection: To the file.
        homes: By model and conversation: the home and what turns its clock into Unix time; None: forgotten.

    Raises:
        sqlite3.Error: the file does not take them.
    """
    forgotten: dict[str, list[tuple[ConversationKey]]] = {}
    for (model, key), found in homes.items():
        if found is None:
            forgotten.setdefault(model, []).append((key,))
    for model, keys in forgotten.items():
        write_all(connection, FORGET_HOMES, keys, of=(model,))
    kept = [to_home_row(model, *found) for (model, _), found in homes.items() if found is not None]
    write_all(connection, SAVE_HOME, kept)


def from_home_rows(rows: Iterable[tuple[Any, ...]], wall_offset_s: float) -> list[Home]:
    """The homes of rows, on a clock that ``wall_offset_s`` turns into Unix time; a row that is none is left out."""
    replicas: dict[str, ReplicaId | None] = {}  # few, and there may be 200,000 homes before we can serve
    homes = []
    for conversation, replica, boot_id, context_tokens, last_used in rows:
        if replica not in replicas:
            replicas[replica] = _replica(replica)
        where = replicas[replica]
        if where is not None:
            homes.append(
                Home(
                    conversation=conversation,
                    replica=where,
                    boot_id=boot_id,
                    context_tokens=context_tokens,
                    last_used=last_used - wall_offset_s,
                )
            )
    return homes


def _replica(text: str) -> ReplicaId | None:
    try:
        return ReplicaId.parse(text)
    except ValueError:
        return None


def to_setting_row(model: str, key: str, value: SettingValue, configured: SettingValue) -> tuple[str, str, str, str]:
    """A changed setting's values in the order of the columns."""
    return (model, key, json.dumps(value), json.dumps(configured))


def write_settings(
    connection: sqlite3.Connection, changes: Mapping[tuple[str, str], tuple[SettingValue, SettingValue]]
) -> None:
    """Write down settings: by model and key the value and what the configuration file says. Where that is the same,
    what was written before is forgotten.

    Raises:
        sqlite3.Error: the file does not take them.
    """
    for key, values in changes.items():
        if values[0] == values[1]:
            connection.execute(FORGET_SETTING, key)
        else:
            connection.execute(SAVE_SETTING, to_setting_row(*key, *values))


def from_setting_rows(rows: Iterable[tuple[Any, ...]]) -> dict[str, tuple[SettingValue, SettingValue]]:
    """Key to value and what the configuration file said; a row that somebody wrote by hand and wrongly is left out."""
    found = {}
    for key, value, configured in rows:
        try:
            found[key] = (json.loads(value), json.loads(configured))
        except ValueError:
            continue
    return found
