"""Puts a warden together, starts it and ends it.

One :class:`Warden` is one client port, one console port and the models between them, in this process::

    data loop   gateway (sockets, routers, drivers) - watches and supervisors (one per engine) - control
    thread      console: reads control's snapshot, sends changes to the data loop
    thread      ledger: takes rows and homes from the data loop, writes them

Start: data folder (locked, so that it has one warden) and keys; both ports are tried first, so that a port in use
is the first thing one hears; what an earlier warden wrote down is read; engines are attached (which waits for them) or
taken over; the gateway opens; last, engines that do not run yet are started, which takes minutes, and replicas come in
as they are ready. Stop is the reverse: new requests are refused and open streams finish within ``client.drain_s``,
launched engines are ended or left (``on_exit``), then the watches, the console and the ledger end. A start that fails
ends no engine.

Homes are written down as they change, twice a second, so that a warden that is killed at any moment has lost at most
the last half second of them.

Under ``speed`` X the clock runs X times as fast as the wall clock: router, scrapes and snapshots are then in
modelled seconds, while the gateway's own time limits stay real.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import structlog

from lmwarden.access.keys import Authenticator, KeyStore
from lmwarden.access.lock import DataFolderLock
from lmwarden.access.password import PasswordFile
from lmwarden.access.secrets import StorageError, load_secrets, owner_of
from lmwarden.assembly import Assembly, Model, RouterFactory
from lmwarden.config import Config, ConfigError, is_loopback
from lmwarden.console.app import Parts, make_app
from lmwarden.console.server import ConsoleServer
from lmwarden.console.session import SignIn
from lmwarden.control import Control, SettingsError
from lmwarden.control.commands import check_routing_changes
from lmwarden.gateway.gateway import Gateway
from lmwarden.gateway.loop_lag import LoopLag
from lmwarden.gateway.prefix_watch import PrefixWatch
from lmwarden.gateway.settings import GatewaySettings, ServedModel
from lmwarden.gateway.trace_recorder import TraceRecorder
from lmwarden.ledger.ledger import Ledger
from lmwarden.ports import client_port, listen_for_console, tls_context
from lmwarden.routing.router import Router
from lmwarden.types import Clock, RoutingSettings

log = structlog.get_logger("lmwarden")

KEYS_INTERVAL_S = 1.0
"""Real seconds between two looks whether the file of keys changed."""
SNAPSHOT_INTERVAL_S = 1.0
"""Between two looks at everything for the console; sooner where engines are looked at sooner."""
HOMES_INTERVAL_S = 0.15
"""Real seconds between two looks for homes that changed; the ledger writes what it gets at once, so that a home is on
disk 200 ms after it was bound. Shorter would cost: every write of its own takes as many pages again."""


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
        self._prefixes: PrefixWatch | None = None
        self._lock: DataFolderLock | None = None
        self._console: ConsoleServer | None = None
        self._control: Control | None = None
        self._session: aiohttp.ClientSession | None = None
        self._assembly: Assembly | None = None
        self._models: list[Model] = []
        self._started = False
        self._lag = LoopLag()
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
            PasswordError: the file of the console's password cannot be used.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop(drain_s=0)
            raise

    async def stop(self, drain_s: float | None = None, *, leave_engines: bool = False) -> None:
        """Stop everything. May be called again, also after a first call was cancelled.

        Args:
            drain_s: how long open streams may go on; None: ``client.drain_s``.
            leave_engines: let launched engines run on, whatever ``on_exit`` says.
        """
        if self._control is not None:
            await self._control.close()  # no restart begins or goes on while the last requests finish
        if self._gateway is not None:
            await self._gateway.stop(self._config.client.drain_s if drain_s is None else drain_s)
            self._gateway = None
        await self._end_engines(leave_engines)
        self._lag.stop()
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
        if self._prefixes is not None:
            prefixes, self._prefixes = self._prefixes, None
            await asyncio.to_thread(prefixes.stop)
        if self._ledger is not None:
            self._save_homes()
            await asyncio.to_thread(self._ledger.stop)
        if self._lock is not None:
            self._lock.release()

    async def _start(self) -> None:
        config = self._config
        data_dir = config.storage.path
        place = config.origin.place("storage", "dir", default="--data-dir")
        _warn_root(data_dir, place)
        secrets = load_secrets(data_dir, place)
        self._lock = DataFolderLock(data_dir, place)
        self._lock.acquire()
        tls = tls_context(config)
        keys = KeyStore(data_dir, secrets.keys)
        authenticator = Authenticator(keys, secrets.keys, required=config.client.key_required)
        sign_in = _sign_in(config)
        listener = listen_for_console(config)
        self._console_port = listener.getsockname()[1]
        if authenticator.required and not authenticator.key_count and keys.trouble() is None:
            log.warning("no API key exists, so every request is refused; make one: lmwarden keys create NAME")
        try:
            self._ledger = Ledger(data_dir, config.storage)
            self._ledger.start()
            self._prefixes = _watch_prefixes(config, secrets.identity)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
            self._assembly = Assembly(config, self._session, self._make_router, self._settings_of)
            try:
                self._models = models = await self._assembly.models()
            except OSError as error:
                what = f" ({error.filename})" if error.filename else ""
                raise StorageError(
                    f"{place}: engines cannot be launched from {data_dir}: {error.strerror or error}{what}"
                ) from None
            self._restore_homes(self._ledger)
            operator_headers = tuple(name.lower().encode() for name in config.client.session_headers)
            self._gateway = _make_gateway(
                [model.served(secrets, operator_headers) for model in models],
                authenticator,
                self._ledger,
                _gateway_settings(config, self._speed),
                self._clock,
                config.origin.source,
                self._prefixes,
            )
            await self._bind_gateway(self._gateway, tls)
            handles = [model.watch(config, self._clock, self._speed, self._gateway) for model in models]
            # An engine that was taken over serves already: nobody shall be refused because nobody looked yet.
            launched = [watch for model in models for watch in model.watches_of_launched()]
            await asyncio.gather(*(watch.look() for watch in launched))
            self._lag.start()
            self._control = Control(
                handles,
                clock=self._clock,
                counters=self._gateway.snapshot,
                dropped_rows=lambda: self.ledger.dropped_rows,
                ledger_trouble=lambda: self.ledger.trouble,
                loop_lag=self._lag.snapshot,
                orphans=self._assembly.orphans,
                own_answers=self._gateway.own_answers,
                drain_s=config.client.drain_s,
                clock_rate=self._speed,
                on_settings=self._keep_settings,
            )
            app = make_app(
                self._control,
                config.console.allowed_hosts,
                host=config.console.host,
                sign_in=sign_in,
                open_metrics=config.console.open_metrics,
                parts=Parts(config, self._gateway.port, self._ledger, keys, self._speed),
            )
            self._console = ConsoleServer(app, listener, end_streams=app.state.events.close)
        except BaseException:
            listener.close()
            raise
        await self._gateway.serve()
        self._console.start()
        snapshots_s = min(SNAPSHOT_INTERVAL_S, config.watch.interval_s) / self._speed
        self._hold(self._control.run(snapshots_s))
        self._hold(_again_and_again(authenticator.refresh, KEYS_INTERVAL_S))
        self._hold(_again_and_again(self._save_homes, HOMES_INTERVAL_S))
        self._hold(_again_and_again(self._observe, snapshots_s))
        for model in models:
            self._assembly.tell(model)
            for watch in model.watches:
                self._hold(watch.run())
        for supervisor in self._assembly.supervisors:
            self._hold(supervisor.run())
        self._started = True
        self._announce(models)

    async def _end_engines(self, leave: bool) -> None:
        """End what was launched, or leave it to the next warden."""
        supervisors = self._assembly.supervisors if self._assembly is not None else []
        ending = []
        for supervisor in supervisors:
            if self._started and not leave and supervisor.plan.on_exit == "stop":
                ending.append(supervisor.stop())
            else:
                supervisor.leave()
        for error in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(error, Exception):  # the others are ended and what happened is written down all the same
                log.error("an engine could not be stopped", exc_info=error)

    # -- what outlives this process ---------------------------------------------------------------------

    def _settings_of(self, model: str, configured: RoutingSettings) -> RoutingSettings:
        """The configured settings with what was changed at run time. A change holds until the file's value changes."""
        changed: dict[str, Any] = {}
        for key, (value, was_configured) in self.ledger.settings(model).items():
            now_configured = getattr(configured, key, None)
            try:
                wanted = check_routing_changes({key: value})
            except SettingsError as error:  # of another version, or written by hand
                log.warning("a setting that was kept cannot be used and is forgotten", model=model, reason=str(error))
                wanted = {}
            if wanted and now_configured == was_configured:
                changed |= wanted
            else:
                self.ledger.save_settings(model, key, now_configured, now_configured)  # forgets the change
        if changed:
            log.info("settings changed on the console hold on", model=model, **changed)
        return msgspec.structs.replace(configured, **changed)

    def _keep_settings(self, model: str, changes: Mapping[str, Any]) -> None:
        of_model = next(one for one in self._models if one.name == model)
        configured = of_model.config.routing.settings()
        for key, value in changes.items():
            self.ledger.save_settings(model, key, value, getattr(configured, key))

    def _restore_homes(self, ledger: Ledger) -> None:
        now = self._clock()
        for model in self._models:
            taken = model.router.restore_homes(ledger.load_homes(model.name, now), {}, now)
            if taken:
                log.info("conversations that have a home", model=model.name, conversations=taken)

    def _observe(self) -> None:
        views = {model.name: model.view for model in self.control.snapshot.models}
        self.ledger.observe(views, self._clock(), time.time())

    def _save_homes(self) -> None:
        now = self._clock()
        for model in self._models:
            self.ledger.save_homes(model.name, model.router.take_home_changes(), now, time.time())

    # -- parts ------------------------------------------------------------------------------------------

    async def _bind_gateway(self, gateway: Gateway, tls: ssl.SSLContext | None) -> None:
        bound = client_port(self._config)
        try:
            await gateway.start(bound.host, bound.port, ssl=tls, serve_at_once=False)
        except OSError as error:
            raise bound.error(error) from None

    def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something until ``stop``."""
        self._tasks.append(asyncio.ensure_future(work))

    def _announce(self, models: Sequence[Model]) -> None:
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
        if not is_loopback(self._config.console.host) and self._config.console.password_file is None:
            log.warning("the console is readable from other machines, without sign-in", host=self._config.console.host)
        log.info("ready", clients=self.client_url, console=self.console_url)


async def _again_and_again(work: Callable[[], None], interval_s: float) -> None:
    """Until cancelled. An error of ours is logged and does not end it."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            work()
        except Exception:
            log.exception("what is done at intervals failed")


