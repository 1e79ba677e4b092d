"""The decision: which replica, and why. Reads the fleet and the conversation; changes nothing but its memory of kin.

First match:

1.  the client named a replica: obeyed, ``client_pinned``; binds nothing. Likewise where it named an engine by the
    response that it continues, which no other engine knows: its home if that is there, ``sticky``, else least loaded;
2.  affinity is off, or the endpoint ignores a rank and the model has a multi-rank engine: ``unrouted``;
3.  no conversation, or an auxiliary call: least loaded, ``balanced``; binds nothing;
4.  known, home alive, or restored and not heard of yet: ``sticky``, or ``spilled`` (spill.py);
5.  known, home lost or draining: placed anew, ``rehomed``; where its last turn went, if that is another replica and
    has room;
6.  unknown: ``placed`` (placement.py), beside its kin if there is room: a subagent where its last sibling started;
    a fork (its first request carries answers already) where the conversation with the same opening is at home. A new
    conversation that merely begins with the same words is no fork: a hundred of them would share one replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from lmwarden.routing.conversations import Conversation
from lmwarden.routing.engine_balancer import BalancerVersion, EngineBalancer, RankLoad
from lmwarden.routing.explain import Choice, Why
from lmwarden.routing.placement import compare, rendezvous
from lmwarden.routing.replicas import SAMPLE_FRESH_S, Engine, Fleet, Replica
from lmwarden.routing.spill import second_home, spill_target, stand_in
from lmwarden.types import (
    Decision,
    RefuseReason,
    ReplicaId,
    RoutingRequest,
    RoutingSettings,
)

_STICKY = Decision.STICKY  # a look-up in an Enum is slow in Python 3.11, and this is the usual decision

KNOWN_KIN = 32_768
"""Bound of each map that finds forks and siblings; ``max_conversations`` where that is less."""


class _Near(NamedTuple):
    replica: Replica
    epoch: int


class Kin:
    """Where conversations with a given opening, or children of a given parent, were homed last. Bounded."""

    def __init__(self) -> None:
        self.most = KNOWN_KIN
        """Entries of each map."""
        self._near: dict[Replica, _Near] = {}
        """One for all that are remembered to be there."""
        self._by_opening: OrderedDict[bytes, _Near] = OrderedDict()
        self._by_parent: OrderedDict[bytes, _Near] = OrderedDict()

    def remember(self, opening: bytes | None, parent: bytes | None, home: Replica) -> None:
        """A turn of a conversation with these goes to a conversation at home on ``home``."""
        near = self._near.get(home)
        if near is None or near.epoch != home.epoch:
            near = self._near[home] = _Near(home, home.epoch)
        for known, key in ((self._by_opening, opening), (self._by_parent, parent)):
            if key is not None:
                known[key] = near
                known.move_to_end(key)
                while len(known) > self.most:
                    known.popitem(last=False)

    def find(
        self, request: RoutingRequest, candidates: Sequence[Replica], threshold: int
    ) -> tuple[Replica, Why] | None:
        """The kin's replica and the kind of kin, unless that replica is above the threshold or its cache is gone."""
        for known, key, why in (
            (self._by_parent, request.parent, Why.SIBLING),
            (self._by_opening, request.opening if request.resumed else None, Why.FORK),
        ):
            near = known.get(key) if key is not None else None
            if near is None:
                continue
            replica = near.replica
            if replica.epoch == near.epoch and replica.in_flight <= threshold and replica in candidates:
                return replica, why
        return None


