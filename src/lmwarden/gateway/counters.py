"""Plain integers that the data loop counts up and the console's thread reads.

All tables have a fixed shape from the start, so a reader in another thread sees at worst numbers that are one
request apart, never a table that changes under it. Nothing here is labelled by anything a client sent.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from lmwarden.types import Decision, Outcome, Usage

TIME_TO_FIRST_BYTE_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 240.0)
"""Upper bounds of the histogram's buckets; a last one takes the rest. The measured range is 0.3 to 80 s."""

_OUTCOMES = {outcome: index for index, outcome in enumerate(Outcome)}
_DECISIONS: dict[Decision | None, int] = {None: 0} | {decision: index + 1 for index, decision in enumerate(Decision)}


class GatewaySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One model's counters at one moment, counted since the gateway's start."""

    requests: dict[tuple[Decision | None, Outcome], int]
    """By final decision (None: refused) and outcome; pairs that never happened are absent."""
    first_byte_counts: tuple[int, ...]
    """Per bucket of ``TIME_TO_FIRST_BYTE_BOUNDS_S`` and one more; not cumulative."""
    first_byte_sum_s: float
    prompt_tokens_cached: int
    prompt_tokens_computed: int
    """What the engine did not report as cached counts as computed."""
    completion_tokens: int
    usage_rows: int
    """Requests whose usage the engine reported."""
    open_exchanges: int
    """Requests taken and not ended."""
    buffered_bytes: int
    """Request bodies held, all models together."""
    client_connections: int
    """Open client connections, all models together."""
    wait_counts: tuple[int, ...] = (0,) * (len(TIME_TO_FIRST_BYTE_BOUNDS_S) + 1)
    """Waits in the waiting room, of requests that waited there; buckets as those of the first bytes."""
    wait_sum_s: float = 0.0
    identity_sent: int = 0
    """Generations asked for with a session id of the client's own."""
    identity_derived: int = 0
    """Those without one, whose conversation was recognised by its beginning."""
    identity_none: int = 0
    """Those of which no conversation was recognised."""
    prompt_tokens_unknown: int = 0
    """Of the computed ones those of prompts of which the engine did not tell; no share of ours counts them."""
    unread_prompts: int = 0
    """Requests of all models whose prompt was not looked at, because too much waited or it was too large."""


class ModelCounters:
    """One model's counters."""

    __slots__ = (
        "completion_tokens",
        "first_byte_counts",
        "first_byte_sum_s",
        "identity_derived",
        "identity_none",
        "identity_sent",
        "prompt_tokens_cached",
        "prompt_tokens_computed",
        "prompt_tokens_unknown",
        "requests",
        "usage_rows",
        "wait_counts",
        "wait_sum_s",
    )

    def __init__(self) -> None:
        self.requests = [[0] * len(_OUTCOMES) for _ in _DECISIONS]
        self.first_byte_counts = [0] * (len(TIME_TO_FIRST_BYTE_BOUNDS_S) + 1)
        self.first_byte_sum_s = 0.0
        self.wait_counts = [0] * (len(TIME_TO_FIRST_BYTE_BOUNDS_S) + 1)
        self.wait_sum_s = 0.0
        self.prompt_tokens_cached = 0
        self.prompt_tokens_computed = 0
        self.prompt_tokens_unknown = 0
        self.completion_tokens = 0
        self.usage_rows = 0
        self.identity_sent = 0
        self.identity_derived = 0
        self.identity_none = 0

    def identified(self, conversation: bytes | None, derived: bool) -> None:
        """Count one generation by how its conversation was recognised."""
        if derived:
            self.identity_derived += 1
        elif conversation is not None:
            self.identity_sent += 1
        else:
            self.identity_none += 1

    def waited(self, wait_s: float) -> None:
        """Count one request's time in the waiting room, at its end."""
        self.wait_counts[bisect_left(TIME_TO_FIRST_BYTE_BOUNDS_S, wait_s)] += 1
        self.wait_sum_s += wait_s

    def ended(
        self, decision: Decision | None, outcome: Outcome, first_byte_s: float | None, usage: Usage | None
    ) -> None:
        """Count one request that ended."""
        self.requests[_DECISIONS[decision]][_OUTCOMES[outcome]] += 1
        if first_byte_s is not None:
            self.first_byte_counts[bisect_left(TIME_TO_FIRST_BYTE_BOUNDS_S, first_byte_s)] += 1
            self.first_byte_sum_s += first_byte_s
        if usage is None:
            return
        prompt, cached = usage.prompt_tokens, usage.cached_tokens
        if prompt is not None:
            self.usage_rows += 1
            if cached is None:
                cached = 0
                self.prompt_tokens_unknown += prompt
            self.prompt_tokens_cached += cached
            self.prompt_tokens_computed += prompt - cached
        if usage.completion_tokens is not None:
            self.completion_tokens += usage.completion_tokens

    def snapshot(
        self, *, open_exchanges: int, buffered_bytes: int, client_connections: int, unread_prompts: int = 0
    ) -> GatewaySnapshot:
        """The counters, frozen. May be called from another thread."""
        requests = {
            (decision, outcome): count
            for decision, row in _DECISIONS.items()
            for outcome, column in _OUTCOMES.items()
            if (count := self.requests[row][column])
        }
        return GatewaySnapshot(
            requests=requests,
            first_byte_counts=tuple(self.first_byte_counts),
            first_byte_sum_s=self.first_byte_sum_s,
            wait_counts=tuple(self.wait_counts),
            wait_sum_s=self.wait_sum_s,
            prompt_tokens_cached=self.prompt_tokens_cached,
            prompt_tokens_computed=self.prompt_tokens_computed,
            prompt_tokens_unknown=self.prompt_tokens_unknown,
            completion_tokens=self.completion_tokens,
            usage_rows=self.usage_rows,
            open_exchanges=open_exchanges,
            buffered_bytes=buffered_bytes,
            client_connections=client_connections,
            identity_sent=self.identity_sent,
            identity_derived=self.identity_derived,
            identity_none=self.identity_none,
            unread_prompts=unread_prompts,
        )
