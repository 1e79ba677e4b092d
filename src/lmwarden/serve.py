"""Puts a warden together, starts it and ends it.

One :class:`Warden` is one client port, one console port and the models between them, in this process::

    data loop   gateway (sockets, routers, drivers) - watches (one per engine) - control (snapshots, changes)
    thread      console: reads control's snapshot, sends changes to the data loop
    thread      ledger: takes rows from the data loop, writes them

Start: data folder (locked, so that it has one warden) and keys; both ports are tried first, so that a port in use
is the first thing one hears; the engines are attached (which waits for them); then the gateway opens. Stop is the
reverse: new requests are refused and open streams finish within ``client.drain_s``, then the watches, the console
and the ledger end.

Under ``speed`` X the clock runs X times as fast as the wall clock: router, scrapes and snapshots are then in
modelled seconds, while the gateway's own time limits stay real.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import aiohttp
import structlog

from lmwarden.access.keys import Authenticator, KeyStore
from lmwarden.access.lock import DataFolderLock
from lmwarden.access.secrets import InstallationSecrets, load_secrets
from lmwarden.config import Config, ConfigError, ModelConfig, is_loopback
from lmwarden.console.app import make_app
from lmwarden.console.server import ConsoleServer
from lmwarden.control import Control, ModelHandle
from lmwarden.engine.attach import Attached, attach_engines, by_model, together
from lmwarden.engine.watch import EngineWatch
from lmwarden.gateway.gateway import Gateway
from lmwarden.gateway.settings import GatewaySettings, ServedModel
from lmwarden.ledger.ledger import Ledger
from lmwarden.ports import client_port, listen_for_console, tls_context
from lmwarden.routing.contract import RouterContract
from lmwarden.routing.router import Router
from lmwarden.types import Action, Clock, ReplicaCapacity, ReplicaId, ReplicaSample, RoutingSettings

log = structlog.get_logger("lmwarden")


class RouterFactory(Protocol):
    """Makes a model's router; tests put another one in its place."""

    def __call__(self, settings: RoutingSettings, *, engines: Mapping[str, int], seed: int = 0) -> RouterContract:
        """``engines``: short name to number of ranks."""
        ...


class _Sink:
    """Carries an engine's news to its model's router, and the router's actions to the gateway."""

    def __init__(self, model: str, router: RouterContract, clock: Clock, gateway: Gateway) -> None:
        self._model = model
        self._router = router
        self._clock = clock
        self._gateway = gateway

    def perform(self, actions: Sequence[Action]) -> None:
        self._gateway.perform(self._model, actions)

    def observe(self, replica: ReplicaId, sample: ReplicaSample) -> None:
        self._router.observe(replica, sample, self._clock())

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str) -> None:
        self.perform(self._router.replica_up(replica, capacity, boot_id, self._clock()))

    def replica_down(self, replica: ReplicaId) -> None:
        self.perform(self._router.replica_down(replica, self._clock()))

    def engine_lost(self, engine: str) -> None:
        self._gateway.engine_lost(self._model, engine)


class _Model:
    """One served model: its engines, its router."""

    def __init__(self, name: str, config: ModelConfig, engines: Sequence[Attached], make_router: RouterFactory) -> None:
        self.name = name
        self.engines = engines
        facts = [engine.facts for engine in engines if engine.facts is not None]
        other_names = [engine.endpoint.model for engine in engines]
        other_names += [other for fact in facts for other in fact.other_names]
        self.aliases = tuple(dict.fromkeys([*config.aliases, *(other for other in other_names if other != name)]))
        lengths = [fact.max_model_len for fact in facts if fact.max_model_len is not None]
        self.max_model_len = min(lengths) if lengths else None
        self.router = make_router(
            config.routing.settings(), engines={engine.endpoint.engine: engine.endpoint.ranks for engine in engines}
        )

    def served(self, secrets: InstallationSecrets, operator_headers: Sequence[bytes]) -> ServedModel:
        """As the gateway takes it."""
        return ServedModel(
            name=self.name,
            router=self.router,
            engines={engine.endpoint.engine: engine.endpoint for engine in self.engines},
            identity_secret=secrets.identity,
            aliases=self.aliases,
            operator_headers=operator_headers,
            max_model_len=self.max_model_len,
        )


