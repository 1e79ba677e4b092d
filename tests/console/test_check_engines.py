"""What is said of engines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.console.made_up import CHAT, MESSAGES, engine, model, pin, process, replica, view

from lmwarden.console.check_engines import check_engines
from lmwarden.console.findings import Check, Level
from lmwarden.control import EngineSnapshot, EngineState
from lmwarden.engine.launch_state import Crash, EnginePhase
from lmwarden.types import PinVerdict, ReplicaState

CRASH = Crash(at=1.0, exit_status=2, was_ready=False, pause_s=4.0)
KILLED = Crash(at=1.0, exit_status=-9, was_ready=True, pause_s=0.0)
NOW = 1_800_000_000.0
"""What the clock says: these cases are made when the tests are collected, which may be minutes before they run."""


def found(**changes: Any) -> dict[str, Check]:
    return {check.code: check for check in check_engines(model(**changes))}


@pytest.mark.parametrize(
    ("ill", "code", "level", "says"),
    [
        (engine(state=EngineState.DOWN), "engine_down", Level.FAULT, "e0 at http://h:1 does not answer"),
        (
            engine(state=EngineState.DOWN, complaint="http://h:1/health answers 503"),
            "engine_down",
            Level.FAULT,
            "e0 at http://h:1 does not answer: http://h:1/health answers 503",
        ),
        (engine(state=EngineState.STARTING), "engine_starting", Level.WARNING, "has not answered yet"),
        (
            msgspec.structs.replace(
                process(EnginePhase.STARTING), state=EngineState.STARTING, complaint="http://h:1 does not serve m"
            ),
            "engine_starting",
            Level.WARNING,
            ", but http://h:1 does not serve m",
        ),
        (
            msgspec.structs.replace(
                process(EnginePhase.STARTING, since=NOW - 300),
                complaint="http://h:1/health answers 503",
                state=EngineState.STARTING,
            ),
            "engine_starting",
            Level.WARNING,
            ", for 5 min now, but http://h:1/health answers 503",
        ),
        (engine(scrape_age_s=42.0), "stale_metrics", Level.WARNING, "metrics of e0 is 42 s old"),
        (engine(scrape_age_s=None), "no_metrics", Level.WARNING, "e0 shows no metrics"),
        (engine(usage_details=False), "no_usage_details", Level.WARNING, "do not say how much of a prompt was cached"),
        (
            engine(pins={CHAT: pin(PinVerdict.VERIFIED), MESSAGES: pin(PinVerdict.FAILED, "rank 1 was served by 0.")}),
            "pin_failed",
            Level.FAULT,
            "e0 does not obey the rank that we name on /v1/messages: rank 1 was served by 0",
        ),
        (
            engine(pins={CHAT: pin(PinVerdict.UNVERIFIED, "too busy to tell")}),
            "pin_unverified",
            Level.WARNING,
            "whether e0 obeys a rank on /v1/chat/completions: too busy to tell",
        ),
        (
            process(EnginePhase.FAILED, detail="it ended 5 times in a row.", last_lines=("a", "CUDA out of memory")),
            "engine_failed",
            Level.FAULT,
            "e0: it ended 5 times in a row (its last line: CUDA out of memory)",
        ),
        (process(EnginePhase.STUCK), "engine_stuck", Level.FAULT, "e0"),
        (process(EnginePhase.BACKING_OFF), "engine_crashed", Level.FAULT, "e0"),
        (
            process(EnginePhase.STARTING, detail="starting.", step="loading weights", last_lines=("old",)),
            "engine_starting",
            Level.WARNING,
            "e0: starting (loading weights)",
        ),
        (
            process(EnginePhase.STARTING, detail="starting", step="importing", last_crash=CRASH, last_lines=("oom",)),
            "engine_crashed",
            Level.FAULT,
            "e0: it ended with exit status 2 before it was ready and is started again (importing) (its last line: oom)",
        ),
        (
            process(EnginePhase.STARTING, detail="starting", last_crash=KILLED),
            "engine_crashed",
            Level.FAULT,
            "e0: it ended by signal 9 and is started again",
        ),
        (
            process(EnginePhase.STARTING, detail="starting", last_crash=msgspec.structs.replace(KILLED, over_at=2.0)),
            "engine_starting",
            Level.WARNING,
            "e0: starting",
        ),
        (process(EnginePhase.STOPPING), "engine_stopping", Level.WARNING, "e0"),
        (process(EnginePhase.STOPPED), "engine_stopped", Level.WARNING, "e0"),
        (process(outdated=True), "engine_outdated", Level.WARNING, "e0 runs with another command"),
    ],
)
def test_each_trouble(ill: EngineSnapshot, code: str, level: Level, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmwarden.console.check_engines.time.time", lambda: NOW)
    check = found(engines=(ill,))[code]
    assert check.level is level
    assert says in check.text
    assert check.what_to_do
    assert "{" not in check.what_to_do
    assert check.engine == "e0"


def test_a_last_line_is_not_said_twice() -> None:
    ill = process(EnginePhase.FAILED, detail="it ended, saying: E: no; given up.", last_lines=("a", "E: no"))
    check = found(engines=(ill,))["engine_failed"]
    assert check.text == "e0: it ended, saying: E: no; given up"
    assert check.params["last_line"] == "E: no"


@pytest.mark.parametrize(
    ("phase", "crash", "params"),
    [
        (EnginePhase.BACKING_OFF, CRASH, {"when": "starting", "exit_status": 2, "pause_s": 4.0}),
        (EnginePhase.BACKING_OFF, KILLED, {"when": "running", "signal": 9}),
        (EnginePhase.STARTING, KILLED, {"when": "running", "signal": 9, "step": "importing"}),
        (EnginePhase.FAILED, msgspec.structs.replace(CRASH, pause_s=None), {"when": "starting", "exit_status": 2}),
        (EnginePhase.BACKING_OFF, None, {"reason": "as it says"}),
        # What it was before says nothing of why it is stopped now.
        (EnginePhase.STOPPED, CRASH, {"reason": "as it says"}),
    ],
)
def test_a_crash_is_told_in_values_too(phase: EnginePhase, crash: Crash | None, params: dict[str, Any]) -> None:
    step = "importing" if phase is EnginePhase.STARTING else None
    ill = process(phase, detail="as it says.", step=step, last_crash=crash)
    (check,) = (check for check in check_engines(model(engines=(ill,))) if check.engine and check.what_to_do)
    detail = check.text.removeprefix("e0: ")
    assert check.params == {"engine": "e0", "detail": detail, **params}


def test_every_phase_has_words() -> None:
    for phase in EnginePhase:
        checks = found(engines=(process(phase),))
        assert ("engine" in checks) == (phase is EnginePhase.RUNNING), phase


def test_a_running_process_that_does_not_answer() -> None:
    ill = process()
    checks = found(engines=(engine(state=EngineState.DOWN, launched=True, launch=ill.launch),))
    assert "engine_down" not in checks, "that one is to be started, this one to be restarted"
    assert "/replicas/e0/0/restart" in (checks["engine_hangs"].what_to_do or "")
    assert "NAME" not in (checks["engine_hangs"].what_to_do or "")


def test_what_is_not_known_is_not_said() -> None:
    other = engine(ranks=1, is_vllm=False, scrape_age_s=None, usage_details=None)
    assert set(found(engines=(other,))) == {"replicas", "engine"}


@pytest.mark.parametrize(
    ("states", "level"),
    [
        ((ReplicaState.READY, ReplicaState.READY), Level.OK),
        ((ReplicaState.READY, ReplicaState.DOWN), Level.WARNING),
        ((ReplicaState.DRAINING, ReplicaState.DOWN), Level.FAULT),
    ],
)
def test_how_many_take_requests(states: tuple[ReplicaState, ...], level: Level) -> None:
    replicas = tuple(replica(rank, state=state) for rank, state in enumerate(states))
    check = found(view=view(replicas=replicas))["replicas"]
    assert check.level is level
    assert check.text == f"{states.count(ReplicaState.READY)} of 2 replicas take requests"


def test_panic() -> None:
    assert found(panic=True)["panic"].level is Level.FAULT
