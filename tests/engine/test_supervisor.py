"""Supervision of real processes: starts, crashes, ends, take-over."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest
from tests.engine.launching import Followed, Launched, News, Roll, plan, settings

from lmwarden.config import LaunchConfig, load
from lmwarden.engine import port_hold, processes, records
from lmwarden.engine import supervisor as module
from lmwarden.engine.launch import LaunchPlan, plan_engines
from lmwarden.engine.processes import ProcessId, Send, alive, read_process, send
from lmwarden.engine.records import EngineRecords
from lmwarden.engine.supervisor import EnginePhase, LaunchError

STARTING, RUNNING, STOPPED = EnginePhase.STARTING, EnginePhase.RUNNING, EnginePhase.STOPPED
BACKING_OFF, FAILED, STUCK = EnginePhase.BACKING_OFF, EnginePhase.FAILED, EnginePhase.STUCK


class Place:
    """One data folder, and what runs on it."""

    def __init__(self, folder: Path, roll: Roll) -> None:
        self.folder = folder
        self.roll = roll
        self.launched: list[Launched] = []

    def make(self, of: LaunchPlan, limits: LaunchConfig | None = None, send: Send = send) -> Launched:
        news = News()
        supervisor = Followed(of, folder=self.folder, settings=limits or settings(), news=news, send=send)
        self.launched.append(Launched(supervisor, news))
        return self.launched[-1]

    async def begin(self, behaviour: str, limits: LaunchConfig | None = None, **of: str) -> Launched:
        return await self.make(plan(self.roll, behaviour, **of), limits).begin()

    @property
    def records(self) -> EngineRecords:
        return EngineRecords(self.folder)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    here = Place(tmp_path, Roll())
    async with here.roll.open(tmp_path):
        yield here
        for launched in here.launched:
            await launched.drop()


# -- a life --------------------------------------------------------------------------------------------


async def test_it_starts_serves_and_stops(place: Place) -> None:
    launched = await place.begin("serve")
    supervisor = launched.supervisor
    main = await place.roll.next()
    state = supervisor.state
    assert (state.phase, state.pid, state.restarts, state.taken_over) == (STARTING, main.process.pid, 0, False)
    assert (state.step, state.progress_ratio, state.outdated) == ("importing", None, False)
    assert await supervisor.may_serve()
    supervisor.ready()
    assert supervisor.state.phase is RUNNING
    assert supervisor.state.step is None
    await supervisor.stop()
    await main.end()
    await launched.finished()
    state = supervisor.state
    assert (state.phase, state.exit_status, state.pid) == (STOPPED, -signal.SIGTERM, None)
    assert launched.news.told == ["started e0", "ended e0"]
    assert not await supervisor.may_serve()
    supervisor.ready()
    await supervisor.stop()
    assert supervisor.state.phase is STOPPED
    assert place.records.load("e0") is None


def descriptors(pid: int) -> dict[str, str]:
    """What each open descriptor of a process is."""
    return {entry.name: str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}


async def test_it_owns_nothing_of_ours_but_its_output(place: Place) -> None:
    launched = await place.begin("serve")
    main = await place.roll.next()
    targets = descriptors(main.process.pid)
    assert targets.pop("0") == "/dev/null"
    log_path = str(launched.supervisor.log_path)
    assert {targets.pop("1"), targets.pop("2")} == {log_path}
    assert all(target.startswith("socket:") for target in targets.values()), targets
    info = read_process(main.process.pid)
    assert info is not None
    assert info.session == info.group == main.process.pid
    assert launched.supervisor.log_path.stat().st_mode & 0o777 == 0o600
    assert launched.supervisor.log_path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_crash_is_told_at_once_and_a_ready_engine_is_started_again_at_once(place: Place) -> None:
    launched = await place.begin("serve", settings(start_backoff_s=3600.0, max_backoff_s=3600.0))
    supervisor = launched.supervisor
    main = await place.roll.next()
    supervisor.ready()
    main.kill()
    await launched.ends()
    assert not await supervisor.may_serve()
    again = await place.roll.next()
    state = supervisor.state
    assert (state.restarts, state.exit_status, state.pid) == (1, -signal.SIGKILL, again.process.pid)
    crash = state.last_crash
    assert crash is not None
    assert (crash.exit_status, crash.was_ready, crash.pause_s, crash.over_at) == (-signal.SIGKILL, True, 0.0, None)
    assert launched.news.told == ["started e0", "ended e0", "started e0"]
    # The next crash, soon after, waits.
    supervisor.ready()
    healed = supervisor.state.last_crash
    assert healed is not None, "a crash leaves its trace when the engine serves again"
    assert healed.over_at is not None and healed.at == crash.at
    again.kill()
    await launched.ends()
    state = await launched.reaches(BACKING_OFF)
    while state.exit_status is None or "3600" not in state.detail:
        state = await launched.reaches(BACKING_OFF)
    assert state.detail == "it ended by signal 9; the next start is in 3600 s"


async def test_failed_starts_are_given_up_with_the_last_lines_and_a_restart_tries_again(place: Place) -> None:
    launched = await place.begin("crash", settings(failed_after=3))
    state = await launched.reaches(FAILED)
    for _ in range(3):
        await place.roll.next()
    assert state.detail == (
        "given up after 3 failed starts in a row: it ended with exit status 3 before it was ready, saying:"
        " torch.OutOfMemoryError: out of memory, as always; the last lines of its log say more, and a restart tries"
        " again"
    )
    assert state.exit_status == 3
    crash = state.last_crash
    assert crash is not None
    assert (crash.exit_status, crash.was_ready, crash.pause_s, crash.over_at) == (3, False, None, None)
    assert crash.sentence == "it ended with exit status 3 before it was ready"
    assert state.last_lines[-1] == "torch.OutOfMemoryError: out of memory, as always"
    assert state.last_lines[0].startswith("=== lmwarden: ")
    assert "starting e0: " in state.last_lines[0]
    await launched.supervisor.restart()
    assert launched.supervisor.state.last_crash is None, "whoever restarts it knows"
    await launched.reaches(FAILED)
    for _ in range(3):
        await place.roll.next()
    assert place.roll.called("main") == 6


async def test_one_that_ends_without_a_word_has_no_last_words(place: Place) -> None:
    launched = await place.begin("mute", settings(failed_after=1))
    state = await launched.reaches(FAILED)
    assert "it ended with exit status 0 before it was ready; the last lines" in state.detail
    assert (state.exit_status, state.last_lines) == (0, ())


async def test_a_program_that_is_not_there(place: Place) -> None:
    nowhere = msgspec.structs.replace(plan(place.roll, "serve"), head=("/nowhere/vllm",))
    launched = await place.make(nowhere, settings(failed_after=2)).begin()
    state = await launched.reaches(FAILED)
    assert "it could not be started: No such file or directory (/nowhere/vllm)" in state.detail
    with pytest.raises(LaunchError, match="engine e0: it could not be started: No such file"):
        await launched.supervisor.restart()
    assert (await launched.reaches(FAILED)).restarts == 0
    assert launched.news.told == []


async def test_a_start_that_this_machine_has_no_files_left_for_is_not_the_engine_s_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    spawn = processes.spawn

    def sometimes(argv: Collection[str], env: dict[str, str], output: int) -> ProcessId:
        tried.append(1)
        if len(tried) <= 5:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return spawn(argv, env, output)

    monkeypatch.setattr(processes, "spawn", sometimes)
    launched = await place.begin("serve", settings(failed_after=2))
    state = await launched.reaches(BACKING_OFF)
    assert state.detail.startswith("it could not be started: Too many open files; the next start is in ")
    await place.roll.next()
    assert len(tried) == 6


async def test_what_may_take_long_is_not_done_on_the_loop(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables with a line for each connection of the machine, and forced writes: streams would wait for them."""
    threads: dict[str, set[threading.Thread]] = {}

    def noted(where: ModuleType, name: str) -> None:
        does = getattr(where, name)

        def note(*arguments: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread())
            return does(*arguments)

        monkeypatch.setattr(where, name, note)

    launched = place.make(plan(place.roll, "serve"))
    await launched.supervisor.prepare()
    for where, name in ((port_hold, "_listening_sockets"), (port_hold, "_sockets_of"), (records, "write_private")):
        noted(where, name)
    await launched.begin()
    await place.roll.next()
    assert await launched.supervisor.may_serve()
    await launched.supervisor.restart()
    assert set(threads) == {"_listening_sockets", "_sockets_of", "write_private"}
    assert not any(threading.current_thread() in seen for seen in threads.values())


