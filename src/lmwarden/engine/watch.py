"""Watching one engine: is it there, is it the same run, what does it report.

Each interval one *look*: ``/health``, then ``/metrics``. What follows from it:

=============================  =====================================================================
healthy                        its figures go to the sink; if it was down, it comes up (below)
nobody listens                 once: nothing (a listener may be re-made); twice running: down
unhealthy (``/health`` 503)    likewise: twice running
silent, or not to be reached   nothing, until it was silent for ``silent_down_s``, and its own traffic
                               too: a long prompt can make a server deaf for seconds, and while answers
                               flow, no probe cuts anything
not asked                      nothing: what is missing (files to open, ports) is missing here
=============================  =====================================================================

``/metrics`` decides nothing: without it (silent, somebody's HTML, a page in another format) there are no figures,
and the old ones grow old.

*Down* only stops new requests from going there; open ones stay open and end by themselves. Whether an engine that is
down by its probes alone is still offered is decided for all engines of the model together (``health.py``). Only where
nobody listens any more, where its process ended, or where it comes back from *down* as another run, its open requests
are *lost*: a crashed machine closes no connection. (A restart that we see only by its boot id has closed its
connections itself, and requests that the new run already took must not be cut.)

*Up again* needs ``/v1/models`` to list the model and the number of ranks to be what it was, and for an engine that
the warden launched also that the listener is its own. A change of a boot id means that the rank was restarted and
its cache is empty, so the replicas are reported up anew (``runs.py``).

Nothing here knows the router: the sink (``serve.py``) carries the news to it, on the same event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec
import structlog

from lmwarden.config import WatchConfig
from lmwarden.engine.client import (
    EngineClient,
    EngineError,
    EngineLacksError,
    EngineRefusedError,
    EngineSilentError,
    EngineUnaskedError,
    EngineUnwellError,
)
from lmwarden.engine.complaints import Complaints
from lmwarden.engine.discover import EngineFacts, facts_of
from lmwarden.engine.health import FleetHealth, ReplicaSink, Up
from lmwarden.engine.metrics import EngineMetrics
from lmwarden.engine.pins import PinReport, PinTest, untested
from lmwarden.engine.progress import Progress
from lmwarden.engine.runs import EngineRuns
from lmwarden.engine.silence import Silence
from lmwarden.engine.tier import NO_TIER, Tier
from lmwarden.engine.totals import PrefixCacheTotals
from lmwarden.types import Clock, EngineEndpoint, ReplicaCapacity, ReplicaId

log = structlog.get_logger("lmwarden.engine")

STRIKES = 2
"""Looks in a row that must fail before an engine counts as down."""
FIGURELESS_LOOKS = 3
"""An engine that should have figures comes up without them after so many looks."""


class EngineState(StrEnum):
    """What the watch believes."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"


class Supervised(Protocol):
    """The process of an engine that the warden launched."""

    async def may_serve(self) -> bool:
        """Our process lives, and the listener on the engine's port is its own."""
        ...

    def ready(self) -> None:
        """The engine answers: its start is over."""
        ...

    @property
    def kv_bytes_per_token(self) -> float | None:
        """Memory that a token of context takes; None: not told yet."""
        ...


class _UnusableError(EngineUnwellError):
    """It is well, but not the engine that we route to."""


