"""The fleet: what the router knows of each replica, counted by itself.

In flight is ours alone: it goes up in the call that decides and down in the call that reports the end.
Scraped samples stand beside it and are used only while they are fresh for *every* ready replica,
so that one late scrape never makes a replica look idle.

Three measures of what a replica holds, all kept in O(1):

* ``conversations``: live ones homed here (used within ``live_s``);
* ``resident_tokens``: the context of those, by their last usage;
* ``open_tokens``: the context of those that have a request in flight, wherever it went;
* ``warm`` and ``warm_tokens``: conversations that are idle *right now* and their context, each weighted by how
  likely it comes back soon: 1 just after a turn that ended in a tool call, decaying with ``WARM_S``. All weights
  decay at the same rate, so a sum is kept as one number relative to a time that the fleet moves on now and then;
  one ``exp`` per decision turns all of them into the values of now.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lmwarden.types import Decision, ReplicaCapacity, ReplicaId, ReplicaSample, ReplicaState

WARM_S = 10.0
"""Decay time of an idle conversation's weight. 95 % of the gaps between an agent's requests are under 10 s."""

_REBASE_S = 7 * WARM_S
_TRACE = 0.001
"""What is left of a warm sum after that time, or by rounding, is dropped: it must not decide a tie."""

SAMPLE_FRESH_S = 5.0
"""A scrape older than this is ignored."""

RAMP_S = 60.0
"""How long a replica that returns empty looks busier than it is."""

AWAITED_S = 30.0
"""For so long after a restart of the warden a replica that conversations came from may stay unheard of: their turns go
elsewhere without moving them. An engine that outlived the warden answers sooner; one that starts anew is empty."""

SUSPECT_FIRST_S = 2.0
SUSPECT_MAX_S = 60.0
"""A replica that failed gets no new conversation for this long, doubling with each failure in a row."""

DEFAULT_SPILL_THRESHOLD = 8
"""Where max_num_seqs is unknown."""


class Weights(NamedTuple):
    """Weights of the placement sum (placement.py), in requests."""

    warm: float = 1.0
    live: float = 0.5
    kv: float = 0.5
    held: float = 1.0


DEFAULT_WEIGHTS = Weights()


class Engine:
    """One engine: its ranks share a process, a URL and a fate."""

    __slots__ = ("name", "ranks", "replicas", "runs", "unrouted_in_flight")

    def __init__(self, name: str, ranks: int) -> None:
        self.name = name
        self.ranks = ranks
        """Data-parallel ranks of the server."""
        self.replicas = tuple(Replica(ReplicaId(name, rank), self) for rank in range(ranks))
        self.runs = 0
        """Changes when it restarts: what an earlier run did says nothing about this one."""
        self.unrouted_in_flight = 0
        """Requests sent to it without a rank."""


class Replica:
    """One replica's counts. Only the router changes them."""

    __slots__ = (
        "awaited_until",
        "boot_id",
        "capacity",
        "conversations",
        "decaying",
        "decisions",
        "draining",
        "engine",
        "epoch",
        "failures",
        "id",
        "in_flight",
        "is_ready",
        "kv_fresh_until",
        "kv_used_ratio",
        "last_assigned",
        "name",
        "open_tokens",
        "ramp_due",
        "ramp_started",
        "resident_tokens",
        "sample",
        "stale",
        "stalled_until",
        "standing",
        "suspect_until",
        "up",
        "warm_scaled",
        "warm_tokens_scaled",
    )

    def __init__(self, replica: ReplicaId, engine: Engine) -> None:
        self.id = replica
        self.name = str(replica)
        self.engine = engine
        self.up: bool | None = None
        """Takes requests; None: was never up."""
        self.draining = False
        self.is_ready = False
        """Up and not draining: takes new conversations. ``Fleet.changed`` keeps it."""
        self.boot_id = ""
        """One run of the engine; another one means an empty cache. Empty: not known."""
        self.awaited_until = -math.inf
        """Homes were restored here, and until then it may come up as the run that held them."""
        self.epoch = 0
        """Counts the boot ids; a conversation remembers the one it was homed under."""
        self.capacity = ReplicaCapacity()
        self.sample: ReplicaSample | None = None
        self.kv_used_ratio = 0.0
        """Of ``sample``; 0 where not reported."""
        self.kv_fresh_until = -math.inf
        self.decisions = dict.fromkeys(Decision, 0)
        """How many of each decision chose this replica."""
        self.in_flight = 0
        """Requests sent here with our choice of rank and not finished."""
        self.conversations = 0
        """Live conversations homed here."""
        self.resident_tokens = 0
        """Context of those conversations, in tokens."""
        self.open_tokens = 0
        """Context of conversations homed here that have a request in flight, in tokens."""
        self.warm_scaled = 0.0
        self.warm_tokens_scaled = 0.0
        """Multiply by ``Fleet.decay(now)`` for the values of now."""
        self.last_assigned = 0.0
        """Sequence number of the last placement, for ties; before the first one a random number below 0."""
        self.suspect_until = -math.inf
        self.failures = 0
        """Failures in a row."""
        self.stalled_until = -math.inf
        """So long its last scrape, which saw work there and no progress, is believed."""
        self.stale = False
        """The next two must be derived anew."""
        self.standing = 0.0
        self.decaying = 0.0
        """Two parts of the placement sum that ``Fleet`` derives from the numbers above: one that stands, and one to
        multiply by ``Fleet.decay(now)``."""
        self.ramp_started = -math.inf
        """When it began to take requests after it came up empty."""
        self.ramp_due = False
        """It came up empty, and its ramp begins when it is ready."""

    @property
    def state(self) -> ReplicaState:
        """In a word."""
        if self.up:
            return ReplicaState.DRAINING if self.draining else ReplicaState.READY
        return ReplicaState.STARTING if self.up is None else ReplicaState.DOWN

    def is_suspect(self, now: float) -> bool:
        """Whether it failed or stayed silent a moment ago, or makes no progress."""
        return now < self.suspect_until or now < self.stalled_until

    def sampled(self, sample: ReplicaSample) -> None:
        """Take a scrape, unless a later one is known."""
        if self.sample is not None and sample.taken_at < self.sample.taken_at:
            return
        self.sample = sample
        kv_used = sample.kv_used_ratio
        known = kv_used is not None and 0.0 <= kv_used <= 1.0  # a NaN is neither
        self.kv_used_ratio = kv_used if known and kv_used is not None else 0.0
        self.kv_fresh_until = sample.taken_at + SAMPLE_FRESH_S if known else -math.inf
        self.stalled_until = sample.taken_at + SAMPLE_FRESH_S if sample.stalled else -math.inf

    def failed(self, now: float, *, certain: bool) -> None:
        """Note a failure. While it is suspect, more of them are one burst.

        Args:
            now: Seconds.
            certain: It could not be reached or stayed silent. Otherwise an answer went wrong, which may have been the
                request's own fault: that makes it suspect only from the second in a row on.
        """
        if now < self.suspect_until:
            return
        self.failures += 1
        steps = self.failures - 1 if certain else self.failures - 2
        if steps >= 0:
            self.suspect_until = now + min(SUSPECT_MAX_S, SUSPECT_FIRST_S * 2 ** min(steps, 10))

    def succeeded(self) -> None:
        """Note that it answered well."""
        if self.failures:
            self.failures = 0
            self.suspect_until = -math.inf

    def ramp_left(self, now: float) -> float:
        """How much of its ramp is still before it: 1 when it begins, 0 after RAMP_S."""
        return max(0.0, 1.0 - (now - self.ramp_started) / RAMP_S)


