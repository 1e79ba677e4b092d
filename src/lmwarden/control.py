"""The one object that changes a running system, and the one that shows it.

The routers live on the data loop, and nothing else may touch them. The console lives in a thread of its own.
Between the two stands :class:`Control`:

* **showing**: once a second (modelled) the data loop takes one immutable :class:`Snapshot` of every model and
  swaps it in; any thread reads ``control.snapshot`` without a lock;
* **changing**: a command is validated in the caller's thread, then runs on the data loop, and its result is
  a fresh snapshot, which other readers see from then on too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from lmwarden.engine.watch import EngineState, EngineWatch
from lmwarden.gateway.counters import TIME_TO_FIRST_BYTE_BOUNDS_S, GatewaySnapshot
from lmwarden.routing.contract import RouterContract
from lmwarden.types import Action, Clock, ReplicaId, RouterView, RoutingSettings

log = structlog.get_logger("lmwarden.control")

ROUTING_KEYS = {
    "affinity": "true or false",
    "placement": '"least-loaded" or "hash"',
    "spill_threshold": "an integer from 0 to 1000000, or null for automatic",
}
"""What ``patch_routing`` takes, and what each may be."""
LATER_KEYS = ("admission", "prefer", "max_wait_s")
"""Settings of the waiting room, which this version has not."""


class SettingsError(ValueError):
    """A change that cannot be made. One line that names the key and what is allowed."""


class UnknownModelError(LookupError):
    """No model of that name is served."""


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one moment."""

    engine: str
    url: str
    ranks: int
    state: EngineState
    version: str | None
    scrape_age_s: float | None
    """Age of the last good scrape (modelled seconds); None: there was none."""


class ModelSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one moment."""

    name: str
    aliases: tuple[str, ...]
    max_model_len: int | None
    view: RouterView
    engines: tuple[EngineSnapshot, ...]
    prefix_hit_ratio: dict[ReplicaId, float | None]
    """From the engine's own counters, since the warden's start."""
    counters: GatewaySnapshot


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the console shows, at one moment."""

    taken_at: float
    """Unix seconds."""
    counting_since: str
    """When the counters began: ISO 8601, UTC."""
    models: tuple[ModelSnapshot, ...]
    ledger_dropped_rows: int
    first_byte_bounds_s: tuple[float, ...] = TIME_TO_FIRST_BYTE_BOUNDS_S
    """Upper bounds of the buckets in ``GatewaySnapshot.first_byte_counts``; one more takes the rest."""

    def model(self, name: str) -> ModelSnapshot:
        """One model by its name.

        Raises:
            UnknownModelError: there is none.
        """
        for model in self.models:
            if model.name == name:
                return model
        raise UnknownModelError(name)


class ModelHandle(msgspec.Struct, frozen=True, kw_only=True):
    """What the control needs of one running model."""

    name: str
    aliases: tuple[str, ...]
    max_model_len: int | None
    router: RouterContract
    carry_out: Callable[[Sequence[Action]], None]
    """Hands a router's actions to the driver that carries them out."""
    watches: tuple[EngineWatch, ...]
    urls: Mapping[str, str]
    versions: Mapping[str, str | None]


class Control:
    """Made on the data loop; see the module's text for which thread may call what."""

    def __init__(
        self,
        models: Sequence[ModelHandle],
        *,
        clock: Clock,
        counters: Callable[[], Mapping[str, GatewaySnapshot]],
        dropped_rows: Callable[[], int],
    ) -> None:
        """Args:
        models: what runs; names differ.
        clock: the routers'.
        counters: the gateway's, by model.
        dropped_rows: the ledger's count.
        """
        self._models = {model.name: model for model in models}
        self._clock = clock
        self._counters = counters
        self._dropped_rows = dropped_rows
        self._loop = asyncio.get_running_loop()
        self._counting_since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.snapshot: Snapshot
        """The latest; read from any thread."""
        self.take()

    async def run(self, interval_s: float) -> None:
        """Take a snapshot each interval (real seconds) until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                self.take()
            except Exception:
                log.exception("taking a snapshot failed")

    def take(self) -> None:
        """Take a snapshot now. On the data loop."""
        now = self._clock()
        counters = self._counters()
        self.snapshot = Snapshot(
            taken_at=time.time(),
            counting_since=self._counting_since,
            models=tuple(_model_snapshot(model, counters[model.name], now) for model in self._models.values()),
            ledger_dropped_rows=self._dropped_rows(),
        )

    def routing_settings(self, model: str) -> RoutingSettings:
        """A model's settings as of the latest snapshot. Any thread.

        Raises:
            UnknownModelError: there is no such model.
        """
        return self.snapshot.model(model).view.settings

    def patch_routing(self, model: str, changes: Mapping[str, Any]) -> Future[ModelSnapshot]:
        """Change some of a model's routing settings. Any thread; the future ends on the data loop.

        Raises:
            UnknownModelError: there is no such model.
            SettingsError: a key is unknown, or a value not allowed; then nothing was changed.
        """
        if model not in self._models:
            raise UnknownModelError(model)
        checked = check_routing_changes(changes)
        result: Future[ModelSnapshot] = Future()
        self._loop.call_soon_threadsafe(self._apply, self._models[model], checked, result)
        return result

    def _apply(self, model: ModelHandle, changes: dict[str, Any], result: Future[ModelSnapshot]) -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            now = self._clock()
            settings = msgspec.structs.replace(model.router.view(now).settings, **changes)
            model.carry_out(model.router.configure(settings, now))
            self.take()
        except Exception as error:
            log.exception("a change of settings failed", model=model.name)
            result.set_exception(error)
            return
        if changes:
            log.info("routing settings changed", model=model.name, **changes)
        result.set_result(self.snapshot.model(model.name))


def _model_snapshot(model: ModelHandle, counters: GatewaySnapshot, now: float) -> ModelSnapshot:
    return ModelSnapshot(
        name=model.name,
        aliases=model.aliases,
        max_model_len=model.max_model_len,
        view=model.router.view(now),
        engines=tuple(
            EngineSnapshot(
                engine=watch.endpoint.engine,
                url=model.urls[watch.endpoint.engine],
                ranks=watch.endpoint.ranks,
                state=watch.state,
                version=model.versions.get(watch.endpoint.engine),
                scrape_age_s=None if watch.scraped_at is None else max(0.0, now - watch.scraped_at),
            )
            for watch in model.watches
        ),
        prefix_hit_ratio={
            replica: totals.hit_ratio
            for watch in model.watches
            for replica, totals in zip(watch.replicas, watch.prefix_totals, strict=True)
        },
        counters=counters,
    )


def check_routing_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, if all are allowed.

    Raises:
        SettingsError: one line that names the key and what is allowed.
    """
    for key, value in changes.items():
        if key in LATER_KEYS:
            raise SettingsError(f"{key}: the waiting room is not in this version; nothing was changed")
        if key not in ROUTING_KEYS:
            raise SettingsError(f"{key!r:.80}: unknown key; allowed: {', '.join(ROUTING_KEYS)}")
        allowed = {
            "affinity": isinstance(value, bool),
            "placement": value in ("least-loaded", "hash"),
            "spill_threshold": value is None
            or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1_000_000),
        }
        if not allowed[key]:
            raise SettingsError(f"{key}: must be {ROUTING_KEYS[key]}, not {value!r:.100}")
    return dict(changes)
