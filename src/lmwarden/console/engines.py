"""The console's JSON about engines: what they are, how their processes stand, whether they obey. Names are public."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lmwarden.control import EngineSnapshot, LaunchState, ModelSnapshot, Snapshot
from lmwarden.types import PinVerdict


class PinLine(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one engine obeys a rank on one endpoint."""

    engine: str
    endpoint: str
    state: PinVerdict
    detail: str | None
    tested_at: float | None
    """Unix seconds; null: never."""


class PinState(msgspec.Struct, frozen=True, kw_only=True):
    """The same for a whole model: ``failed`` if any endpoint failed, ``verified`` only if all are."""

    state: PinVerdict
    detail: str | None
    endpoints: list[PinLine]


class EngineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine."""

    engine: str
    model: str
    url: str
    ranks: int
    state: str
    """``starting``, ``up`` or ``down``, as its probes say."""
    version: str | None
    is_vllm: bool | None
    scrape_age_s: float | None
    usage_details: bool | None
    """Whether its answers say how much of a prompt was cached."""
    pins: list[PinLine]
    launched: bool
    process: LaunchState | None
    """null: it was not started by the warden."""


class EngineLines(msgspec.Struct, frozen=True, kw_only=True):
    """``/api/engines``. Short by nature: one per server."""

    engines: list[EngineLine]


class LogLines(msgspec.Struct, frozen=True, kw_only=True):
    """``/api/engines/{engine}/logs``."""

    engine: str
    lines: list[str]
    """Oldest first."""


def engine_lines(snapshot: Snapshot) -> EngineLines:
    """All engines."""
    return EngineLines(engines=[line for model in snapshot.models for line in engines_of(model)])


def engines_of(model: ModelSnapshot) -> list[EngineLine]:
    """The engines of one model."""
    return [_engine_line(engine, model.name) for engine in model.engines]


def pin_state(engines: Iterable[EngineSnapshot]) -> PinState:
    """Whether the ranks that we name are obeyed, over all engines of a model."""
    lines = [line for engine in engines for line in _pin_lines(engine)]
    states = {line.state for line in lines}
    state = PinVerdict.VERIFIED if states == {PinVerdict.VERIFIED} else PinVerdict.UNVERIFIED
    state = PinVerdict.FAILED if PinVerdict.FAILED in states else state
    if state is PinVerdict.VERIFIED:
        return PinState(state=state, detail=None, endpoints=lines)
    of_interest = [line for line in lines if line.state is state]
    detail = "; ".join(f"{line.engine} {line.endpoint}: {line.detail or line.state}" for line in of_interest)
    return PinState(state=state, detail=detail or "not tested yet", endpoints=lines)


def _engine_line(engine: EngineSnapshot, model: str) -> EngineLine:
    return EngineLine(
        engine=engine.engine,
        model=model,
        url=engine.url,
        ranks=engine.ranks,
        state=engine.state,
        version=engine.version,
        is_vllm=engine.is_vllm,
        scrape_age_s=engine.scrape_age_s,
        usage_details=engine.usage_details,
        pins=_pin_lines(engine),
        launched=engine.launched,
        process=engine.launch,
    )


def _pin_lines(engine: EngineSnapshot) -> list[PinLine]:
    return [
        PinLine(
            engine=engine.engine,
            endpoint=path,
            state=report.verdict,
            detail=report.detail,
            tested_at=report.tested_at,
        )
        for path, report in sorted(engine.pins.items())
    ]