class _Look(NamedTuple):
    """What a good look saw."""

    metrics: EngineMetrics | None
    facts: EngineFacts | None
    """Read anew where the engine comes up, or comes up as another run."""


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
        tier: Tier = NO_TIER,
        fleet: FleetHealth | None = None,
        supervised: Supervised | None = None,
        traffic: Callable[[], float | None] | None = None,
        test_pins: bool = False,
    ) -> None:
        """Args:
        endpoint: the engine.
        client: asks it.
        sink: takes its figures, and what became of its requests and pins.
        settings: intervals and time limits.
        clock: modelled monotonic seconds.
        speed: modelled seconds per second.
        max_num_seqs: as the operator stated it.
        tier: its CPU tier, likewise.
        fleet: all engines of the model; None: there is no other.
        supervised: its process, if the warden launched it.
        traffic: loop time at which it last sent bytes of an answer; None: it never did.
        test_pins: send test requests (``pins.py``) after each of its starts.
        """
        self.endpoint = endpoint
        self.state = EngineState.STARTING
        self.scraped_at: float | None = None
        """When the last good scrape was sent (the clock's seconds)."""
        self.facts: EngineFacts | None = None
        """What it said of itself when it last came up; None: it never did. Set before the sink hears of it."""
        self.complaint: str | None = None
        """Why it is not up, in a sentence; None: it is, or nothing is known."""
        self.prefix_totals = tuple(PrefixCacheTotals() for _ in range(endpoint.ranks))
        self._client = client
        self._sink = sink
        self._fleet = fleet if fleet is not None else FleetHealth(sink)
        self._supervised = supervised
        self._settings = settings
        self._clock = clock
        self._interval_s = settings.interval_s / speed
        """Real seconds between looks."""
        self._max_num_seqs = max_num_seqs
        self._tier = tier
        self._told_tier_tokens: int | None = None
        self._runs = EngineRuns(endpoint.ranks)
        self._process = 0
        """Counts the news of its process: a look that began before such news is worth nothing."""
        self._gone = False
        """Down, and known to be no use."""
        self._lost_said = False
        self._refused = 0
        self._unwell = 0
        self._figureless = 0
        self._silence = Silence(traffic)
        self._unasked = Complaints()
        self._progress = [Progress(settings.stalled_s) for _ in range(endpoint.ranks)]
        self._stalled = [False] * endpoint.ranks
        self._pin_test = (
            PinTest(endpoint, client, report=self._pins_reported, report_details=self._usage_details_found)
            if test_pins
            else None
        )

    @property
    def replicas(self) -> tuple[ReplicaId, ...]:
        """The engine's replicas, rank 0 first."""
        return tuple(ReplicaId(self.endpoint.engine, rank) for rank in range(self.endpoint.ranks))

    @property
    def pins(self) -> Mapping[str, PinReport]:
        """Whether it obeys a rank, by endpoint."""
        return self._pin_test.reports if self._pin_test is not None else untested(self.endpoint.ranks, "not tested")

    @property
    def stalled(self) -> tuple[bool, ...]:
        """Ranks that hold requests and do not move, rank 0 first."""
        return tuple(self._stalled)

    @property
    def kv_bytes_per_token(self) -> float | None:
        """Memory that a token of context takes in one replica; None: not known."""
        return self._supervised.kv_bytes_per_token if self._supervised is not None else None

    def adopt(self, facts: EngineFacts) -> None:
        """Begin with what discovery found: the replicas are up."""
        self._come_up(facts)

    def expect(self) -> None:
        """Begin without an answer: the replicas are down, but what the operator said of them holds already."""
        # No boot id: the first real one is then no restart.
        capacity = ReplicaCapacity(max_num_seqs=self._max_num_seqs)
        self._fleet.expect(self.endpoint.engine, [Up(replica, capacity, "") for replica in self.replicas])

    def process_started(self) -> None:
        """The warden started the engine's process: it is starting, and whatever answers next is another run."""
        if self.state is EngineState.UP:
            self._go_down("its process was started anew", dead=True)
        self._process_changed()
        self.complaint = None
        self.state = EngineState.STARTING

    def process_ended(self, *, wanted: bool = False) -> None:
        """The engine's process ended: down at once, and its open requests are lost.

        Args:
            wanted: somebody wanted it, so it is nothing to warn of.
        """
        self._process_changed()
        self._go_down("its process ended", dead=True, wanted=wanted)

    def _process_changed(self) -> None:
        self._process += 1
        self._runs.over()
        self._forgive()

    async def run(self) -> None:
        """Look each interval, and test pins beside it, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_and_look())
            if self._pin_test is not None:
                tasks.create_task(self._pin_test.run())

    async def _look_and_look(self) -> None:
        """An error of ours is logged and does not end the watch."""
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
        process, supervised = self._process, self._supervised
        if self.state is not EngineState.UP and supervised is not None:
            # Whoever listens on the port of an engine that is not ours is never spoken to.
            ours = await supervised.may_serve()
            if not ours or process != self._process:
                return
        sent_at = self._clock()
        try:
            look = await self._ask()
        except EngineError as error:
            if process == self._process:
                self._failed(error)
            return
        if process != self._process:
            return
        self._forgive()
        self._take(look, sent_at)

    async def _ask(self) -> _Look:
        await self._client.health()
        metrics = await self._metrics()
        if metrics is not None and len(metrics.ranks) != self.endpoint.ranks:
            found, known = len(metrics.ranks), self.endpoint.ranks
            raise _UnusableError(f"{self._client.url} now has {found} ranks instead of {known}; restart the warden")
        if self.state is EngineState.UP and not self._runs.changed(metrics):
            return _Look(metrics, None)
        cards = await self._client.models()
        card = next((card for card in cards if card.id == self.endpoint.model), None)
        if card is None:
            names = ", ".join(card.id for card in cards[:20])
            raise _UnusableError(f"{self._client.url} does not serve {self.endpoint.model} (it serves {names})")
        version = await self._client.version()
        return _Look(metrics, facts_of(card, cards, metrics, version, ranks=self.endpoint.ranks))

    async def _metrics(self) -> EngineMetrics | None:
        """The figures; None where the engine shows none (it is served all the same)."""
        try:
            metrics = await self._client.metrics()
        except EngineLacksError:
            # It never has them, unless it had them before.
            self._figureless = self._figureless + 1 if self.scraped_at is not None else FIGURELESS_LOOKS
            return None
        except (EngineUnwellError, EngineSilentError):
            self._figureless += 1
            return None
        self._figureless = 0
        return metrics

    def _forgive(self) -> None:
        self._refused = self._unwell = 0
        self._silence.over()

    def _failed(self, error: EngineError) -> None:
        """A look failed."""
        if isinstance(error, EngineUnaskedError):
            if self._unasked.worth_saying(str(error), asyncio.get_running_loop().time()):
                log.error("an engine cannot be looked at", engine=self.endpoint.engine, reason=str(error))
            return
        if self._supervised is not None and self.state is EngineState.STARTING:
            # Its supervisor tells how the start goes; but not that it answers, and cannot be used.
            if isinstance(error, EngineUnwellError) and str(error) != self.complaint:
                self.complaint = str(error)
                log.warning("engine answers, but is not ready", engine=self.endpoint.engine, reason=self.complaint)
            return
        if isinstance(error, EngineRefusedError):
            self._refused += 1
            if self._refused >= STRIKES:
                self._go_down(str(error), dead=True)
        elif isinstance(error, EngineUnwellError):
            self._unwell += 1
            if self._unwell >= STRIKES:
                self._go_down(str(error), unusable=isinstance(error, _UnusableError))
        elif self._silence.length_s() >= self._settings.silent_down_s:
            self._go_down(str(error))

    def _take(self, look: _Look, sent_at: float) -> None:
        if look.facts is not None:
            if look.metrics is None and self._figureless < FIGURELESS_LOOKS:
                return
            self._come_up(look.facts, look.metrics)
        elif self._told_tier_tokens != self._tier.tokens(self.kv_bytes_per_token):
            self._report_up()  # its log told how much a token takes
        ranks = look.metrics.ranks if look.metrics else ()
        for replica, totals, rank in zip(self.replicas, self.prefix_totals, ranks, strict=False):
            totals.read(rank.prefix_cache_queries_tokens, rank.prefix_cache_hits_tokens)
            stalled = self._progress[replica.rank].read(rank, sent_at)
            self._say_stalled(replica, stalled)
            self._sink.observe(replica, rank.sample(sent_at, stalled))
        if ranks:
            self._runs.count(ranks)
            self.scraped_at = sent_at

    def _say_stalled(self, replica: ReplicaId, stalled: bool) -> None:
        if stalled and not self._stalled[replica.rank]:
            sentence = "a replica holds requests and moved nothing for a while"
            log.warning(sentence, replica=str(replica), stalled_s=self._settings.stalled_s)
        elif self._stalled[replica.rank] and not stalled:
            log.info("a replica moves again", replica=str(replica))
        self._stalled[replica.rank] = stalled

    def _come_up(self, facts: EngineFacts, metrics: EngineMetrics | None = None) -> None:
        engine = self.endpoint.engine
        known = bool(self._runs.names)
        another_run = self._runs.begin(facts.boot_ids, metrics)
        returned = self.state is EngineState.DOWN and known and another_run
        # Not while it was offered all the time: the new run may have taken requests already.
        if returned and not self._lost_said and not self._fleet.offered(engine):
            self._sink.engine_lost(engine)
        names = self._runs.names
        log.info("engine is up", engine=engine, url=self._client.url, boot_id=", ".join(dict.fromkeys(names)))
        was_up = self.state is EngineState.UP
        self.state = EngineState.UP
        if not another_run and self.facts is not None:
            # What its answers showed still holds.
            facts = msgspec.structs.replace(facts, usage_details=self.facts.usage_details)
        self.facts = facts
        self._gone = self._lost_said = False
        self.complaint = None
        self._report_up()
        if self._supervised is not None and not was_up:
            self._supervised.ready()
        if another_run and self._pin_test is not None:
            self._pin_test.begin(facts)

    def _report_up(self) -> None:
        assert self.facts is not None
        self._told_tier_tokens = tier_tokens = self._tier.tokens(self.kv_bytes_per_token)
        ranks = range(self.endpoint.ranks)
        capacities = [self.facts.capacity(rank, self._max_num_seqs, tier_tokens) for rank in ranks]
        ups = [Up(*one) for one in zip(self.replicas, capacities, self._runs.names, strict=True)]
        self._fleet.ready(self.endpoint.engine, ups)

    def _go_down(self, why: str, *, dead: bool = False, unusable: bool = False, wanted: bool = False) -> None:
        """Stop using it.

        Args:
            why: for the log.
            dead: nobody can answer what it was sent.
            unusable: it must not be tried even if everything else fails.
            wanted: not worth a warning.
        """
        if why != self.complaint:
            (log.info if wanted else log.warning)("engine is down", engine=self.endpoint.engine, reason=why)
            self.complaint = why
        if (dead or unusable) and not self._gone:
            self._gone = True
            self._fleet.gone(self.endpoint.engine, self.replicas)
        elif self.state is not EngineState.DOWN and not self._gone:
            self._fleet.failing(self.endpoint.engine, self.replicas)
        self.state = EngineState.DOWN
        if dead:
            self._runs.over()
            if self._runs.names and not self._lost_said:
                self._lost_said = True
                self._sink.engine_lost(self.endpoint.engine)

    def _pins_reported(self, path: str, report: PinReport) -> None:
        self._sink.pins(self.endpoint.engine, path, report)

    def _usage_details_found(self, found: bool) -> None:
        if self.facts is not None:
            self.facts = msgspec.structs.replace(self.facts, usage_details=found)
        if not found:
            log.warning(
                "the engine does not report cached tokens; start it with --enable-prompt-tokens-details",
                engine=self.endpoint.engine,
            )
