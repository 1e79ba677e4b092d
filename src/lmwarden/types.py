"""Frozen types that cross the rooms of the house.

Nothing here imports anything of ours. Vocabulary (see ``docs/decisions.md``):

* an **engine** is one vLLM server behind one URL; a **rank** is its data-parallel rank;
* a **replica** is (engine, rank): one full copy of the model with one prefix cache;
* a **conversation** is what shares a growing prefix; its **home** is the replica it is bound to.

All times are seconds on a monotonic clock that the caller passes in. With a simulated engine at
``--speed X`` that clock runs X times as fast as the wall clock (*modelled* time).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import msgspec

Clock: TypeAlias = Callable[[], float]
"""Returns monotonic seconds (modelled seconds under ``--speed``)."""

Ticket: TypeAlias = int
"""Names one offered request until it is finished, cancelled or refused."""

ConversationKey: TypeAlias = bytes
"""16-byte keyed hash of (model, API key, session id, agent id). Never the id itself."""


class ReplicaId(NamedTuple):
    """One full copy of the model: an engine and a data-parallel rank in it. Written ``e0/3``."""

    engine: str
    rank: int

    def __str__(self) -> str:
        return f"{self.engine}/{self.rank}"

    @classmethod
    def parse(cls, text: str) -> ReplicaId:
        """Parse ``engine/rank``.

        Raises:
            ValueError: the text has another form.
        """
        engine, slash, rank = text.rpartition("/")
        if not (slash and engine and rank.isascii() and rank.isdigit()):
            raise ValueError(f"not a replica: {text!r} (expected engine/rank, e.g. e0/1)")
        return cls(engine, int(rank))


class Decision(StrEnum):
    """Why a request went where it went. The same words stand in counters, headers, logs and the console."""

    PLACED = "placed"
    """A new conversation, on the least loaded replica."""
    STICKY = "sticky"
    """A later turn, on its home."""
    SPILLED = "spilled"
    """Its home was above the spill threshold."""
    CLIENT_PINNED = "client_pinned"
    """The client named the replica itself."""
    REHOMED = "rehomed"
    """Its home was lost (the replica, or what its cache held)."""
    BALANCED = "balanced"
    """No conversation recognised, or an auxiliary call: least loaded, nothing bound."""
    UNROUTED = "unrouted"
    """No rank chosen by us: affinity is off, or the endpoint ignores a rank."""

    __hash__ = str.__hash__  # Enum's is a Python function, and decisions are counted on the hot path


class Outcome(StrEnum):
    """How a dispatched request ended."""

    OK = "ok"
    """The engine answered completely with a status below 400."""
    CLIENT_ERROR = "client_error"
    """The engine answered completely with a 4xx."""
    FAILED = "failed"
    """The engine answered 5xx, broke off, or ended a stream with an error or an abort nobody asked for."""
    TIMEOUT = "timeout"
    """The engine stayed silent beyond the limit."""
    CANCELLED = "cancelled"
    """The client left before the end."""
    REFUSED = "refused"
    """Never dispatched: we answered 503/529 ourselves."""

    __hash__ = str.__hash__  # as Decision's


class RefuseReason(StrEnum):
    """Why the router will not dispatch a request."""

    NO_REPLICA = "no_replica"
    """No replica of the model is up."""
    PINNED_REPLICA_DOWN = "pinned_replica_down"
    """The replica that the client named is known and down."""
    RESPONSE_LOST = "response_lost"
    """The engine that keeps the response which the request continues is gone: a 404, not worth a retry."""
    RETRY_EXHAUSTED = "retry_exhausted"
    """It was sent twice already; no third time."""
    ROOM_FULL = "room_full"
    """The waiting room is at its bound."""


class ReplicaState(StrEnum):
    """Life of a replica as the router sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


class PinVerdict(StrEnum):
    """Whether an engine was seen to obey a rank that we named."""

    UNVERIFIED = "unverified"
    """Not tested yet, or the test could not tell (the engine was too busy, the endpoint is not there)."""
    VERIFIED = "verified"
    FAILED = "failed"
    """It served the request elsewhere: ranks are not named on that endpoint any more."""


