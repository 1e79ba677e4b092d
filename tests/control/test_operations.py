"""Draining and restarting: what is waited for, what is refused, and that replicas are always given back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
from tests.console.scene import FakeEngine, Scene

from lmwarden.control import ConflictError, Operation, OperationState, Step, UnknownReplicaError
from lmwarden.control.commands import CommandError
from lmwarden.engine.launch_state import EnginePhase, LaunchError
from lmwarden.types import Outcome, ReplicaId, ReplicaState, RoutingRequest

MODEL = "org/model"


class Fleet:
    """A scene with three launched engines of one rank each."""

    def __init__(self, session: aiohttp.ClientSession, ranks: Sequence[int] = (1, 1, 1)) -> None:
        names = [f"e{number}" for number in range(len(ranks))]
        self.engines = {name: FakeEngine(name) for name in names}
        self.scene = Scene(session, engines=dict(zip(names, ranks, strict=True)), handles=tuple(self.engines.values()))
        self.control = self.scene.control

    @property
    def operation(self) -> Operation:
        operation = self.control.snapshot.model(MODEL).operation
        assert operation is not None
        return operation

    def states(self) -> dict[str, ReplicaState]:
        view = self.control.snapshot.model(MODEL).view
        return {str(replica.replica): replica.state for replica in view.replicas}

    def request(self, replica: ReplicaId) -> int:
        """An open request there; returns its ticket."""
        ticket, _ = self.scene.router.offer(RoutingRequest(pin=replica), time.monotonic())
        return ticket

    def finish(self, ticket: int) -> None:
        self.scene.router.finished(ticket, Outcome.OK, None, time.monotonic())

    async def at(self, engine: str, step: Step) -> None:
        await self.scene.until(lambda: (self.operation.engine, self.operation.step) == (engine, step))

    async def ended(self) -> Operation:
        await self.scene.until(lambda: self.operation.state is not OperationState.RUNNING)
        return self.operation

    async def comes_back(self, engine: str) -> None:
        """Its process is replaced and serves."""
        fake = self.engines[engine]
        await self.scene.until(fake.asked.is_set)
        self.scene.all_down(engine)
        fake.process_runs.set()
        await self.at(engine, Step.STARTING)
        self.scene.all_up(engine, boot_id=f"boot-2-{engine}")
        fake.becomes(EnginePhase.RUNNING)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


@pytest.fixture
async def fleet(session: aiohttp.ClientSession) -> AsyncIterator[Fleet]:
    made = Fleet(session)
    yield made
    await made.control.close()


async def rolling(fleet: Fleet, **options: Any) -> None:
    await asyncio.wrap_future(fleet.control.rolling_restart(MODEL, options))


async def restart(fleet: Fleet, replica: str, **options: Any) -> None:
    await asyncio.wrap_future(fleet.control.restart(MODEL, replica, options))


async def drain(fleet: Fleet, replica: str, **options: Any) -> None:
    await asyncio.wrap_future(fleet.control.drain(MODEL, replica, options))


async def undrain(fleet: Fleet, replica: str) -> None:
    await asyncio.wrap_future(fleet.control.undrain(MODEL, replica, {}))


# -- draining ---------------------------------------------------------------------------------------------------------


async def test_a_drained_replica_gets_nothing_new_until_it_is_given_back(fleet: Fleet) -> None:
    home = fleet.scene.turn(b"c" * 16).replica
    assert home is not None
    await drain(fleet, str(home))
    assert fleet.states()[str(home)] is ReplicaState.DRAINING
    assert fleet.control.snapshot.model(MODEL).drained == {home}
    # Its conversation moves on its next turn.
    assert fleet.scene.turn(b"c" * 16).replica != home
    assert all(fleet.scene.turn(bytes([number]) * 16).replica != home for number in range(9))
    await undrain(fleet, str(home))
    assert fleet.states()[str(home)] is ReplicaState.READY
    assert not fleet.control.snapshot.model(MODEL).drained


async def test_the_last_ready_replica_is_drained_only_on_purpose(fleet: Fleet) -> None:
    await drain(fleet, "e0/0")
    await drain(fleet, "e1/0")
    with pytest.raises(ConflictError, match=r"e2/0 is the last ready replica of org/model.*allow_outage"):
        await drain(fleet, "e2/0")
    assert fleet.states()["e2/0"] is ReplicaState.READY
    await drain(fleet, "e2/0", allow_outage=True)
    assert fleet.states()["e2/0"] is ReplicaState.DRAINING


@pytest.mark.parametrize("text", ["e9/0", "e0/1", "e0", "", "e0/x"])
async def test_an_unknown_replica(fleet: Fleet, text: str) -> None:
    for command in (fleet.control.drain, fleet.control.undrain, fleet.control.restart):
        with pytest.raises(UnknownReplicaError, match="it has e0/0, e1/0, e2/0"):
            command(MODEL, text, {})


# -- one engine -------------------------------------------------------------------------------------------------------


async def test_a_restart_waits_for_open_requests_and_gives_the_replica_back(fleet: Fleet) -> None:
    ticket = fleet.request(ReplicaId("e1", 0))
    await restart(fleet, "e1/0")
    await fleet.at("e1", Step.DRAINING)
    assert fleet.states() == {"e0/0": "ready", "e1/0": "draining", "e2/0": "ready"}
    for _ in range(20):
        await asyncio.sleep(0)
        fleet.scene.refresh()
    assert fleet.engines["e1"].restarts == 0
    fleet.finish(ticket)
    await fleet.at("e1", Step.STOPPING)
    await fleet.comes_back("e1")
    ended = await fleet.ended()
    assert (ended.state, ended.done, ended.engines) == (OperationState.DONE, ("e1",), ("e1",))
    assert ended.ended_at is not None
    assert (ended.engine, ended.step) == (None, None)
    assert fleet.states()["e1/0"] is ReplicaState.READY
    assert [engine.restarts for engine in fleet.engines.values()] == [0, 1, 0]


async def test_a_request_that_does_not_end_holds_it_up_only_so_long(fleet: Fleet) -> None:
    fleet.request(ReplicaId("e1", 0))
    await restart(fleet, "e1/0", drain_s=0)
    await fleet.comes_back("e1")
    assert (await fleet.ended()).state is OperationState.DONE


async def test_requests_without_a_rank_are_waited_for_too(session: aiohttp.ClientSession) -> None:
    fleet = Fleet(session, ranks=(2,))
    ticket, (action,) = fleet.scene.router.offer(RoutingRequest(pinnable=False), time.monotonic())
    assert action.decision == "unrouted"  # type: ignore[union-attr]
    await restart(fleet, "e0/1", allow_outage=True)
    await fleet.at("e0", Step.DRAINING)
    assert "e0 with all its 2 replicas" in fleet.operation.sentence
    for _ in range(20):
        await asyncio.sleep(0)
        fleet.scene.refresh()
    assert fleet.engines["e0"].restarts == 0
    fleet.finish(ticket)
    await fleet.comes_back("e0")
    assert (await fleet.ended()).state is OperationState.DONE
    await fleet.control.close()


@pytest.mark.parametrize("before", [True, False])
async def test_what_is_open_on_an_engine_that_is_down_is_not_waited_for(before: bool, fleet: Fleet) -> None:
    ticket = fleet.request(ReplicaId("e1", 0))
    if before:
        fleet.scene.all_down("e1")
    await restart(fleet, "e1/0")
    if not before:
        await fleet.at("e1", Step.DRAINING)
        assert fleet.engines["e1"].restarts == 0
        fleet.scene.all_down("e1")
    await fleet.at("e1", Step.STOPPING)
    await fleet.comes_back("e1")
    assert (await fleet.ended()).state is OperationState.DONE
    fleet.finish(ticket)


async def test_an_operators_own_drain_outlives_a_restart(fleet: Fleet) -> None:
    await drain(fleet, "e1/0")
    await restart(fleet, "e1/0")
    await fleet.comes_back("e1")
    assert (await fleet.ended()).state is OperationState.DONE
    assert fleet.states()["e1/0"] is ReplicaState.DRAINING
    await undrain(fleet, "e1/0")
    assert fleet.states()["e1/0"] is ReplicaState.READY


async def test_a_drain_ended_by_the_operator_does_not_end_the_restarts_own(fleet: Fleet) -> None:
    ticket = fleet.request(ReplicaId("e1", 0))
    await drain(fleet, "e1/0")
    await restart(fleet, "e1/0")
    await fleet.at("e1", Step.DRAINING)
    await undrain(fleet, "e1/0")
    assert fleet.states()["e1/0"] is ReplicaState.DRAINING
    with pytest.raises(ConflictError, match="e1 is being restarted"):
        await drain(fleet, "e1/0")
    fleet.finish(ticket)
    await fleet.comes_back("e1")
    await fleet.ended()
    assert fleet.states()["e1/0"] is ReplicaState.READY


async def test_the_only_ready_engine_is_restarted_only_on_purpose(fleet: Fleet) -> None:
    fleet.scene.all_down("e0", "e2")
    with pytest.raises(ConflictError, match=r"no other replica of org/model is ready.*allow_outage"):
        await restart(fleet, "e1/0")
    assert fleet.states()["e1/0"] is ReplicaState.READY
    # One that serves nobody is restarted without asking.
    await restart(fleet, "e0/0")
    await fleet.comes_back("e0")
    await fleet.ended()
    fleet.scene.all_down("e0")
    await restart(fleet, "e1/0", allow_outage=True)
    await fleet.comes_back("e1")
    assert (await fleet.ended()).state is OperationState.DONE


async def test_an_attached_engine_is_restarted_where_it_runs(session: aiohttp.ClientSession) -> None:
    scene = Scene(session)
    with pytest.raises(ConflictError, match="e0 was not launched by the warden; restart it where it runs"):
        scene.control.restart(MODEL, "e0/0", {})
    with pytest.raises(ConflictError, match="was not launched"):
        scene.control.rolling_restart(MODEL, {})


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        (EnginePhase.BACKING_OFF, "e1 did not start: it ended with status 1 (last line: out of memory)"),
        (EnginePhase.FAILED, "e1 did not start"),
        (EnginePhase.STOPPED, "e1 did not start"),
    ],
)
async def test_a_start_that_fails_ends_it(fleet: Fleet, phase: EnginePhase, says: str) -> None:
    await restart(fleet, "e1/0")
    engine = fleet.engines["e1"]
    engine.process_runs.set()
    await fleet.at("e1", Step.STARTING)
    fleet.scene.all_down("e1")
    engine.becomes(phase, detail="it ended with status 1.", last_lines=("hello", "out of memory"))
    ended = await fleet.ended()
    assert ended.state is OperationState.FAILED
    assert says in ended.sentence
    # Given back: when it comes after all, it serves.
    fleet.scene.all_up("e1", boot_id="boot-3")
    fleet.scene.refresh()
    assert fleet.states()["e1/0"] is ReplicaState.READY


async def test_why_a_start_failed_is_said_once_and_without_what_comes_next(fleet: Fleet) -> None:
    await restart(fleet, "e1/0")
    engine = fleet.engines["e1"]
    engine.process_runs.set()
    await fleet.at("e1", Step.STARTING)
    fleet.scene.all_down("e1")
    detail = "it ended with exit status 1, saying: E: no; the next start is in 1 s"
    engine.becomes(EnginePhase.BACKING_OFF, detail=detail, last_lines=("hello", "E: no"))
    assert (await fleet.ended()).sentence == "e1 did not start: it ended with exit status 1, saying: E: no"


async def test_a_process_that_was_replaced_once_more_did_not_start(fleet: Fleet) -> None:
    await restart(fleet, "e1/0")
    engine = fleet.engines["e1"]
    engine.process_runs.set()
    await fleet.at("e1", Step.STARTING)
    engine.becomes(EnginePhase.STARTING, pid=999)
    assert (await fleet.ended()).state is OperationState.FAILED


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (LaunchError("engine e1: process 100 cannot be ended."), "engine e1: process 100 cannot be ended"),
        (OSError("no such file"), "restarting failed: no such file"),
    ],
)
async def test_an_engine_that_cannot_be_started(fleet: Fleet, trouble: Exception, says: str) -> None:
    fleet.engines["e1"].trouble = trouble
    fleet.engines["e1"].process_runs.set()
    await restart(fleet, "e1/0")
    ended = await fleet.ended()
    assert (ended.state, ended.sentence) == (OperationState.FAILED, says)
    assert fleet.states()["e1/0"] is ReplicaState.READY


# -- all engines ------------------------------------------------------------------------------------------------------


async def test_a_rolling_restart_takes_one_engine_at_a_time(fleet: Fleet) -> None:
    await rolling(fleet)
    for number, engine in enumerate(("e0", "e1", "e2")):
        await fleet.at(engine, Step.STOPPING)
        assert f"({number + 1} of 3)" in fleet.operation.sentence
        ready = [replica for replica, state in fleet.states().items() if state is ReplicaState.READY]
        assert len(ready) == 2
        await fleet.comes_back(engine)
    ended = await fleet.ended()
    assert (ended.state, ended.done) == (OperationState.DONE, ("e0", "e1", "e2"))
    assert set(fleet.states().values()) == {ReplicaState.READY}


async def test_those_that_serve_nobody_come_first(fleet: Fleet) -> None:
    fleet.scene.all_down("e2")
    await rolling(fleet)
    assert fleet.operation.engines == ("e2", "e0", "e1")


async def test_a_failed_start_stops_the_rolling(fleet: Fleet) -> None:
    await rolling(fleet)
    await fleet.comes_back("e0")
    await fleet.at("e1", Step.STOPPING)
    fleet.engines["e1"].process_runs.set()
    await fleet.at("e1", Step.STARTING)
    fleet.engines["e1"].becomes(EnginePhase.FAILED, detail="it ended three times.")
    ended = await fleet.ended()
    assert (ended.state, ended.done, ended.engine) == (OperationState.FAILED, ("e0",), "e1")
    assert ended.sentence == "e1 did not start: it ended three times; not restarted: e2"
    assert fleet.engines["e2"].restarts == 0


async def test_the_rolling_stops_where_nobody_else_is_ready(fleet: Fleet) -> None:
    await drain(fleet, "e0/0")
    await drain(fleet, "e2/0")
    await rolling(fleet)
    assert fleet.operation.engines == ("e0", "e2", "e1")
    await fleet.comes_back("e0")
    await fleet.comes_back("e2")
    ended = await fleet.ended()
    assert (ended.state, ended.done) == (OperationState.FAILED, ("e0", "e2"))
    assert ended.sentence.startswith("no other replica of org/model is ready")
    assert ended.sentence.endswith("; not restarted: e1")
    assert fleet.engines["e1"].restarts == 0


async def test_one_engine_alone_is_not_rolled_without_being_asked(session: aiohttp.ClientSession) -> None:
    fleet = Fleet(session, ranks=(4,))
    with pytest.raises(ConflictError, match="no other replica"):
        await rolling(fleet)
    await rolling(fleet, allow_outage=True)
    await fleet.comes_back("e0")
    assert (await fleet.ended()).state is OperationState.DONE


async def test_one_operation_at_a_time(fleet: Fleet) -> None:
    await rolling(fleet)
    for again in (rolling(fleet), restart(fleet, "e2/0")):
        with pytest.raises(ConflictError, match="a rolling-restart of org/model is running already"):
            await again


# -- cancelling -------------------------------------------------------------------------------------------------------


async def cancel(fleet: Fleet) -> None:
    await asyncio.wrap_future(fleet.control.cancel_restart(MODEL))


async def test_cancelled_while_draining_nothing_was_restarted(fleet: Fleet) -> None:
    fleet.request(ReplicaId("e0", 0))
    await rolling(fleet)
    await fleet.at("e0", Step.DRAINING)
    await cancel(fleet)
    assert fleet.operation.state is OperationState.CANCELLED
    assert fleet.operation.sentence == "cancelled while e0 was draining; it was not restarted"
    await fleet.scene.until(lambda: fleet.states()["e0/0"] is ReplicaState.READY)
    assert fleet.engines["e0"].restarts == 0
    with pytest.raises(ConflictError, match="no restart of org/model is running"):
        await cancel(fleet)


async def test_cancelled_while_it_restarts_the_restart_goes_on(fleet: Fleet) -> None:
    await rolling(fleet)
    await fleet.comes_back("e0")
    await fleet.at("e1", Step.STOPPING)
    await cancel(fleet)
    assert fleet.operation.sentence == "cancelled; the restart of e1 had begun and goes on; serving again: e0"
    engine = fleet.engines["e1"]
    engine.process_runs.set()
    await fleet.scene.until(lambda: engine.told is not None and engine.told.pid == 101)
    assert fleet.engines["e2"].restarts == 0


async def test_a_restart_that_fails_after_it_was_cancelled_is_logged(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    await rolling(fleet)
    await fleet.at("e0", Step.STOPPING)
    await cancel(fleet)
    fleet.engines["e0"].trouble = LaunchError("no GPU")
    fleet.engines["e0"].process_runs.set()
    said = ""

    def heard() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "a restart that went on after its operation failed" in said

    await fleet.scene.until(heard)
    assert fleet.operation.state is OperationState.CANCELLED


async def test_another_one_may_begin_at_once_and_keeps_its_drains(fleet: Fleet) -> None:
    ticket = fleet.request(ReplicaId("e0", 0))
    await rolling(fleet)
    await fleet.at("e0", Step.DRAINING)
    fleet.control.cancel_restart(MODEL)
    again = fleet.control.restart(MODEL, "e0/0", {})
    await asyncio.wrap_future(again)
    await fleet.at("e0", Step.DRAINING)
    for _ in range(20):
        await asyncio.sleep(0)
        fleet.scene.refresh()
    assert fleet.states()["e0/0"] is ReplicaState.DRAINING
    fleet.finish(ticket)
    await fleet.comes_back("e0")
    assert (await fleet.ended()).state is OperationState.DONE


async def test_the_end_of_the_control_ends_it(fleet: Fleet) -> None:
    await rolling(fleet)
    await fleet.at("e0", Step.STOPPING)
    running = asyncio.ensure_future(fleet.control.run(3600.0))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    fleet.scene.refresh()
    assert fleet.operation.state is OperationState.CANCELLED
    assert len(asyncio.all_tasks()) == 1


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drain_s": -1}, "drain_s: must be seconds from 0 to 86400, not -1"),
        ({"drain_s": True}, "drain_s: must be seconds"),
        ({"drain_s": float("nan")}, "drain_s: must be seconds"),
        ({"drain_s": "9"}, "drain_s: must be seconds"),
        ({"allow_outage": 1}, "allow_outage: must be true or false, not 1"),
        ({"force": True}, "'force': unknown key; allowed: drain_s, allow_outage"),
    ],
)
async def test_options_that_are_not_allowed(fleet: Fleet, options: dict[str, Any], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        fleet.control.restart(MODEL, "e0/0", options)
    with pytest.raises(CommandError, match=says):
        fleet.control.rolling_restart(MODEL, options)
    assert fleet.control.snapshot.model(MODEL).operation is None


async def test_undrain_takes_no_options(fleet: Fleet) -> None:
    with pytest.raises(CommandError, match="this command takes none"):
        fleet.control.undrain(MODEL, "e0/0", {"allow_outage": True})
