"""All models at a glance, and the message of the live stream: the console's JSON. Names are public.

The message holds everything that changes from second to second, so that a page needs one connection and no questions.
What is not known is ``null``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from lmwarden.console.checks import ModelWarning
from lmwarden.console.findings import Level
from lmwarden.console.shapes import ModelDetail, model_detail
from lmwarden.control import EngineSnapshot, EngineState, ModelSnapshot, Snapshot
from lmwarden.ledger.schema import LedgerError
from lmwarden.types import ReplicaState

SHARE_WINDOW_S = 3600.0
SHARE_KEPT_S = 5.0
"""So old may the cached share of the last hour be: it is read from the disk."""


class ModelState(StrEnum):
    """How a model stands."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    STARTING = "starting"
    """No replica is ready yet, and some engine is on its way."""


class OverviewModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model at a glance."""

    name: str
    state: ModelState
    replicas: int
    replicas_ready: int
    in_flight: int
    waiting: int
    """In the waiting room."""
    prompt_tokens_per_s: float | None
    """Over the last minute, as are the next two."""
    cached_tokens_per_s: float | None
    completion_tokens_per_s: float | None
    cached_ratio_1h: float | None
    conversations_live: int
    warnings: list[ModelWarning]


class OwnAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that the gateway refused by itself since ``counting_since``: no request row tells of them."""

    status: int
    code: str
    """A word of ours: ``model_not_found``, ``invalid_api_key``, ``invalid_json`` and so on."""
    count: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    models: list[OverviewModel]
    ledger_trouble: str | None
    own_answers: list[OwnAnswers] = []
    """Of all clients together; short, for there are few codes."""


class LiveMessage(msgspec.Struct, frozen=True, kw_only=True):
    """``/api/overview``, and each message of ``/api/events``."""

    taken_at: float
    """Unix seconds."""
    counting_since: str
    overview: Overview
    models: list[ModelDetail]


class CachedShares:
    """The cached share of the last hour by model, read again when it is old and somebody looks."""

    def __init__(self, ask: Callable[[str, float, float], float | None] | None) -> None:
        """Args:
        ask: (model, from, to; Unix seconds) to the cached part of all prompt tokens; called in a thread. None: there
            is no history.
        """
        self._ask = ask
        self._shares: dict[str, float | None] = {}
        self._read_at: float | None = None

    def get(self, model: str) -> float | None:
        """As of the last refresh."""
        return self._shares.get(model)

    async def refresh(self, models: Iterable[str]) -> None:
        """Read them anew if they are old."""
        now = time.monotonic()
        if self._ask is None or (self._read_at is not None and now - self._read_at < SHARE_KEPT_S):
            return
        self._read_at = now
        self._shares = await asyncio.to_thread(self._read, self._ask, list(models))

    @staticmethod
    def _read(ask: Callable[[str, float, float], float | None], models: list[str]) -> dict[str, float | None]:
        now = time.time()
        try:
            return {model: ask(model, now - SHARE_WINDOW_S, now) for model in models}
        except LedgerError:  # the ledger's own trouble says why
            return {}


def live_message(snapshot: Snapshot, cached_ratio_1h: Callable[[str], float | None]) -> LiveMessage:
    """Everything, from one snapshot."""
    details = [model_detail(model, snapshot.counting_since) for model in snapshot.models]
    models = [
        _overview_model(model, detail, cached_ratio_1h(model.name))
        for model, detail in zip(snapshot.models, details, strict=True)
    ]
    return LiveMessage(
        taken_at=snapshot.taken_at,
        counting_since=snapshot.counting_since,
        overview=Overview(
            models=models,
            ledger_trouble=snapshot.ledger_trouble,
            own_answers=[
                OwnAnswers(status=status, code=code, count=count)
                for (status, code), count in sorted(snapshot.own_answers.items())
            ],
        ),
        models=details,
    )


def state_of(model: ModelSnapshot, warnings: Iterable[ModelWarning]) -> ModelState:
    """How a model stands, given its warnings."""
    ready = any(replica.state is ReplicaState.READY for replica in model.view.replicas)
    levels = {warning.level for warning in warnings if ready or warning.code != "replicas"}
    # That no replica is ready yet is what starting means; any other fault will not end by waiting.
    if not ready and Level.FAULT not in levels and any(map(_is_on_its_way, model.engines)):
        return ModelState.STARTING
    if not ready or Level.FAULT in levels:
        return ModelState.FAULT
    return ModelState.WARNING if levels else ModelState.OK


def _is_on_its_way(engine: EngineSnapshot) -> bool:
    phase = "running" if engine.launch is None else engine.launch.phase
    return phase == "starting" or (phase == "running" and engine.state is EngineState.STARTING)


def _overview_model(model: ModelSnapshot, detail: ModelDetail, cached_ratio_1h: float | None) -> OverviewModel:
    view = model.view
    return OverviewModel(
        name=model.name,
        state=state_of(model, detail.warnings),
        replicas=len(view.replicas),
        replicas_ready=sum(replica.state is ReplicaState.READY for replica in view.replicas),
        in_flight=view.in_flight,
        waiting=view.waiting,
        prompt_tokens_per_s=model.rates.prompt_tokens_per_s,
        cached_tokens_per_s=model.rates.cached_tokens_per_s,
        completion_tokens_per_s=model.rates.completion_tokens_per_s,
        cached_ratio_1h=cached_ratio_1h,
        conversations_live=sum(replica.conversations for replica in view.replicas),
        warnings=detail.warnings,
    )
