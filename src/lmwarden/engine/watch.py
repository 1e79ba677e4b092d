"""Watching one engine: is it there, is it the same run, what does it report.

Each interval one *look*: ``/health``, then ``/metrics``. What follows from it:

=============================  =====================================================================
healthy                        its figures go to the sink; if it was down, it comes up (below)
nobody listens                 once: nothing (a listener may be re-made); twice running: down
unhealthy (``/health`` 503)    likewise: twice running
silent                         nothing, until it was silent for ``silent_down_s``: a long prompt can make
                               a server deaf for seconds, and one slow probe must cut nothing
=============================  =====================================================================

*Down* only stops new requests from going there; open ones stay open and end by themselves. Only where nobody
listens any more, or where it comes back from *down* as another run, its open requests are *lost*: a crashed
machine closes no connection. (A restart that we see only by its boot id has closed its connections itself, and
requests that the new run already took must not be cut.) *Up again*
needs ``/v1/models`` to list the model and the number of ranks to be what it was. A change of the boot id
means that the server was restarted and its caches are empty, so the replicas are reported up anew. The boot
id is the start time of the server's process, else the birth of its counters; an engine that tells neither
gets a new one whenever it was down or its token counters fell.

Nothing here knows the router: the sink (``serve.py``) carries the news to it, on the same event loop.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Protocol

import structlog

from lmwarden.config import WatchConfig
from lmwarden.engine.client import EngineClient, EngineRefusedError, EngineSilentError, EngineUnwellError
from lmwarden.engine.discover import EngineFacts
from lmwarden.engine.metrics import EngineMetrics, RankMetrics
from lmwarden.engine.totals import PrefixCacheTotals
from lmwarden.types import Clock, EngineEndpoint, ReplicaCapacity, ReplicaId, ReplicaSample

log = structlog.get_logger("lmwarden.engine")

STRIKES = 2
"""Looks in a row that must fail before an engine counts as down."""


class ReplicaSink(Protocol):
    """Takes the news of replicas; called on the data loop."""

    def observe(self, replica: ReplicaId, sample: ReplicaSample) -> None:
        """One rank's figures."""
        ...

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str) -> None:
        """Ready: first time, again, or after a restart (another boot id)."""
        ...

    def replica_down(self, replica: ReplicaId) -> None:
        """No request should go there."""
        ...

    def engine_lost(self, engine: str) -> None:
        """What was sent to the engine and is still open will never be answered."""
        ...