async def test_nothing_is_started_once_it_was_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next warden would find a process that nobody has written down."""
    launched = place.make(plan(place.roll, "serve"))
    look, loop = port_hold.foreign_listener, asyncio.get_running_loop()

    def left_meanwhile(port: int, pids: Collection[int]) -> str | None:
        loop.call_soon_threadsafe(launched.supervisor.leave)
        return look(port, pids)

    monkeypatch.setattr("lmwarden.engine.starter.foreign_listener", left_meanwhile)
    spawned: list[str] = []
    monkeypatch.setattr(processes, "spawn", lambda *arguments: spawned.append("a process"))
    await launched.begin()
    await launched.finished()
    assert spawned == []


async def test_restarts_and_stops_beside_each_other(place: Place) -> None:
    launched = await place.begin("serve")
    supervisor = launched.supervisor
    main = await place.roll.next()
    supervisor.ready()
    await asyncio.gather(supervisor.restart(), supervisor.restart())
    await main.end()
    assert (supervisor.state.phase, supervisor.state.restarts) == (STARTING, 2)
    await asyncio.gather(supervisor.stop(), supervisor.stop())
    assert supervisor.state.phase is STOPPED
    with pytest.raises(LaunchError, match="engine e0 is not supervised any more"):
        await supervisor.restart()
    await launched.finished()


async def test_a_restart_that_was_interrupted_is_completed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CARE_INTERVAL_S", 0.01)
    launched = await place.begin("serve+deaf", settings(stop_grace_s=0.2))
    main = await place.roll.next()
    restart = asyncio.ensure_future(launched.supervisor.restart())
    await launched.reaches(EnginePhase.STOPPING)
    restart.cancel()
    await asyncio.gather(restart, return_exceptions=True)
    again = await place.roll.next()
    await main.end()
    assert launched.supervisor.state.pid == again.process.pid


async def test_an_error_of_ours_does_not_end_supervision(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRESS_INTERVAL_S", 0.01)
    launched = place.make(plan(place.roll, "serve"))
    turn, calls = launched.supervisor._turn, []

    async def stumble() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        await turn()

    monkeypatch.setattr(launched.supervisor, "_turn", stumble)
    await launched.begin()
    await place.roll.next()


# -- whole families ------------------------------------------------------------------------------------


async def test_an_engine_that_ignores_sigterm_is_killed(place: Place) -> None:
    launched = await place.begin("serve+deaf", settings(stop_grace_s=0.05))
    main = await place.roll.next()
    await launched.supervisor.stop()
    await main.end()
    assert launched.supervisor.state.exit_status == -signal.SIGKILL


async def test_stop_ends_the_whole_family(place: Place) -> None:
    launched = await place.begin("serve+core+stray+bare", settings(stop_grace_s=0.05), lock=str(place.folder / "gpu"))
    callers = [await place.roll.next(role) for role in ("core", "stray", "bare", "main")]
    await launched.supervisor.stop()
    for caller in callers:
        await caller.end()


async def test_what_outlives_its_first_process_is_ended_before_the_next_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_GRACE_S", 0.05)
    launched = await place.begin("serve+core+stray", lock=str(place.folder / "gpu"))
    callers = [await place.roll.next(role) for role in ("core", "stray", "main")]
    launched.supervisor.ready()
    callers[-1].kill()
    for caller in callers:
        await caller.end()
    # The lock was free when the next one asked for it: that was after the first one's end.
    await place.roll.next("core")
    await place.roll.next()
    assert place.roll.called("refused") == 0


async def test_a_child_without_our_environment_is_remembered(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CARE_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "IDLE_GRACE_S", 0.05)
    launched = await place.begin("serve+bare")
    bare, main = await place.roll.next("bare"), await place.roll.next()
    launched.supervisor.ready()
    await launched.is_cared_for()
    main.kill()
    await bare.end()


@pytest.mark.parametrize("asked_to_restart", [True, False])
async def test_a_process_that_follows_no_signal_keeps_others_off_its_gpu(
    place: Place, monkeypatch: pytest.MonkeyPatch, asked_to_restart: bool
) -> None:
    monkeypatch.setattr(module, "IDLE_GRACE_S", 0.01)
    held: list[int] = []

    def weak_send(process: ProcessId, number: signal.Signals) -> None:
        if process.pid not in held:
            send(process, number)

    limits = settings(stop_grace_s=0.05, kill_grace_s=0.05)
    launched = place.make(plan(place.roll, "serve+core", lock=str(place.folder / "gpu")), limits, weak_send)
    await launched.begin()
    core, main = await place.roll.next("core"), await place.roll.next()
    held.append(core.process.pid)
    main.kill()
    state = await launched.reaches(STUCK)
    assert state.detail.startswith(f"process {core.process.pid} does not follow SIGKILL and may hold its GPU")
    if asked_to_restart:
        with pytest.raises(LaunchError, match="does not follow SIGKILL"):
            await launched.supervisor.restart()
    assert place.roll.called("main") == 1
    core.kill()
    await place.roll.next("core")
    await place.roll.next()
    assert place.roll.called("refused") == 0


async def test_a_first_process_that_follows_no_signal(place: Place) -> None:
    blocked = [True]

    def weak_send(process: ProcessId, number: signal.Signals) -> None:
        if not blocked:
            send(process, number)

    limits = settings(stop_grace_s=0.01, kill_grace_s=0.01)
    launched = await place.make(plan(place.roll, "serve"), limits, weak_send).begin()
    main = await place.roll.next()
    launched.supervisor.ready()
    with pytest.raises(LaunchError, match=f"process {main.process.pid} does not follow"):
        await launched.supervisor.restart()
    assert launched.supervisor.state.phase is STUCK
    assert not await launched.supervisor.may_serve()
    blocked.clear()
    main.kill()
    again = await place.roll.next()
    assert launched.supervisor.state.pid == again.process.pid


# -- ports ---------------------------------------------------------------------------------------------


def squat(port: int) -> socket.socket:
    """A stranger's server on a port that is held."""
    stranger = socket.socket()
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stranger.bind(("127.0.0.1", port))
    stranger.listen()
    return stranger


