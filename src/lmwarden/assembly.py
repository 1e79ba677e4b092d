"""One served model and what belongs to it, put together: its engines, its router, their watches and supervisors.

::

    Supervisor ── process started, ended ──► EngineWatch ──► FleetHealth ──► Sink ──► router
    (launched engines only)                  (one per engine)  (one per model)   └──► gateway

The sink is where the rooms meet: news of an engine go to the router first, then the actions that the router returns,
and what the gateway must know (requests that will not be answered, endpoints that ignore a rank, the context window
that became known), go to the gateway. Everything here lives on the data loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import aiohttp
import structlog

from lmwarden.access.secrets import InstallationSecrets
from lmwarden.config import Config, ConfigError, ModelConfig
from lmwarden.control import ModelHandle
from lmwarden.engine.attach import Attached, attach_engines, by_model, together
from lmwarden.engine.client import EngineClient
from lmwarden.engine.health import FleetHealth
from lmwarden.engine.launch import plan_engines
from lmwarden.engine.launch_state import LaunchState
from lmwarden.engine.pins import PinReport
from lmwarden.engine.supervisor import Supervisor
from lmwarden.engine.takeover import Orphans, end_orphans
from lmwarden.engine.tier import Tier
from lmwarden.engine.watch import EngineWatch
from lmwarden.gateway.gateway import Gateway
from lmwarden.gateway.settings import ServedModel
from lmwarden.routing.contract import RouterContract
from lmwarden.types import (
    Action,
    Clock,
    PinVerdict,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    RoutingSettings,
)

log = structlog.get_logger("lmwarden")


class Engine(NamedTuple):
    """One engine of a model."""

    attached: Attached
    supervisor: Supervisor | None
    """None: the warden did not launch it."""


class _News:
    """Carries what a supervisor sees of its engine's process to the engine's watch."""

    def __init__(self) -> None:
        self.watch: EngineWatch | None = None

    def process_started(self, engine: str) -> None:
        if self.watch is not None:
            self.watch.process_started()

    def process_ended(self, engine: str, *, wanted: bool) -> None:
        if self.watch is not None:
            self.watch.process_ended(wanted=wanted)


class LaunchedEngine:
    """A launched engine as operators reach it. An ``EngineHandle``."""

    launched = True

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.engine = supervisor.plan.engine

    @property
    def log_path(self) -> Path | None:
        """The file that it writes to."""
        return self._supervisor.log_path

    def state(self) -> LaunchState | None:
        """Its process."""
        return self._supervisor.state

    async def restart(self) -> None:
        """End it and start it again."""
        await self._supervisor.restart()


class RouterFactory(Protocol):
    """Makes a model's router; tests put another one in its place."""

    def __call__(self, settings: RoutingSettings, *, engines: dict[str, int], seed: int = 0) -> RouterContract:
        """``engines``: short name to number of ranks."""
        ...


class _Sink:
    """Carries an engine's news to its model's router, and the router's actions to the gateway."""

    def __init__(self, model: Model, clock: Clock, gateway: Gateway) -> None:
        self._model = model
        self._clock = clock
        self._gateway = gateway
        self._boot_ids: dict[ReplicaId, str] = {}

    def perform(self, actions: Sequence[Action]) -> None:
        self._gateway.perform(self._model.name, actions)

    def observe(self, replica: ReplicaId, sample: ReplicaSample) -> None:
        self._model.router.observe(replica, sample, self._clock())

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str) -> None:
        actions = self._model.router.replica_up(replica, capacity, boot_id, self._clock())
        known = self._boot_ids.get(replica)
        self._boot_ids[replica] = boot_id or known or ""
        if known and boot_id and known != boot_id:
            self._gateway.engine_restarted(self._model.name, replica.engine)
        self.perform(actions)  # after that: what is let out now must not go over the old run's connections
        self._gateway.describe(self._model.name, self._model.max_model_len)

    def replica_down(self, replica: ReplicaId) -> None:
        self.perform(self._model.router.replica_down(replica, self._clock()))

    def engine_lost(self, engine: str) -> None:
        self._gateway.engine_lost(self._model.name, engine)

    def pins(self, engine: str, path: str, report: PinReport) -> None:
        if report.verdict is not PinVerdict.UNVERIFIED:
            self._gateway.pin_honoured(self._model.name, engine, path, report.verdict is PinVerdict.VERIFIED)


