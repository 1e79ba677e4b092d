"""One cell while it runs: play, look, measure.

A *cell* is one level in one arm with one seed. When its time is over, what is still open is cancelled and counted as it
stands. All times are read from the plan's clock, which runs ``speed`` times as fast as the wall clock where the
engine is simulated; only the sleeps divide by the speed.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

from lmwarden.bench.client import AgentClient
from lmwarden.bench.console import Console
from lmwarden.bench.counters import EngineCounters, EngineUnderTest
from lmwarden.bench.errors import BenchError
from lmwarden.bench.measure import LevelRecords, Window, level_result
from lmwarden.bench.plan import Caches, Cell, Plan
from lmwarden.bench.player import make_player
from lmwarden.bench.progress import Progress
from lmwarden.bench.results import LevelResult

_PROGRESS_PERIOD_S = 0.5
_SETTLE_LIMIT_S = 10.0
"""How long to wait for the endpoint to notice that the last cell's requests were cancelled."""
_SETTLE_PERIOD_S = 0.05
_EMPTY_TRIES = 40
_SHORTEST_WINDOW_S = 1.0
"""An interrupted cell below this (modelled) length is dropped."""


class CellRun:
    """One cell. ``console`` and ``engine`` may be without an address."""

    def __init__(self, plan: Plan, cell: Cell, client: AgentClient, console: Console, engine: EngineUnderTest) -> None:
        self.records = LevelRecords(loop="open" if plan.open_loop else "closed")
        self._plan = plan
        self._cell = cell
        self._console = console
        self._engine = engine
        self._player = make_player(plan, cell, client, self.records)
        self._counters_before: EngineCounters | None = None

    async def run(self, progress: Progress, stop: asyncio.Event) -> LevelResult | None:
        """Play the cell; None if it was stopped before anything could be measured."""
        plan, clock = self._plan, self._plan.clock
        await self._begin()
        started_s = clock()
        window_start_s = started_s + plan.warmup_s
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._player.play()), group.create_task(self._watch(window_start_s))]
            await self._wait(started_s, progress, stop)
            window = Window(window_start_s, min(clock(), window_start_s + plan.seconds))
            if plan.open_loop:
                self.records.open_at_end = self._player.open_sessions
            for task in tasks:
                task.cancel()
        counters = await self._engine.counters()
        if counters is not None and self._counters_before is not None:
            grown = counters.since(self._counters_before)
            self.records.engine = grown
            self.records.engine_hit_ratio = grown.hit_ratio if grown is not None else None
        if window.seconds < _SHORTEST_WINDOW_S:
            return None
        cell = self._cell
        return level_result(self.records, window, sessions=cell.sessions, arm=cell.arm, seed=cell.seed)

    async def settle(self) -> None:
        """Wait until the warden has nothing in flight, so that the next cell starts from rest."""
        if not self._console.known:
            return
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + _SETTLE_LIMIT_S
        with suppress(BenchError):
            while loop.time() < limit_s:
                if (await self._console.state()).in_flight == 0:
                    return
                await asyncio.sleep(_SETTLE_PERIOD_S)

    async def rest(self, stop: asyncio.Event) -> None:
        """Let the warden forget what this cell cancelled (``Plan.rest_s``); ends early when ``stop`` is set."""
        if self._console.known and self._plan.rest_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._plan.rest_s / self._plan.speed)

    async def _begin(self) -> None:
        if self._console.known and self._cell.arm == "off":
            self.records.balancer = (await self._console.state()).balancer()
        if self._plan.caches is Caches.FRESH and self._plan.engine_url is not None:
            self.records.caches_emptied = await self._empty_caches()
        self._player.prepare()
        self._counters_before = await self._engine.counters()

    async def _empty_caches(self) -> bool:
        """An engine that works on something, say a warden's test of its pins, refuses; so it is asked again."""
        for _ in range(_EMPTY_TRIES):
            if await self._engine.empty_caches():
                return True
            if not self._engine.knows_reset:
                break
            await asyncio.sleep(_SETTLE_PERIOD_S)
        return False

    async def _wait(self, started_s: float, progress: Progress, stop: asyncio.Event) -> None:
        """Return when the cell's time is over or ``stop`` is set."""
        plan = self._plan
        total_s = plan.warmup_s + plan.seconds
        while not stop.is_set() and (left_s := started_s + total_s - plan.clock()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(left_s / plan.speed, _PROGRESS_PERIOD_S))
            answered = sum(turn.ended_s is not None for turn in self.records.turns)
            progress.moved(plan.clock() - started_s, total_s, answered)

    async def _watch(self, window_start_s: float) -> None:
        """Read the counters where the window begins, then poll *busy* each modelled second."""
        plan = self._plan
        await self._sleep_until(window_start_s)
        if plan.open_loop:
            self.records.open_at_start = self._player.open_sessions
        if plan.warmup_s:
            self._counters_before = await self._engine.counters()
        if not self._console.known:
            return
        for second in itertools.count(1):
            await self._sleep_until(window_start_s + second)
            with suppress(BenchError):
                state = await self._console.state()
                self.records.rooms.append(state.admission)
                busy = state.busy()
                if busy is not None:
                    self.records.busy.append(busy)

    async def _sleep_until(self, moment_s: float) -> None:
        await asyncio.sleep(max(0.0, moment_s - self._plan.clock()) / self._plan.speed)
