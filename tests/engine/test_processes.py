"""Processes told apart, watched and ended."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, until

from lmwarden.engine import processes
from lmwarden.engine.launch import MARK
from lmwarden.engine.processes import (
    EndNotice,
    ProcessId,
    alive,
    descendants,
    end_family,
    family,
    mark_of,
    marked,
    read_process,
    reap,
    send,
    spawn,
    wait_until_gone,
)


class Children:
    """Processes of one test."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"test-{os.getpid()}-{folder.name}/e0"
        self.ids: list[ProcessId] = []
        self._output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT, 0o600)

    def start(self, *words: str, **env: str) -> ProcessId:
        self.ids.append(spawn(words, {MARK: self.mark, "PATH": os.environ["PATH"], **env}, self._output))
        return self.ids[-1]

    def sleep(self) -> ProcessId:
        return self.start("/bin/sleep", "1000")

    def end(self) -> None:
        os.close(self._output)
        for process in [*self.ids, *(info.id for _, info in marked(self.mark))]:
            send(process, signal.SIGKILL)
        for process in self.ids:
            try:
                os.waitpid(process.pid, 0)
            except ChildProcessError:
                continue  # reaped by the test


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    found = Children(tmp_path)
    yield found
    found.end()


async def ended(process: ProcessId) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await wait_until_gone([process], None)


async def test_a_process_is_told_from_another_with_its_number(children: Children) -> None:
    process = children.sleep()
    other = ProcessId(process.pid, "0:1")
    assert alive(process)
    assert not alive(other)
    send(other, signal.SIGKILL)
    await wait_until_gone([other], PATIENCE_S)
    assert alive(process)
    send(process, signal.SIGKILL)
    await ended(process)
    assert not alive(process)
    assert reap(process) == -signal.SIGKILL
    assert read_process(process.pid) is None
    assert reap(process) is None
    send(process, signal.SIGKILL)


def test_a_name_with_parentheses_and_spaces_is_read(tmp_path: Path, children: Children) -> None:
    odd = tmp_path / "a) R 1 2 (b"
    odd.symlink_to("/bin/sleep")
    process = children.start(str(odd), "1000")
    info = read_process(process.pid)
    assert info is not None
    assert (info.parent, info.group, info.session, info.zombie) == (os.getpid(), process.pid, process.pid, False)


def test_what_cannot_be_started_is_an_error_and_leaves_no_child(children: Children, tmp_path: Path) -> None:
    before = set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    with pytest.raises(FileNotFoundError):
        children.start("/nowhere/vllm")
    (tmp_path / "data").write_text("no program")
    with pytest.raises(PermissionError):
        children.start(str(tmp_path / "data"))
    assert set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()) <= before


def ignores(process: ProcessId, number: signal.Signals) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored, 16) & (1 << (number - 1)))


def test_signals_have_their_meaning_back_in_the_child(children: Children) -> None:
    assert not ignores(children.sleep(), signal.SIGPIPE)


def test_a_mark_is_seen_from_the_first_moment_on(children: Children) -> None:
    """The kernel lets the parent go on a moment before it shows the new program's environment."""
    for _ in range(50):
        assert mark_of(children.sleep().pid) == children.mark


