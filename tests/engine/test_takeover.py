"""What earlier wardens left and the configuration does not want."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.engine.launching import Caller, Followed, Launched, News, Roll, plan, settings

from lmwarden.engine.processes import ProcessId, alive
from lmwarden.engine.records import EngineRecords
from lmwarden.engine.takeover import end_orphans


@pytest.fixture
async def roll(tmp_path: Path) -> AsyncIterator[Roll]:
    async with Roll().open(tmp_path) as found:
        yield found


async def start_and_leave(roll: Roll, folder: Path, engine: str, behaviour: str = "serve") -> Caller:
    """Start an engine and vanish."""
    of = plan(roll, behaviour, engine=engine, lock=str(folder / "gpu"))
    news = News()
    launched = await Launched(Followed(of, folder=folder, settings=settings(), news=news), news).begin()
    main = await roll.next()
    await launched.drop()
    return main


async def test_engines_that_nobody_wants_are_ended_and_the_others_are_not(roll: Roll, tmp_path: Path) -> None:
    kept = await start_and_leave(roll, tmp_path, "e0")
    unwanted = await start_and_leave(roll, tmp_path, "e1")
    nameless = await start_and_leave(roll, tmp_path, "e7")
    records = EngineRecords(tmp_path)
    records.forget("e7")  # only its mark tells
    (records.folder / "e8.json").write_bytes(b"torn")
    assert (await end_orphans(tmp_path, ["e0"], settings())).ended == ["e1", "e7"]
    await unwanted.end()
    await nameless.end()
    assert alive(kept.process)
    assert records.names() == ["e0"]
    assert (await end_orphans(tmp_path, ["e0"], settings())).ended == []


async def test_an_orphan_s_family_goes_with_it(roll: Roll, tmp_path: Path) -> None:
    main = await start_and_leave(roll, tmp_path, "e1", "serve+core+stray")
    core, stray = await roll.next("core"), await roll.next("stray")
    main.kill()
    await main.end()
    assert (await end_orphans(tmp_path, [], settings(stop_grace_s=0.05))).ended == ["e1"]
    await core.end()
    await stray.end()


async def test_engines_of_another_folder_are_not_ours(roll: Roll, tmp_path: Path) -> None:
    theirs = await start_and_leave(roll, tmp_path, "e0")
    other = tmp_path / "copy"
    (other / "engines").mkdir(parents=True)
    for name in ("id", "e0.json"):
        (other / "engines" / name).write_bytes((tmp_path / "engines" / name).read_bytes())
    assert (await end_orphans(other, [], settings())).ended == []
    assert alive(theirs.process)


async def test_an_orphan_that_cannot_be_ended_is_told_as_long_as_it_lives(
    roll: Roll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = await start_and_leave(roll, tmp_path, "e1")

    async def hold_on(family: Callable[[], list[ProcessId]], **given: float) -> list[ProcessId]:
        return family()

    with monkeypatch.context() as patched:
        patched.setattr("lmwarden.engine.processes.end_family", hold_on)
        orphans = await end_orphans(tmp_path, [], settings())
    assert orphans.ended == []
    assert orphans.still_there() == {"e1": (main.process.pid,)}
    assert EngineRecords(tmp_path).names() == ["e1"]  # the next warden tries again
    main.kill()
    await main.end()
    assert orphans.still_there() == {}