class Model:
    """One served model."""

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        engines: Sequence[Engine],
        settings: RoutingSettings,
        router: RouterContract,
    ) -> None:
        self.name = name
        self.config = config
        self.engines = tuple(engines)
        self.settings = settings
        """Those that it started with."""
        self.router = router
        self.watches: tuple[EngineWatch, ...] = ()
        facts = [engine.attached.facts for engine in engines if engine.attached.facts is not None]
        other_names = [engine.attached.endpoint.model for engine in engines]
        other_names += [other for fact in facts for other in fact.other_names]
        self.aliases = tuple(dict.fromkeys([*config.aliases, *(other for other in other_names if other != name)]))

    @property
    def supervisors(self) -> tuple[Supervisor, ...]:
        """Of the engines that were launched."""
        return tuple(engine.supervisor for engine in self.engines if engine.supervisor is not None)

    @property
    def max_model_len(self) -> int | None:
        """The shortest context of its engines, as far as they have told."""
        latest = [watch.facts for watch in self.watches] or [engine.attached.facts for engine in self.engines]
        lengths = [facts.max_model_len for facts in latest if facts is not None and facts.max_model_len is not None]
        return min(lengths) if lengths else None

    def watches_of_launched(self) -> list[EngineWatch]:
        """Watches of launched engines; a look of theirs asks only what runs already."""
        watched = zip(self.engines, self.watches, strict=True)
        return [watch for engine, watch in watched if engine.supervisor is not None]

    def served(self, secrets: InstallationSecrets, operator_headers: Sequence[bytes]) -> ServedModel:
        """As the gateway takes it."""
        endpoints = [engine.attached.endpoint for engine in self.engines]
        return ServedModel(
            name=self.name,
            router=self.router,
            engines={endpoint.engine: endpoint for endpoint in endpoints},
            identity_secret=secrets.identity,
            aliases=self.aliases,
            operator_headers=operator_headers,
            max_model_len=self.max_model_len,
            drop_billing_line=self.config.engine.drop_billing_line,
        )

    def watch(self, config: Config, clock: Clock, speed: float, gateway: Gateway) -> ModelHandle:
        """Make the watches: what is known of the engines reaches the router from here on.

        Returns:
            The model as the control takes it.
        """
        sink = _Sink(self, clock, gateway)
        fleet = FleetHealth(sink)
        watches = []
        for engine in self.engines:
            attached, supervisor = engine
            watch = EngineWatch(
                attached.endpoint,
                attached.client,
                sink,
                settings=config.watch,
                clock=clock,
                speed=speed,
                max_num_seqs=attached.max_num_seqs,
                tier=Tier(self.config.engine.cpu_cache_tokens, self.config.engine.kv_offload_gib),
                fleet=fleet,
                supervised=supervisor,
                traffic=partial(gateway.last_heard, self.name, attached.endpoint.engine),
                test_pins=config.watch.test_pins,
            )
            watches.append(watch)
        self.watches = tuple(watches)
        for engine, watch in zip(self.engines, watches, strict=True):
            if engine.attached.facts is not None:
                watch.adopt(engine.attached.facts)
            else:
                watch.expect()
        return ModelHandle(
            name=self.name,
            aliases=self.aliases,
            max_model_len=self.max_model_len,
            router=self.router,
            carry_out=sink.perform,
            watches=self.watches,
            urls={engine.attached.endpoint.engine: engine.attached.client.url for engine in self.engines},
            versions={
                engine.attached.endpoint.engine: engine.attached.facts.version
                for engine in self.engines
                if engine.attached.facts is not None
            },
            engines=tuple(LaunchedEngine(supervisor) for supervisor in self.supervisors),
            panic=lambda: fleet.panic,
            held=partial(gateway.held, self.name),
        )


