"""What a soak's agents do, how often and when, and what they report."""

from __future__ import annotations

import msgspec

HOURS = (
    0.2,
    0.2,
    0.2,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.8,
    1.0,
    1.0,
    0.9,
    0.6,
    0.8,
    1.0,
    1.0,
    1.0,
    0.8,
    0.6,
    0.5,
    0.4,
    0.4,
    0.3,
    0.2,
)
"""Of each hour of the day, the share of the agents that work."""
RUSH_HOURS = range(9, 17)
"""The conversations of the model ``ranks`` do not fit its caches then: turns lose their context and take long."""
RUSH_LOST_RATIO = 0.7
"""Of its turns then."""
RUSH_PAUSE_MS = 40
"""To the first piece of an answer then, and between two. Were turns as short as in the other hours, places would stand
idle for most of the time, and the waiting room would rightly stay open."""
KINDS = {
    "turn": 780, "one-shot": 40, "anonymous": 20, "count": 30, "title": 20, "pin": 20,
    "leave": 15, "leave-midway": 15, "large": 4, "engine-error": 10,
    "no-key": 8, "wrong-key": 8, "no-model": 8, "no-json": 5, "bad-pin": 5, "listing": 7, "health": 5,
}  # fmt: skip
"""How often, of a thousand."""
ROUTED = frozenset(
    ("turn", "one-shot", "anonymous", "count", "title", "pin", "large", "engine-error", "leave", "leave-midway")
)
"""Those that a router gets to see, and that have a row in the ledger."""
EXPECTED = {"engine-error": 400, "no-key": 401, "wrong-key": 401, "no-model": 404, "no-json": 400, "bad-pin": 400}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to play."""

    port: int
    keys: tuple[str, ...]
    models: tuple[str, str]
    requests: int
    agents: int = 64
    seed: int = 1
    seconds: float | None = None
    """The day ends after so long, however many requests it had; None: after ``requests``."""


class Trouble(msgspec.Struct, frozen=True):
    """An answer that was not as expected, or none."""

    at: float
    """Monotonic seconds."""
    kind: str
    what: str


class Report(msgspec.Struct, kw_only=True):
    """What the agents saw."""

    ended: bool = True
    sent: int = 0
    routed: int = 0
    seconds: float = 0.0
    by_kind: dict[str, int] = {}
    statuses: dict[str, int] = {}
    conversations: int = 0
    connections: int = 0
    left: int = 0
    """Requests that their client gave up."""
    cut: int = 0
    """Connections that ended before the answer did."""
    failed: int = 0
    """Answers of 5xx."""
    wrong: int = 0
    """Whatever else was not as it should be. Nothing may be."""
    troubles: list[Trouble] = []
    """The first ones of the last three."""