async def test_many_at_once_have_ports_of_their_own(place: Place) -> None:
    many = [place.make(plan(place.roll, "serve", engine=f"e{number}")) for number in range(8)]
    endpoints = await asyncio.gather(*(launched.supervisor.prepare() for launched in many))
    assert len({endpoint.port for endpoint in endpoints}) == 8
    await asyncio.gather(*(launched.begin() for launched in many))
    for _ in many:
        await place.roll.next()
    assert all([await launched.supervisor.may_serve() for launched in many])


async def test_a_stranger_on_the_port_is_named_and_not_adopted(place: Place) -> None:
    launched = place.make(plan(place.roll, "serve"), settings(start_backoff_s=3600.0, max_backoff_s=3600.0))
    endpoint = await launched.supervisor.prepare()
    with squat(endpoint.port):
        await launched.begin()
        state = await launched.reaches(BACKING_OFF)
        name = psutil.Process().name()
        taken = f"port {endpoint.port} is taken by process {os.getpid()} ({name}), which the warden did not start"
        assert state.detail == f"{taken}; the next start is in 3600 s"
        assert not await launched.supervisor.may_serve()
    await launched.supervisor.restart()
    await place.roll.next()
    assert await launched.supervisor.may_serve()


async def test_a_stranger_beside_an_engine_that_does_not_listen(place: Place) -> None:
    launched = place.make(plan(place.roll, "idle"))
    endpoint = await launched.supervisor.prepare()
    await launched.begin()
    await place.roll.next()
    assert not await launched.supervisor.may_serve()
    with squat(endpoint.port):
        assert not await launched.supervisor.may_serve()