def test_a_mark_is_looked_at_again_however_long_we_stood_still(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = children.sleep()
    shown = [b"", *[f"{MARK}={children.mark}\0".encode()] * 2]
    clock = itertools.count(step=3600.0)
    monkeypatch.setattr(processes, "_is_being_loaded", lambda pid: True)
    monkeypatch.setattr(Path, "read_bytes", lambda path: shown.pop(0))
    monkeypatch.setattr("lmwarden.engine.processes.time.monotonic", lambda: next(clock))
    found = mark_of(process.pid)
    monkeypatch.undo()
    assert found == children.mark


FIRST_THREAD_ENDS = (
    "import ctypes, threading\n"
    "forever = threading.Thread(target=threading.Event().wait)\n"
    "forever.start()\n"
    "ctypes.CDLL(None).pthread_exit(None)\n"
)


async def test_a_process_whose_first_thread_has_ended_lives(children: Children) -> None:
    """It is shown as a zombie, but cannot be reaped, and has everything that it had."""
    process = children.start(sys.executable, "-S", "-c", FIRST_THREAD_ENDS)
    await until(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes())
    assert alive(process)
    assert marked(children.mark) == [(children.mark, read_process(process.pid))]
    assert family(process, children.mark) == [process]
    assert (
        await end_family(lambda: family(process, children.mark), term_grace_s=PATIENCE_S, kill_grace_s=PATIENCE_S) == []
    )
    assert reap(process) == -signal.SIGTERM


def test_marks(children: Children) -> None:
    process = children.sleep()
    assert mark_of(process.pid) == children.mark
    assert mark_of(os.getpid()) is None
    assert mark_of(2**22) is None
    assert [(mark, info.id) for mark, info in marked(children.mark)] == [(children.mark, process)]
    assert marked("nobody/") == []


async def test_an_end_is_told_once_and_not_after_closing(children: Children) -> None:
    first, second = children.sleep(), children.sleep()
    told: list[str] = []
    notice = EndNotice(first, lambda: told.append("first"))
    closed = EndNotice(second, lambda: told.append("second"))
    closed.close()
    closed.close()
    send(first, signal.SIGTERM)
    send(second, signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        await notice.ended.wait()
    await ended(second)
    assert told == ["first"]


async def test_one_that_is_gone_already_is_told_too(children: Children) -> None:
    process = children.sleep()
    send(process, signal.SIGKILL)
    await ended(process)
    told: list[str] = []
    zombie = EndNotice(process, lambda: told.append("zombie"))
    assert told == []
    await zombie.ended.wait()
    reap(process)
    gone = EndNotice(process, lambda: told.append("gone"))
    await gone.ended.wait()
    assert told == ["zombie", "gone"]


async def shell_with_child(children: Children, folder: Path) -> tuple[ProcessId, ProcessId]:
    """A parent, and a child that it has started."""
    file = folder / "pid"
    parent = children.start("/bin/sh", "-c", 'sleep 1000 & echo $! > "$FILE"; wait', FILE=str(file))
    await until(lambda: file.read_text().endswith("\n"))
    child = read_process(int(file.read_text()))
    assert child is not None
    return parent, child.id


async def test_a_family_is_found_by_parents_group_and_mark(children: Children, tmp_path: Path) -> None:
    parent, child = await shell_with_child(children, tmp_path)
    alone = children.sleep()
    assert descendants(parent) == [child]
    assert descendants(ProcessId(parent.pid, "0:1")) == []
    assert family(parent, children.mark) == [parent, *sorted([child, alone])]
    assert family(parent, "another mark") == [parent, child]
    assert family(None, "another mark") == []
    assert family(None, "another mark", [alone, ProcessId(parent.pid, "0:1")]) == [alone]
    assert family(ProcessId(parent.pid, "0:1"), "another mark") == []
    # Its number is not given away while it is a zombie: so its group is still known to be ours.
    send(parent, signal.SIGKILL)
    await ended(parent)
    assert family(parent, "another mark") == [child]
    reap(parent)
    assert family(parent, "another mark") == []
    assert child in family(parent, children.mark)


async def test_ending_asks_first_and_insists_then(children: Children) -> None:
    gentle, deaf = children.sleep(), await start_deaf(children)
    sent: list[tuple[int, str]] = []

    def noted(process: ProcessId, number: signal.Signals) -> None:
        sent.append((process.pid, number.name))
        send(process, number)
        while process == gentle and alive(gentle):  # the time of grace is for the other one
            os.sched_yield()

    left = await end_family(lambda: family(None, children.mark), term_grace_s=0.05, kill_grace_s=PATIENCE_S, send=noted)
    assert left == []
    assert sorted(sent) == sorted([(gentle.pid, "SIGTERM"), (deaf.pid, "SIGTERM"), (deaf.pid, "SIGKILL")])
    assert (reap(gentle), reap(deaf)) == (-signal.SIGTERM, -signal.SIGKILL)


IGNORES_SIGTERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n"


async def start_deaf(children: Children) -> ProcessId:
    process = children.start(sys.executable, "-S", "-c", IGNORES_SIGTERM)
    await until(lambda: ignores(process, signal.SIGTERM))
    return process


async def test_who_was_found_by_his_parent_is_ended_after_it(children: Children) -> None:
    """He has another session and environment, and once his parent has ended nothing tells whose he is."""
    deaf = await start_deaf(children)
    looks = iter([[deaf]])
    assert await end_family(lambda: next(looks, []), term_grace_s=0.05, kill_grace_s=PATIENCE_S) == []
    assert reap(deaf) == -signal.SIGKILL


async def test_a_process_that_is_started_meanwhile_is_ended_too(children: Children) -> None:
    children.sleep()
    looks: list[list[ProcessId]] = []

    def find() -> list[ProcessId]:
        looks.append(family(None, children.mark))
        if len(looks) == 2:
            children.sleep()
            looks.append(family(None, children.mark))
        return looks[-1]

    assert await end_family(find, term_grace_s=PATIENCE_S, kill_grace_s=PATIENCE_S) == []
    assert [len(look) for look in looks] == [1, 0, 1, 0]


async def test_who_follows_no_signal_is_returned(children: Children) -> None:
    process = children.sleep()

    def refused(process: ProcessId, number: signal.Signals) -> None:
        raise PermissionError

    left = await end_family(lambda: family(None, children.mark), term_grace_s=0.0, kill_grace_s=0.01, send=refused)
    assert left == [process]


async def test_a_process_that_is_not_our_child_is_watched_all_the_same(children: Children, tmp_path: Path) -> None:
    _, child = await shell_with_child(children, tmp_path)
    told = asyncio.Event()
    notice = EndNotice(child, told.set)
    send(child, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        await told.wait()
    notice.close()
    assert reap(child) is None


def test_uvloop_watches_as_well(children: Children) -> None:
    import uvloop

    process = children.sleep()

    async def watch() -> None:
        notice = EndNotice(process, lambda: None)
        send(process, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            await notice.ended.wait()

    uvloop.run(watch())
    assert reap(process) == -signal.SIGKILL
    assert subprocess.run(["/bin/true"], check=False).returncode == 0


async def test_too_many_open_files_do_not_pass_for_an_end(children: Children) -> None:
    process = children.sleep()
    with no_more_files():
        looks: list[Callable[[], object]] = [
            lambda: alive(process),
            lambda: mark_of(process.pid),
            lambda: family(process, children.mark),
        ]
        for look in looks:
            with pytest.raises(OSError, match="Too many open files"):
                look()
        with pytest.raises(OSError, match="Too many open files"):
            await wait_until_gone([process], PATIENCE_S)
    assert alive(process)
    assert family(process, children.mark) == [process]


@contextmanager
def no_more_files() -> Iterator[None]:
    """No descriptor is to be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
