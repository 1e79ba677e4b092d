"""Which program asks, and what kind of call it makes: for people who look at the console.

Both are words from fixed lists, found by the beginning of the User-Agent and by headers that name a class. Nothing that
a client sends is repeated, and no decision hangs on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from lmwarden.types import RoutingRequest

OTHER = "other"
_AGENTS = (
    (b"claude-cli/", "claude-code"),
    (b"claude-code/", "claude-code"),
    (b"codex", "codex"),
    (b"opencode/", "opencode"),
    (b"openai/", "openai"),
    (b"asyncopenai/", "openai"),
    (b"anthropic/", "anthropic"),
    (b"asyncanthropic/", "anthropic"),
    (b"curl/", "curl"),
)
_LOOKED_AT_BYTES = 16
"""Of a User-Agent; longer than any beginning above."""

MAIN = "main"
SUBAGENT = "subagent"
AUXILIARY = "auxiliary"
COMPACTION = "compaction"


def client_of(first: Mapping[bytes, bytes]) -> str | None:
    """The program by its headers: one of the words above, ``other``; None: it sent no User-Agent."""
    if b"x-opencode-session" in first:  # its User-Agent is that of the library it uses
        return "opencode"
    agent = first.get(b"user-agent")
    return None if agent is None else _by_agent(agent[:_LOOKED_AT_BYTES])


@lru_cache(maxsize=1024)
def _by_agent(begin: bytes) -> str:
    begin = begin.lower()
    return next((word for start, word in _AGENTS if begin.startswith(start)), OTHER)


def kind_of(routing: RoutingRequest, first: Mapping[bytes, bytes]) -> str | None:
    """What a generation is in its conversation; None: it belongs to none, or is no generation.

    Args:
        routing: what the router is told.
        first: header name to its first value.
    """
    if routing.conversation is None:
        return None
    if routing.auxiliary:
        return AUXILIARY
    if b"x-claude-code-compaction" in first or first.get(b"x-claude-code-request-class") == b"compaction":
        return COMPACTION
    return MAIN if routing.parent is None else SUBAGENT