def _warn_root(data_dir: Path, place: str) -> None:
    """What root makes in another user's folder, that user's warden cannot use later."""
    owner = owner_of(data_dir, place)
    if os.geteuid() == 0 and owner is not None and owner[0] != 0:
        sentence = "root serves on a data folder of another user, whose own warden could not use its files afterwards"
        log.warning(sentence, folder=str(data_dir), uid=owner[0])


def _sign_in(config: Config) -> SignIn | None:
    """The console's sign-in; None: it has no password.

    Raises:
        PasswordError: the file cannot be used.
    """
    path = config.console.password_file
    if path is None:
        return None
    return SignIn(PasswordFile(Path(path), config.origin.place("console", "password_file")))


def _make_gateway(
    models: Sequence[ServedModel],
    authenticator: Authenticator,
    ledger: Ledger,
    settings: GatewaySettings,
    clock: Clock,
    source: str,
    prefixes: PrefixWatch | None,
) -> Gateway:
    try:
        return Gateway(models, authenticator, ledger, settings, clock, prefixes)
    except ValueError as error:
        raise ConfigError(f"{source}: models.aliases: {error}") from None


def _watch_prefixes(config: Config, secret: bytes) -> PrefixWatch | None:
    """Whoever looks at prompts, at work; None if nobody is to."""
    wanted = config.ledger
    if not (wanted.prefix_analysis or wanted.record_traces):
        return None
    recorder = TraceRecorder(config.storage.path) if wanted.record_traces else None
    known = sum(model.routing.max_conversations for model in config.models)
    prefixes = PrefixWatch(secret, analyse=wanted.prefix_analysis, recorder=recorder, most_conversations=known)
    prefixes.start()
    return prefixes


def _gateway_settings(config: Config, speed: float) -> GatewaySettings:
    return GatewaySettings(
        max_body_bytes=config.client.max_body_bytes,
        max_buffered_bytes=config.client.max_buffered_bytes,
        max_connections=config.client.max_connections,
        max_connections_per_peer=config.client.max_connections_per_peer,
        stream_silence_s=config.client.stream_silence_s,
        answer_silence_s=config.client.answer_silence_s,
        clock_rate=speed,
    )


def _url(scheme: str, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"
