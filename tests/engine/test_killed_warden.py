"""A warden that is killed at any step leaves no engine that the next one does not find: none doubled, none orphaned."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.engine.launching import Followed, Launched, News, Roll, plan, settings
from tests.waiting import until

from lmwarden.engine.processes import alive, marked
from lmwarden.engine.records import EngineRecords
from lmwarden.engine.supervisor import Supervisor

KILLED_WARDEN = Path(__file__).with_name("killed_warden.py")
ROOT = Path(__file__).parents[2]
AT_ONCE = 8
"""Wardens that live at the same time."""


async def killed_at(step: int, folder: Path) -> bool:
    """Kill a warden at a step and start another one; whether there was such a step."""
    roll = Roll()
    async with roll.open(folder):
        warden = await asyncio.create_subprocess_exec(
            sys.executable, str(KILLED_WARDEN), str(folder), roll.address, str(step),
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        status = await warden.wait()
        assert status in (0, -signal.SIGKILL), f"step {step}: {status}"
        news = News()
        of = plan(roll, "serve+core", lock=str(folder / "gpu"))
        supervisor = Followed(of, folder=folder, settings=settings(stop_grace_s=0.05), news=news)
        second = await Launched(supervisor, news).begin()
        records = EngineRecords(folder)
        # In the end: the first one may have asked an engine to go that has not gone yet.
        await until(
            lambda: one_engine(supervisor, records, roll), lambda: f"step {step}: {found(supervisor, records, roll)}"
        )
        await supervisor.stop()
        await second.drop()
        assert not marked(records.mark_prefix), f"step {step}"
        assert roll.called("refused") == 0, f"step {step}: two held the card"
    return status != 0


async def one_engine(supervisor: Supervisor, records: EngineRecords, roll: Roll) -> bool:
    """One engine lives and serves, with its core and nobody else, and it is the one that is known and written down."""
    mains, known, written, processes = found(supervisor, records, roll)
    return mains == {known} == {written} and processes == 2 and await supervisor.may_serve()


def found(supervisor: Supervisor, records: EngineRecords, roll: Roll) -> tuple[set[int], int | None, int | None, int]:
    """Engines that called in and live, the one that is known, the one that is written down; processes of all."""
    mains = {caller.process.pid for caller in roll.callers if caller.role == "main" and alive(caller.process)}
    record = records.load("e0")
    written = record.process.pid if record is not None and record.process is not None else None
    return mains, supervisor.state.pid, written, len(marked(records.mark_prefix))


async def test_at_every_step(tmp_path: Path) -> None:
    step, more = 1, True
    while more:
        async with asyncio.TaskGroup() as tasks:
            wardens = [tasks.create_task(killed_at(n, tmp_path / str(n))) for n in range(step, step + AT_ONCE)]
        more, step = all(warden.result() for warden in wardens), step + AT_ONCE
    assert step > 2 * AT_ONCE
