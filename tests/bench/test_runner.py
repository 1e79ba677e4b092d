"""Levels against a stub endpoint: closed loop, arms, interruption.

The modelled time stands still until a cell has had what a test wants to see in it, and is then over: however long the
machine stands still, no window passes empty.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aiohttp import web
from tests.bench.stub_endpoint import StubEndpoint, serving
from tests.waiting import PATIENCE_S

from lmwarden.bench.conversation import Api
from lmwarden.bench.errors import BenchError, PlanError
from lmwarden.bench.plan import Caches, Plan
from lmwarden.bench.results import LevelResult
from lmwarden.bench.runner import RunOutcome, run_plan, stop_on_signals
from lmwarden.bench.sessions import PromptReuse
from lmwarden.bench.workload import load_workload

SPEED = 100.0
"""By which sleeps are shorter than modelled."""
ANSWERS = 20
SOURCES = Path(__file__).parents[2] / "src"


@dataclass
class Seen:
    """A progress that keeps what it was told."""

    cells: list[tuple[str, int, int]] = field(default_factory=list)
    results: list[LevelResult | None] = field(default_factory=list)

    def started(self, label: str, number: int, total: int) -> None:
        self.cells.append((label, number, total))

    def moved(self, elapsed_s: float, seconds: float, answered: int) -> None:
        pass

    def finished(self, result: LevelResult | None) -> None:
        self.results.append(result)


class Time(Seen):
    """The clock of a run, which what happened moves on.

    Args:
        steps: of each cell: seconds, and when they are over: ``enough(turns that ended in the cell)``.
    """

    def __init__(self, *steps: tuple[float, Callable[[int], bool]]) -> None:
        super().__init__()
        self.now_s = 0.0
        self._steps = steps
        self._left = iter(steps)

    def started(self, label: str, number: int, total: int) -> None:
        super().started(label, number, total)
        self._left = iter(self._steps)
        self._seconds, self._enough = next(self._left)

    def moved(self, elapsed_s: float, seconds: float, answered: int) -> None:
        if self._enough(answered):
            self.now_s += self._seconds
            self._seconds, self._enough = next(self._left, (0.0, self._enough))


def at_once() -> Time:
    """Cells that are over when they have begun."""
    return Time((10.0, lambda _: True))


class Played(Time):
    """Cells in which ``ANSWERS`` turns are answered and *busy* is read; at their end every agent waits for its next
    answer, and nothing is on the way."""

    def __init__(self, stub: StubEndpoint, agents: int = 2) -> None:
        super().__init__((10.0, lambda _: self._held >= agents and stub.looks >= self._looks))
        self._stub = stub
        self._answer, stub.answer = stub.answer, self._answer_some
        self._answered = self._held = self._looks = 0

    def started(self, label: str, number: int, total: int) -> None:
        super().started(label, number, total)
        self._answered = self._held = 0
        self._looks = self._stub.looks + 3  # one before the window, and at the third the second has been counted

    async def _answer_some(self, request: web.Request) -> web.StreamResponse:
        if self._answered < ANSWERS:
            self._answered += 1
            return await self._answer(request)
        self._held += 1
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
async def stub() -> AsyncIterator[StubEndpoint]:
    async with serving(StubEndpoint()) as endpoint:
        yield endpoint


def plan(stub: StubEndpoint, **changes: object) -> Plan:
    base = Plan(
        url=stub.url,
        model="m",
        workload=load_workload("claude-code"),
        levels=[2],
        arms=["off", "on"],
        seconds=10.0,
        clock=lambda: 0.0,
        speed=SPEED,
        rest_s=0.0,
        console_url=stub.url,
        engine_url=stub.url,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


async def run(time: Time, stub: StubEndpoint, stop: asyncio.Event | None = None, **changes: object) -> RunOutcome:
    async with asyncio.timeout(PATIENCE_S):  # its clock stands still where what the test waits for never happens
        return await run_plan(plan(stub, clock=lambda: time.now_s, **changes), time, stop or asyncio.Event())


async def test_a_run_measures_each_arm_and_sets_the_routing_back(stub: StubEndpoint) -> None:
    seen = Played(stub)
    outcome = await run(seen, stub)
    assert [cell for cell, _, _ in seen.cells] == ["2 sessions, off", "2 sessions, on"]
    assert outcome.levels == seen.results
    off, on = outcome.levels
    assert (off.balancer, on.balancer) == ("engine", None)
    for row in (off, on):
        assert (row.requests, row.unserved, row.failed) == (ANSWERS + 2, 2, 0)
        assert row.prefix_hit_ratio == 0.9
        assert row.prefix_hit_ratio_engine == 0.8
        assert row.replicas_busy == 1
        assert row.stayed_ratio == 1.0
        assert row.seconds == 10
    assert stub.patches[-1] == {"affinity": True, "placement": "hash", "admission": "auto"}
    assert not outcome.interrupted


async def test_the_loop_is_closed_and_sessions_follow_each_other(stub: StubEndpoint) -> None:
    """Never more than two requests at once, and a session id has at most six turns."""
    open_now = most = 0
    played = Played(stub)
    answer = stub.answer

    async def count(request: web.Request) -> web.StreamResponse:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            return await answer(request)
        finally:
            open_now -= 1

    stub.answer = count
    outcome = await run(played, stub, arms=["on"])
    assert most <= 2
    turns: dict[str, int] = {}
    for head in stub.headers:
        session_id = head["X-Claude-Code-Session-Id"]
        turns[session_id] = turns.get(session_id, 0) + 1
    assert max(turns.values()) == 6
    assert len(turns) > 2
    assert outcome.levels[0].sessions_per_hour


async def test_requests_that_were_never_served_count_at_their_wait(stub: StubEndpoint) -> None:
    never = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        await never.wait()
        raise AssertionError

    stub.answer = silent
    row = (await run(Time((10.0, lambda _: len(stub.bodies) == 2)), stub, arms=["on"])).levels[0]
    assert (row.requests, row.unserved, row.failed) == (2, 2, 0)
    assert row.ttfb_s.p50 is None
    assert row.ttfb_s.p95_with_waiting == 10


async def test_failures_are_counted_and_the_first_is_named(stub: StubEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmwarden.bench.player._PAUSE_AFTER_FAILURE_S", 1e9)

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=529)

    stub.answer = refuse
    outcome = await run(Time((10.0, lambda ended: ended == 2)), stub, arms=["as-is"], console_url=None)
    assert outcome.first_error == "status 529"
    assert outcome.levels[0].failed == outcome.levels[0].requests == 2
    assert stub.patches == []


async def test_an_interrupted_run_keeps_what_was_measured_and_sets_back(stub: StubEndpoint) -> None:
    stop = asyncio.Event()

    class StopInSecondCell(Time):
        def moved(self, elapsed_s: float, seconds: float, answered: int) -> None:
            super().moved(elapsed_s, seconds, answered)
            if len(self.cells) == 2:
                stop.set()

    time = StopInSecondCell((30.0, lambda _: True), (30.0, lambda _: True))
    outcome = await run(time, stub, stop, seconds=50.0)
    assert outcome.interrupted
    assert [(row.arm, row.seconds) for row in outcome.levels] == [("off", 50), ("on", 30)]
    assert stub.patches[-1] == {"affinity": True, "placement": "hash", "admission": "auto"}


@pytest.fixture
def heeded() -> Iterator[None]:
    """SIGHUP does what it does where nobody said otherwise (whoever runs the tests may ignore it)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_signals_stop_a_run_and_a_second_one_cancels_it(
    number: signal.Signals, stub: StubEndpoint, heeded: None
) -> None:
    stop = asyncio.Event()

    async def run() -> None:
        with stop_on_signals(stop):
            await run_plan(plan(stub, seconds=5000.0), Seen(), stop)

    stub.answer = stub.whole_answer
    task = asyncio.create_task(run())
    await stub.arrived.wait()
    os.kill(os.getpid(), number)
    await task
    assert stop.is_set()
    assert stub.patches[-1] == {"affinity": True, "placement": "hash", "admission": "auto"}


