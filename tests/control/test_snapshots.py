"""What a snapshot says of an operation that takes long."""

from __future__ import annotations

import msgspec
import pytest
from tests.console.made_up import engine

from lmwarden.control import SLOW_START_S, Operation, OperationKind, OperationState, Step
from lmwarden.control.snapshots import with_reason

STARTING = Operation(
    kind=OperationKind.RESTART,
    state=OperationState.RUNNING,
    engines=("e0",),
    engine="e0",
    step=Step.STARTING,
    step_since=1000.0,
    started_at=900.0,
    sentence="e0 is starting",
)
LATE = 1000.0 + 4 * SLOW_START_S


def test_a_start_that_takes_long_says_what_it_waits_for() -> None:
    told = with_reason(STARTING, [engine("e1"), engine(complaint="http://h:1/health answers 503")], LATE)
    assert told is not None
    assert told.sentence == "e0 is starting, for 4 min now; it answers, but: http://h:1/health answers 503"
    silent = with_reason(STARTING, [engine(complaint=None)], LATE)
    assert silent is not None
    assert silent.sentence.endswith("it does not answer yet; its log says more")


@pytest.mark.parametrize(
    ("operation", "now"),
    [
        (None, LATE),
        (STARTING, 1000.0 + SLOW_START_S / 2),
        (msgspec.structs.replace(STARTING, step=Step.DRAINING), LATE),
        (msgspec.structs.replace(STARTING, state=OperationState.FAILED), LATE),
    ],
)
def test_everything_else_is_as_it_was(operation: Operation | None, now: float) -> None:
    assert with_reason(operation, [engine(complaint="no")], now) is operation
