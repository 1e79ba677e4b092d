"""Starting, taking over and ending the processes of one engine: the hands of the supervisor.

Nothing here decides anything. A :class:`Starter` has what an engine keeps over all its runs: the port that is held for
it, its log file, its record, its mark. A :class:`Run` is one process of it, started by us or found.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from lmwarden.config import LaunchConfig
from lmwarden.engine import processes
from lmwarden.engine.launch import LaunchPlan
from lmwarden.engine.launch_state import LaunchError
from lmwarden.engine.logs import EngineLog
from lmwarden.engine.port_hold import PortHold, foreign_listener, listens_alone
from lmwarden.engine.processes import EndNotice, ProcessId, Send
from lmwarden.engine.records import EngineRecord, EngineRecords, digest_of
from lmwarden.engine.takeover import first_process


class Run:
    """The first process of the engine, while it is watched."""

    def __init__(self, record: EngineRecord, process: ProcessId, *, adopted: bool, told: Callable[[], None]) -> None:
        """Args:
        record: how it was started.
        process: what is watched.
        adopted: it was started by an earlier warden.
        told: called on the loop when it has ended.
        """
        self.record = record
        self.process = process
        self.adopted = adopted
        self.ready_at: float | None = None
        """Loop seconds; None: not yet."""
        self.intended_end = False
        """We are ending it."""
        self.members: list[ProcessId] = []
        """Its family as it was last looked at: some of them may be found in no other way later."""
        self._notice = EndNotice(process, told)
        self._listens = False

    @property
    def ended(self) -> bool:
        """It has ended, and that was told."""
        return self._notice.ended.is_set()

    async def ended_within(self, limit_s: float) -> bool:
        """Wait for its end, at most so long."""
        try:
            async with asyncio.timeout(limit_s):
                await self._notice.ended.wait()
        except TimeoutError:
            return False
        return True

    async def listens(self) -> bool:
        """Whether nobody but its family listens on its port. Reads the kernel's tables until it was so once."""
        if not self._listens:
            pids = [self.process.pid, *(member.pid for member in self.members)]
            self._listens = await asyncio.to_thread(listens_alone, self.record.port, pids)
        return self._listens

    def family_now(self) -> list[ProcessId]:
        """Its descendants, and those of before that live on: a child whose parent has ended is no descendant."""
        found = [self.process, *processes.descendants(self.process)]
        return [*found, *(member for member in self.members if member not in found and processes.alive(member))]

    def unwatch(self) -> None:
        """Tell of its end no more; whoever waits for it goes on."""
        self._notice.close()
        self._notice.ended.set()


