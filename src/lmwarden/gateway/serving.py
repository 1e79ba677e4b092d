"""One served model inside the gateway: its router's driver, its engines' pools, its counters."""

from __future__ import annotations

import asyncio

from lmwarden.gateway.counters import ModelCounters
from lmwarden.gateway.driver import HeldRequest, RouterDriver
from lmwarden.gateway.outbox import Outbox
from lmwarden.gateway.pool import EnginePool
from lmwarden.gateway.responses import ResponseOrigins
from lmwarden.gateway.routes import FOLLOWS_PINS_OF
from lmwarden.gateway.settings import GatewaySettings, ServedModel
from lmwarden.types import Clock, Decision, Dispatch, ReplicaId


class ModelService:
    """What the gateway keeps per model."""

    __slots__ = (
        "_destinations",
        "counters",
        "driver",
        "ignoring_rank",
        "multi_rank",
        "name",
        "only_raw_name",
        "pools",
        "responses",
        "runs",
        "served",
        "valid_pins",
    )

    def __init__(
        self,
        served: ServedModel,
        settings: GatewaySettings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        outbox: Outbox,
    ) -> None:
        self.served = served
        self.name = served.name
        self.driver = RouterDriver(served.router, clock, settings.clock_rate, loop)
        self.pools = {name: EnginePool(endpoint, settings, loop, outbox) for name, endpoint in served.engines.items()}
        self.counters = ModelCounters()
        self.multi_rank = any(endpoint.ranks > 1 for endpoint in served.engines.values())
        """Some engine chooses among ranks of its own where ours is ignored."""
        raw_names = {pool.raw_model for pool in self.pools.values()}
        self.only_raw_name = raw_names.pop() if len(raw_names) == 1 else None
        """The name by which all engines know the model, as it stands in a body. None: they differ."""
        self.valid_pins = {
            str(replica): replica
            for name, endpoint in served.engines.items()
            for replica in (ReplicaId(name, rank) for rank in range(endpoint.ranks))
        }
        """Every replica by the text that names it."""
        self.responses = ResponseOrigins(served.identity_secret)
        self.runs = dict.fromkeys(self.pools, 0)
        """By engine: changes when another run of it answers, whose caches are empty."""
        self.ignoring_rank: dict[str, set[str]] = {}
        """By path: the engines that were seen to ignore a rank on it although they should not."""
        self._destinations: dict[tuple[str, ReplicaId | None, Decision], tuple[str, bytes]] = {}

    def held(self) -> list[HeldRequest]:
        """The requests in the waiting room, the oldest first."""
        return [routed.held() for routed in self.driver.waiting]

    def pin_honoured(self, engine: str, path: str, honoured: bool) -> None:
        """Take the result of a test of pins. See ``Gateway.pin_honoured``."""
        for name in (path, *(other for other, tested in FOLLOWS_PINS_OF.items() if tested == path)):
            ignoring = self.ignoring_rank.pop(name, set()) - {engine}
            if not honoured:
                ignoring.add(engine)
            if ignoring:
                self.ignoring_rank[name] = ignoring

    def destination(self, action: Dispatch) -> tuple[str, bytes]:
        """Where a request went: for the ledger (``e0/1``, or ``e0`` where the engine chose the rank itself), and as
        the response header lines that say where and why."""
        key = (action.engine, action.replica, action.decision)
        known = self._destinations.get(key)
        if known is None:
            name = str(action.replica) if action.replica is not None else action.engine
            lines = f"X-LMWarden-Replica: {name}\r\nX-LMWarden-Decision: {action.decision}\r\n"
            known = self._destinations[key] = (name, lines.encode())
        return known
