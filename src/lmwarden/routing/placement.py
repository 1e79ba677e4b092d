"""Placement: where a new conversation starts.

Least loaded by one sum; every term is in "requests":

    score(r) =   in_flight(r)                 ours, waiting ones included; requests that went to the
                                              engine without a rank count evenly for its ranks
               + warm(r)                      idle conversations homed there, each weighted by how likely
                                              it comes back soon (1 just after a tool call, 0.25 after
                                              another end, decaying with 10 s)
               + LIVE * live(r) / mean live   share of the live conversations
               + KV   * kv_used(r)            scraped, 0..1; only if fresh for all replicas, else left out for all
               + HELD * held(r)               context of in-flight and warm conversations over the replica's
                                              KV capacity; only where all replicas report a capacity
               + ramp(r)                      a replica that came back empty, for a minute

Ties: fewest live conversations, then least recently assigned; never the order of a list.

Worked example. Four replicas, no ramp, no KV capacity reported, KV use fresh, KV = LIVE = 0.5; live
conversations 6, 5, 5, 4, so their mean is 5:

    replica   in flight   warm   live         kv used    score
    e0/0          2        1.2   6 -> 0.60      0.56      4.08
    e0/1          3        0.1   5 -> 0.50      0.70      3.95
    e0/2          2        0.9   5 -> 0.50      0.50      3.65   <- the new conversation
    e0/3          3        0.4   4 -> 0.40      0.60      4.10

``e0/0`` has as few requests in flight, but more conversations that are about to send their next turn.

Where a conversation *resembles* one that is known (a fork of it, or a sibling subagent of the same parent), it
starts on that one's replica unless that replica is above the spill threshold, because the shared prefix is there.

``benchmarks/placement_weights.py`` compares weights (docs/measurements.md says what it shows, and what not). Scraped
KV use counts little, because it is a second old: with a weight of 8 it undoes what our own counts know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, overload

from lmwarden.routing.replicas import Fleet, Replica, Weights
from lmwarden.types import CandidateScore, ConversationKey

Scored: TypeAlias = tuple[float, int, float, int, float, int, float, float, Replica]
"""(score, live conversations, last assigned, in flight, KV used, open tokens, scaled warm and warm tokens, replica).

Compares by the tie rules; ``last assigned`` is never equal. A plain tuple of what stands in the replica, because a
decision over 64 replicas makes 64 of them."""


class Comparison(NamedTuple):
    """The candidates of one placement, as they were."""

    scored: Sequence[Scored]
    decay: float
    """Turns scaled warm sums into those of that moment."""
    mean_live: float
    weights: Weights
    kv_known: bool
    held_known: bool
    stalled: tuple[Replica, ...]
    """Ready replicas that make no progress: no candidates, unless there were no others."""

    @property
    def least(self) -> Replica:
        """The least loaded candidate; there is at least one."""
        return min(self.scored)[-1]

    def score_of(self, replica: Replica) -> float | None:
        """The score of a candidate, None if it was none."""
        return next((scored[0] for scored in self.scored if scored[-1] is replica), None)

    def frozen(self) -> tuple[CandidateScore, ...]:
        """The candidates as they appear in an explanation."""
        return tuple(self._frozen(scored) for scored in self.scored)

    def best(self, most: int) -> tuple[CandidateScore, ...]:
        """The ``most`` least loaded candidates, the chosen one first."""
        return tuple(self._frozen(scored) for scored in sorted(self.scored)[:most])

    def _frozen(self, scored: Scored) -> CandidateScore:
        score, conversations, _, in_flight, kv_used, open_tokens, warm_scaled, warm_tokens_scaled, replica = scored
        warm = self.decay * warm_scaled
        live_share = conversations / self.mean_live if self.mean_live else 0.0
        kv_used_ratio = held_ratio = None
        known = in_flight + self.weights.warm * warm + self.weights.live * live_share
        if self.kv_known:
            kv_used_ratio = kv_used
            known += self.weights.kv * kv_used_ratio
        if self.held_known:
            held_ratio = (open_tokens + self.decay * warm_tokens_scaled) / (replica.capacity.kv_cache_tokens or 1)
            known += self.weights.held * held_ratio
        return CandidateScore(
            replica=replica.id,
            score=score,
            in_flight=in_flight,
            warm=warm,
            conversations=conversations,
            live_share=live_share,
            kv_used_ratio=kv_used_ratio,
            held_ratio=held_ratio,
            other=score - known,
        )


class Nearest(Sequence[CandidateScore]):
    """The least loaded of a comparison, frozen when they are looked at first: when their row is written, in another
    thread. Freezing is dear beside the decision itself."""

    __slots__ = ("_compared", "_found", "_most")

    def __init__(self, compared: Comparison, most: int) -> None:
        self._compared = compared
        self._most = most
        self._found: tuple[CandidateScore, ...] | None = None

    @property
    def _all(self) -> tuple[CandidateScore, ...]:
        if self._found is None:
            self._found = self._compared.best(self._most)
        return self._found

    @overload
    def __getitem__(self, index: int) -> CandidateScore: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[CandidateScore]: ...

    def __getitem__(self, index: int | slice) -> CandidateScore | Sequence[CandidateScore]:
        return self._all[index]

    def __len__(self) -> int:
        return min(self._most, len(self._compared.scored))


def compare(candidates: Sequence[Replica], fleet: Fleet, now: float) -> Comparison:
    """Score every candidate (at least one); see the sum at the top of this module."""
    fleet.refresh(now)
    decay = fleet.decay(now)
    live = fleet.live_conversations
    mean_live = live / len(fleet.ready) if live else 0.0
    live_each = fleet.weights.live / mean_live if mean_live else 0.0
    # ``standing`` and ``decaying`` are kept up to date by the fleet: this runs over all replicas on the hot path.
    scored: list[Scored] = [
        (
            replica.in_flight + replica.standing + decay * replica.decaying + live_each * replica.conversations,
            replica.conversations,
            replica.last_assigned,
            replica.in_flight,
            replica.kv_used_ratio,
            replica.open_tokens,
            replica.warm_scaled,
            replica.warm_tokens_scaled,
            replica,
        )
        for replica in candidates
    ]
    if now < fleet.ramping_until:
        scored = _with_ramps(scored, now)
    return Comparison(scored, decay, mean_live, fleet.weights, fleet.kv_known, fleet.held_known, fleet.stalled(now))


def _with_ramps(scored: list[Scored], now: float) -> list[Scored]:
    """Count what the others hold on average for replicas that came back empty, at first all of it, then less and less.

    As it is now, because it changes within seconds while a ramp takes a minute. In flight is left out: it rises with
    each request that goes there, so it needs no ramp, and nobody shall wait beside an idle replica.
    """
    others = [score[0] - score[3] for score in scored if not score[-1].ramp_left(now)]
    if not others:
        return scored
    mean = sum(others) / len(others)
    return [(score[0] + mean * score[-1].ramp_left(now), *score[1:]) for score in scored]


def rendezvous(conversation: ConversationKey, candidates: Sequence[Replica]) -> Replica:
    """Highest-random-weight hash of the conversation over the candidates (placement ``hash``).

    blake2b, because CRC32 is no rendezvous score: it put three of three sessions on one replica.
    """
    return max(
        candidates,
        key=lambda replica: hashlib.blake2b(str(replica.id).encode(), key=conversation, digest_size=8).digest(),
    )
