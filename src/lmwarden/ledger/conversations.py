"""Conversations as the request rows tell of them: what one's turns were, who its children are, what prefixes cost.

All of these are questions for ``Reader.ask``. A *cause* names why tokens were read again although they had been read
before: a ``PrefixChange``, or where a turn had merely gone to another replica what sent it there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from lmwarden.ledger import schema
from lmwarden.types import ConversationKey, RequestRecord

T = TypeVar("T")
Question: TypeAlias = Callable[[sqlite3.Connection], T]

MOST_CHILDREN = 500

_OF_TURNS = "kind IS NOT 'auxiliary'"
_COLUMNS = (
    "model", "parent", "derived", "client", "kind",
    "prompt_tokens", "cached_tokens", "completion_tokens", "finished_at", "key_name",
)  # fmt: skip
_SUMMARY = (
    f"SELECT {', '.join(_COLUMNS)} FROM requests"
    f" WHERE id = (SELECT max(id) FROM requests WHERE conversation_key = ? AND {_OF_TURNS})"
)
_COUNT = f"SELECT count(*) FROM requests WHERE conversation_key = ? AND {_OF_TURNS}"
_TURNS = f"SELECT {', '.join(schema.FIELDS)} FROM requests WHERE conversation_key = ? ORDER BY id DESC LIMIT ?"
_CHILDREN = "SELECT DISTINCT conversation_key FROM requests WHERE parent = ? LIMIT ?"

_CAUSE = (
    "CASE WHEN prefix_change = 'moved' AND decision IN ('spilled', 'rehomed') THEN decision"
    " WHEN prefix_change IS NULL THEN CASE decision WHEN 'unrouted' THEN 'unrouted' ELSE 'other' END"
    " ELSE prefix_change END"
)
_SLACK_TOKENS = 64
"""Tokens that nothing lost: caches hold whole blocks, and templates write the end of a prompt in another way."""
_LOST = (
    f"recomputed_tokens > CASE WHEN prefix_change IS NULL THEN {_SLACK_TOKENS} ELSE 0 END"
    " AND prefix_change IS NOT 'extends'"
)
_COST = (
    f"SELECT {_CAUSE} AS cause, sum(recomputed_tokens) FROM requests WHERE conversation_key = ? AND {_LOST}"
    " GROUP BY cause"
)
_BREAKERS = (
    # Beside max() the bare columns are those of its row: SQLite's rule.
    f"SELECT {_CAUSE} AS cause, count(*), sum(recomputed_tokens), max(recomputed_tokens), conversation_key, client"
    f" FROM requests WHERE finished_at >= ? AND (model = ? OR ? IS NULL) AND {_LOST} GROUP BY cause, client"
)
_PROMPTS = "SELECT sum(prompt_tokens) FROM requests WHERE finished_at >= ? AND (model = ? OR ? IS NULL)"


class Summary(msgspec.Struct, frozen=True):
    """The last turn of a conversation, and how many there were."""

    model: str
    parent: ConversationKey | None
    derived: bool
    client: str | None
    kind: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    finished_at: float
    key_name: str | None
    turns: int


class Breaker(msgspec.Struct, frozen=True):
    """One cause and one client, over all conversations of a stretch of time."""

    cause: str
    turns: int
    recomputed_tokens: int
    example: ConversationKey | None
    """The conversation that it cost most in one turn."""
    client: str | None
    """None: it named none."""


class Breakers(msgspec.Struct, frozen=True):
    """All causes of all clients, the costliest first."""

    items: list[Breaker]
    prompt_tokens: int
    """Of all requests in that time."""


def summaries(keys: Sequence[ConversationKey]) -> Question[dict[ConversationKey, Summary]]:
    """Of those conversations that have a row."""

    def carry_out(connection: sqlite3.Connection) -> dict[ConversationKey, Summary]:
        found = {}
        for key in keys:
            row = connection.execute(_SUMMARY, (key,)).fetchone()
            if row is not None:
                (turns,) = connection.execute(_COUNT, (key,)).fetchone()
                found[key] = Summary(
                    **dict(zip(_COLUMNS, row, strict=True)) | {"derived": bool(row[2]), "turns": turns}
                )
        return found

    return carry_out


def turns(key: ConversationKey, limit: int) -> Question[list[RequestRecord]]:
    """The latest requests of a conversation, auxiliary ones included, the newest first."""

    def carry_out(connection: sqlite3.Connection) -> list[RequestRecord]:
        return [schema.from_row(row) for row in connection.execute(_TURNS, (key, limit))]

    return carry_out


def children(key: ConversationKey) -> Question[list[ConversationKey]]:
    """The subagents of a conversation, at most MOST_CHILDREN."""

    def carry_out(connection: sqlite3.Connection) -> list[ConversationKey]:
        return [child for (child,) in connection.execute(_CHILDREN, (key, MOST_CHILDREN)) if child is not None]

    return carry_out


def cost(key: ConversationKey) -> Question[dict[str, int]]:
    """By cause: the tokens that a conversation had to have read again."""

    def carry_out(connection: sqlite3.Connection) -> dict[str, int]:
        return dict(connection.execute(_COST, (key,)).fetchall())

    return carry_out


def breakers(since: float, model: str | None) -> Question[Breakers]:
    """By cause and client: what all conversations had to have read again.

    Args:
        since: Unix seconds.
        model: of which; None: of all.
    """

    def carry_out(connection: sqlite3.Connection) -> Breakers:
        items = [
            Breaker(cause, count, tokens, key, client)
            for cause, count, tokens, _, key, client in connection.execute(_BREAKERS, (since, model, model))
        ]
        items.sort(key=lambda item: -item.recomputed_tokens)
        (prompt_tokens,) = connection.execute(_PROMPTS, (since, model, model)).fetchone()
        return Breakers(items, prompt_tokens or 0)

    return carry_out