class EngineState(StrEnum):
    """What the watch believes."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"


class EngineWatch:
    """Watches one engine. ``run`` until cancelled; everything else is read by the snapshot."""

    def __init__(
        self,
        endpoint: EngineEndpoint,
        client: EngineClient,
        sink: ReplicaSink,
        *,
        settings: WatchConfig,
        clock: Clock,
        speed: float = 1.0,
        max_num_seqs: int | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.state = EngineState.STARTING
        self.scraped_at: float | None = None
        """When the last good scrape was sent (the clock's seconds)."""
        self.prefix_totals = tuple(PrefixCacheTotals() for _ in range(endpoint.ranks))
        self._client = client
        self._sink = sink
        self._settings = settings
        self._clock = clock
        self._interval_s = settings.interval_s / speed
        """Real seconds between looks."""
        self._max_num_seqs = max_num_seqs
        self._boot_id: str | None = None
        self._runs = 0
        self._refused = 0
        self._unwell = 0
        self._silent_since: float | None = None
        self._last_prompt_tokens: list[int | None] = [None] * endpoint.ranks
        self._complaint: str | None = None

    @property
    def replicas(self) -> tuple[ReplicaId, ...]:
        """The engine's replicas, rank 0 first."""
        return tuple(ReplicaId(self.endpoint.engine, rank) for rank in range(self.endpoint.ranks))

    def adopt(self, facts: EngineFacts) -> None:
        """Begin with what discovery found: the replicas are up."""
        self._come_up(facts.boot_id, facts.kv_cache_tokens)

    def expect(self) -> None:
        """Begin without an answer: the replicas are down, but what the operator said of them holds already."""
        for replica in self.replicas:
            # No boot id: the first real one is then no restart.
            self._sink.replica_up(replica, ReplicaCapacity(max_num_seqs=self._max_num_seqs), "")
            self._sink.replica_down(replica)

    async def run(self) -> None:
        """Look each interval until cancelled. An error of ours is logged and does not end the watch."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("watching an engine failed", engine=self.endpoint.engine)
            due = max(due + self._interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def look(self) -> None:
        """One look, and what follows from it."""
        sent_at = self._clock()
        try:
            await self._client.health()
            metrics = await self._metrics()
            if self.state is not EngineState.UP:
                await self._check_model()
        except EngineRefusedError as error:
            self._refused += 1
            if self._refused >= STRIKES:
                self._go_down(str(error), lost=True)
            return
        except EngineUnwellError as error:
            self._unwell += 1
            if self._unwell >= STRIKES:
                self._go_down(str(error))
            return
        except EngineSilentError as error:
            now = asyncio.get_running_loop().time()
            self._silent_since = now if self._silent_since is None else self._silent_since
            if now - self._silent_since >= self._settings.silent_down_s:
                self._go_down(str(error))
            return
        self._refused = self._unwell = 0
        self._silent_since = None
        self._take(metrics, sent_at)

    async def _metrics(self) -> EngineMetrics | None:
        """The figures; None where the engine shows none (it is served all the same)."""
        try:
            return await self._client.metrics()
        except EngineUnwellError:
            return None

    async def _check_model(self) -> None:
        if not any(card.id == self.endpoint.model for card in await self._client.models()):
            raise EngineUnwellError(f"{self._client.url} no longer serves {self.endpoint.model}")

    def _take(self, metrics: EngineMetrics | None, sent_at: float) -> None:
        ranks = metrics.ranks if metrics else ()
        if ranks and len(ranks) != self.endpoint.ranks:
            self._go_down(
                f"{self._client.url} now has {len(ranks)} ranks instead of {self.endpoint.ranks}; restart the warden"
            )
            return
        boot_id = metrics.boot_id if metrics else None
        restarted = boot_id != self._boot_id if boot_id else self._counters_fell(ranks)
        if self.state is not EngineState.UP or restarted:
            self._come_up(boot_id, tuple(r.kv_cache_tokens for r in ranks) or (None,) * self.endpoint.ranks)
        for replica, totals, rank in zip(self.replicas, self.prefix_totals, ranks, strict=False):
            totals.read(rank.prefix_cache_queries_tokens, rank.prefix_cache_hits_tokens)
            self._last_prompt_tokens[replica.rank] = rank.prompt_tokens
            self._sink.observe(replica, _sample(rank, sent_at))
        if ranks:
            self.scraped_at = sent_at

    def _counters_fell(self, ranks: tuple[RankMetrics, ...]) -> bool:
        return any(
            rank.prompt_tokens is not None and last is not None and rank.prompt_tokens < last
            for rank, last in zip(ranks, self._last_prompt_tokens, strict=False)
        )

    def _come_up(self, boot_id: str | None, kv_cache_tokens: tuple[int | None, ...]) -> None:
        same_run = boot_id is not None and boot_id == self._boot_id
        returned = self.state is EngineState.DOWN and self._runs > 0 and not same_run
        self._runs += 1
        self._boot_id = boot_id
        told = boot_id or f"run-{self._runs}"
        log.info("engine is up", engine=self.endpoint.engine, url=self._client.url, boot_id=told)
        self.state = EngineState.UP
        self._complaint = None
        for replica, tokens in zip(self.replicas, kv_cache_tokens, strict=True):
            capacity = ReplicaCapacity(kv_cache_tokens=tokens, max_num_seqs=self._max_num_seqs)
            self._sink.replica_up(replica, capacity, told)
        if returned:
            self._sink.engine_lost(self.endpoint.engine)

    def _go_down(self, why: str, *, lost: bool = False) -> None:
        if why != self._complaint:
            log.warning("engine is down", engine=self.endpoint.engine, reason=why)
            self._complaint = why
        if self.state is EngineState.DOWN:
            return
        self.state = EngineState.DOWN
        for replica in self.replicas:
            self._sink.replica_down(replica)
        if lost:
            self._sink.engine_lost(self.endpoint.engine)


def _sample(rank: RankMetrics, sent_at: float) -> ReplicaSample:
    return ReplicaSample(
        taken_at=sent_at,
        running=rank.running,
        waiting=rank.waiting,
        kv_used_ratio=rank.kv_used_ratio,
        prefix_cache_queries_tokens=rank.prefix_cache_queries_tokens,
        prefix_cache_hits_tokens=rank.prefix_cache_hits_tokens,
        prompt_tokens=rank.prompt_tokens,
        generation_tokens=rank.generation_tokens,
    )