class Fleet:
    """All replicas of one model."""

    def __init__(self, engines: Mapping[str, int], seed: int, weights: Weights = DEFAULT_WEIGHTS) -> None:
        """Args:
        engines: Name to number of ranks.
        seed: Of the order in which untouched replicas are tried.
        weights: Of the placement sum.
        """
        self.weights = weights
        self.engines = {name: Engine(name, ranks) for name, ranks in engines.items()}
        self._replicas = {replica.id: replica for engine in self.engines.values() for replica in engine.replicas}
        self.ready: tuple[Replica, ...] = ()
        """Replicas in state ``ready``, in the order of their ids; replaced whole when one changes."""
        self.kv_known = False
        """Whether every ready replica has a fresh scrape with its KV use; else it is left out for all."""
        self.held_known = False
        """Whether every replica reports its KV capacity; else held context is left out for all."""
        self.live_conversations = 0
        self.ramping_until = -math.inf
        """Until then some replica may be on its ramp."""
        """Live ones homed on ready replicas."""
        self._stale: list[Replica] = []
        self._assignments = 0
        self._decay_from = 0.0
        self._suspect_until = -math.inf
        """Until then at the latest one of them is suspect, for whatever reason."""
        self._refresh_at = -math.inf
        """When the derived parts of the placement sum must be derived anew."""
        order = random.Random(seed)
        for replica in self:
            replica.last_assigned = -order.random()

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __getitem__(self, replica: ReplicaId) -> Replica:
        """The replica.

        Raises:
            KeyError: the model has no such replica.
        """
        return self._replicas[replica]

    def get(self, replica: ReplicaId) -> Replica | None:
        """The replica, or None."""
        return self._replicas.get(replica)

    def changed(self) -> None:
        """A replica's state or capacity changed."""
        for replica in self:
            replica.is_ready = replica.up is True and not replica.draining
        self.ready = tuple(replica for replica in self if replica.is_ready)
        self.live_conversations = sum(replica.conversations for replica in self.ready)
        self._refresh_at = -math.inf

    def sampled(self, replica: Replica, sample: ReplicaSample, now: float) -> None:
        """A new scrape arrived."""
        replica.sampled(sample)
        self._suspect_until = max(self._suspect_until, replica.stalled_until)
        if self.kv_known and replica.kv_fresh_until >= now:
            self._outdate(replica)
        else:
            self._refresh_at = -math.inf

    def unrouted(self, engine: Engine, change: int) -> None:
        """Requests without a rank went to an engine, or ended there; they count evenly for its replicas."""
        engine.unrouted_in_flight += change
        for replica in engine.replicas:
            self._outdate(replica)

    def _outdate(self, replica: Replica) -> None:
        # Deriving waits until replicas are compared: most turns are sticky and compare none.
        if not replica.stale:
            replica.stale = True
            self._stale.append(replica)

    def refresh(self, now: float) -> None:
        """Bring ``standing`` and ``decaying`` of all replicas up to date, before they are compared."""
        if now < self._refresh_at:
            for replica in self._stale:
                self._derive(replica)
            self._stale.clear()
            return
        self._stale.clear()
        self.held_known = all(replica.capacity.kv_cache_tokens for replica in self)
        fresh_until = min((replica.kv_fresh_until for replica in self.ready), default=-math.inf)
        self.kv_known = now <= fresh_until
        self._refresh_at = math.nextafter(fresh_until, math.inf) if self.kv_known else math.inf
        for replica in self:
            self._derive(replica)

    def _derive(self, replica: Replica) -> None:
        weights, engine, capacity = self.weights, replica.engine, replica.capacity.kv_cache_tokens
        held = weights.held / capacity if self.held_known and capacity else 0.0
        kv_used = weights.kv * replica.kv_used_ratio if self.kv_known else 0.0
        unrouted = engine.unrouted_in_flight / engine.ranks
        replica.standing = kv_used + held * replica.open_tokens + unrouted
        replica.decaying = weights.warm * replica.warm_scaled + held * replica.warm_tokens_scaled
        replica.stale = False

    def assigned(self, replica: Replica) -> None:
        """Note a placement there, for breaking ties."""
        self._assignments += 1
        replica.last_assigned = self._assignments

    def usable(self, now: float, besides: Engine | None = None) -> tuple[Replica, ...]:
        """Ready replicas that nothing speaks against; if that leaves none, all ready ones (we still try).

        Args:
            now: Seconds.
            besides: An engine to leave out, unless nothing else is ready.
        """
        ready = self.ready
        if besides is not None:
            ready = tuple(replica for replica in ready if replica.engine is not besides) or ready
        if now < self._suspect_until:
            return tuple(replica for replica in ready if not replica.is_suspect(now)) or ready
        return ready

    def stalled(self, now: float) -> tuple[Replica, ...]:
        """Ready replicas that make no progress."""
        if now < self._suspect_until:
            return tuple(replica for replica in self.ready if now < replica.stalled_until)
        return ()

    def begin_ramp(self, replica: Replica, now: float) -> None:
        """It takes requests, with an empty cache: it is filled gradually, unless all are empty."""
        replica.ramp_due = False
        if self.live_conversations:
            replica.ramp_started = now
            self.ramping_until = now + RAMP_S

    def cache_lost(self, replica: Replica) -> None:
        """Its cache is empty: no conversation is at home there any more."""
        replica.epoch += 1
        replica.engine.runs += 1
        replica.conversations = 0
        replica.resident_tokens = 0
        replica.open_tokens = 0
        replica.warm_scaled = 0.0
        replica.warm_tokens_scaled = 0.0
        self.changed()

    def failed(self, replica: Replica, now: float, *, certain: bool) -> None:
        """Note a failure there (see ``Replica.failed``)."""
        replica.failed(now, certain=certain)
        self._suspect_until = max(self._suspect_until, replica.suspect_until)

    def decay(self, now: float) -> float:
        """Factor from the replicas' ``warm_scaled`` sums to the values of ``now``."""
        if now - self._decay_from > _REBASE_S:
            self._rebase(now)
        return math.exp((self._decay_from - now) / WARM_S)

    def _rebase(self, now: float) -> None:
        """Move the sums' reference time, well before they overflow."""
        factor = math.exp((self._decay_from - now) / WARM_S)
        self._decay_from = now
        for replica in self:
            replica.warm_scaled *= factor
            replica.warm_tokens_scaled *= factor
            if replica.warm_scaled < _TRACE:
                replica.warm_scaled = replica.warm_tokens_scaled = 0.0
            self._outdate(replica)

    def hold(self, replica: Replica, sign: int, tokens: int) -> None:
        """A live conversation of ``tokens`` context is (+1), or is no longer (-1), at home on ``replica``."""
        if replica.is_ready:
            self.live_conversations += sign
        replica.conversations += sign
        replica.resident_tokens += sign * tokens

    def hold_open(self, replica: Replica, tokens: int) -> None:
        """Add (negative: take away) the context of one that has a request in flight."""
        replica.open_tokens += tokens
        self._outdate(replica)

    def hold_idle(
        self, replica: Replica, weight: float, tokens: float, idle_since: float, opened_tokens: int = 0
    ) -> None:
        """Add (negative: take away) one that is idle since ``idle_since``, with its weight and weighted context.

        Args:
            opened_tokens: its context if it is taken away because a turn begins, less that if one ended.
        """
        age_s = idle_since - self._decay_from
        if age_s > _REBASE_S:
            self._rebase(idle_since)
            age_s = 0.0
        scale = math.exp(age_s / WARM_S)
        warm, warm_tokens = replica.warm_scaled + weight * scale, replica.warm_tokens_scaled + tokens * scale
        # Rounding may leave a trace below 0 when the last one goes.
        replica.warm_scaled = warm if warm > 0.0 else 0.0
        replica.warm_tokens_scaled = warm_tokens if warm_tokens > 0.0 else 0.0
        replica.open_tokens += opened_tokens
        if not replica.stale:
            self._outdate(replica)

    def spill_threshold(self, setting: int | None) -> tuple[int, str]:
        """The threshold in requests in flight, and where it comes from: set, auto or default."""
        if setting is not None:
            return setting, "set"
        known = [seqs for seqs in (replica.capacity.max_num_seqs for replica in self) if seqs is not None]
        if known:
            return max(1, min(known) // 4), "auto"
        return DEFAULT_SPILL_THRESHOLD, "default"
