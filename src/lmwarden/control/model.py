"""One model under control: what runs, what operators did to it, and how it stands at one moment.

Lives on the data loop. Whoever puts a warden together hands over a :class:`ModelHandle`; from it, and from the drains
and restarts that operators began, a :class:`ModelSnapshot` is taken that any thread may read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lmwarden.control.operations import Drains, EngineHandle, Restarts
from lmwarden.control.rates import RateMeter
from lmwarden.control.snapshots import EngineSnapshot, ModelSnapshot, with_reason
from lmwarden.engine.watch import EngineWatch
from lmwarden.gateway.counters import GatewaySnapshot
from lmwarden.gateway.driver import HeldRequest
from lmwarden.routing.contract import RouterContract
from lmwarden.types import Action, Clock


class ModelHandle(msgspec.Struct, frozen=True, kw_only=True):
    """What the control needs of one running model."""

    name: str
    aliases: tuple[str, ...]
    max_model_len: int | None
    """As found at the start; what the watches learn later goes before it. ``versions`` likewise."""
    router: RouterContract
    carry_out: Callable[[Sequence[Action]], None]
    """Hands a router's actions to the driver that carries them out."""
    watches: tuple[EngineWatch, ...]
    urls: Mapping[str, str]
    versions: Mapping[str, str | None]
    engines: tuple[EngineHandle, ...] = ()
    """Those that the warden launched."""
    panic: Callable[[], bool] = lambda: False
    """Whether its engines are offered although all their probes fail."""
    held: Callable[[], Sequence[HeldRequest]] = tuple
    """What stands in its waiting room, the oldest first."""


class ControlledModel:
    """A model and what the control keeps of it."""

    def __init__(self, handle: ModelHandle, clock: Clock) -> None:
        self.handle = handle
        self.router = handle.router
        self.engines = {engine.engine: engine for engine in handle.engines}
        self.drains = Drains(handle.router, clock)
        self.restarts = Restarts(handle.name, handle.router, self.engines, self.drains, clock)
        self.meter = RateMeter()

    def snapshot(self, counters: GatewaySnapshot, now: float) -> ModelSnapshot:
        """It at this moment. ``now``: the router's clock."""
        handle = self.handle
        lengths = [watch.facts.max_model_len for watch in handle.watches if watch.facts is not None]
        known = [length for length in lengths if length is not None]
        engines = tuple(self._engine(watch, now) for watch in handle.watches)
        return ModelSnapshot(
            name=handle.name,
            aliases=handle.aliases,
            max_model_len=min(known) if known else handle.max_model_len,
            view=handle.router.view(now),
            engines=engines,
            prefix_hit_ratio={
                replica: totals.hit_ratio
                for watch in handle.watches
                for replica, totals in zip(watch.replicas, watch.prefix_totals, strict=True)
            },
            counters=counters,
            panic=handle.panic(),
            drained=frozenset(self.drains.by_operator),
            operation=with_reason(self.restarts.operation, engines, time.time()),
            rates=self.meter.note(counters, now),
        )

    def _engine(self, watch: EngineWatch, now: float) -> EngineSnapshot:
        name, facts = watch.endpoint.engine, watch.facts
        engine = self.engines.get(name)
        return EngineSnapshot(
            engine=name,
            url=self.handle.urls[name],
            ranks=watch.endpoint.ranks,
            state=watch.state,
            version=facts.version if facts is not None else self.handle.versions.get(name),
            is_vllm=facts.is_vllm if facts is not None else None,
            scrape_age_s=None if watch.scraped_at is None else max(0.0, now - watch.scraped_at),
            usage_details=facts.usage_details if facts is not None else None,
            kv_bytes_per_token=watch.kv_bytes_per_token,
            pins=dict(watch.pins),
            launched=engine is not None and engine.launched,
            launch=engine.state() if engine is not None else None,
            complaint=watch.complaint,
            boot_ids=facts.boot_ids if facts is not None else (),
        )
