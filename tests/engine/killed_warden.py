"""A warden's part that is killed at a certain step: ``killed_warden.py FOLDER ROLL KILL_AT``.

It starts an engine, restarts it and stops it. Whatever it does to the world (a file replaced or removed, a process
started, a signal sent) is a step; at step number KILL_AT the process kills itself instead, as ``kill -9`` would: what
it leaves is what the step before it made. Exit status 0: it came to its end before that step.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.engine.launching import News, Roll, plan, settings
from tests.waiting import until

from lmwarden.engine import processes, records
from lmwarden.engine.supervisor import Supervisor
from lmwarden.files import write_private

R = TypeVar("R")


class Steps:
    """Counts, and kills."""

    def __init__(self, kill_at: int) -> None:
        self._left = kill_at

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, does: Callable[..., R]) -> Callable[..., R]:
        def counted(*args: Any, **named: Any) -> R:
            self.step()
            return does(*args, **named)

        return counted


async def live(folder: Path, roll: Roll, steps: Steps) -> None:
    """A whole life of one engine."""
    limits = settings(stop_grace_s=0.05)
    engine = plan(roll, "serve+core", lock=str(folder / "gpu"))
    supervisor = Supervisor(engine, folder=folder, settings=limits, news=News(), send=steps.around(processes.send))
    await supervisor.prepare()
    running = asyncio.ensure_future(supervisor.run())
    for again in (True, False):
        await until(supervisor.may_serve)
        supervisor.ready()
        if again:
            await supervisor.restart()
    await supervisor.stop()
    await running


def main() -> None:
    folder, address, kill_at = sys.argv[1:]
    steps = Steps(int(kill_at))
    records.write_private = steps.around(write_private)  # type: ignore[attr-defined]
    records.EngineRecords.forget = steps.around(records.EngineRecords.forget)  # type: ignore[method-assign]
    processes.spawn = steps.around(processes.spawn)
    roll = Roll()
    roll.address = address
    asyncio.run(live(Path(folder), roll, steps))


if __name__ == "__main__":
    main()
