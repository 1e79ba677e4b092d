"""The decision: which replica, and why. Reads the fleet and the conversation; changes nothing but its memory of kin.

First match:

1.  the client named a replica: obeyed, ``client_pinned``; binds nothing;
2.  affinity is off, or the endpoint ignores a rank and the model has a multi-rank engine: ``unrouted``;
3.  no conversation, or an auxiliary call: least loaded, ``balanced``; binds nothing;
4.  known, home alive: ``sticky``, or ``spilled`` (spill.py);
5.  known, home lost or draining: placed anew, ``rehomed``;
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
from lmwarden.routing.explain import Choice
from lmwarden.routing.placement import compare, rendezvous
from lmwarden.routing.replicas import Engine, Fleet, Replica
from lmwarden.routing.spill import spill_target
from lmwarden.types import (
    Decision,
    RefuseReason,
    ReplicaId,
    ReplicaState,
    RoutingRequest,
    RoutingSettings,
)

KNOWN_KIN = 32_768
"""Bound of each map that finds forks and siblings."""


class _Near(NamedTuple):
    replica: Replica
    epoch: int


class Kin:
    """Where conversations with a given opening, or children of a given parent, were homed last. Bounded."""

    def __init__(self) -> None:
        self._by_opening: OrderedDict[bytes, _Near] = OrderedDict()
        self._by_parent: OrderedDict[bytes, _Near] = OrderedDict()

    def remember(self, opening: bytes | None, parent: bytes | None, home: Replica) -> None:
        """A turn of a conversation with these goes to a conversation at home on ``home``."""
        near = _Near(home, home.epoch)
        for known, key in ((self._by_opening, opening), (self._by_parent, parent)):
            if key is not None:
                known[key] = near
                known.move_to_end(key)
                if len(known) > KNOWN_KIN:
                    known.popitem(last=False)

    def find(
        self, request: RoutingRequest, candidates: Sequence[Replica], threshold: int
    ) -> tuple[Replica, str] | None:
        """The kin's replica and the kind of kin, unless that replica is above the threshold or its cache is gone."""
        for known, key, kind in (
            (self._by_parent, request.parent, "sibling"),
            (self._by_opening, request.opening if request.resumed else None, "fork"),
        ):
            near = known.get(key) if key is not None else None
            if near is None:
                continue
            replica = near.replica
            if replica.epoch == near.epoch and replica.in_flight <= threshold and replica in candidates:
                return replica, kind
        return None