# -- take-over -----------------------------------------------------------------------------------------


async def test_a_later_warden_takes_it_over_with_its_port(place: Place) -> None:
    first = await place.begin("serve")
    main = await place.roll.next()
    await first.drop()
    second = place.make(plan(place.roll, "serve"))
    endpoint = await second.supervisor.prepare()
    state = second.supervisor.state
    assert (state.pid, state.taken_over, state.outdated, state.phase) == (main.process.pid, True, False, STARTING)
    assert state.detail == "taken over from an earlier warden"
    with socket.create_connection((endpoint.host, endpoint.port)):
        pass
    await second.begin()
    assert await second.supervisor.may_serve()
    second.supervisor.ready()
    assert second.news.told == []
    main.kill()
    await second.ends()
    again = await place.roll.next()
    state = second.supervisor.state
    assert (state.pid, state.taken_over, state.restarts) == (again.process.pid, False, 1)


async def test_one_that_was_started_otherwise_is_taken_over_and_called_outdated(place: Place) -> None:
    first = await place.begin("serve", extra="--older")
    main = await place.roll.next()
    await first.drop()
    second = await place.begin("serve", extra="--newer")
    assert second.supervisor.state.outdated
    assert second.supervisor.state.command.endswith(" --older"), "what runs"
    await second.supervisor.restart()
    await main.end()
    await place.roll.next()
    state = second.supervisor.state
    assert (state.outdated, state.taken_over) == (False, False)
    assert state.command.endswith(" --newer")


