"""The router, the engine and agent sessions in virtual time: hours in seconds, with nothing waited for.

Theory of operation
-------------------
Three things can happen next: a step of the engine ends, an entry of the calendar is due (a client sends, a request
reaches the router, the metrics are scraped), or the router has a deadline. The loop jumps to the earliest and lets it
happen. The router is the object that runs in the gateway; it learns what it would learn there: offers, first bytes,
ends with the usage that the engine reports, and one sample of each rank per second.

The load is a closed loop of ``sessions`` agents: a turn is sent ``gap_before_s`` after the end of the turn before, and
when a session has ended the next one starts; or an open one, whose sessions start at given moments. What a session does
is in ``virtual_load``. Hits are decided by the engine from tokens alone; what the router says
only chooses the rank. The same inputs give the same run, to the last digit.

A host lives through any number of levels. At the end of a level all clients leave: what is open is taken out of router
and engine. Caches, the router's conversations and the clock go on, as on a host that nobody restarts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from lmwarden.routing.contract import RouterContract
from lmwarden.simulation.engine import Balancer, Progress, SimulatedEngine
from lmwarden.simulation.hardware import HardwareProfile
from lmwarden.simulation.scheduler import EngineRequest, SchedulerCounters, SchedulerLimits
from lmwarden.simulation.tokens import BYTES_PER_TOKEN, TokenChain
from lmwarden.simulation.virtual_load import Conversation, SessionProgress, VirtualRecord, VirtualWorkload
from lmwarden.types import (
    Action,
    Dispatch,
    Outcome,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    RouterView,
    RoutingRequest,
    Ticket,
    Usage,
)

ENGINE = "e0"
"""Name of the one engine; the router must know it with as many ranks as there are replicas."""

_SCRAPE_INTERVAL_S = 1.0


class VirtualOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    hardware: HardwareProfile
    limits: SchedulerLimits
    replicas: int = 4
    network_s: float = 0.0
    """Added to every request on its way to the router: network, HTTP, gateway."""
    told_kv_ratio: float = 1.0
    """The router is told so many times the true KV capacity, as by an engine that reports it wrongly."""


class Outage(NamedTuple):
    """One rank's engine dies and comes back empty; clients whose answers broke off send their turns again at once."""

    rank: int
    down_s: float
    up_s: float
    """Seconds from the level's beginning."""


class VirtualLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One load."""

    sessions: int = 8
    """Agents of the closed loop."""
    starts_s: Iterator[float] | None = None
    """Open loop: when sessions start, rising seconds from the level's beginning; then ``sessions`` means nothing."""
    seconds: float = 180.0
    """Length of the measured window."""
    warmup_s: float = 0.0
    """Time before it."""
    outage: Outage | None = None
    """Only for arms in which the router names the rank: a lost rank takes nothing more."""


class VirtualSessionRecord(NamedTuple):
    """One session that ended, with everything that it started."""

    number: int
    started_s: float
    ended_s: float


class VirtualRun(NamedTuple):
    """What a run leaves."""

    records: list[VirtualRecord]
    """Every request in order of sending, unfinished ones included."""
    sessions: list[VirtualSessionRecord]
    """In order of their ends."""
    busy_replicas: list[int]
    """Replicas with a running request, one count per second of the window."""
    counters_at_start: list[SchedulerCounters]
    """Each rank's counters when the window began."""
    counters_at_end: list[SchedulerCounters]
    start_s: float
    end_s: float
    """The window."""
    router: RouterView
    """At the end."""