class Starter:
    """What one engine keeps over all its runs."""

    def __init__(self, plan: LaunchPlan, folder: Path, settings: LaunchConfig, send: Send) -> None:
        """Args:
        plan: what to start.
        folder: the data folder.
        settings: limits.
        send: sends signals.

        Raises:
            OSError: the folder cannot be used.
        """
        self.log_offset = 0
        """Where the latest run begins in the log."""
        self._plan = plan
        self._settings = settings
        self._send = send
        self._records = EngineRecords(folder)
        self._mark = self._records.mark(plan.engine)
        self._fingerprint = plan.fingerprint(self._records.secret)
        key = (plan.api_key or "").encode()
        self._access = hashlib.blake2b(key, key=self._records.secret, digest_size=8).hexdigest()
        self.log = EngineLog(
            self._records.folder, plan.engine, max_bytes=settings.log_max_bytes, files=settings.log_files
        )
        self._hold: PortHold | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The engine's; 0: none is reserved yet."""
        return self._port

    @property
    def shown(self) -> str:
        """What a start executes, for a shell."""
        return self._plan.command(self._port, self._mark).shown

    def is_outdated(self, run: Run) -> bool:
        """Whether it was started by another command than ours."""
        return run.record.fingerprint != self._fingerprint

    # -- before the first start ------------------------------------------------------------------------

    async def find(self) -> tuple[EngineRecord | None, list[ProcessId]]:
        """What an earlier warden left.

        Returns:
            The record of a living process that is what the plan says, or None; and all that lives of the engine.
        """
        record = self._records.load(self._plan.engine)
        members = await asyncio.to_thread(processes.family, None, self._mark)
        first = await asyncio.to_thread(first_process, self._records, record, members)
        if record is None or first is None:
            return None, members
        same = record.identity == self._plan.identity and record.access == self._access
        found = msgspec.structs.replace(record, process=first) if same else None
        return found, [first, *(member for member in members if member != first)]

    def adopt(self, record: EngineRecord, told: Callable[[], None]) -> Run:
        """Take over what was found."""
        assert record.process is not None, "found"
        self._port = record.port
        try:
            self._hold = PortHold(record.port)
        except OSError:
            self._hold = None  # its own listener holds the port
        self.log_offset = record.log_offset
        self.log.begin_reading(record.log_offset)
        self._records.save(record)
        return Run(record, record.process, adopted=True, told=told)

    def reserve_port(self) -> None:
        """Hold a port: that of last time, if it can be had again.

        Raises:
            OSError: none is to be had.
        """
        record = self._records.load(self._plan.engine)
        if record is not None:
            try:
                self._hold = PortHold(record.port)
            except OSError:
                self._hold = None
        self._hold = self._hold or PortHold()
        self._port = self._hold.port

    # -- a run -----------------------------------------------------------------------------------------

    async def start(self, told: Callable[[], None]) -> Run:
        """Start a process; ``note`` it then. What may take long (long tables, forced writes) is done in a thread.

        Raises:
            OSError: the program cannot be executed, or its log not be opened.
            LaunchError: the port is taken, or was released meanwhile.
        """
        await self._check_port()
        command = self._plan.command(self._port, self._mark)
        output, offset = self.log.begin_run(f"starting {self._plan.engine}: {command.shown}")
        self.log_offset = offset
        record = EngineRecord(
            engine=self._plan.engine,
            identity=self._plan.identity,
            fingerprint=self._fingerprint,
            access=self._access,
            port=self._port,
            argv_digest=digest_of(command.argv),
            argv_words=len(command.argv),
            started_at=time.time(),
            log_offset=offset,
            command=command.shown,
        )
        try:
            await asyncio.to_thread(self._records.save, record)
            if self._hold is None:  # released meanwhile: whoever would look after it has gone
                raise LaunchError("the warden ends")
            process = processes.spawn(command.argv, command.env, output)
        finally:
            os.close(output)
        return Run(msgspec.structs.replace(record, process=process), process, adopted=False, told=told)

    async def note(self, run: Run) -> None:
        """Write down which process it is, for a later warden."""
        await asyncio.to_thread(self._records.save, run.record)

    async def end(
        self, run: Run | None, known: Collection[ProcessId] = (), *, grace_s: float | None = None
    ) -> list[ProcessId]:
        """End everything of the engine.

        Args:
            run: whose first process is known.
            known: processes that were seen before.
            grace_s: after SIGTERM, if less than the settings allow.

        Returns:
            What follows no signal.
        """
        first = run.process if run is not None else None
        known = [*known, *(run.members if run is not None else ())]
        limit_s = self._settings.stop_grace_s
        return await processes.end_family(
            lambda: processes.family(first, self._mark, known),
            term_grace_s=min(limit_s, grace_s) if grace_s is not None else limit_s,
            kill_grace_s=self._settings.kill_grace_s,
            send=self._send,
        )

    def forget(self) -> None:
        """Nothing is left to be found by a later warden."""
        self._records.forget(self._plan.engine)

    def release_port(self) -> None:
        """Hold the port no more."""
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    async def _check_port(self) -> None:
        held = self._hold is not None
        if not held:
            with suppress(OSError):
                self._hold = PortHold(self._port)
                held = True
        stranger = await asyncio.to_thread(foreign_listener, self._port, ())
        if stranger is not None or not held:
            raise LaunchError(self._taken(stranger))

    def _taken(self, by: str | None) -> str:
        return f"port {self._port} is taken by {by or 'another process'}, which the warden did not start"