@pytest.mark.parametrize("change", [{"identity": "another model"}, {"api_key": "sk-new"}])
async def test_one_that_serves_something_else_is_ended(place: Place, change: dict[str, str]) -> None:
    first = await place.begin("serve+core", settings(stop_grace_s=0.05), lock=str(place.folder / "gpu"))
    core, main = await place.roll.next("core"), await place.roll.next()
    await first.drop()
    other = msgspec.structs.replace(plan(place.roll, "serve"), **change)
    second = place.make(other, settings(stop_grace_s=0.05))
    await second.supervisor.prepare()
    await main.end()
    await core.end()
    assert not second.supervisor.state.taken_over


async def test_one_that_was_being_started_when_its_warden_was_killed(place: Place) -> None:
    first = await place.begin("serve+core", lock=str(place.folder / "gpu"))
    core, main = await place.roll.next("core"), await place.roll.next()
    await first.drop()
    record = place.records.load("e0")
    assert record is not None
    place.records.save(msgspec.structs.replace(record, process=None))
    second = await place.begin("serve")
    assert second.supervisor.state.pid == main.process.pid
    assert alive(core.process)
    assert place.records.load("e0") == record


@pytest.mark.parametrize("content", [None, b"", b'{"engine": "e0", "port', b"\xff\x00"])
async def test_without_a_usable_record_marked_processes_are_ended_and_a_new_one_started(
    place: Place, content: bytes | None
) -> None:
    first = await place.begin("serve+stray")
    stray, main = await place.roll.next("stray"), await place.roll.next()
    await first.drop()
    path = place.folder / "engines" / "e0.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    second = await place.begin("serve")
    await main.end()
    await stray.end()
    again = await place.roll.next()
    assert second.supervisor.state.pid == again.process.pid


@pytest.mark.parametrize("written_down", [True, False])
async def test_a_core_that_outlived_its_first_process_and_the_warden_is_ended(place: Place, written_down: bool) -> None:
    first = await place.begin("serve+core", lock=str(place.folder / "gpu"))
    core, main = await place.roll.next("core"), await place.roll.next()
    await first.drop()
    record = place.records.load("e0")
    assert record is not None
    if not written_down:  # the warden was killed in the moment between the start and the note of it
        place.records.save(msgspec.structs.replace(record, process=None))
    main.kill()
    await main.end()
    second = await place.begin("serve+core", settings(stop_grace_s=0.05), lock=str(place.folder / "gpu"))
    await core.end()
    await place.roll.next("core")
    await place.roll.next()
    assert place.roll.called("refused") == 0
    assert not second.supervisor.state.taken_over


async def test_another_process_with_a_recorded_number_is_left_alone(place: Place) -> None:
    first = await place.begin("serve")
    main = await place.roll.next()
    record = place.records.load("e0")
    await first.supervisor.stop()
    await main.end()
    assert record is not None
    stranger = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    try:
        info = read_process(stranger.pid)
        assert info is not None
        # The same number, once with another start and once (a forged record) with the same.
        for process in (ProcessId(stranger.pid, "0:1"), info.id):
            place.records.save(msgspec.structs.replace(record, process=process))
            second = await place.begin("serve")
            again = await place.roll.next()
            assert second.supervisor.state.pid == again.process.pid
            await second.supervisor.stop()
            assert alive(info.id)
    finally:
        stranger.kill()
        await stranger.wait()


async def test_leaving_lets_it_run(place: Place) -> None:
    launched = await place.begin("serve")
    main = await place.roll.next()
    launched.supervisor.leave()
    await launched.finished()
    assert alive(main.process)
    assert launched.supervisor.state.phase is STOPPED
    assert launched.news.told == ["started e0"]
    second = await place.begin("serve")
    assert second.supervisor.state.taken_over


async def test_our_own_simulated_engine_is_launched_like_any_other(place: Place) -> None:
    path = place.folder / "lmwarden.toml"
    path.write_text('[[models]]\n[models.engine]\nlaunch = "simulated"\nmodel = "m"\nreplicas = 2\nlayout = "shared"\n')
    (of,) = plan_engines(load(path).models[0].engine, name="m", aliases=(), first_number=0)
    launched = await place.make(of).begin()
    await launched.gets_to("starting the server")
    assert await launched.supervisor.may_serve()
    endpoint = await launched.supervisor.prepare()
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{endpoint.port}/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == "m"
    await launched.supervisor.stop()
