"""A vLLM server without HTTP: N ranks, each with its own scheduler and clock, and the internal balancer.

Theory of operation
-------------------
Dense data-parallel ranks are independent: each repeats *schedule, compute, complete* as long as it has
requests. The engine keeps for each rank the moment at which its step in progress ends. ``next_event`` is
the earliest of them and ``advance(now)`` plays everything up to ``now`` in the order of time. Nothing
happens between events, so the engine works at any speed: behind HTTP a timer calls ``advance``, in virtual
time the event loop jumps from event to event.

A request that arrives while a rank computes joins its next step; an idle rank starts at once.

A request without a rank goes where the internal balancer says. What the balancer sees is as old as in
vLLM: the coordinator publishes counts every 100 ms, and between two snapshots only the balancer's own picks are
added. So a request that comes right after another one has ended still finds that one counted. Requests that name
their rank are not added.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from random import Random
from typing import NamedTuple, Protocol

from lmwarden.routing.engine_balancer import SNAPSHOT_INTERVAL_S, BalancerVersion, EngineBalancer, RankLoad
from lmwarden.simulation.hardware import HardwareProfile
from lmwarden.simulation.scheduler import EngineRequest, RequestState, Scheduler, SchedulerLimits


class Balancer(Protocol):
    """Chooses the ranks of requests that name none."""

    def choose(self, request: EngineRequest, loads: Sequence[RankLoad]) -> int:
        """Index of the rank for ``request``; ``loads`` are as old as the last snapshot."""
        ...

    def ended(self, request: EngineRequest) -> None:
        """A request that it had chosen for is over."""
        ...


class ApiServers:
    """The API servers of one vLLM, each with a balancer of its own.

    ``vllm serve`` starts as many of them as there are ranks unless told otherwise; the kernel spreads connections over
    them, so which one takes a request is as good as random. Their rotations are shifted against each other, as in
    vLLM. What a session sees of a blind rotation is therefore no rotation at all.

    A server knows exactly which of *its* requests are in flight, and takes the others to have as many each.
    """

    def __init__(self, version: BalancerVersion, servers: int, ranks: int, seed: int = 0) -> None:
        if servers < 1:
            raise ValueError(f"an engine needs at least one API server, got {servers}")
        self._random = Random(seed)
        self._servers = [EngineBalancer(version) for _ in range(servers)]
        self._shifts = [ranks * index // servers for index in range(servers)]
        self._own = [[0] * ranks for _ in range(servers)]
        self._picked: dict[EngineRequest, list[int]] = {}

    def choose(self, request: EngineRequest, loads: Sequence[RankLoad]) -> int:
        """See ``Balancer.choose``."""
        number = self._random.randrange(len(self._servers))
        own, shift = self._own[number], self._shifts[number]
        seen = [load._replace(own_in_flight=len(self._servers) * count) for load, count in zip(loads, own, strict=True)]
        rank = (self._servers[number].choose([*seen[shift:], *seen[:shift]]) + shift) % len(loads)
        own[rank] += 1
        self._picked[request] = own
        return rank

    def ended(self, request: EngineRequest) -> None:
        """See ``Balancer.ended``."""
        own = self._picked.pop(request, None)
        if own is not None:
            own[request.rank] -= 1


class Progress(NamedTuple):
    """One token of one request."""

    request: EngineRequest
    at_s: float
    token: int
    """Which token of its output this is, from 1."""
    finished: bool
    """It was the last one."""
    since_last_s: float | None
    """Time since its token before; None for the first."""


class _Rank:
    __slots__ = (
        "in_flight",
        "published_kv_ratio",
        "published_running",
        "published_waiting",
        "scheduler",
        "slowdown",
        "step_ends_s",
    )

    def __init__(self, limits: SchedulerLimits, slowdown: float) -> None:
        self.scheduler = Scheduler(limits)
        self.slowdown = slowdown
        self.step_ends_s: float | None = None
        self.in_flight = 0
        self.published_running = 0
        self.published_waiting = 0
        self.published_kv_ratio = 0.0


class SimulatedEngine:
    """N ranks and the internal balancer. All times are seconds on the caller's clock, never decreasing."""

    def __init__(self, hardware: HardwareProfile, limits: SchedulerLimits, ranks: int, balancer: Balancer) -> None:
        if ranks < 1:
            raise ValueError(f"an engine needs at least one rank, got {ranks}")
        self.hardware = hardware
        self.limits = limits
        self._ranks = [_Rank(limits, hardware.slowdown(rank)) for rank in range(ranks)]
        self._balancer = balancer
        self._next_snapshot_s = 0.0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self._ranks)

    def scheduler(self, rank: int) -> Scheduler:
        """The scheduler of one rank, for its gauges and counters."""
        return self._ranks[rank].scheduler

    def in_flight(self, rank: int) -> int:
        """Requests of one rank that were submitted and have not ended."""
        return self._ranks[rank].in_flight

    def submit(self, request: EngineRequest, now: float, rank: int | None = None) -> int:
        """Hand a request to a rank, or to the one that the internal balancer chooses; returns the rank.

        Call ``advance(now)`` first: what ended before must be out of the way.

        Raises:
            ValueError: the request never fits (see ``Scheduler.add``).
            IndexError: no such rank.
        """
        if now >= self._next_snapshot_s:
            self._publish(now)
        index = self._choose(request) if rank is None else rank
        chosen = self._ranks[index]
        request.rank = index
        try:
            chosen.scheduler.add(request)
        except ValueError:
            self._balancer.ended(request)
            raise
        chosen.in_flight += 1
        if rank is None:
            chosen.published_waiting += 1
        if chosen.step_ends_s is None:
            self._begin_step(chosen, now)
        return index

    def abort(self, request: EngineRequest) -> bool:
        """The client left: the request leaves its rank at once. False if it had ended before."""
        rank = self._ranks[request.rank]
        if not rank.scheduler.abort(request):
            return False
        rank.in_flight -= 1
        self._balancer.ended(request)
        return True

    def next_event(self) -> float | None:
        """When the next step ends; None: all ranks are idle."""
        return min((r.step_ends_s for r in self._ranks if r.step_ends_s is not None), default=None)

    def advance(self, now: float) -> list[Progress]:
        """End every step that is over at ``now`` and start the next ones; the tokens in order of time."""
        progress: list[Progress] = []
        while True:
            due: _Rank | None = None
            due_s = now
            for rank in self._ranks:
                if rank.step_ends_s is not None and rank.step_ends_s <= due_s:
                    if due is not None and rank.step_ends_s == due_s:
                        continue
                    due, due_s = rank, rank.step_ends_s
            if due is None:
                return progress
            if due_s >= self._next_snapshot_s:
                self._publish(due_s)  # what has stood since the last event, before this one changes it
            for request, since_last_s in due.scheduler.complete(due_s):
                finished = request.state is RequestState.FINISHED
                if finished:
                    due.in_flight -= 1
                    self._balancer.ended(request)
                progress.append(Progress(request, due_s, request.generated_tokens, finished, since_last_s))
            self._begin_step(due, due_s)

    def _begin_step(self, rank: _Rank, now: float) -> None:
        work = rank.scheduler.schedule(now)
        rank.step_ends_s = None if work is None else now + self.hardware.step_s(work) * rank.slowdown

    def _publish(self, now: float) -> None:
        """The coordinator's snapshot, which is due."""
        self._next_snapshot_s = SNAPSHOT_INTERVAL_S * (floor(now / SNAPSHOT_INTERVAL_S) + 1)
        for rank in self._ranks:
            rank.published_running = len(rank.scheduler.running)
            rank.published_waiting = len(rank.scheduler.waiting)
            rank.published_kv_ratio = rank.scheduler.pool.used_ratio

    def _choose(self, request: EngineRequest) -> int:
        loads = [
            RankLoad(rank.in_flight, rank.published_running, rank.published_waiting, rank.published_kv_ratio)
            for rank in self._ranks
        ]
        return self._balancer.choose(request, loads)