class Decider:
    """Decides for one model. The router owns it and keeps its settings and ``threshold`` up to date."""

    def __init__(self, settings: RoutingSettings, fleet: Fleet, threshold: int, balancer: BalancerVersion) -> None:
        self.threshold = threshold
        self.kin = Kin()
        self.configure(settings)
        self._fleet = fleet
        self._engine_balancer = EngineBalancer(balancer)
        self._has_ranks = any(engine.ranks > 1 for engine in fleet.engines.values())

    def configure(self, settings: RoutingSettings) -> None:
        """Decide by these settings."""
        self.settings = settings
        self.kin.most = min(KNOWN_KIN, settings.max_conversations)

    def decide(self, request: RoutingRequest, conversation: Conversation | None, now: float) -> Choice | RefuseReason:
        """Choose for a new request.

        Args:
            request: The request.
            conversation: Its conversation, if that is known.
            now: Seconds.
        """
        rank_ignored = self._has_ranks and not request.pinnable
        if request.pin is not None:
            return self._pinned(request.pin, rank_ignored)
        if request.engine is not None:
            return self._at_engine(request.engine, request, conversation, rank_ignored, now)
        if not self._fleet.ready:
            return RefuseReason.NO_REPLICA
        if not self.settings.affinity or rank_ignored:
            return self._unrouted(Why.RANK_IGNORED if self.settings.affinity else Why.AFFINITY_OFF, now)
        if request.conversation is None or request.auxiliary:
            return self._least_loaded(Decision.BALANCED, self._fleet.usable(now), now)
        if conversation is None or conversation.home is None:
            return self._place(request, Decision.PLACED, self._fleet.usable(now), None, now)
        home = conversation.home
        if home.epoch != conversation.epoch or not home.is_ready:
            return self._away_from_home(request, conversation, home, now)
        target, why, compared = spill_target(conversation, home, self.threshold, self._fleet, now)
        if target is None:
            return Choice(_STICKY, home.engine, home, self.threshold, why, home)
        return Choice(Decision.SPILLED, target.engine, target, self.threshold, why, home, compared)

    def decide_again(
        self, request: RoutingRequest, conversation: Conversation | None, failed: Choice, now: float
    ) -> Choice | RefuseReason:
        """After a failure: another engine if there is one and it may serve, else the same place once more.

        Args:
            request: The request.
            conversation: The conversation whose turn it is, if the failed choice binds.
            failed: The choice that failed.
            now: Seconds.
        """
        if request.pin is not None or request.engine is not None:
            there = failed.engine.replicas if failed.replica is None else (failed.replica,)
            if any(replica.up for replica in there):
                return failed
            return RefuseReason.RESPONSE_LOST if request.pin is None else RefuseReason.PINNED_REPLICA_DOWN
        if not self._fleet.ready:
            return RefuseReason.NO_REPLICA
        if failed.decision is Decision.UNROUTED:
            return self._unrouted(failed.why, now, besides=failed.engine)
        candidates = self._fleet.usable(now, besides=failed.engine)
        if candidates[0].engine is failed.engine and failed.replica in candidates:
            return failed
        if conversation is None:
            return self._least_loaded(failed.decision, candidates, now)
        home = conversation.home
        if failed.decision is Decision.SPILLED and home in candidates and conversation.has_home:
            assert home is not None
            return Choice(Decision.STICKY, home.engine, home, self.threshold, Why.NO_OTHER, home)
        decision = Decision.PLACED if failed.decision is Decision.PLACED else Decision.REHOMED
        return self._place(request, decision, candidates, failed.home, now)

    def _pinned(self, pin: ReplicaId, rank_ignored: bool) -> Choice | RefuseReason:
        replica = self._fleet.get(pin)
        if replica is None or not replica.up:
            return RefuseReason.PINNED_REPLICA_DOWN
        if rank_ignored and replica.engine.ranks > 1:
            return Choice(Decision.UNROUTED, replica.engine, None, self.threshold, Why.RANK_IGNORED)
        return Choice(Decision.CLIENT_PINNED, replica.engine, replica, self.threshold, Why.NAMED)

    def _at_engine(
        self, name: str, request: RoutingRequest, conversation: Conversation | None, rank_ignored: bool, now: float
    ) -> Choice | RefuseReason:
        """On an engine that alone can serve: also one that is being drained or is suspect."""
        engine = self._fleet.engines.get(name)
        up = () if engine is None else tuple(replica for replica in engine.replicas if replica.up)
        if engine is None or not up:
            return RefuseReason.RESPONSE_LOST
        affinity = self.settings.affinity
        if engine.ranks > 1 and (rank_ignored or not affinity):
            why = Why.RANK_IGNORED if affinity else Why.AFFINITY_OFF
            return Choice(Decision.UNROUTED, engine, None, self.threshold, why)
        if affinity and conversation is not None and not request.auxiliary:
            home = conversation.home
            if home in up and conversation.has_home:
                return Choice(_STICKY, engine, home, self.threshold, Why.RESPONSE, home)
        candidates = tuple(replica for replica in self._fleet.usable(now) if replica in up) or up
        compared = compare(candidates, self._fleet, now)
        return Choice(Decision.CLIENT_PINNED, engine, compared.least, self.threshold, Why.RESPONSE, compared=compared)

    def _away_from_home(self, request: RoutingRequest, conversation: Conversation, home: Replica, now: float) -> Choice:
        """Its home takes no turns: for once where that may end soon, else it gets another home."""
        others = self._fleet.usable(now)
        if now < home.awaited_until and not home.draining:
            target, compared = stand_in(conversation, home, self.threshold, others, self._fleet, now)
            return Choice(Decision.SPILLED, target.engine, target, self.threshold, Why.AWAITED, home, compared)
        if conversation.spilled and self.settings.placement != "hash":
            second = second_home(conversation, self.threshold, others)
            if second is not None:
                return Choice(Decision.REHOMED, second.engine, second, self.threshold, Why.LAST_TURN, home)
        return self._place(request, Decision.REHOMED, others, home, now)

    def _place(
        self,
        request: RoutingRequest,
        decision: Decision,
        candidates: Sequence[Replica],
        home: Replica | None,
        now: float,
    ) -> Choice:
        """A home for a conversation: beside its kin, by hash, or least loaded."""
        if self.settings.placement == "hash":
            assert request.conversation is not None
            found, why = rendezvous(request.conversation, candidates), Why.HASH
            if found.in_flight <= self.threshold:
                return Choice(decision, found.engine, found, self.threshold, why, home)
        else:
            near = self.kin.find(request, candidates, self.threshold)
            if near is not None:
                return Choice(decision, near[0].engine, near[0], self.threshold, near[1], home)
        return self._least_loaded(decision, candidates, now, home)

    def _least_loaded(
        self, decision: Decision, candidates: Sequence[Replica], now: float, home: Replica | None = None
    ) -> Choice:
        compared = compare(candidates, self._fleet, now)
        replica = compared.least
        return Choice(decision, replica.engine, replica, self.threshold, Why.LEAST_LOADED, home, compared)

    def _unrouted(self, why: Why, now: float, besides: Engine | None = None) -> Choice:
        """vLLM's own balancer decides; across engines one that imitates it, over all ranks as if of one server."""
        ranks = self._fleet.usable(now, besides)
        engine = ranks[0].engine
        if any(replica.engine is not engine for replica in ranks):
            engine = ranks[self._engine_balancer.choose([_load_of(replica, now) for replica in ranks])].engine
        replica = engine.replicas[0] if engine.ranks == 1 else None
        return Choice(Decision.UNROUTED, engine, replica, self.threshold, why)


def _load_of(replica: Replica, now: float) -> RankLoad:
    """A rank's load as vLLM's balancer would see it; of stale scrapes only our own count is left."""
    own = replica.in_flight + replica.engine.unrouted_in_flight // replica.engine.ranks
    sample = replica.sample
    if sample is None or now - sample.taken_at > SAMPLE_FRESH_S:
        return RankLoad(own, 0, 0, 0.0)
    return RankLoad(own, sample.running or 0, sample.waiting or 0, replica.kv_used_ratio)