class VirtualHost:
    """A router and one engine, from an empty cache on.

    Args:
        router: fresh, built for one engine ``ENGINE`` with ``options.replicas`` ranks.
        balancer: the engine's own, for requests that the router sends without a rank.
        options: the rest.
    """

    def __init__(self, router: RouterContract, balancer: Balancer, options: VirtualOptions) -> None:
        self.router = router
        self.now_s = 0.0
        """The host's clock: where the last level ended."""
        self._options = options
        self._engine = SimulatedEngine(options.hardware, options.limits, options.replicas, balancer)
        self._calendar: list[tuple[float, int, Callable[[float], None]]] = []
        self._entries = 0
        self._open: dict[Ticket, Conversation] = {}
        self._tickets: dict[EngineRequest, Ticket] = {}
        self._running: dict[EngineRequest, VirtualRecord] = {}
        self._capacity = ReplicaCapacity(
            kv_cache_tokens=int(options.told_kv_ratio * options.limits.num_blocks * options.limits.block_size),
            max_num_seqs=options.limits.max_num_seqs,
            cpu_cache_tokens=options.limits.host_blocks * options.limits.block_size or None,
        )
        for rank in range(options.replicas):
            self._came_up(rank, "virtual", 0.0)

    def play(self, workload: VirtualWorkload, level: VirtualLevel) -> VirtualRun:
        """Let ``level.sessions`` agents work for ``warmup_s + seconds`` of virtual time, then leave.

        Raises:
            ValueError: a request never fits into a rank, or options contradict each other.
        """
        self._workload = workload
        self._next_session = 0
        self._records: list[VirtualRecord] = []
        self._sessions: list[VirtualSessionRecord] = []
        self._busy: list[int] = []
        self._counters_at_start: list[SchedulerCounters] = []
        begin_s, self._window_start_s = self.now_s, self.now_s + level.warmup_s
        end_s = self._window_start_s + level.seconds
        self._at(self._window_start_s, self._begin_window)
        self._at(begin_s, self._scrape)
        if level.outage is not None:
            rank, down_s, up_s = level.outage
            self._at(begin_s + down_s, lambda now: self._died(rank, now))
            self._at(begin_s + up_s, lambda now: self._came_up(rank, f"virtual {now}", now))
        self._closed_loop = level.starts_s is None
        if level.starts_s is not None:
            self._let_arrive(level.starts_s, begin_s)
        else:
            for _ in range(level.sessions):
                self._start_session(begin_s)
        self._play(end_s)
        run = VirtualRun(
            self._records,
            self._sessions,
            self._busy,
            self._counters_at_start,
            self._counters(),
            self._window_start_s,
            end_s,
            self.router.view(end_s),
        )
        for ticket in list(self._open):
            self._take_out(ticket, end_s)
        self._calendar.clear()
        self.now_s = end_s
        return run

    def rest(self, seconds: float) -> None:
        """Let time pass without a client."""
        self.now_s += seconds

    # -- time ------------------------------------------------------------------------------------------

    def _at(self, when: float, entry: Callable[[float], None]) -> None:
        self._entries += 1
        heapq.heappush(self._calendar, (when, self._entries, entry))

    def _play(self, end_s: float) -> None:
        """Let everything happen that is due up to and including ``end_s``."""
        calendar = self._calendar
        engine = self._engine
        forever = float("inf")
        now = self.now_s
        while True:
            step_s = engine.next_event()
            deadline_s = self.router.next_deadline()
            next_s = min(calendar[0][0] if calendar else forever, forever if step_s is None else step_s)
            if deadline_s is not None and deadline_s < next_s:
                # A deadline may have passed already: the router's time never goes back.
                now = max(now, deadline_s)
                if now > end_s:
                    return
                self._carry_out(self.router.tick(now), now)
                continue
            now = next_s
            if now > end_s:
                return
            if now == step_s:
                for progress in engine.advance(now):
                    if progress.token == 1 or progress.finished:
                        self._milestone(progress)
            else:
                heapq.heappop(calendar)[2](now)

    # -- clients ---------------------------------------------------------------------------------------

    def _start_session(self, now: float) -> None:
        index = self._next_session
        self._next_session += 1
        context = TokenChain(self._options.limits.block_size)
        self._plan_turn(Conversation(self._workload.session(index), SessionProgress(index, now), context), now)

    def _let_arrive(self, starts_s: Iterator[float], begin_s: float) -> None:
        """The next session starts at its moment, and so on."""
        start_s = next(starts_s, None)
        if start_s is None:
            return

        def start(now: float) -> None:
            self._start_session(now)
            self._let_arrive(starts_s, begin_s)

        self._at(begin_s + start_s, start)

    def _plan_turn(self, client: Conversation, now: float) -> None:
        """The client's next turn will be sent after its gap."""
        assert client.upcoming is not None
        self._at(now + client.upcoming.gap_before_s, lambda when: self._send(client, when))

    def _send(self, client: Conversation, now: float) -> None:
        self._records.append(client.begin_turn(now))
        self._offer_later(client, now + self._options.network_s)

    def _turn_over(self, client: Conversation, now: float, *, left: bool = False) -> None:
        """What was sent has been answered, or left: branches begin, and the conversation goes on without them."""
        for branch in client.end_turn(left=left):
            self._plan_turn(branch, now)
        if not client.waits_for:
            self._go_on(client, now)

    def _go_on(self, client: Conversation, now: float) -> None:
        if client.upcoming is not None:
            self._plan_turn(client, now)
            return
        progress = client.progress
        progress.open_conversations -= 1
        if client.waited_by is not None:
            client.waited_by.waits_for -= 1
            if not client.waited_by.waits_for:
                self._go_on(client.waited_by, now)
        if not progress.open_conversations:
            self._sessions.append(VirtualSessionRecord(progress.index, progress.started_s, now))
            if self._closed_loop:
                self._start_session(now)

    def _client_leaves(self, ticket: Ticket, now: float) -> None:
        """In the middle of an answer, unless that has ended."""
        client = self._open.get(ticket)
        if client is None:
            return
        client.record.left = True
        self._take_out(ticket, now)
        self._turn_over(client, now, left=True)

    # -- router ----------------------------------------------------------------------------------------

    def _offer_later(self, client: Conversation, when: float) -> None:
        self._at(when, lambda now: self._offer(client, now))

    def _offer(self, client: Conversation, now: float) -> None:
        request = RoutingRequest(
            conversation=client.key,
            parent=client.parent_key,
            opening=client.opening if self.router.wants_opening(client.key) else None,
            resumed=client.resumed,
            body_bytes=client.request.prompt_tokens * BYTES_PER_TOKEN,
            max_output_tokens=client.request.output_tokens,
        )
        ticket, actions = self.router.offer(request, now)
        self._open[ticket] = client
        self._carry_out(actions, now)

    def _carry_out(self, actions: Sequence[Action], now: float) -> None:
        for action in actions:
            client = self._open[action.ticket]
            request, record = client.request, client.record
            if isinstance(action, Dispatch):
                request.arrival_s = now
                rank = self._engine.submit(request, now, None if action.replica is None else action.replica.rank)
                record.dispatched_s = now
                record.decision = action.decision
                record.replica = ReplicaId(ENGINE, rank)
                self._tickets[request] = action.ticket
                self._running[request] = record
            else:
                del self._open[action.ticket]
                record.refusals += 1
                self._offer_later(client, now + action.retry_after_s)

    def _take_out(self, ticket: Ticket, now: float) -> None:
        """The client of an open request closed its connection."""
        client = self._open[ticket]
        request, record = client.request, client.record
        if self._tickets.pop(request, None) is not None:
            self._engine.abort(request)
            del self._running[request]
            record.ended_s = now if record.left else None
            record.cached_tokens = request.cached_tokens
            record.output_tokens = request.generated_tokens
        # The place that it gives up may let another one out of the router.
        self._carry_out(self.router.cancelled(ticket, now), now)
        del self._open[ticket]

    # -- engine ----------------------------------------------------------------------------------------

    def _came_up(self, rank: int, boot_id: str, now: float) -> None:
        self._carry_out(self.router.replica_up(ReplicaId(ENGINE, rank), self._capacity, boot_id, now), now)

    def _died(self, rank: int, now: float) -> None:
        self._carry_out(self.router.replica_down(ReplicaId(ENGINE, rank), now), now)
        for request in [request for request in self._running if request.rank == rank]:
            ticket, record = self._tickets.pop(request), self._running.pop(request)
            client = self._open.pop(ticket)
            self._engine.abort(request)
            client.request = EngineRequest(request.hashes, request.prompt_tokens, request.output_tokens, tag=client)
            record.dispatched_s = record.first_token_s = None
            self._carry_out(self.router.finished(ticket, Outcome.FAILED, None, now), now)
            self._offer_later(client, now)
        self._engine.scheduler(rank).pool.reset()

    def _milestone(self, progress: Progress) -> None:
        """A request got its first or its last token."""
        request, now = progress.request, progress.at_s
        record = self._running[request]
        ticket = self._tickets[request]
        client = self._open[ticket]
        if progress.token == 1:
            record.first_token_s = now
            self.router.first_byte(ticket, now)
            if client.turn.leaves_after_s is not None:
                self._at(now + client.turn.leaves_after_s, lambda when: self._client_leaves(ticket, when))
        if not progress.finished:
            return
        record.ended_s = now
        record.cached_tokens = request.cached_tokens
        record.output_tokens = request.generated_tokens
        del self._running[request]
        del self._tickets[request]
        del self._open[ticket]
        usage = Usage(
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens,
            completion_tokens=request.generated_tokens,
            finish_reason=client.turn.finish_reason,
        )
        self._carry_out(self.router.finished(ticket, Outcome.OK, usage, now), now)
        self._turn_over(client, now)

    def _scrape(self, now: float) -> None:
        """What the warden reads from ``/metrics`` once a second."""
        busy = 0
        for rank in range(self._options.replicas):
            scheduler = self._engine.scheduler(rank)
            counters = scheduler.counters
            busy += bool(scheduler.running)
            sample = ReplicaSample(
                taken_at=now,
                running=len(scheduler.running),
                waiting=len(scheduler.waiting),
                kv_used_ratio=scheduler.pool.used_ratio,
                prefix_cache_queries_tokens=counters.prefix_queries_tokens,
                prefix_cache_hits_tokens=counters.prefix_hits_tokens,
                prompt_tokens=counters.prompt_tokens,
                generation_tokens=counters.generation_tokens,
            )
            self.router.observe(ReplicaId(ENGINE, rank), sample, now)
        if now > self._window_start_s:
            self._busy.append(busy)
        self._at(now + _SCRAPE_INTERVAL_S, self._scrape)

    def _begin_window(self, now: float) -> None:
        self._counters_at_start = self._counters()

    def _counters(self) -> list[SchedulerCounters]:
        return [msgspec.structs.replace(self._engine.scheduler(r).counters) for r in range(self._options.replicas)]
