"""How much each API key is used, from the request rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping

import msgspec

_SUMS = """
SELECT key_name, count(*), sum(prompt_tokens), sum(completion_tokens) FROM requests
WHERE key_name IS NOT NULL AND finished_at >= ? GROUP BY key_name
"""
_LAST = "SELECT max(finished_at) FROM requests WHERE key_name = ?"
_FIRST_REQUEST = "SELECT finished_at FROM requests WHERE model = ? AND finished_at > ? ORDER BY finished_at LIMIT 1"


class KeyUse(msgspec.Struct, frozen=True, kw_only=True):
    """One key."""

    requests: int = 0
    prompt_tokens: int = 0
    """What the engine did not report is not in it; neither is it in the other sum."""
    completion_tokens: int = 0
    last_used_at: float | None = None
    """Unix seconds; None: not within the rows that are kept."""


def key_use(names: Iterable[str], since: float) -> Callable[[sqlite3.Connection], Mapping[str, KeyUse]]:
    """A question for ``Reader.ask``: the use of these keys.

    Args:
        names: of the keys.
        since: Unix seconds; the sums begin there.
    """

    def question(connection: sqlite3.Connection) -> Mapping[str, KeyUse]:
        sums = {name: counts for name, *counts in connection.execute(_SUMS, (since,))}
        use = {}
        for name in names:
            requests, prompt_tokens, completion_tokens = sums.get(name, (0, 0, 0))
            use[name] = KeyUse(
                requests=requests,
                prompt_tokens=prompt_tokens or 0,
                completion_tokens=completion_tokens or 0,
                last_used_at=connection.execute(_LAST, (name,)).fetchone()[0],
            )
        return use

    return question


def first_request_after(model: str, since: float) -> Callable[[sqlite3.Connection], float | None]:
    """A question for ``Reader.ask``: when the first request of a model ended after a moment; None: none did."""

    def question(connection: sqlite3.Connection) -> float | None:
        row = connection.execute(_FIRST_REQUEST, (model, since)).fetchone()
        return None if row is None else float(row[0])

    return question