class Warden:
    """The whole product in one object. ``start`` and ``stop`` on one event loop."""

    def __init__(
        self,
        config: Config,
        *,
        speed: float = 1.0,
        clock: Clock | None = None,
        router_factory: RouterFactory = Router,
    ) -> None:
        """Args:
        config: what to serve.
        speed: modelled seconds per second.
        clock: modelled monotonic seconds; default: the system's clock times ``speed``.
        router_factory: makes each model's router.
        """
        self._config = config
        self._speed = speed
        self._clock: Clock = clock if clock is not None else (lambda: time.monotonic() * speed)
        self._make_router = router_factory
        self._gateway: Gateway | None = None
        self._ledger: Ledger | None = None
        self._lock: DataFolderLock | None = None
        self._console: ConsoleServer | None = None
        self._control: Control | None = None
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._console_port = config.console.port

    @property
    def client_url(self) -> str:
        """Of the running client port."""
        assert self._gateway is not None
        scheme = "https" if self._config.client.tls_cert else "http"
        return _url(scheme, self._config.client.host, self._gateway.port)

    @property
    def console_url(self) -> str:
        """Of the running console port."""
        return _url("http", self._config.console.host, self._console_port)

    @property
    def control(self) -> Control:
        """Snapshots and changes; there is one from ``start`` on."""
        assert self._control is not None
        return self._control

    @property
    def ledger(self) -> Ledger:
        """The request rows; there is one from ``start`` on."""
        assert self._ledger is not None
        return self._ledger

    async def start(self) -> None:
        """Start everything; returns when both ports serve. On an error nothing is left running.

        Raises:
            ConfigError: the configuration does not fit what is there (ports, engines, TLS files).
            StorageError: the data folder cannot be used, or another warden uses it.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop(drain_s=0)
            raise

    async def stop(self, drain_s: float | None = None) -> None:
        """Stop everything. May be called again, also after a first call was cancelled.

        Args:
            drain_s: how long open streams may go on; None: ``client.drain_s``.
        """
        if self._gateway is not None:
            await self._gateway.stop(self._config.client.drain_s if drain_s is None else drain_s)
            self._gateway = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._console is not None:
            console, self._console = self._console, None
            await console.stop()
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.stop)
        if self._lock is not None:
            self._lock.release()

    async def _start(self) -> None:
        config = self._config
        data_dir = config.storage.path
        place = config.origin.place("storage", "dir", default="--data-dir")
        secrets = load_secrets(data_dir, place)
        self._lock = DataFolderLock(data_dir, place)
        self._lock.acquire()
        tls = tls_context(config)
        authenticator = Authenticator(
            KeyStore(data_dir, secrets.keys), secrets.keys, required=config.client.key_required
        )
        if authenticator.required and not authenticator.key_count:
            log.warning("no API key exists, so every request is refused; make one: lmwarden keys create NAME")
        listener = listen_for_console(config)
        self._console_port = listener.getsockname()[1]
        try:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
            models = await self._attach(self._session)
            self._ledger = Ledger(data_dir, config.storage)
            self._ledger.start()
            operator_headers = tuple(name.lower().encode() for name in config.client.session_headers)
            self._gateway = _make_gateway(
                [model.served(secrets, operator_headers) for model in models],
                authenticator,
                self._ledger,
                _gateway_settings(config, self._speed),
                self._clock,
                config.origin.source,
            )
            await self._open_gateway(self._gateway, tls)
            handles = [self._watch(model, self._gateway) for model in models]
            self._control = Control(
                handles,
                clock=self._clock,
                counters=self._gateway.snapshot,
                dropped_rows=lambda: self.ledger.dropped_rows,
            )
            self._console = ConsoleServer(make_app(self._control, config.console.allowed_hosts), listener)
        except BaseException:
            listener.close()
            raise
        self._console.start()
        self._hold(self._control.run(config.watch.interval_s / self._speed))
        self._hold(_refresh_keys(authenticator))
        self._announce(models)

    async def _attach(self, session: aiohttp.ClientSession) -> list[_Model]:
        """Find the engines and make the models."""
        waiting: list[Coroutine[Any, Any, list[Attached]]] = []
        first_number = 0
        for number, model in enumerate(self._config.models):
            waiting.append(
                attach_engines(
                    model.engine,
                    stated_model=model.engine.model,
                    first_number=first_number,
                    session=session,
                    settings=self._config.watch,
                    place=partial(self._config.engine_place, number),
                )
            )
            first_number += len(model.engine.attach)
        models: list[_Model] = []
        for config, attached in zip(self._config.models, await together(waiting), strict=True):
            groups = {config.name: attached} if config.name is not None else by_model(attached)
            models.extend(_Model(name, config, engines, self._make_router) for name, engines in groups.items())
        names = [model.name for model in models]
        for name in names:
            if names.count(name) > 1:
                source = self._config.origin.source
                raise ConfigError(
                    f"{source}: models.name: two [[models]] are called {name!r}; give each a name of its own"
                )
        return models

    async def _open_gateway(self, gateway: Gateway, tls: ssl.SSLContext | None) -> None:
        bound = client_port(self._config)
        try:
            await gateway.start(bound.host, bound.port, ssl=tls)
        except OSError as error:
            raise bound.error(error) from None

    def _watch(self, model: _Model, gateway: Gateway) -> ModelHandle:
        """Start watching a model's engines."""
        sink = _Sink(model.name, model.router, self._clock, gateway)
        watches: list[EngineWatch] = []
        for engine in model.engines:
            watch = EngineWatch(
                engine.endpoint,
                engine.client,
                sink,
                settings=self._config.watch,
                clock=self._clock,
                speed=self._speed,
                max_num_seqs=engine.max_num_seqs,
            )
            if engine.facts is not None:
                watch.adopt(engine.facts)
            else:
                watch.expect()
            watches.append(watch)
            self._hold(watch.run())
        return ModelHandle(
            name=model.name,
            aliases=model.aliases,
            max_model_len=model.max_model_len,
            router=model.router,
            carry_out=sink.perform,
            watches=tuple(watches),
            urls={engine.endpoint.engine: engine.client.url for engine in model.engines},
            versions={
                engine.endpoint.engine: engine.facts.version for engine in model.engines if engine.facts is not None
            },
        )

    def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something until ``stop``."""
        self._tasks.append(asyncio.ensure_future(work))

    def _announce(self, models: Sequence[_Model]) -> None:
        for model in models:
            view = model.router.view(self._clock())
            if view.spill_threshold_source == "default":
                log.warning(
                    "max_num_seqs unknown, so the spill threshold is the default; give max_num_seqs",
                    model=model.name,
                    spill_threshold=view.spill_threshold,
                )
            replicas = [str(replica.replica) for replica in view.replicas]
            log.info("serving", model=model.name, replicas=replicas, spill_threshold=view.spill_threshold)
        if not is_loopback(self._config.console.host):
            log.warning("the console is readable from other machines, without sign-in", host=self._config.console.host)
        log.info("ready", clients=self.client_url, console=self.console_url)


async def _refresh_keys(authenticator: Authenticator) -> None:
    while True:
        await asyncio.sleep(1.0)
        authenticator.refresh()


def _make_gateway(
    models: Sequence[ServedModel],
    authenticator: Authenticator,
    ledger: Ledger,
    settings: GatewaySettings,
    clock: Clock,
    source: str,
) -> Gateway:
    try:
        return Gateway(models, authenticator, ledger, settings, clock)
    except ValueError as error:
        raise ConfigError(f"{source}: models.aliases: {error}") from None


def _gateway_settings(config: Config, speed: float) -> GatewaySettings:
    return GatewaySettings(
        max_body_bytes=config.client.max_body_bytes,
        max_buffered_bytes=config.client.max_buffered_bytes,
        stream_silence_s=config.client.stream_silence_s,
        answer_silence_s=config.client.answer_silence_s,
        clock_rate=speed,
    )


def _url(scheme: str, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"
