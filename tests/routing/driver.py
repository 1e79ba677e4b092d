"""Drives a router in tests: short to write, and the invariants are checked after every call."""

from __future__ import annotations

from collections.abc import Mapping

from lmwarden.routing import invariants
from lmwarden.routing.router import Router
from lmwarden.types import (
    Action,
    Decision,
    Dispatch,
    Explanation,
    Outcome,
    Refuse,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    ReplicaState,
    RouterView,
    RoutingRequest,
    RoutingSettings,
    Ticket,
    Usage,
)


def key(name: str) -> bytes:
    """A conversation key, readable in failures."""
    return name.encode().ljust(16, b".")[:16]


class Driver:
    """A router with a clock. All replicas of all engines are up unless ``up=False``."""

    def __init__(
        self,
        engines: Mapping[str, int] | None = None,
        *,
        router: Router | None = None,
        max_num_seqs: int | None = 32,
        kv_cache_tokens: int | None = 40_000,
        up: bool = True,
        settings: RoutingSettings | None = None,
        seed: int = 0,
    ) -> None:
        self.now = 1000.0
        self.last: Action | None = None
        """What became of the request that was offered or failed last; None: it waits."""
        self.let_out: list[Action] = []
        """Actions for other requests than the one that a call was about."""
        self.engines = dict(engines or {"e0": 4})
        self.router = router or Router(settings or RoutingSettings(), engines=self.engines, seed=seed)
        self.capacity = ReplicaCapacity(kv_cache_tokens=kv_cache_tokens, max_num_seqs=max_num_seqs)
        self.replicas = [ReplicaId(name, rank) for name, ranks in self.engines.items() for rank in range(ranks)]
        if up:
            for replica in self.replicas:
                self.up(replica)

    # Events

    def up(self, replica: ReplicaId | str, boot_id: str = "boot1") -> None:
        self.let_out += self.router.replica_up(_id(replica), self.capacity, boot_id, self.now)
        self.check()

    def down(self, replica: ReplicaId | str) -> None:
        self.let_out += self.router.replica_down(_id(replica), self.now)
        self.check()

    def drain(self, replica: ReplicaId | str) -> None:
        self.router.drain(_id(replica), self.now)
        self.check()

    def undrain(self, replica: ReplicaId | str) -> None:
        self.router.undrain(_id(replica), self.now)
        self.check()

    def sample(self, replica: ReplicaId | str, *, age_s: float = 0.0, **numbers: float) -> None:
        sample = ReplicaSample(taken_at=self.now - age_s, **numbers)  # type: ignore[arg-type]
        self.router.observe(_id(replica), sample, self.now)
        self.check()

    def configure(self, **changes: object) -> None:
        self.router_configure(RoutingSettings(**changes))  # type: ignore[arg-type]

    def router_configure(self, settings: RoutingSettings) -> None:
        self.let_out += self.router.configure(settings, self.now)
        self.check()

    def offer(self, conversation: str | None = None, **fields: object) -> Ticket:
        """Offer a request and return its ticket; the action is in ``last``."""
        request = RoutingRequest(conversation=None if conversation is None else key(conversation), **fields)  # type: ignore[arg-type]
        ticket, actions = self.router.offer(request, self.now)
        if self.router._door is None:
            assert len(actions) == 1, actions
        mine = [action for action in actions if action.ticket == ticket]
        assert len(mine) <= 1, actions
        self.last = mine[0] if mine else None
        self.let_out += [action for action in actions if action.ticket != ticket]
        self.check()
        return ticket

    def fail(self, ticket: Ticket) -> Action:
        action, *others = self.router.failed_before_response(ticket, self.now)
        assert action.ticket == ticket
        self.last = action
        self.let_out += others
        self.check()
        return action

    def finish(
        self,
        ticket: Ticket,
        *,
        prompt: int = 1000,
        completion: int = 100,
        cached: int = 0,
        outcome: Outcome = Outcome.OK,
        finish_reason: str = "tool_calls",
    ) -> None:
        usage = Usage(
            prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion, finish_reason=finish_reason
        )
        self.router.first_byte(ticket, self.now)
        self.let_out += self.router.finished(ticket, outcome, usage if outcome is Outcome.OK else None, self.now)
        self.check()

    def cancel(self, ticket: Ticket) -> None:
        self.let_out += self.router.cancelled(ticket, self.now)
        self.check()

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.let_out += self.router.tick(self.now)
        self.check()

    # A whole turn

    def turn(self, conversation: str | None = None, *, prompt: int = 1000, **fields: object) -> tuple[str, str]:
        """Offer and finish; returns the decision and the replica, as words."""
        ticket = self.offer(conversation, **fields)
        went = self.went
        self.finish(ticket, prompt=prompt)
        return went

    def hold(self, replica: ReplicaId | str, count: int) -> list[Ticket]:
        """Open ``count`` requests pinned to a replica, to make it busy."""
        return [self.offer(pin=_id(replica)) for _ in range(count)]

    # What happened

    @property
    def went(self) -> tuple[str, str]:
        assert isinstance(self.last, Dispatch), self.last
        return str(self.last.decision), str(self.last.replica or self.last.engine)

    @property
    def refused(self) -> str:
        assert isinstance(self.last, Refuse), self.last
        return str(self.last.reason)

    @property
    def view(self) -> RouterView:
        return self.router.view(self.now)

    def explain(self, ticket: Ticket) -> Explanation:
        return self.router.explain(ticket)

    def count(self, decision: Decision) -> int:
        return self.view.decisions[decision]

    def in_flight(self) -> dict[str, int]:
        return {str(replica.replica): replica.in_flight for replica in self.view.replicas}

    def state_of(self, replica: ReplicaId | str) -> ReplicaState:
        return next(row.state for row in self.view.replicas if row.replica == _id(replica))

    def check(self) -> None:
        invariants.check(self.router, self.now)


def _id(replica: ReplicaId | str) -> ReplicaId:
    return replica if isinstance(replica, ReplicaId) else ReplicaId.parse(replica)
