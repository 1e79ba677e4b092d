"""What an earlier warden left running: found again, or ended.

A warden may be killed at any moment, and with ``on_exit = "keep"`` it leaves its engines on purpose. The next one on
the same data folder looks for each of its engines, by the record and by the mark. There are four cases:

* the recorded process lives: it is taken over, if it is what the configuration says;
* the record names no process yet, because the warden was killed while it started one: the marked process that no
  other marked one has started is it;
* the recorded process is gone and marked ones live (an engine core that outlived its API server): ended;
* processes of an engine that the configuration does not have any more: ended, before any engine is started, because
  they hold GPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

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
    first = [member for member, info in started if info is not None and info.parent not in pids]
    return first[0] if len(first) == 1 else None


async def end_orphans(folder: Path, wanted: Collection[str], settings: LaunchConfig) -> list[str]:
    """End engines of earlier wardens that the configuration does not have any more. Before any ``prepare``.

    Args:
        folder: the data folder.
        wanted: short names of the engines that are launched.
        settings: how long they may take.

    Returns:
        The names of those that were ended.

    Raises:
        OSError: the folder cannot be used.
    """
    records = EngineRecords(folder)
    found = await asyncio.to_thread(processes.marked, records.mark_prefix)
    names = {mark.removeprefix(records.mark_prefix) for mark, _ in found} | set(records.names())
    ended = []
    for engine in sorted(names - set(wanted)):
        record = records.load(engine)
        root = record.process if record is not None and records.is_ours(record) else None
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
                continue
            ended.append(engine)
        records.forget(engine)
    return ended