class RoutingRequest(msgspec.Struct, frozen=True, gc=False):
    """A request as the router sees it: who is asking, and what is known of its size. No text."""

    conversation: ConversationKey | None = None
    """None: no conversation was recognised."""
    parent: ConversationKey | None = None
    """Of a subagent: the conversation that started it. Siblings share it."""
    derived: bool = False
    """The key is a fingerprint of the opening, not an id that the client sent."""
    opening: bytes | None = None
    """16-byte keyed hash of model, system, tools and first user message; finds forks and shared constants."""
    resumed: bool = False
    """It already carries an answer. The first request of an unknown id that does is a fork, or began elsewhere."""
    auxiliary: bool = False
    """A title call or the like: neither binds nor moves its conversation."""
    pin: ReplicaId | None = None
    """The replica that the client named, already validated against the model's replicas."""
    pinnable: bool = True
    """False where the engine ignores a rank (``/v1/responses``, ``count_tokens`` of a multi-rank engine)."""
    engine: str | None = None
    """Only this engine can serve it: it keeps the response that the request continues."""
    body_bytes: int = 0
    """Size of the request body, for estimates of its tokens."""
    max_output_tokens: int | None = None


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Action: send the request now."""

    ticket: Ticket
    replica: ReplicaId | None
    """None only for ``unrouted`` requests to a multi-rank engine: its own balancer chooses the rank."""
    engine: str
    decision: Decision


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Action: answer 503/529 (404 where a response is lost); the ticket is closed."""

    ticket: Ticket
    reason: RefuseReason
    retry_after_s: int
    """1 to 60 whole seconds."""


Action: TypeAlias = Dispatch | Refuse


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one finished request as the engine reported them. None: not reported, which is not 0."""

    prompt_tokens: int | None = None
    """The whole prompt, cached part included."""
    cached_tokens: int | None = None
    """The part of the prompt that came from the prefix cache."""
    completion_tokens: int | None = None
    finish_reason: str | None = None
    """The engine's own word: stop, length, tool_calls, tool_use, end_turn, max_tokens, abort, ..."""


TIER_RATIO = 1.2
"""A CPU tier keeps contexts if it is so many times as large."""


class ReplicaCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica can hold. None: the engine does not report it."""

    kv_cache_tokens: int | None = None
    """KV-cache capacity of this rank in tokens (vLLM's ``kv_cache_size_tokens``, which is per rank)."""
    max_num_seqs: int | None = None
    """Sequences that the scheduler runs at once."""
    cpu_cache_tokens: int | None = None
    """What its CPU tier (vLLM's ``--kv-offloading-size``) holds; None: none, or not known."""

    @property
    def tier_keeps_tokens(self) -> float:
        """Context that the CPU tier does not lose between turns; 0 where there is none."""
        return (self.cpu_cache_tokens or 0) / TIER_RATIO


class ReplicaSample(msgspec.Struct, frozen=True, kw_only=True):
    """One scrape of one rank's metrics. None: not reported."""

    taken_at: float
    """When the scrape was *sent* (seconds, the router's clock): its age counts from there."""
    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    """0..1; only blocks that a running request references (idle cached blocks count as free)."""
    prefix_cache_queries_tokens: int | None = None
    prefix_cache_hits_tokens: int | None = None
    prompt_tokens: int | None = None
    """Cumulative, as are the two above."""
    generation_tokens: int | None = None
    stalled: bool = False
    """Requests wait or run there, and no token moved for a while."""


MOST_WAIT_S = 270
"""Bound of ``max_wait_s``: Claude Code gives a request up that has no answer after 297 to 300 s, and an engine needs
time for the beginning of one."""


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may change at run time. Defaults are in ``defaults.toml`` with their reasons."""

    affinity: bool = True
    placement: str = "least-loaded"
    """``least-loaded`` or ``hash``."""
    spill_threshold: int | None = None
    """Requests in flight; None: a quarter of max_num_seqs, or 8 where that is unknown."""
    live_s: float = 1800.0
    """A conversation is live if it was used within this time."""
    max_conversations: int = 200_000
    """Bound of the conversation table; the least recently used idle one gives way."""
    admission: str = "off"
    """``auto``: beyond the caches' capacity conversations wait for a place (admission.py); ``off``: none does."""
    prefer: str = "balanced"
    """``balanced``, ``median`` or ``tail``: what the waiting room favours."""
    max_wait_s: float = 240.0
    """Hard bound in the waiting room: who reaches it goes home at once."""


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """Where one conversation is at home, as it survives a restart of the warden."""

    conversation: ConversationKey
    replica: ReplicaId
    boot_id: str
    """Run of the engine whose cache holds it."""
    context_tokens: int
    last_used: float
    """Seconds on the exporting router's clock."""


class HomeChanges(NamedTuple):
    """What became of homes since they were last asked for."""

    changed: list[Home]
    """New, moved or used again."""
    forgotten: list[ConversationKey]
    """Not known any more."""


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica at one moment, for console, metrics and tests."""

    replica: ReplicaId
    state: ReplicaState
    in_flight: int
    placed: int
    sticky: int
    spilled_in: int
    client_pinned: int
    rehomed_in: int
    balanced: int
    conversations: int
    """Live conversations homed here."""
    resident_tokens: int
    """Context that those conversations hold, by their last usage."""
    capacity: ReplicaCapacity
    sample: ReplicaSample | None
    suspect: bool
    """It failed or stayed silent a moment ago, or has work and makes no progress: no new conversations for a while."""
    unrouted_in_flight: int = 0
    """Requests that its *engine* has from us without a rank: some of them may run here."""
    residents: int | None = None
    """Conversations with a place in the waiting room's books; None: there is no room. 0 while it is open."""
    reserved_tokens: int | None = None
    """What those places hold beyond what all conversations share; None: there is no room."""


class RoomView(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting room at one moment."""

    engaged: bool
    """False: nobody is held."""
    waiting: int
    longest_wait_s: float | None
    """Of those who wait; None: nobody does."""
    residents: int
    """Conversations with a place."""
    reserved_tokens: int
    """What their places hold, beyond what all conversations share."""
    room_for: int | None
    """So many more conversations of the usual size fit; None: not known yet."""
    demand_ratio: float
    """Context of the conversations in use over what the replicas hold: their CPU tiers included where they are larger,
    unless the median is preferred."""
    why: str
    """One plain English sentence: why it is engaged, or not."""
    why_code: str = "open"
    """The same for machines: ``engaged``, or ``emptying`` (still engaged, but all fit again); or it is open because of
    ``no_capacity`` (engines report none), ``gaps`` (agents pause between their turns), ``kept`` (turns find their
    context), ``settling`` (not clear yet whether that lasts, or how they pause), or ``open``: all fit, or nearly."""
    gap_s: float | None = None
    """The pause between two turns of a conversation that a quarter of the pauses exceeds; None: too few were seen."""
    tier_tokens: int | None = None
    """What the ready replicas' CPU tiers hold together, where they hold more than the caches; None: none does."""


class RouterView(msgspec.Struct, frozen=True, kw_only=True):
    """The router at one moment. Counters count from the router's creation."""

    settings: RoutingSettings
    spill_threshold: int
    spill_threshold_source: str
    """``set``, ``auto`` (a quarter of max_num_seqs) or ``default`` (max_num_seqs unknown)."""
    in_flight: int
    """All of the model's requests, ``unrouted`` ones included."""
    waiting: int
    """Requests in the waiting room."""
    decisions: dict[Decision, int]
    """Final decision of every request that was dispatched, counted once each."""
    refused: int
    sticky_ratio: float | None
    """sticky / (sticky + spilled + rehomed); None at 0."""
    conversations: int
    """Known conversations, live or not."""
    replicas: tuple[ReplicaView, ...]
    balancer: str | None
    """With affinity off: ``engine`` (its own balancer) or ``emulated``; else None."""
    room: RoomView | None = None
    """None: admission is off, or affinity."""
    wait_expired: int = 0
    """Requests that went because they had waited for ``max_wait_s``, whatever was switched since."""


class ConversationView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One conversation that the router knows, at one moment."""

    key: ConversationKey
    parent: ConversationKey | None
    """Of a subagent; None also where that is not known since a restart of the warden. ``derived`` likewise."""
    derived: bool
    home: ReplicaId | None
    """None: its home's cache is lost, so its next turn gets another one."""
    turns: int
    """Since the router knows it."""
    context_tokens: int
    """Prompt and completion of its last finished turn; 0 before that."""
    in_flight: int
    live: bool
    """Used within ``live_s``."""
    last_used: float
    """Seconds on the router's clock."""


class CandidateScore(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as a placement saw it. ``score`` is the sum that placement.py defines, with its weights."""

    replica: ReplicaId
    score: float
    in_flight: int
    warm: float
    """Idle conversations, each weighted by how likely it comes back soon."""
    conversations: int
    """Live ones homed there."""
    live_share: float
    """Those over the mean of all ready replicas; 0 where nobody holds any."""
    kv_used_ratio: float | None
    """None: left out, because not every replica had a fresh scrape."""
    held_ratio: float | None
    """Context of open and warm conversations over the KV capacity; None: left out, a capacity is not known."""
    other: float
    """Requests of its engine that went without a rank, and the ramp of a replica that came back empty."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that one decision used."""

    ticket: Ticket
    decision: Decision | None
    """None: the request still waits."""
    replica: ReplicaId | None
    reason: str
    """One plain English sentence with the numbers in it."""
    home: ReplicaId | None
    home_in_flight: int | None
    """Before this request."""
    spill_threshold: int
    retried: bool
    candidates: tuple[CandidateScore, ...]
    """Empty where nothing was compared (sticky, a replica that the client named)."""


class Grounds(msgspec.Struct, frozen=True, gc=False):
    """What a decision was made on, without the sentence: cheap enough to keep for every request."""

    conversation: ConversationKey | None = None
    """As the router keeps it: an id that several clients send is one conversation per opening."""
    why: str | None = None
    """A name of ``routing.explain.Why`` in lower case; None, as all of it, of a request without a decision."""
    home: str | None = None
    """Before the decision: ``e0/1``."""
    home_in_flight: int | None = None
    """Before this request."""
    spill_threshold: int | None = None
    candidates: Sequence[CandidateScore] | None = None
    """The least loaded of those that were compared; None: nothing was, or no conversation's turn was decided."""


OUR_OWN_LACK = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL))
"""No connection for want of descriptors, memory or ports here: that says nothing about the engine."""


class EngineEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how to reach one engine."""

    engine: str
    """Short name, ``e0``."""
    host: str
    port: int
    base_path: str = ""
    """Prefix before ``/v1/...``, without a trailing slash."""
    tls: bool = False
    ranks: int = 1
    """Data-parallel ranks. Above 1 every routed request carries exactly one X-data-parallel-rank."""
    model: str
    """The name by which this engine serves the model."""
    api_key: str | None = None
    """Sent as a bearer token; a client's own credentials never are."""

    def __repr__(self) -> str:
        return f"EngineEndpoint({self.engine} {self.host}:{self.port}{self.base_path} ranks={self.ranks})"


class KeyIdentity(msgspec.Struct, frozen=True):
    """Who an API key belongs to."""

    name: str
    digest: bytes
    """Keyed hash of the key: part of the conversation key, so that two keys never share a conversation."""
    models: frozenset[str] | None = None
    """Names of the served models that it may use; None: all. An alias goes with its model."""


class PrefixChange(StrEnum):
    """What became of a conversation's prefix from one turn to the next."""

    FIRST = "first"
    """The conversation's first turn."""
    EXTENDS = "extends"
    """The previous prompt, and more: nothing is lost."""
    COMPACTION = "compaction"
    """The client replaced its history by a summary."""
    TOOLS_CHANGED = "tools_changed"
    SYSTEM_CHANGED = "system_changed"
    BILLING_LINE = "billing_line"
    """Only the line that the client puts before its system prompt changed, and the engine's cache missed."""
    TIMESTAMP = "timestamp"
    """The first part that differs does so in its digits alone."""
    SYSTEM_TURN_MOVED = "system_turn_moved"
    """A system turn within the history is elsewhere now, or is new and was moved to the front by the engine."""
    HISTORY_EDITED = "history_edited"
    """An earlier turn reads otherwise."""
    EVICTED = "evicted"
    """The prompt was repeated on the same replica, whose cache had lost it."""
    MOVED = "moved"
    """The prompt was repeated on another replica than the last turn."""
    ENGINE_RESTARTED = "engine_restarted"
    """The prompt was repeated after its engine had restarted with an empty cache."""

    __hash__ = str.__hash__  # as Decision's


class RequestRecord(msgspec.Struct, frozen=True, gc=False):
    """One finished request for the ledger. No text that a user typed, ever."""

    finished_at: float
    """Wall clock, Unix seconds."""
    model: str
    endpoint: str
    """``/v1/messages`` and so on: one of the paths we list."""
    key_name: str | None
    conversation: str | None
    """Short hash as shown to people (8 hex digits)."""
    derived: bool
    decision: Decision | None
    """None: refused."""
    replica: str | None
    outcome: Outcome
    status: int
    """HTTP status that the client saw, or 0 when it saw none."""
    streamed: bool
    retried: bool
    waited_s: float
    """In the waiting room."""
    first_byte_s: float | None
    """From the complete request to the engine's first response body byte."""
    duration_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    conversation_key: ConversationKey | None = None
    """The whole key, by which the conversation's rows are found."""
    parent: ConversationKey | None = None
    """Of a subagent: the conversation that started it."""
    client: str | None = None
    """Which program asked, by its User-Agent: one of the words in ``gateway/client_kind.py``. None: it named none."""
    kind: str | None = None
    """``main``, ``subagent``, ``auxiliary`` or ``compaction``. None: no generation, or no conversation recognised."""
    body_bytes: int = 0
    why: str | None = None
    """What tipped the decision: a name of ``routing.explain.Why`` in lower case."""
    home: str | None = None
    """The conversation's home before the decision."""
    home_in_flight: int | None = None
    """Requests in flight there, before this one."""
    spill_threshold: int | None = None
    """As it was then."""
    candidates: Sequence[CandidateScore] | None = None
    """Where replicas were compared for a conversation: the least loaded of them, as they stood."""
    prefix_change: PrefixChange | None = None
    """How the prompt relates to the conversation's previous one. None: not known."""
    prefix_shared_ratio: float | None = None
    """The share of the previous prompt's bytes that this one repeats from its start, 0 to 1."""
    recomputed_tokens: int | None = None
    """Tokens of the previous prompt that this turn had to read again although they had been read before."""
