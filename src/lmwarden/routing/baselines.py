"""Routers to compare with: the same kind of object as ours, without a memory.

``PerRequestRouter`` chooses anew for each request, so it keeps every count and obeys the whole contract, but no
conversation stays anywhere. If a demo whose router is replaced by it still shows a gain, the demo is wrong.
The baseline ``hash`` needs no class: it is our router with placement ``hash``. vLLM's balancers are in
engine_balancer.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from lmwarden.routing.conversations import Conversation
from lmwarden.routing.engine_balancer import BALANCER_VERSIONS, BalancerVersion, EngineBalancer, RankLoad
from lmwarden.routing.explain import Choice, Why
from lmwarden.routing.replicas import Replica
from lmwarden.routing.router import Router
from lmwarden.types import Decision, RefuseReason, RoutingRequest, RoutingSettings

__all__ = [
    "BALANCER_VERSIONS",
    "BalancerVersion",
    "EngineBalancer",
    "PerRequestRouter",
    "RankLoad",
    "random_choice",
    "round_robin",
]


class PerRequestRouter(Router):
    """Chooses a ready replica for every request by a given rule; every decision is ``balanced``."""

    def __init__(
        self,
        settings: RoutingSettings,
        *,
        engines: Mapping[str, int],
        choose: Callable[[Sequence[Replica]], Replica],
    ) -> None:
        super().__init__(settings, engines=engines)
        self._choose = choose

    def _decide(self, request: RoutingRequest, conversation: Conversation | None, now: float) -> Choice | RefuseReason:
        named = request.pin is not None or request.engine is not None
        if not self._settings.affinity or named or not self._fleet.ready:
            return super()._decide(request, conversation, now)
        replica = self._choose(self._fleet.ready)
        return Choice(Decision.BALANCED, replica.engine, replica, self._decider.threshold, Why.LEAST_LOADED)


def random_choice(seed: int) -> Callable[[Sequence[Replica]], Replica]:
    """Any replica, uniformly."""
    return random.Random(seed).choice


def round_robin() -> Callable[[Sequence[Replica]], Replica]:
    """One after the other."""
    turn = -1

    def choose(ready: Sequence[Replica]) -> Replica:
        nonlocal turn
        turn = (turn + 1) % len(ready)
        return ready[turn]

    return choose
