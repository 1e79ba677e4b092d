"""Everything that the console shows, frozen at one moment.

A snapshot is built on the data loop and then read by any thread without a lock: nothing in it ever changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from lmwarden.control.rates import Rates
from lmwarden.engine.launch_state import LaunchState
from lmwarden.engine.pins import PinReport
from lmwarden.engine.watch import EngineState
from lmwarden.gateway.counters import TIME_TO_FIRST_BYTE_BOUNDS_S, GatewaySnapshot
from lmwarden.gateway.loop_lag import LAG_BOUNDS_S, LoopLagSnapshot
from lmwarden.types import ReplicaId, RouterView


class UnknownModelError(LookupError):
    """No model of that name is served."""


class OperationKind(StrEnum):
    """What an operator asked for."""

    RESTART = "restart"
    ROLLING_RESTART = "rolling-restart"


class OperationState(StrEnum):
    """How it stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Step(StrEnum):
    """Where an engine's restart is."""

    DRAINING = "draining"
    """No new requests; the open ones finish."""
    STOPPING = "stopping"
    STARTING = "starting"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A restart of one engine, or of all engines of a model one after the other."""

    kind: OperationKind
    state: OperationState
    engines: tuple[str, ...]
    """Those to restart, in this order."""
    done: tuple[str, ...] = ()
    """Those that serve again."""
    engine: str | None = None
    """The one in hand; at the end the one where it failed or was cancelled."""
    step: Step | None = None
    step_since: float
    """Unix seconds, as are the other two."""
    started_at: float
    ended_at: float | None = None
    sentence: str
    """What happens, or how it ended, for a person."""


SLOW_START_S = 60.0
"""A start that takes longer is worth saying what it waits for."""


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one moment."""

    engine: str
    url: str
    ranks: int
    state: EngineState
    version: str | None
    is_vllm: bool | None
    """None: it has not answered yet."""
    scrape_age_s: float | None
    """Age of the last good scrape (modelled seconds); None: there was none."""
    usage_details: bool | None
    """Whether its answers say how much of a prompt was cached; None: not known."""
    pins: dict[str, PinReport]
    """By endpoint: whether it obeys a rank that we name."""
    launched: bool
    """The warden started it (or took it over)."""
    launch: LaunchState | None
    """Of a launched one."""
    complaint: str | None = None
    """Why its probes do not call it ready, in a sentence; None: they do, or tell nothing."""
    kv_bytes_per_token: float | None = None
    """Memory that a token of context takes in its KV cache; None: not known."""
    boot_ids: tuple[str | None, ...] = ()
    """The run of each rank as its metrics name it; None: they do not. Empty: it has not answered yet."""


def with_reason(operation: Operation | None, engines: Sequence[EngineSnapshot], now: float) -> Operation | None:
    """An operation whose engine takes long to start says what it waits for. ``now``: Unix seconds."""
    if operation is None or operation.state is not OperationState.RUNNING or operation.step is not Step.STARTING:
        return operation
    lasts_s = now - operation.step_since
    if lasts_s < SLOW_START_S:
        return operation
    complaint = next((engine.complaint for engine in engines if engine.engine == operation.engine), None)
    waits = f"it answers, but: {complaint}" if complaint is not None else "it does not answer yet; its log says more"
    sentence = f"{operation.sentence}, for {lasts_s / 60:.0f} min now; {waits}"
    return msgspec.structs.replace(operation, sentence=sentence)


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
    panic: bool
    """All its probes fail at once, so its engines are tried all the same."""
    drained: frozenset[ReplicaId]
    """Those that an operator took out and did not give back."""
    operation: Operation | None
    """The latest: running, or how it ended."""
    rates: Rates = Rates()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the console shows, at one moment."""

    taken_at: float
    """Unix seconds."""
    counting_since: str
    """When the counters began: ISO 8601, UTC."""
    models: tuple[ModelSnapshot, ...]
    ledger_dropped_rows: int
    ledger_trouble: str | None
    """What keeps history from the disk, in a sentence; None: nothing."""
    orphans: Mapping[str, tuple[int, ...]] = {}
    """Process ids of engines that the configuration does not have any more and that cannot be ended, by engine."""
    own_answers: Mapping[tuple[int, str], int] = {}
    """Requests that no router knew and no row tells of, because the gateway refused them itself: by status and kind."""
    loop_lag: LoopLagSnapshot | None = None
    """How late the data loop is; None: nobody looks."""
    loop_lag_bounds_s: tuple[float, ...] = LAG_BOUNDS_S
    """Upper bounds of its buckets, as are the next ones; one more takes the rest."""
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