class Assembly:
    """Finds the engines of a configuration and makes its models."""

    def __init__(
        self,
        config: Config,
        session: aiohttp.ClientSession,
        make_router: RouterFactory,
        settings_of: Callable[[str, RoutingSettings], RoutingSettings],
    ) -> None:
        """Args:
        config: what to serve.
        session: for all questions to engines, now and later.
        make_router: makes each model's router.
        settings_of: (model, settings as configured) to those that it starts with.
        """
        self._config = config
        self._session = session
        self._make_router = make_router
        self._settings_of = settings_of
        self.supervisors: list[Supervisor] = []
        """Every engine that is ours to end or to leave, also if the rest of the start fails."""
        self._orphans = Orphans([], {})
        self._news: dict[str, _News] = {}

    async def models(self) -> list[Model]:
        """Take over or prepare what is launched, wait for what is attached, and make the models.

        Raises:
            ConfigError: the configuration does not fit what is there.
            OSError: the folder of the engines cannot be used.
        """
        numbered = self._numbered()
        launched = [
            Supervisor(
                plan, folder=self._config.storage.path, settings=self._config.launch, news=self._news_of(plan.engine)
            )
            for model, first in numbered
            if model.engine.launched
            for plan in plan_engines(
                model.engine, name=model.served_name or "", aliases=model.aliases, first_number=first
            )
        ]
        names = {supervisor.plan.engine for supervisor in launched}
        self._orphans = await end_orphans(self._config.storage.path, names, self._config.launch)
        self.supervisors = launched
        groups = await together([self._engines(number, model, first) for number, (model, first) in enumerate(numbered)])
        models: list[Model] = []
        for (config, _), engines in zip(numbered, groups, strict=True):
            for name, of_model in self._by_name(config, engines).items():
                settings = self._settings_of(name, config.routing.settings())
                ranks = {engine.attached.endpoint.engine: engine.attached.endpoint.ranks for engine in of_model}
                models.append(Model(name, config, of_model, settings, self._make_router(settings, engines=ranks)))
        names_given = [model.name for model in models]
        for name in names_given:
            if names_given.count(name) > 1:
                source = self._config.origin.source
                raise ConfigError(
                    f"{source}: models.name: two [[models]] are called {name!r}; give each a name of its own"
                )
        return models

    def orphans(self) -> dict[str, tuple[int, ...]]:
        """Process ids of engines that are not wanted any more and cannot be ended, by engine."""
        return self._orphans.still_there()

    def tell(self, model: Model) -> None:
        """Have the processes' news reach the model's watches."""
        for engine, watch in zip(model.engines, model.watches, strict=True):
            if engine.supervisor is not None:
                self._news_of(watch.endpoint.engine).watch = watch

    def _news_of(self, engine: str) -> _News:
        return self._news.setdefault(engine, _News())

    def _numbered(self) -> list[tuple[ModelConfig, int]]:
        """Each model with the number of its first engine."""
        numbered, first = [], 0
        for model in self._config.models:
            numbered.append((model, first))
            engine = model.engine
            if not engine.launched:
                first += len(engine.attach)
            else:
                first += 1 if engine.layout == "shared" else engine.replicas
        return numbered

    async def _engines(self, number: int, model: ModelConfig, first: int) -> list[Engine]:
        """The engines of one ``[[models]]``."""
        if not model.engine.launched:
            attached = await attach_engines(
                model.engine,
                stated_model=model.engine.model,
                first_number=first,
                session=self._session,
                settings=self._config.watch,
                place=partial(self._config.engine_place, number),
            )
            return [Engine(one, None) for one in attached]
        count = 1 if model.engine.layout == "shared" else model.engine.replicas
        ours = [f"e{index}" for index in range(first, first + count)]
        supervisors = [supervisor for supervisor in self.supervisors if supervisor.plan.engine in ours]
        return list(await asyncio.gather(*(self._launched(model, supervisor) for supervisor in supervisors)))

    async def _launched(self, model: ModelConfig, supervisor: Supervisor) -> Engine:
        endpoint = await supervisor.prepare()
        client = EngineClient(endpoint, self._session, self._config.watch.probe_timeout_s)
        attached = Attached(endpoint=endpoint, client=client, facts=None, max_num_seqs=model.engine.max_num_seqs)
        return Engine(attached, supervisor)

    def _by_name(self, config: ModelConfig, engines: Sequence[Engine]) -> dict[str, list[Engine]]:
        """Engines by the model that they serve: the configured one, or what each calls it."""
        if config.served_name is not None:
            return {config.served_name: list(engines)}
        of = {engine.attached.endpoint.engine: engine for engine in engines}
        grouped = by_model([engine.attached for engine in engines])
        return {name: [of[one.endpoint.engine] for one in attached] for name, attached in grouped.items()}
