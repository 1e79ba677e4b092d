"""From records of turns to one row of results. The same arithmetic for wall time and virtual time.

A level is looked at through a *window*: what comes before it is warm-up. A request belongs to the window if
its wait for the first token (or its failure) ended inside it, or had not ended when the window closed.
Choosing by the end and not by the send keeps long waits in: a request that was sent during the warm-up and
never served counts. Rates count what *ended* in the window: sessions, and output tokens of finished
requests, by the engine's own usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lmwarden.bench.console import Admission
from lmwarden.bench.counters import EngineCounters
from lmwarden.bench.results import (
    Balancer,
    ClientCounters,
    LevelResult,
    Loop,
    SessionSeconds,
    TtfbSeconds,
    WaitSeconds,
    mean,
    quantile,
    stayed_ratio,
    sum_known,
)
from lmwarden.types import Decision


@dataclass(slots=True)
class TurnRecord:
    """One request as the client saw it. Times are (modelled) seconds on one monotonic clock."""

    session: int
    turn: int
    """0 for a conversation's first request."""
    sent_s: float
    first_token_s: float | None = None
    """First generated token in any channel; reasoning counts, a role-only chunk or a ping does not."""
    first_content_s: float | None = None
    """First token that is not reasoning."""
    ended_s: float | None = None
    """The answer's end or its failure; None: still open when the level ended."""
    agent: str | None = None
    """Of a subagent's request; None: the main agent's."""
    left: bool = False
    """The client left in the middle of the answer, as planned. No failure; its tokens and usage are unknown."""
    failed: bool = False
    error: str | None = None
    """Why it failed, for people: status or kind of break, never an answer's text."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    decision: str | None = None
    replica: str | None = None
    waited_s: float | None = None
    """In the warden's waiting room, by the warden's own word."""


@dataclass(slots=True)
class SessionRecord:
    """One session that ended with all of its turns."""

    index: int
    started_s: float
    ended_s: float


@dataclass(slots=True)
class LevelRecords:
    """Everything that one run of a level recorded."""

    turns: list[TurnRecord] = field(default_factory=list)
    sessions: list[SessionRecord] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    """One entry per poll inside the window: replicas with a request running."""
    rooms: list[Admission] = field(default_factory=list)
    """One entry per poll: the warden's waiting room."""
    engine_hit_ratio: float | None = None
    """Hits over queries from the difference of the engine's own counters over the window."""
    engine: EngineCounters | None = None
    """Growth of the engine's own counters over the window."""
    loop: Loop = "closed"
    open_at_start: int | None = None
    """Sessions that were going on when the window began; counted in the open loop."""
    open_at_end: int | None = None
    caches_emptied: bool | None = None
    """Before this run; None: it was not tried."""
    balancer: Balancer | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The measured span."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Length in (modelled) seconds."""
        return self.end_s - self.start_s

    def holds(self, moment_s: float | None) -> bool:
        """Whether a moment lies inside; the end belongs to the window."""
        return moment_s is not None and self.start_s <= moment_s <= self.end_s


def level_result(records: LevelRecords, window: Window, *, sessions: int, arm: str, seed: int) -> LevelResult:
    """Compute one row.

    Raises:
        ValueError: the window is empty.
    """
    if window.seconds <= 0:
        raise ValueError("the measured window is empty")
    turns = [turn for turn in records.turns if _belongs(turn, window)]
    unserved = [turn for turn in turns if _unserved(turn, window)]
    served = [turn for turn in turns if window.holds(turn.first_token_s)]
    ended = [turn for turn in records.turns if window.holds(turn.ended_s) and not turn.failed and not turn.left]
    ended_sessions = [session for session in records.sessions if window.holds(session.ended_s)]
    session_s = [session.ended_s - session.started_s for session in ended_sessions]
    decisions = _decisions(turns)
    waits = [turn.waited_s for turn in turns if turn.waited_s is not None]
    return LevelResult(
        sessions=sessions,
        arm=arm,
        seed=seed,
        seconds=round(window.seconds, 3),
        sessions_per_hour=len(ended_sessions) * 3600 / window.seconds,
        output_tokens_per_minute=_output_tokens_per_minute(ended, window),
        ttfb_s=_ttfb(served, unserved, window),
        session_s=SessionSeconds(p50=quantile(session_s, 0.5), p95=quantile(session_s, 0.95)),
        replicas_busy=mean(records.busy),
        prefix_hit_ratio=_prefix_hit_ratio(ended),
        prefix_hit_ratio_engine=records.engine_hit_ratio,
        stayed_ratio=stayed_ratio(decisions),
        requests=len(turns),
        failed=sum(turn.failed for turn in turns),
        unserved=len(unserved),
        balancer=records.balancer,
        decisions=decisions,
        waited_in_room=sum(wait > 0 for wait in waits) if waits else None,
        loop=records.loop,
        open_at_start=records.open_at_start,
        open_at_end=records.open_at_end,
        left=sum(turn.left and window.holds(turn.ended_s) for turn in records.turns),
        caches_emptied=records.caches_emptied,
        room_wait_s=_room_wait(waits),
        requests_by_replica=_by_replica(turns),
        client=_client_counters(ended),
        engine=records.engine,
    )


