"""Supervising one launched engine: started, watched, started again, ended, and found again by the next warden.

::

    starting ──ready()──► running ──ends──► (at once, then after a growing pause) ──► starting
       │ ends before it was ready                                  ▲
       ├──────────► backing_off ─────── pause is over ─────────────┤
       └─ failed_after times ─► failed ────── restart() ───────────┘
    any ── restart() ─► stopping ─► starting        any ── stop() ─► stopping ─► stopped
    an end that leaves processes which follow no signal: stuck, until they are gone

**A start takes as long as it takes.** While the process lives nothing ends it. Whether it is ready is not decided here:
who watches the engine says so by ``ready()``, having asked ``may_serve()`` first, which compares the listener on the
port with the engine's processes: no stranger's server is ever adopted.

**An end is noticed by the kernel's word** and told on at once, before anything else is done. Then the rest of the
engine's family is ended too (an engine core that outlived its API server still holds the GPU), and only when none is
left a new one is started: at once, or after a pause (``backoff``).

**Take-over.** An engine is no child that dies with its parent: it has its own session, writes to a file and is
recorded. ``prepare`` looks for what an earlier warden left (``takeover``). If it serves the same thing on the same
GPUs it is adopted with its port, wherever it stands in its life; if another command started it, it is
adopted too and called *outdated*. Otherwise it is ended before anything new is started.

Everything runs on one event loop. What changes the engine (start, end, adopt) holds one lock, so that a restart, a
stop and a crash never interleave; between them the run loop only waits.
"""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path

import msgspec
import structlog

from lmwarden.config import LaunchConfig
from lmwarden.engine import processes
from lmwarden.engine.backoff import Backoff
from lmwarden.engine.launch import HOST, LaunchPlan
from lmwarden.engine.launch_state import NEXT_START, Crash
from lmwarden.engine.launch_state import EnginePhase as EnginePhase
from lmwarden.engine.launch_state import LaunchError as LaunchError
from lmwarden.engine.launch_state import LaunchState as LaunchState
from lmwarden.engine.launch_state import SupervisorNews as SupervisorNews
from lmwarden.engine.logs import MARK_LINE, first_error, tail, why_it_ended
from lmwarden.engine.processes import IDLE_GRACE_S, ProcessId, Send
from lmwarden.engine.starter import Run, Starter
from lmwarden.engine.startup import StartupReader
from lmwarden.types import EngineEndpoint

log = structlog.get_logger("lmwarden.engine")

PROGRESS_INTERVAL_S = 1.0
"""Between two looks into the log of a starting engine; the console shows figures once a second."""
CARE_INTERVAL_S = 10.0
"""Between two looks at a running engine's processes and the size of its log."""
SEARCHED_LINES = 2000
"""Last lines of the log in which the reason of an end is looked for."""
SHOWN_LINES = 20
"""Of those, how many are shown."""
_LACK = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT)
"""What a start needs of this machine, and it has not now: files, memory, processes, room on a disk."""


