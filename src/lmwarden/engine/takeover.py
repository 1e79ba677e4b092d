"""What an earlier warden left running: found again, or ended.

A warden may be killed at any moment, and with ``on_exit = "keep"`` it leaves its engines on purpose. The next one on
the same data folder looks for each of its engines, by the record and by the mark. There are four cases:

* the recorded process lives: it is taken over, if it is what the configuration says;
* the record names no process yet, because the warden was killed while it started one: the marked process that
  leads a session of its own, as it was started, and that no other marked one has started is it;
* the first process is gone and marked ones live (an engine core that outlived its API server): ended;
* processes of an engine that the configuration does not have any more: ended, before any engine is started, because
  they hold GPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from lmwarden.config import LaunchConfig
from lmwarden.engine import processes
from lmwarden.engine.processes import ProcessId
from lmwarden.engine.records import EngineRecord, EngineRecords

log = structlog.get_logger("lmwarden.engine")


def first_process(
    records: EngineRecords, record: EngineRecord | None, members: Sequence[ProcessId]
) -> ProcessId | None:
    """The first process of an engine that was left; None: it is gone, or not known for certain.

    Args:
        records: of the data folder.
        record: the engine's.
        members: the living processes that carry its mark.
    """
    if record is None:
        return None
    if record.process is not None:
        return record.process if records.is_ours(record) else None
    pids = {member.pid for member in members}
    started = [(member, processes.read_process(member.pid)) for member in members]
    # It leads a session of its own, as it was started: a core that outlived it does not.
    first = [
        member
        for member, info in started
        if info is not None and info.parent not in pids and info.session == member.pid
    ]
    return first[0] if len(first) == 1 else None


class Orphans(NamedTuple):
    """Engines of earlier wardens that the configuration does not have any more."""

    ended: list[str]
    """Their names, as are the keys of the other one."""
    left: dict[str, list[ProcessId]]
    """What could not be ended."""

    def still_there(self) -> dict[str, tuple[int, ...]]:
        """Process ids of what is left at this moment, by engine."""
        found = {engine: tuple(one.pid for one in left if processes.alive(one)) for engine, left in self.left.items()}
        return {engine: pids for engine, pids in found.items() if pids}


async def end_orphans(folder: Path, wanted: Collection[str], settings: LaunchConfig) -> Orphans:
    """End engines of earlier wardens that the configuration does not have any more. Before any ``prepare``.

    Args:
        folder: the data folder.
        wanted: short names of the engines that are launched.
        settings: how long they may take.

    Raises:
        OSError: the folder cannot be used.
    """
    records = EngineRecords(folder)
    found = await asyncio.to_thread(processes.marked, records.mark_prefix)
    names = {mark.removeprefix(records.mark_prefix) for mark, _ in found} | set(records.names())
    orphans = Orphans([], {})
    for engine in sorted(names - set(wanted)):
        record = records.load(engine)
        known = record is not None and await asyncio.to_thread(records.is_ours, record)
        root = record.process if record is not None and known else None
        mark = records.mark(engine)
        if root is not None or any(other == mark for other, _ in found):
            log.info("ending an engine that the configuration does not have any more", engine=engine)
            left = await processes.end_family(
                partial(processes.family, root, mark),
                term_grace_s=min(settings.stop_grace_s, processes.IDLE_GRACE_S),
                kill_grace_s=settings.kill_grace_s,
            )
            if left:
                log.error("an engine cannot be ended", engine=engine, pids=[process.pid for process in left])
                orphans.left[engine] = left
                continue
            orphans.ended.append(engine)
        records.forget(engine)
    return orphans