class Decider:
    """Decides for one model. The router owns it and keeps ``settings`` and ``threshold`` up to date."""

    def __init__(self, settings: RoutingSettings, fleet: Fleet, threshold: int, balancer: BalancerVersion) -> None:
        self.settings = settings
        self.threshold = threshold
        self.kin = Kin()
        self._fleet = fleet
        self._engine_balancer = EngineBalancer(balancer)
        self._has_ranks = any(engine.ranks > 1 for engine in fleet.engines.values())

    def decide(self, request: RoutingRequest, conversation: Conversation | None, now: float) -> Choice | RefuseReason:
        if request.pin is not None:
            pinned = self._fleet.get(request.pin)
            if pinned is None or pinned.state not in (ReplicaState.READY, ReplicaState.DRAINING):
                return RefuseReason.PINNED_REPLICA_DOWN
            return Choice(Decision.CLIENT_PINNED, pinned.engine, pinned, self.threshold)
        if not self._fleet.ready:
            return RefuseReason.NO_REPLICA
        if not self.settings.affinity or (self._has_ranks and not request.pinnable):
            return self._unrouted(now)
        if request.conversation is None or request.auxiliary:
            compared = compare(self._fleet.usable(now), self._fleet, now)
            replica = compared.least
            return Choice(Decision.BALANCED, replica.engine, replica, self.threshold, compared=compared)
        if conversation is not None and conversation.home is not None:
            home = conversation.home
            if conversation.has_home and home.is_ready:
                return self._sticky_or_spilled(conversation, home, now)
            return self._place(request, now, Decision.REHOMED, home)
        return self._place(request, now, Decision.PLACED, None)

    def _sticky_or_spilled(self, conversation: Conversation, home: Replica, now: float) -> Choice:
        in_flight = home.in_flight
        target, compared = spill_target(conversation, home, self.threshold, self._fleet, now)
        if target is None:
            return Choice(Decision.STICKY, home.engine, home, self.threshold, home, in_flight)
        return Choice(Decision.SPILLED, target.engine, target, self.threshold, home, in_flight, compared)

    def _place(
        self,
        request: RoutingRequest,
        now: float,
        decision: Decision,
        home: Replica | None,
        besides: Engine | None = None,
    ) -> Choice:
        candidates = self._fleet.usable(now, besides)
        home_in_flight = None if home is None else home.in_flight
        if self.settings.placement == "hash":
            assert request.conversation is not None
            replica = rendezvous(request.conversation, candidates)
            if replica.in_flight <= self.threshold:
                return Choice(decision, replica.engine, replica, self.threshold, home, home_in_flight, hashed=True)
        else:
            near = self.kin.find(request, candidates, self.threshold)
            if near is not None:
                return Choice(decision, near[0].engine, near[0], self.threshold, home, home_in_flight, near=near[1])
        compared = compare(candidates, self._fleet, now)
        replica = compared.least
        return Choice(decision, replica.engine, replica, self.threshold, home, home_in_flight, compared)

    def _unrouted(self, now: float) -> Choice:
        """Affinity off: vLLM's balancer decides, or across engines one that imitates it."""
        usable = self._fleet.usable(now)
        engines = list({replica.engine.name: replica.engine for replica in usable}.values())
        engine = engines[0]
        if len(engines) > 1:
            engine = engines[self._engine_balancer.choose([self._load_of(engine) for engine in engines])]
        replica = self._fleet[ReplicaId(engine.name, 0)] if engine.ranks == 1 else None
        return Choice(Decision.UNROUTED, engine, replica, self.threshold)

    def _load_of(self, engine: Engine) -> RankLoad:
        replicas = [replica for replica in self._fleet if replica.engine is engine]
        samples = [replica.sample for replica in replicas if replica.sample is not None]
        return RankLoad(
            own_in_flight=engine.unrouted_in_flight + sum(replica.in_flight for replica in replicas),
            running=sum(sample.running or 0 for sample in samples),
            waiting=sum(sample.waiting or 0 for sample in samples),
            kv_used_ratio=max((sample.kv_used_ratio or 0.0 for sample in samples), default=0.0),
        )

    def decide_again(
        self, request: RoutingRequest, conversation: Conversation | None, failed: Choice, now: float
    ) -> Choice:
        """After a failure: another engine, if there is one; else the same place once more.

        Args:
            request: The request.
            conversation: The conversation that the failed choice bound or found, if any.
            failed: The choice that failed.
            now: Seconds.
        """
        if failed.decision is Decision.CLIENT_PINNED:
            return failed
        others = self._fleet.usable(now, besides=failed.engine)
        if not others or others[0].engine is failed.engine:
            return failed
        if failed.decision is Decision.UNROUTED:
            return self._unrouted(now)
        if conversation is None:
            compared = compare(others, self._fleet, now)
            replica = compared.least
            return Choice(failed.decision, replica.engine, replica, self.threshold, compared=compared)
        if failed.decision is Decision.SPILLED and failed.home is not None and failed.home.engine is not failed.engine:
            home = failed.home
            return Choice(Decision.STICKY, home.engine, home, self.threshold, home, home.in_flight)
        decision = Decision.PLACED if failed.decision is Decision.PLACED else Decision.REHOMED
        return self._place(request, now, decision, failed.home, besides=failed.engine)