class Supervisor:
    """Supervises one engine. ``prepare``, then ``run`` until cancelled, then ``stop`` or ``leave``."""

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        folder: Path,
        settings: LaunchConfig,
        news: SupervisorNews,
        send: Send = processes.send,
    ) -> None:
        """Args:
        plan: what to start.
        folder: the data folder; logs and records go to ``engines/`` in it.
        settings: pauses and limits.
        news: told of starts and ends.
        send: sends signals.

        Raises:
            OSError: the folder cannot be used.
        """
        self.plan = plan
        self._news = news
        self._starter = Starter(plan, folder, settings, send)
        self._backoff = Backoff(settings)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._run: Run | None = None
        self._stuck: list[ProcessId] = []
        self._closed = False
        self._phase = EnginePhase.STOPPED
        self._detail = "not started yet"
        self._since = time.time()
        self._startup = StartupReader()
        self._read_on = True
        """The log of the start is not read to its end."""
        self._starts = 0
        self._exit_status: int | None = None
        self._crash: Crash | None = None
        self._last_lines: tuple[str, ...] = ()
        self._start_at = 0.0
        """Loop seconds; not before."""
        self._shown = self._starter.shown

    @property
    def log_path(self) -> Path:
        """The engine's output."""
        return self._starter.log.path

    @property
    def kv_bytes_per_token(self) -> float | None:
        """Memory that a token of context takes in one of its replicas, as far as its log has told."""
        return self._startup.kv_bytes_per_token(self.plan.gpus_per_replica)

    @property
    def state(self) -> LaunchState:
        """The engine at this moment."""
        run = self._run
        starting = self._startup.state if self._phase is EnginePhase.STARTING else None
        return LaunchState(
            phase=self._phase,
            detail=self._detail,
            step=starting.step if starting else None,
            progress_ratio=starting.progress_ratio if starting else None,
            since=self._since,
            pid=run.process.pid if run else None,
            restarts=max(0, self._starts - 1),
            exit_status=self._exit_status,
            last_crash=self._crash,
            last_lines=self._last_lines,
            taken_over=run is not None and run.adopted,
            outdated=run is not None and self._starter.is_outdated(run),
            command=(run.record.command if run else None) or self._shown,
            log=str(self.log_path),
        )

    async def prepare(self) -> EngineEndpoint:
        """Find the engine that an earlier warden left, or reserve a port. Before ``run``; again it only tells.

        A process of ours that is not what the plan says is ended here, so that its GPU is free before others start.

        Raises:
            OSError: no port is to be had.
        """
        async with self._lock:
            if self._starter.port == 0:
                await self._find_or_reserve()
                self._shown = self._starter.shown
        return EngineEndpoint(
            engine=self.plan.engine,
            host=HOST,
            port=self._starter.port,
            ranks=self.plan.ranks,
            model=self.plan.model,
            api_key=self.plan.api_key,
        )

    async def run(self) -> None:
        """Keep the engine running, until cancelled, stopped or left. An error of ours is logged and does not end it."""
        while not self._closed:
            try:
                await self._turn()
            except Exception:
                log.exception("supervising an engine failed", engine=self.plan.engine)
                await asyncio.sleep(PROGRESS_INTERVAL_S)

    async def may_serve(self) -> bool:
        """Whether the process lives and nobody but its family listens on the port."""
        run = self._run
        return run is not None and self._is_wanted(run) and await run.listens() and self._is_wanted(run)

    def _is_wanted(self, run: Run) -> bool:
        return run is self._run and not run.intended_end and not run.ended

    def ready(self) -> None:
        """The engine answers: its start is over, and what went wrong before is forgiven."""
        run = self._run
        if run is None or not self._is_wanted(run) or run.ready_at is not None:
            return
        run.ready_at = asyncio.get_running_loop().time()
        self._backoff.ready()
        self._last_lines = ()
        if self._crash is not None and self._crash.over_at is None:
            self._crash = msgspec.structs.replace(self._crash, over_at=time.time())
        self._enter(EnginePhase.RUNNING, "serving")

    async def restart(self) -> None:
        """End the engine and start it again, whatever phase it is in. Returns when the new process runs.

        Raises:
            LaunchError: it could not be started; unless it is stuck, it is tried again after a pause.
        """
        try:
            async with self._lock:
                self._backoff.forget()
                self._last_lines = ()
                if self._crash is not None and self._crash.over_at is None:
                    self._crash = None  # whoever restarts it knows
                await self._end_engine("being restarted")
                if self._closed:
                    raise LaunchError(f"engine {self.plan.engine} is not supervised any more")
                if not self._stuck:
                    await self._try_to_start()
                if self._phase is not EnginePhase.STARTING:
                    raise LaunchError(f"engine {self.plan.engine}: {self._detail}")
        finally:
            self._wake.set()

    async def stop(self) -> None:
        """End the engine's whole family and supervise it no longer. May be called again."""
        self._closed = True
        self._wake.set()
        async with self._lock:
            await self._end_engine("being stopped")
            if not self._stuck:
                self._enter(EnginePhase.STOPPED, "stopped")
            self._starter.release_port()

    def leave(self) -> None:
        """Supervise the engine no longer and let it run on, to be taken over."""
        self._closed = True
        self._wake.set()
        if self._run is not None:
            self._run.unwatch()
            self._run = None
            self._enter(EnginePhase.STOPPED, "left running, to be taken over by the next warden")
        self._starter.release_port()

    # -- waiting ---------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Wait for the next thing to happen to the engine, and do what follows from it."""
        run = self._run
        if run is None:
            await self._pause()
            async with self._lock:
                if self._is_start_due():
                    await self._try_to_start()
        elif await run.ended_within(PROGRESS_INTERVAL_S if self._phase is EnginePhase.STARTING else CARE_INTERVAL_S):
            async with self._lock:
                if self._run is run:
                    await self._after_end(run)
        elif run.intended_end:
            async with self._lock:  # whoever was ending it was interrupted, or it did not follow
                if self._run is run and not self._closed:
                    await self._end_engine("being restarted")
        else:
            await self._care(run)

    async def _pause(self) -> None:
        """Until a start is due: the pause is over, what was stuck is gone, or somebody wants it."""
        self._wake.clear()
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(self._wake.wait())]
        limit_s: float | None = None
        if self._stuck:
            waits.append(asyncio.ensure_future(processes.wait_until_gone(self._stuck, None)))
        elif self._phase is not EnginePhase.FAILED:
            limit_s = max(0.0, self._start_at - asyncio.get_running_loop().time())
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _is_start_due(self) -> bool:
        if self._run is not None or self._closed or self._phase is EnginePhase.FAILED:
            return False
        return asyncio.get_running_loop().time() >= self._start_at

    async def _care(self, run: Run) -> None:
        """What a living engine needs now and then."""
        if self._phase is EnginePhase.STARTING or self._read_on:
            self._read_on = self._phase is EnginePhase.STARTING  # once more when it is ready
            self._startup.feed(await asyncio.to_thread(self._starter.log.new_lines))
        run.members = await asyncio.to_thread(run.family_now)
        try:
            if await asyncio.to_thread(self._starter.log.rotate_if_large):
                log.info("rotated an engine's log", engine=self.plan.engine, file=str(self.log_path))
        except OSError as error:
            log.warning("an engine's log cannot be rotated", engine=self.plan.engine, reason=error.strerror)

    # -- changing the engine, under the lock -----------------------------------------------------------

    async def _find_or_reserve(self) -> None:
        record, members = await self._starter.find()
        if record is not None:
            self._run = self._starter.adopt(record, self._tell_end)
            self._run.members = members
            self._starts += 1
            self._enter(EnginePhase.STARTING, "taken over from an earlier warden")
            pid, outdated = self._run.process.pid, self._starter.is_outdated(self._run)
            log.info("engine taken over", engine=self.plan.engine, pid=pid, outdated=outdated)
            return
        if members:
            log.info("ending an engine that is not what the configuration says", engine=self.plan.engine)
            self._stuck = await self._starter.end(None, members, grace_s=IDLE_GRACE_S)
        self._starter.reserve_port()

    async def _try_to_start(self) -> None:
        """Start the engine; what is in the way becomes the phase."""
        self._stuck = await self._starter.end(None, self._stuck, grace_s=IDLE_GRACE_S)
        if self._stuck:
            self._say_stuck()
            return
        if self._closed:
            return
        try:
            self._run = await self._starter.start(self._tell_end)
        except OSError as error:
            what = f" ({error.filename})" if error.filename else ""  # the program, or its log
            why = f"it could not be started: {error.strerror or error}{what}"
            if error.errno in _LACK:
                self._back_off(self._backoff.no_start(), why)
            else:
                self._after_failed_start(why)
        except LaunchError as error:
            self._after_failed_start(str(error))
        else:
            self._starts += 1
            self._startup, self._read_on = StartupReader(), True
            self._enter(EnginePhase.STARTING, "starting")
            log.info("engine started", engine=self.plan.engine, pid=self._run.process.pid, command=self._shown)
            self._news.process_started(self.plan.engine)
            await self._starter.note(self._run)

    async def _end_engine(self, why: str) -> None:
        """End the engine because somebody wants it."""
        run = self._run
        if run is not None:
            run.intended_end = True
            self._enter(EnginePhase.STOPPING, why)
        was_ready = run is not None and run.ready_at is not None
        self._stuck = await self._starter.end(run, self._stuck, grace_s=None if was_ready else IDLE_GRACE_S)
        if self._stuck:
            self._say_stuck()
        elif run is not None:
            self._bury(run)
        if not self._stuck:
            self._starter.forget()

    async def _after_end(self, run: Run) -> None:
        """It has ended although nobody wanted it, or an ending of ours was interrupted."""
        self._stuck = await self._starter.end(run, self._stuck, grace_s=IDLE_GRACE_S)
        status = self._bury(run)
        self._last_lines, cause = await asyncio.to_thread(_last_words, self.log_path, self._starter.log_offset)
        if run.intended_end:
            self._enter(EnginePhase.BACKING_OFF, "ended, to be started again")
        else:
            self._after_crash(run, status, cause)
        if self._stuck:
            self._say_stuck()

    def _after_crash(self, run: Run, status: int | None, cause: str | None) -> None:
        crash = Crash(at=time.time(), exit_status=status, was_ready=run.ready_at is not None, pause_s=None)
        if run.ready_at is None:
            # Before it was ready it had no requests, so what it says holds nothing that a user typed.
            said = f", saying: {cause}" if cause else ""
            pause_s = self._after_failed_start(f"{crash.sentence}{said}")
        else:
            pause_s = self._backoff.crash(asyncio.get_running_loop().time() - run.ready_at)
            self._back_off(pause_s, crash.sentence)
        self._crash = msgspec.structs.replace(crash, pause_s=pause_s)

    def _bury(self, run: Run) -> int | None:
        """It is gone; returns its exit status."""
        if not run.ended:  # we saw its end before the loop did
            run.unwatch()
            self._tell_end()
        self._exit_status = processes.reap(run.process)
        self._run = None
        return self._exit_status

    def _tell_end(self) -> None:
        wanted = self._closed or (self._run is not None and self._run.intended_end)
        self._news.process_ended(self.plan.engine, wanted=wanted)

    # -- words -----------------------------------------------------------------------------------------

    def _after_failed_start(self, why: str) -> float | None:
        """Returns the pause before the next start; None: it was given up."""
        self._crash = None
        pause_s = self._backoff.failed_start()
        if pause_s is not None:
            self._back_off(pause_s, why)
            return pause_s
        self._enter(
            EnginePhase.FAILED,
            f"given up after {self._backoff.failed_starts} failed starts in a row: {why}; the last lines of its log say"
            " more, and a restart tries again",
        )
        log.error("engine failed", engine=self.plan.engine, reason=why)
        return None

    def _back_off(self, pause_s: float, why: str) -> None:
        self._start_at = asyncio.get_running_loop().time() + pause_s
        self._enter(EnginePhase.BACKING_OFF, f"{why}{NEXT_START}{pause_s:g} s" if pause_s else why)
        log.warning("engine ended", engine=self.plan.engine, reason=why, next_start_s=pause_s)

    def _say_stuck(self) -> None:
        numbers = ", ".join(str(process.pid) for process in self._stuck)
        if self._phase is not EnginePhase.STUCK:
            log.error("an engine's process does not follow SIGKILL", engine=self.plan.engine, pid=numbers)
        self._enter(
            EnginePhase.STUCK,
            f"process {numbers} does not follow SIGKILL and may hold its GPU, so nothing new is started on it until it"
            " is gone",
        )

    def _enter(self, phase: EnginePhase, detail: str) -> None:
        if phase is not self._phase:
            self._since = time.time()
        self._phase, self._detail = phase, detail


def _last_words(path: Path, offset: int) -> tuple[tuple[str, ...], str | None]:
    """What the log of a run says of its end: the last lines that matter, and the first error. Call it in a thread."""
    lines = tail(path, SEARCHED_LINES, offset=offset)
    if all(line.startswith(MARK_LINE) for line in lines):
        return (), None  # it wrote nothing
    return tuple(why_it_ended(lines, SHOWN_LINES)), first_error(lines)