async def test_a_terminal_that_closes_says_so_more_than_once_and_cancels_nothing(heeded: None) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        await stop.wait()
        await asyncio.sleep(0)  # where a cancellation would arrive


async def test_a_terminal_s_end_that_is_to_be_ignored_is(heeded: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = asyncio.Event()
    with stop_on_signals(stop):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


IN_A_TERMINAL = """
import asyncio, pathlib, sys
from lmwarden.bench.runner import stop_on_signals

async def main():
    stop = asyncio.Event()
    with stop_on_signals(stop):
        print("begun", flush=True)
        await stop.wait()
        print("to nobody", flush=True)
        pathlib.Path(sys.argv[1]).write_text("to its end")

asyncio.run(main())
"""


def test_a_run_whose_terminal_was_closed_goes_to_its_end(tmp_path: Path) -> None:
    ours, theirs = os.openpty()

    def in_child() -> None:
        os.login_tty(theirs)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, str(tmp_path / "saved")],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        preexec_fn=in_child,
    ) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            said = b""
            while not said.endswith(b"\n"):
                said += terminal.read(100)
        assert process.wait(PATIENCE_S) == 0
    assert said == b"begun\r\n"
    assert (tmp_path / "saved").read_text() == "to its end"


async def test_cancelling_a_run_sets_the_routing_back(stub: StubEndpoint) -> None:
    task = asyncio.create_task(run_plan(plan(stub, seconds=5000.0), Seen(), asyncio.Event()))
    await stub.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stub.patches[-1] == {"affinity": True, "placement": "hash", "admission": "auto"}


