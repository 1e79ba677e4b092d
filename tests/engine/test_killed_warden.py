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
        await serves(second, roll)
        check(step, EngineRecords(folder), supervisor.state.pid, roll)
        await supervisor.stop()
        await second.drop()
        assert not marked(EngineRecords(folder).mark_prefix), f"step {step}"
    return status != 0


async def serves(second: Launched, roll: Roll) -> None:
    """Wait until the engine that it has now listens and called in."""
    await until(second.supervisor.may_serve)
    while not any(caller.process.pid == second.supervisor.state.pid for caller in roll.callers):
        await roll.next()


def check(step: int, records: EngineRecords, ours: int | None, roll: Roll) -> None:
    """One engine lives, with its core, and it is the one that is known."""
    mains = {caller.process.pid for caller in roll.callers if caller.role == "main" and alive(caller.process)}
    assert mains == {ours}, f"step {step}"
    assert len(marked(records.mark_prefix)) == 2, f"step {step}: the engine and its core, and nobody else"
    assert roll.called("refused") == 0, f"step {step}: two held the card"
    record = records.load("e0")
    assert record is not None
    assert record.process is not None
    assert record.process.pid == ours, f"step {step}"


async def test_at_every_step(tmp_path: Path) -> None:
    step, more = 1, True
    while more:
        async with asyncio.TaskGroup() as tasks:
            wardens = [tasks.create_task(killed_at(n, tmp_path / str(n))) for n in range(step, step + AT_ONCE)]
        more, step = all(warden.result() for warden in wardens), step + AT_ONCE
    assert step > 2 * AT_ONCE
