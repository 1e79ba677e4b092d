"""The control itself.

The routers live on the data loop, and nothing else may touch them. The console lives in a thread of its own.
Between the two stands :class:`Control`:

* **showing**: once a second (modelled) the data loop takes one immutable :class:`Snapshot` of every model and
  swaps it in; any thread reads ``control.snapshot`` without a lock;
* **changing**: a command is checked in the caller's thread as far as that needs no live state, then runs on the
  data loop, and its result is a fresh snapshot, which other readers see from then on too. A restart takes minutes:
  its command answers when it has begun, and ``ModelSnapshot.operation`` tells how it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lmwarden.control.commands import check_options, check_routing_changes
from lmwarden.control.looks import MOST_CONVERSATIONS, ConversationList, Looks, list_conversations
from lmwarden.control.model import ControlledModel, ModelHandle
from lmwarden.control.operations import ConflictError, UnknownReplicaError
from lmwarden.control.snapshots import (
    ModelSnapshot,
    OperationKind,
    Snapshot,
    UnknownModelError,
)
from lmwarden.engine.logs import tail
from lmwarden.gateway.counters import GatewaySnapshot
from lmwarden.gateway.loop_lag import LoopLagSnapshot
from lmwarden.types import Clock, ReplicaId, ReplicaState, RoutingSettings

log = structlog.get_logger("lmwarden.control")


class UnknownEngineError(LookupError):
    """No engine of that name, or none whose log is kept here. ``str()`` says which."""


class Control:
    """Made on the data loop; see the module's text for which thread may call what."""

    def __init__(
        self,
        models: Sequence[ModelHandle],
        *,
        clock: Clock,
        counters: Callable[[], Mapping[str, GatewaySnapshot]],
        dropped_rows: Callable[[], int],
        ledger_trouble: Callable[[], str | None] = lambda: None,
        loop_lag: Callable[[], LoopLagSnapshot | None] = lambda: None,
        orphans: Callable[[], Mapping[str, tuple[int, ...]]] = dict,
        own_answers: Callable[[], Mapping[tuple[int, str], int]] = dict,
        drain_s: float = 120.0,
        clock_rate: float = 1.0,
        on_settings: Callable[[str, Mapping[str, Any]], None] = lambda model, changes: None,
    ) -> None:
        """Args:
        models: what runs; names differ.
        clock: the routers'.
        counters: the gateway's, by model.
        dropped_rows: the ledger's count.
        ledger_trouble: what keeps the ledger from its disk, in a sentence.
        loop_lag: how late the data loop is; called there.
        orphans: processes of engines that are not configured and cannot be ended, by engine.
        own_answers: requests that the gateway answered itself, by status and kind.
        drain_s: real seconds that open requests get before a restart, where the command does not say.
        clock_rate: seconds of ``clock`` per second.
        on_settings: told of settings that were changed, on the data loop; so that they are kept.
        """
        self._models = {model.name: ControlledModel(model, clock) for model in models}
        self._clock = clock
        self._counters = counters
        self._dropped_rows = dropped_rows
        self._ledger_trouble = ledger_trouble
        self._loop_lag = loop_lag
        self._orphans = orphans
        self._own_answers = own_answers
        self._drain_s = drain_s
        self._clock_rate = clock_rate
        self._on_settings = on_settings
        self._loop = asyncio.get_running_loop()
        self._looks = Looks(self._loop, self._list_conversations)
        self._counting_since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.snapshot: Snapshot
        """The latest; read from any thread."""
        self.take()

    async def run(self, interval_s: float) -> None:
        """Take a snapshot each interval (real seconds) until cancelled; then end what commands began."""
        try:
            while True:
                await asyncio.sleep(interval_s)
                try:
                    self.take()
                except Exception:
                    log.exception("taking a snapshot failed")
        finally:
            await self.close()

    async def close(self) -> None:
        """End running restarts: engines that were not stopped yet stay as they are."""
        for model in self._models.values():
            await model.restarts.close()

    def take(self) -> None:
        """Take a snapshot now, and have restarts look at what they wait for. On the data loop."""
        now = self._clock()
        counters = self._counters()
        self.snapshot = Snapshot(
            taken_at=time.time(),
            counting_since=self._counting_since,
            models=tuple(model.snapshot(counters[name], now) for name, model in self._models.items()),
            ledger_dropped_rows=self._dropped_rows(),
            ledger_trouble=self._ledger_trouble(),
            orphans=self._orphans(),
            own_answers=self._own_answers(),
            loop_lag=self._loop_lag(),
        )
        for model in self._models.values():
            model.restarts.look()

    def routing_settings(self, model: str) -> RoutingSettings:
        """A model's settings as of the latest snapshot. Any thread.

        Raises:
            UnknownModelError: there is no such model.
        """
        return self.snapshot.model(model).view.settings

    def conversations(self, model: str) -> Future[ConversationList]:
        """The conversations of a model that were used last, at most a second old. Any thread.

        Raises:
            UnknownModelError: there is no such model.
        """
        self._model(model)
        return self._looks.ask(model)

    def _list_conversations(self, model: str) -> ConversationList:
        router, now = self._models[model].router, self._clock()
        return list_conversations(
            router.conversations(now, MOST_CONVERSATIONS),
            self._models[model].handle.held(),
            now=now,
            clock_rate=self._clock_rate,
            total=router.view(now).conversations,
        )

    def log_lines(self, engine: str, max_lines: int, max_bytes: int) -> list[str]:
        """The last lines that a launched engine wrote, oldest first. Reads a file: call it in a thread of its own.

        Args:
            engine: its name.
            max_lines: at most so many.
            max_bytes: from at most so many bytes of the file.

        Raises:
            UnknownEngineError: there is no such engine, or the warden did not start it.
        """
        return tail(self._log_path(engine), max_lines, max_bytes)

    def _log_path(self, engine: str) -> Path:
        for model in self._models.values():
            handle = model.engines.get(engine)
            path = handle.log_path if handle is not None else None
            if path is not None:
                return path
            if any(watch.endpoint.engine == engine for watch in model.handle.watches):
                raise UnknownEngineError(f"{engine} was not started by the warden; its log is where it runs")
        raise UnknownEngineError(f"no engine is called {engine!r:.80}; /api/engines lists them")

    # -- commands: any thread; each future ends on the data loop ------------------------------------------------

    def patch_routing(self, model: str, changes: Mapping[str, Any]) -> Future[ModelSnapshot]:
        """Change some of a model's routing settings.

        Raises:
            UnknownModelError: there is no such model.
            SettingsError: a key is unknown, or a value not allowed; then nothing was changed.
        """
        checked = check_routing_changes(changes)

        def configure(model: ControlledModel) -> None:
            now = self._clock()
            settings = msgspec.structs.replace(model.router.view(now).settings, **checked)
            model.handle.carry_out(model.router.configure(settings, now))
            if checked:
                log.info("routing settings changed", model=model.handle.name, **checked)
                self._on_settings(model.handle.name, checked)

        return self._command(model, configure)

    def drain(self, model: str, replica: str, options: Mapping[str, Any]) -> Future[ModelSnapshot]:
        """Give a replica nothing new; its conversations move on their next turn. Holds until ``undrain``.

        Args:
            model: its name.
            replica: ``engine/rank``.
            options: may have ``allow_outage``: also the last ready replica.

        Raises:
            UnknownModelError, UnknownReplicaError: there is no such model or replica.
            CommandError: an option is unknown or not allowed.
            ConflictError: (from the future) it is the last ready one, or is being restarted.
        """
        found = self._replica(model, replica)
        checked = check_options(options, "allow_outage")

        def hold(model: ControlledModel) -> None:
            self._check_not_restarting(model, found.engine)
            ready = [r.replica for r in model.router.view(self._clock()).replicas if r.state is ReplicaState.READY]
            if ready == [found] and not checked.allow_outage:
                raise ConflictError(
                    f"{found} is the last ready replica of {model.handle.name}; without it every request is refused;"
                    " it is drained all the same where an outage is allowed (allow_outage)"
                )
            model.drains.hold(model.drains.by_operator, [found])
            log.info("replica is drained", model=model.handle.name, replica=str(found))

        return self._command(model, hold)

    def undrain(self, model: str, replica: str, options: Mapping[str, Any]) -> Future[ModelSnapshot]:
        """End a drain; again is harmless. Raises as ``drain``."""
        found = self._replica(model, replica)
        check_options(options)

        def release(model: ControlledModel) -> None:
            model.drains.release(model.drains.by_operator, [found])
            log.info("replica is given back", model=model.handle.name, replica=str(found))

        return self._command(model, release)

    def restart(self, model: str, replica: str, options: Mapping[str, Any]) -> Future[ModelSnapshot]:
        """Begin to restart the engine of a replica, with all its ranks; the snapshot's ``operation`` tells the rest.

        Args:
            model: its name.
            replica: ``engine/rank``.
            options: may have ``drain_s`` and ``allow_outage`` (see ``RestartOptions``).

        Raises:
            UnknownModelError, UnknownReplicaError: there is no such model or replica.
            CommandError: an option is unknown or not allowed.
            ConflictError: the engine was not launched; or (from the future) another restart runs, or it would
                leave no ready replica.
        """
        found = self._replica(model, replica)
        return self._restart(model, OperationKind.RESTART, [found.engine], options)

    def rolling_restart(self, model: str, options: Mapping[str, Any]) -> Future[ModelSnapshot]:
        """Begin to restart all engines of a model, one after the other. Options and errors as ``restart``."""
        engines = [watch.endpoint.engine for watch in self._model(model).handle.watches]
        return self._restart(model, OperationKind.ROLLING_RESTART, engines, options)

    def cancel_restart(self, model: str) -> Future[ModelSnapshot]:
        """End a model's running restart where it stands.

        Raises:
            UnknownModelError: there is no such model.
            ConflictError: (from the future) none runs.
        """
        return self._command(model, lambda model: model.restarts.cancel())

    def _restart(
        self, model: str, kind: OperationKind, engines: Sequence[str], options: Mapping[str, Any]
    ) -> Future[ModelSnapshot]:
        checked = check_options(options, "drain_s", "allow_outage")
        handles = self._model(model).engines
        for engine in engines:
            if engine not in handles or not handles[engine].launched:
                raise ConflictError(
                    f"{engine} was not launched by the warden; restart it where it runs (its replicas can be drained)"
                )
        drain_s = self._drain_s if checked.drain_s is None else checked.drain_s

        def begin(model: ControlledModel) -> None:
            model.restarts.begin(kind, engines, drain_s=drain_s, allow_outage=checked.allow_outage)

        return self._command(model, begin)

    def _check_not_restarting(self, model: ControlledModel, engine: str) -> None:
        running = model.restarts.running
        if running is not None and running.engine == engine:
            raise ConflictError(f"{engine} is being restarted; wait for it, or cancel that first")

    def _model(self, name: str) -> ControlledModel:
        if name not in self._models:
            raise UnknownModelError(name)
        return self._models[name]

    def _replica(self, model: str, text: str) -> ReplicaId:
        replicas = [replica for watch in self._model(model).handle.watches for replica in watch.replicas]
        for replica in replicas:
            if str(replica) == text:
                return replica
        raise UnknownReplicaError(f"{model} has no replica {text!r:.80}; it has {', '.join(map(str, replicas[:64]))}")

    def _command(self, name: str, work: Callable[[ControlledModel], None]) -> Future[ModelSnapshot]:
        model = self._model(name)
        result: Future[ModelSnapshot] = Future()
        self._loop.call_soon_threadsafe(self._carry_out, model, work, result)
        return result

    def _carry_out(
        self, model: ControlledModel, work: Callable[[ControlledModel], None], result: Future[ModelSnapshot]
    ) -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            work(model)
            self.take()
        except ConflictError as error:
            result.set_exception(error)
        except Exception as error:
            log.exception("a command failed", model=model.handle.name)
            result.set_exception(error)
        else:
            result.set_result(self.snapshot.model(model.handle.name))