def _belongs(turn: TurnRecord, window: Window) -> bool:
    """Whether its wait ended in the window, or was still going on at its end."""
    wait_ended_s = turn.first_token_s if turn.first_token_s is not None else turn.ended_s
    return window.holds(wait_ended_s) or _unserved(turn, window)


def _unserved(turn: TurnRecord, window: Window) -> bool:
    if turn.sent_s > window.end_s:
        return False
    no_token_yet = turn.first_token_s is None or turn.first_token_s > window.end_s
    failed_before = turn.failed and turn.ended_s is not None and turn.ended_s <= window.end_s
    return no_token_yet and not failed_before


def _ttfb(served: Sequence[TurnRecord], unserved: Sequence[TurnRecord], window: Window) -> TtfbSeconds:
    waits = [(turn.turn, turn.first_token_s - turn.sent_s) for turn in served if turn.first_token_s is not None]
    every = [wait for _, wait in waits]
    waiting = [window.end_s - turn.sent_s for turn in unserved]
    return TtfbSeconds(
        p50=quantile(every, 0.5),
        p95=quantile(every, 0.95),
        p99=quantile(every, 0.99),
        max=max(every, default=None),
        mean=mean(every),
        first_turn_p95=quantile([wait for turn, wait in waits if turn == 0], 0.95),
        later_turn_p95=quantile([wait for turn, wait in waits if turn > 0], 0.95),
        first_turn_p50=quantile([wait for turn, wait in waits if turn == 0], 0.5),
        later_turn_p50=quantile([wait for turn, wait in waits if turn > 0], 0.5),
        p95_with_waiting=quantile(every + waiting, 0.95),
    )


def _output_tokens_per_minute(ended: Sequence[TurnRecord], window: Window) -> float | None:
    """None where an answer's usage was not reported: a sum with holes is not a measurement."""
    counts = [turn.output_tokens for turn in ended]
    if any(count is None for count in counts):
        return None
    return sum(count for count in counts if count is not None) * 60 / window.seconds


def _prefix_hit_ratio(ended: Iterable[TurnRecord]) -> float | None:
    """Cached over prompt tokens of the requests whose usage names both; None if none does."""
    prompt_tokens = cached_tokens = 0
    for turn in ended:
        if turn.prompt_tokens is not None and turn.cached_tokens is not None:
            prompt_tokens += turn.prompt_tokens
            cached_tokens += turn.cached_tokens
    return cached_tokens / prompt_tokens if prompt_tokens else None


def _room_wait(waits: Sequence[float]) -> WaitSeconds:
    """Of the requests that waited at all."""
    waited = [wait for wait in waits if wait > 0]
    return WaitSeconds(p50=quantile(waited, 0.5), p95=quantile(waited, 0.95), max=max(waited, default=None))


def _by_replica(turns: Sequence[TurnRecord]) -> dict[str, int] | None:
    """Requests by the replica that each answer's head named; None if none did.

    A head that names the engine alone, because its own balancer chose the rank, names no replica.
    """
    counts: dict[str, int] = {}
    for turn in turns:
        if turn.replica is not None and "/" in turn.replica:
            counts[turn.replica] = counts.get(turn.replica, 0) + 1
    return dict(sorted(counts.items())) or None


def _client_counters(ended: Sequence[TurnRecord]) -> ClientCounters:
    return ClientCounters(
        requests=len(ended),
        prompt_tokens=sum_known(turn.prompt_tokens for turn in ended),
        cached_tokens=sum_known(turn.cached_tokens for turn in ended),
        output_tokens=sum_known(turn.output_tokens for turn in ended),
    )


def _decisions(turns: Sequence[TurnRecord]) -> dict[str, int] | None:
    """Counts by the word in each answer's head; None if no answer named one."""
    named = [turn.decision for turn in turns if turn.decision is not None]
    if not named:
        return None
    counts = {decision.value: 0 for decision in Decision}
    for word in named:
        counts[word] = counts.get(word, 0) + 1
    return counts