async def test_warm_up_is_not_measured(stub: StubEndpoint) -> None:
    before: list[int] = []

    def counted_and_played_on(answered: int) -> bool:
        if not before and stub.scrapes > 2:  # one to see that it answers, one before the cell, one before the window
            before.append(answered)
        return bool(before) and answered > before[0] + 2

    time = Time((10.0, lambda answered: answered > 4), (10.0, counted_and_played_on))
    row = (await run(time, stub, arms=["on"], warmup_s=10.0)).levels[0]
    assert row.seconds == 10
    assert 0 < row.requests < len(stub.bodies)
    assert row.prefix_hit_ratio_engine == 0.8


async def test_chat_sessions_are_played_too(stub: StubEndpoint) -> None:
    outcome = await run(Played(stub), stub, arms=["on"], api=Api.CHAT)
    assert outcome.levels[0].prefix_hit_ratio == 0.9


async def test_a_model_that_is_not_served_is_refused(stub: StubEndpoint) -> None:
    with pytest.raises(PlanError, match=r"--model other: .* serves m"):
        await run_plan(plan(stub, model="other"), Seen(), asyncio.Event())


async def test_arms_without_a_console_are_refused(stub: StubEndpoint) -> None:
    with pytest.raises(BenchError, match="--console"):
        await run_plan(plan(stub, console_url=None), Seen(), asyncio.Event())


async def test_caches_are_emptied_before_each_cell_where_that_is_possible(
    stub: StubEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmwarden.bench.cell._EMPTY_TRIES", 3)
    outcome = await run(at_once(), stub)
    assert stub.resets == 2
    assert [row.caches_emptied for row in outcome.levels] == [True, True]
    stub.can_reset = False
    outcome = await run(at_once(), stub, arms=["on"])
    assert outcome.levels[0].caches_emptied is False


async def test_warm_caches_are_left_alone(stub: StubEndpoint) -> None:
    outcome = await run(at_once(), stub, arms=["on"], caches=Caches.WARM)
    assert stub.resets == 0
    assert outcome.levels[0].caches_emptied is None


async def test_prompts_that_come_twice_into_caches_that_cannot_be_emptied_are_refused(stub: StubEndpoint) -> None:
    stub.can_reset = False
    with pytest.raises(BenchError, match="--caches fresh with --prompt-reuse across_arms"):
        await run_plan(plan(stub, prompt_reuse=PromptReuse.ACROSS_ARMS), Seen(), asyncio.Event())
    assert stub.patches == []


async def test_the_open_loop_starts_sessions_whether_or_not_earlier_ones_ended(stub: StubEndpoint) -> None:
    never = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        await never.wait()
        raise AssertionError

    stub.answer = silent
    rate = 3600  # one a second of the model: about ten in this window
    time = Time((10.0, lambda _: len(stub.bodies) > 2))
    outcome = await run(time, stub, arms=["on"], levels=[rate], open_loop=True)
    row = outcome.levels[0]
    assert (row.sessions, row.loop, row.open_at_start) == (rate, "open", 0)
    assert row.open_at_end is not None and row.open_at_end >= row.requests == row.unserved
    assert row.requests > 2


async def test_what_was_measured_is_handed_over_after_each_cell(stub: StubEndpoint) -> None:
    kept: list[int] = []

    def keep(outcome: RunOutcome) -> None:
        kept.append(len(outcome.levels))

    time = at_once()
    async with asyncio.timeout(PATIENCE_S):
        outcome = await run_plan(plan(stub, clock=lambda: time.now_s), time, asyncio.Event(), on_result=keep)
    assert kept == [1, 2]
    assert outcome.replicas == 2


async def test_engine_and_client_counters_stand_beside_each_other(stub: StubEndpoint) -> None:
    row = (await run(Played(stub), stub, arms=["on"])).levels[0]
    assert row.client is not None and row.engine is not None
    assert row.client.requests * 41 == row.client.output_tokens
    assert row.engine.prefix_queries_tokens == 100 * len(stub.bodies)
    assert row.engine.hit_ratio == 0.8
    assert row.requests_by_replica == {"e0/1": ANSWERS}


async def test_a_warden_rests_between_two_cells_and_not_after_the_last(stub: StubEndpoint) -> None:
    """The rest never ends by itself here; stopping ends it, and the second cell is never begun."""
    stop = asyncio.Event()

    class StopAfterFirst(Time):
        def finished(self, result: LevelResult | None) -> None:
            super().finished(result)
            asyncio.get_running_loop().call_later(0.2, stop.set)

    seen = StopAfterFirst((10.0, lambda _: True))
    outcome = await run(seen, stub, stop, rest_s=1e9)
    assert len(seen.cells) == 1 and outcome.interrupted
    async with asyncio.timeout(PATIENCE_S):
        await run(at_once(), stub, rest_s=1e9, arms=["on"])
        await run(at_once(), stub, rest_s=1e9, arms=["as-is"], levels=[1, 2], console_url=None)
