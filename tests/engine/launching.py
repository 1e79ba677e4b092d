"""What the tests of launched engines share: the roll on which fake engines call in, plans for them, and the end of all.

Every process that a test starts is ended by it, also when it fails: those that called in, by number and start, and
all that carry a mark of the test's data folder.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tests.listening import listening
from tests.waiting import PATIENCE_S

from lmwarden.config import Flag, LaunchConfig, load
from lmwarden.engine.launch import LaunchPlan
from lmwarden.engine.processes import ProcessId, marked, read_process, send, wait_until_gone
from lmwarden.engine.records import EngineRecords
from lmwarden.engine.starter import Run
from lmwarden.engine.supervisor import EnginePhase, LaunchState, Supervisor

FAKE = Path(__file__).with_name("fake_engine.py")


@dataclass
class Caller:
    """One process that called in."""

    role: str
    process: ProcessId
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def end(self) -> None:
        """Wait for its end: a process closes its connections a moment before it is gone."""
        async with asyncio.timeout(PATIENCE_S):
            await self.ended.wait()
        await wait_until_gone([self.process], PATIENCE_S)

    def kill(self) -> None:
        """End it as the kernel's out-of-memory killer would."""
        send(self.process, signal.SIGKILL)


class Roll:
    """Where fake engines call in."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.address = ""
        self._queues: dict[str, asyncio.Queue[Caller]] = defaultdict(asyncio.Queue)

    async def next(self, role: str = "main") -> Caller:
        """The next process of a role that calls in."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._queues[role].get()

    def called(self, role: str) -> int:
        """How many of a role called in so far."""
        return sum(caller.role == role for caller in self.callers)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        role, _, pid = (await reader.readline()).decode().strip().partition(" ")
        if not pid:  # ended before it said who it is: it called, but never called in
            writer.close()
            return
        info = read_process(int(pid))
        process = info.id if info is not None else ProcessId(int(pid), "gone")
        caller = Caller(role, process)
        self.callers.append(caller)
        self._queues[role].put_nowait(caller)
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        caller.ended.set()
        writer.close()

    @asynccontextmanager
    async def open(self, folder: Path) -> AsyncIterator[Roll]:
        """Take calls; at the end no process of the test is left."""
        async with listening(self._take) as listener:
            self.address = f"127.0.0.1:{listener.port}"
            try:
                yield self
            finally:
                while left := self._left(folder):
                    for process in left:
                        send(process, signal.SIGKILL)
                    await wait_until_gone(left, PATIENCE_S)
                for caller in self.callers:
                    await caller.end()

    def _left(self, folder: Path) -> list[ProcessId]:
        infos = [read_process(caller.process.pid) for caller in self.callers]
        called = [info.id for info in infos if info is not None and not info.zombie]
        ours = {caller.process for caller in self.callers}
        carrying = [info.id for _, info in marked(EngineRecords(folder).mark_prefix)]
        return list({*(process for process in called if process in ours), *carrying})


class News:
    """What a supervisor told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.wanted: bool | None = None
        """Whether the latest end was."""
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    def process_started(self, engine: str) -> None:
        self.told.append(f"started {engine}")

    def process_ended(self, engine: str, *, wanted: bool) -> None:
        self.told.append(f"ended {engine}")
        self.wanted = wanted
        self.ends.put_nowait(engine)


def settings(**changes: float) -> LaunchConfig:
    """As shipped but for these. Without changes pauses are as good as none."""
    shipped = load_launch()
    quick = {"start_backoff_s": 0.001, "max_backoff_s": 0.001, "stop_grace_s": 10.0, "kill_grace_s": 10.0}
    return msgspec.structs.replace(shipped, **(quick | changes))


def load_launch() -> LaunchConfig:
    """``[launch]`` as shipped."""
    return load(None, [Flag("--engine", ("models",), [{"engine": {"attach": ["http://127.0.0.1:1"]}}])]).launch


def plan(
    roll: Roll, behaviour: str, *, engine: str = "e0", identity: str = "m", extra: str = "", lock: str = ""
) -> LaunchPlan:
    """A plan for a fake engine."""
    return LaunchPlan(
        engine=engine,
        model="m",
        ranks=1,
        head=(sys.executable, "-S", str(FAKE), behaviour),
        tail=(extra,) if extra else (),
        env={"FAKE_ENGINE_ROLL": roll.address, "FAKE_ENGINE_LOCK": lock},
        identity=identity,
    )


class Followed(Supervisor):
    """A supervisor whose phases can be waited for."""

    reached: asyncio.Queue[EnginePhase]
    cared: asyncio.Queue[LaunchState]

    async def _care(self, run: Run) -> None:
        await super()._care(run)
        self.cared.put_nowait(self.state)

    def _enter(self, phase: EnginePhase, detail: str) -> None:
        super()._enter(phase, detail)
        self.reached.put_nowait(phase)


class Launched:
    """A supervisor that runs."""

    def __init__(self, supervisor: Followed, news: News) -> None:
        self.supervisor = supervisor
        self.supervisor.reached = asyncio.Queue()
        self.supervisor.cared = asyncio.Queue()
        self.news = news
        self._task: asyncio.Task[None] | None = None

    async def reaches(self, phase: EnginePhase) -> LaunchState:
        """Wait until it enters a phase; phases that it entered before the last wait do not count."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.supervisor.reached.get() is not phase:
                continue
        return self.supervisor.state

    async def gets_to(self, step: str) -> None:
        """Wait until its start gets to a step."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.supervisor.cared.get()).step != step:
                continue

    async def is_cared_for(self) -> None:
        """Wait until it has looked after its engine once more, from the beginning of a look on."""
        while not self.supervisor.cared.empty():
            self.supervisor.cared.get_nowait()
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):  # the look that is under way may have begun before
                await self.supervisor.cared.get()

    async def ends(self) -> None:
        """Wait until it tells an end."""
        async with asyncio.timeout(PATIENCE_S):
            await self.news.ends.get()

    async def begin(self) -> Launched:
        """Prepare and run."""
        await self.supervisor.prepare()
        self._task = asyncio.ensure_future(self.supervisor.run())
        return self

    async def drop(self) -> None:
        """Vanish as a killed warden does: nothing is ended. What is being written is written first, as threads survive
        a cancel, and a process calls in before it is written down."""
        if self._task is not None:
            async with asyncio.timeout(PATIENCE_S), self.supervisor._lock:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.supervisor.leave()

    async def finished(self) -> None:
        """Wait until ``run`` returns by itself."""
        assert self._task is not None
        async with asyncio.timeout(PATIENCE_S):
            await self._task
