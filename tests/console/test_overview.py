"""All models at a glance: how each stands, how much goes through, what still fits."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from tests.console.made_up import CHAT, MESSAGES, engine, model, pin, process, replica, snapshot, view
from tests.console.made_up import room as waiting_room
from tests.console.scene import Console
from tests.ledger.samples import LIMIT_S, record
from tests.waiting import PATIENCE_S

from lmwarden.console import overview
from lmwarden.console.overview import CachedShares, LiveMessage, ModelState, live_message
from lmwarden.console.shapes import ModelDetail, model_detail
from lmwarden.control import EngineState, ModelSnapshot
from lmwarden.control.rates import Rates
from lmwarden.engine.launch_state import Crash, EnginePhase
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.schema import LedgerError
from lmwarden.types import PinVerdict, ReplicaCapacity, ReplicaSample, ReplicaState


def message(*models: ModelSnapshot, **changes: Any) -> LiveMessage:
    return live_message(snapshot(*models, **changes), lambda name: 0.78)


def down(rank: int = 0) -> Any:
    return replica(rank, state=ReplicaState.DOWN)


def test_the_figures_of_a_model() -> None:
    busy = view(in_flight=3, waiting=2, replicas=(replica(0, conversations=4), replica(1, conversations=1)))
    rates = Rates(prompt_tokens_per_s=100.0, cached_tokens_per_s=60.0, completion_tokens_per_s=7.0)
    told = message(model(view=busy, rates=rates))
    (line,) = told.overview.models
    assert msgspec.to_builtins(line) == {
        "name": "org/model", "state": "ok", "replicas": 2, "replicas_ready": 2, "in_flight": 3, "waiting": 2,
        "prompt_tokens_per_s": 100.0, "cached_tokens_per_s": 60.0, "completion_tokens_per_s": 7.0,
        "cached_ratio_1h": 0.78, "conversations_live": 5, "warnings": [],
    }  # fmt: skip
    assert told.overview.ledger_trouble is None
    assert [detail.name for detail in told.models] == ["org/model"]
    assert message(ledger_trouble="the disk is full").overview.ledger_trouble == "the disk is full"
    assert told.overview.own_answers == []
    refused = message(own_answers={(404, "model_not_found"): 7, (401, "invalid_api_key"): 1}).overview.own_answers
    assert msgspec.to_builtins(refused) == [
        {"status": 401, "code": "invalid_api_key", "count": 1},
        {"status": 404, "code": "model_not_found", "count": 7},
    ]


CRASH = Crash(at=1.0, exit_status=2, was_ready=False, pause_s=4.0)


@pytest.mark.parametrize(
    ("made_up", "state"),
    [
        (model(), ModelState.OK),
        (model(engines=(engine(usage_details=False),)), ModelState.WARNING),
        (
            model(engines=(engine(pins={CHAT: pin(PinVerdict.FAILED), MESSAGES: pin(PinVerdict.VERIFIED)}),)),
            ModelState.FAULT,
        ),
        (model(view=view(replicas=(down(),)), engines=(engine(state=EngineState.STARTING),)), ModelState.STARTING),
        (model(view=view(replicas=(down(),)), engines=(process(EnginePhase.STARTING),)), ModelState.STARTING),
        # One that crashed may crash again: until it serves, that is a fault.
        (
            model(view=view(replicas=(down(),)), engines=(process(EnginePhase.STARTING, last_crash=CRASH),)),
            ModelState.FAULT,
        ),
        # One was given up, which the other's start does not mend.
        (
            model(view=view(replicas=(down(),)), engines=(process(EnginePhase.FAILED), process(EnginePhase.STARTING))),
            ModelState.FAULT,
        ),
        (model(view=view(replicas=(down(),)), engines=(engine(state=EngineState.DOWN),)), ModelState.FAULT),
        (model(view=view(replicas=(down(),)), engines=(process(EnginePhase.FAILED),)), ModelState.FAULT),
        # One of two is on its way: requests are served, with a warning.
        (
            model(
                view=view(replicas=(replica(0), down(1))),
                engines=(engine("e0", ranks=1), process(EnginePhase.STARTING)),
            ),
            ModelState.WARNING,
        ),
    ],
)
def test_how_a_model_stands(made_up: ModelSnapshot, state: ModelState) -> None:
    (line,) = message(made_up).overview.models
    assert line.state is state


def test_each_warning_has_its_level() -> None:
    ill = model(engines=(engine(usage_details=False),))
    told = message(ill)
    assert [warning.level for warning in told.overview.models[0].warnings] == ["warning"]
    assert told.models[0].warnings == told.overview.models[0].warnings


def room(*replicas: Any) -> ModelDetail:
    return model_detail(model(view=view(replicas=replicas)), "")


def test_what_still_fits() -> None:
    # 60,000 tokens are held by 6 conversations; 84,000 fit.
    detail = room(
        replica(0, conversations=4, resident_tokens=40_000), replica(1, conversations=2, resident_tokens=20_000)
    )
    assert (detail.held_tokens, detail.mean_context_tokens, detail.room_for) == (60_000, 10_000, 2)
    assert detail.routing.admission.room_for == 2
    # They do not fit any more: none, and not a negative number.
    over = room(replica(0, conversations=9, resident_tokens=90_000))
    assert (over.held_tokens, over.room_for) == (90_000, 0)
    # A replica that is down holds nothing for anybody.
    half = room(
        replica(0, conversations=3, resident_tokens=30_000),
        replica(1, conversations=1, resident_tokens=10_000, state=ReplicaState.DOWN),
    )
    assert (half.held_tokens, half.room_for) == (40_000, 0)


def test_what_still_fits_beside_those_in_use() -> None:
    def fits(**changes: Any) -> int | None:
        held = (replica(0, conversations=9, resident_tokens=90_000),)
        shown = model_detail(model(view=view(replicas=held, room=waiting_room(**changes))), "")
        assert shown.room_for == shown.routing.admission.room_for
        return shown.room_for

    # Nine live conversations of 10,000 do not fit 42,000, but most of them pause: the room knows who is in use.
    assert fits(room_for=3) == 3
    # None is in use: everything is free.
    assert fits(room_for=None, demand_ratio=0.0) == 4
    assert fits(room_for=None, demand_ratio=0.4) is None
    assert fits(room_for=3, engaged=True, demand_ratio=1.2) == 0
    assert fits(room_for=3, engaged=True, demand_ratio=0.9, waiting=1) == 0
    # The work has ended; the room opens in a moment.
    assert fits(room_for=3, engaged=True, demand_ratio=0.5) == 3


@pytest.mark.parametrize("figures", [{"waiting": 1}, {"kv_used_ratio": 0.95}])
def test_an_engine_that_is_full_has_no_room_whatever_was_counted(figures: dict[str, Any]) -> None:
    """Turns that are not answered yet hold context that nobody has counted."""
    busy = ReplicaSample(taken_at=0.0, running=3, **figures)
    held = room(replica(0, conversations=2, resident_tokens=2_000, sample=busy))
    assert (held.mean_context_tokens, held.room_for) == (1_000, 0)


def test_what_is_not_known_is_null() -> None:
    nobody = room(replica(0, conversations=0, resident_tokens=0))
    assert (nobody.held_tokens, nobody.mean_context_tokens, nobody.room_for) == (0, None, None)
    unmeasured = ReplicaCapacity(kv_cache_tokens=None, max_num_seqs=32)
    unknown = room(
        replica(0, conversations=2, resident_tokens=20_000),
        replica(1, conversations=2, resident_tokens=20_000, capacity=unmeasured),
    )
    assert (unknown.held_tokens, unknown.mean_context_tokens, unknown.room_for) == (40_000, 10_000, None)


async def test_the_cached_share_is_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(name: str, begin_s: float, end_s: float) -> float | None:
        asked.append((name, end_s - begin_s))
        if name == "broken":
            raise LedgerError("the disk is full")
        return 0.5

    monkeypatch.setattr(overview, "SHARE_KEPT_S", PATIENCE_S)
    shares = CachedShares(ask)
    assert shares.get("m") is None
    await shares.refresh(["m"])
    await shares.refresh(["m"])
    assert shares.get("m") == 0.5
    assert asked == [("m", 3600.0)]
    monkeypatch.setattr(overview, "SHARE_KEPT_S", 0.0)
    await shares.refresh(["broken"])
    assert shares.get("m") is None
    without = CachedShares(None)
    await without.refresh(["m"])
    assert without.get("m") is None


async def test_it_is_the_same_figure_as_on_the_stats_page(whole_console: Console, ledger: Ledger) -> None:
    for cached in (900, 100):
        ledger.record(record(model="org/model", finished_at=time.time(), cached_tokens=cached))
    assert ledger.flush(LIMIT_S)
    (line,) = (await whole_console.get("/api/overview"))["overview"]["models"]
    chart = await whole_console.get("/api/stats/tokens?window=1h&model=org/model")
    assert line["cached_ratio_1h"] == chart["cached_ratio"] == 0.5
