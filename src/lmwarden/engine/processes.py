"""Processes of engines: told apart for certain, watched without polling, ended to the last one.

**Which process.** A number alone names nobody, because the kernel gives it away again. A :class:`ProcessId` is a number
with the moment at which the process started (clock ticks since boot, and which boot), and every signal goes through a
handle of the kernel's (pidfd) that was compared with it, so that it reaches that process or none.

**Which processes belong to an engine**, its *family*:

====================================  =====================================================================
its first process and descendants     by their parents
those in its session or group         while the first process exists, be it as a zombie: so long its number, which
                                      is also the group's, is not given away. We reap ours last for this reason
those that carry its mark             in the environment, which is inherited (see ``launch``); found wherever they went
those that were seen before           a caller may hand in a family of earlier
====================================  =====================================================================

**Ending** a family is SIGTERM to all, time to go, SIGKILL to all that are left, and each time a new look, because
processes start processes. It is done when none is left; what does not even follow SIGKILL (a driver holds it) is
returned, so that nobody starts a second engine onto its GPU.

The notice of an end comes from the kernel: a pidfd becomes readable, for children and for others alike. Where
the system has none (macOS), a thread waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import psutil

from lmwarden.engine.launch import MARK


class ProcessId(NamedTuple):
    """One process, for certain."""

    pid: int
    started: str
    """Opaque; equal for the same process only."""


class ProcessInfo(NamedTuple):
    """What the system says of one process."""

    id: ProcessId
    parent: int
    group: int
    session: int
    zombie: bool


IDLE_GRACE_S = 5.0
"""From SIGTERM to SIGKILL for processes that have no request to finish, only shared memory to give back. A vLLM that
starts takes no notice of SIGTERM for as long as it imports."""

_LOADING_S = 1.0
"""A program that has just been started shows no environment for a moment: so long it is waited for, at most."""

Send: TypeAlias = Callable[[ProcessId, signal.Signals], None]
"""Sends a signal to a process that may be gone."""


def read_process(pid: int) -> ProcessInfo | None:
    """What the system says of a process; None: there is none with this number.

    Raises:
        OSError: we have too many files open to see it.
    """
    return _read_linux(pid) if sys.platform == "linux" else _read_elsewhere(pid)


def alive(process: ProcessId) -> bool:
    """Whether it exists and is more than a zombie."""
    info = read_process(process.pid)
    return info is not None and info.id == process and not info.zombie


def mark_of(pid: int) -> str | None:
    """The mark that a process was started with; None: none, or it may not be read.

    One that has just been started is waited for, a second at most: to be asked in a thread.
    """
    if sys.platform != "linux":
        try:
            return psutil.Process(pid).environ().get(MARK)
        except (psutil.Error, OSError):
            return None
    try:
        environment = _environment(pid)
    except OSError as error:
        _raise_if_blind(error)
        return None
    prefix = f"{MARK}=".encode()
    found = next((entry for entry in environment.split(b"\0") if entry.startswith(prefix)), None)
    return None if found is None else found[len(prefix) :].decode(errors="replace")


def words_of(pid: int) -> list[str]:
    """The command line as the system shows it; empty: it may not be read."""
    try:
        return psutil.Process(pid).cmdline()
    except (psutil.Error, OSError):
        return []


def all_processes() -> list[ProcessInfo]:
    """Every process that can be seen."""
    found = (read_process(pid) for pid in psutil.pids())
    return [info for info in found if info is not None]


def family(root: ProcessId | None, mark: str, known: Iterable[ProcessId] = ()) -> list[ProcessId]:
    """The living processes of an engine, its first one first. Reads the whole process table: call it in a thread.

    Args:
        root: its first process, which may have ended; None: not known.
        mark: the engine's.
        known: members that were seen before.
    """
    table = {info.id.pid: info for info in all_processes() if info.id.pid != os.getpid()}
    members = {process.pid for process in known if process.pid in table and table[process.pid].id == process}
    if root is not None and root.pid in table and table[root.pid].id == root:
        members |= {root.pid, *(pid for pid, info in table.items() if root.pid in (info.group, info.session))}
    members |= {pid for pid, info in table.items() if not info.zombie and mark_of(pid) == mark}
    waiting = list(members)
    children: dict[int, list[int]] = {}
    for pid, info in table.items():
        children.setdefault(info.parent, []).append(pid)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in members]
        members.update(new)
        waiting += new
    first = root.pid if root is not None else 0
    living = [table[pid].id for pid in members if not table[pid].zombie]
    return sorted(living, key=lambda process: (process.pid != first, process.pid))


def descendants(root: ProcessId) -> list[ProcessId]:
    """The living processes that a process has started, and theirs. Cheap on Linux: only those are asked."""
    pids: list[int] = []
    waiting = [root.pid] if alive(root) else []
    while waiting:
        children = _children(waiting.pop())
        pids += children
        waiting += children
    infos = [read_process(pid) for pid in pids]
    return [info.id for info in infos if info is not None and not info.zombie]


def marked(prefix: str) -> list[tuple[str, ProcessInfo]]:
    """All living processes whose mark begins so, with their marks. Call it in a thread."""
    found = [(mark_of(info.id.pid), info) for info in all_processes() if not info.zombie]
    return [(mark, info) for mark, info in found if mark is not None and mark.startswith(prefix)]


def send(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to exactly this process; nothing happens if it is gone.

    Raises:
        PermissionError: it belongs to somebody else by now.
    """
    if sys.platform != "linux":
        info = read_process(process.pid)
        if info is not None and info.id == process:
            os.kill(process.pid, number)
        return
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        info = read_process(process.pid)
        if info is not None and info.id == process:  # compared after the handle was made: it cannot change hands
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


async def end_family(
    find: Callable[[], list[ProcessId]], *, term_grace_s: float, kill_grace_s: float, send: Send = send
) -> list[ProcessId]:
    """End all processes of a family.

    Args:
        find: who is left of it; called in a thread. Whoever was found once stays: its parent, by which it was found,
            may end before it.
        term_grace_s: after SIGTERM.
        kill_grace_s: after SIGKILL.
        send: sends the signals.

    Returns:
        Who could not be ended.
    """
    seen: dict[ProcessId, None] = {}

    def look() -> list[ProcessId]:
        seen.update(dict.fromkeys(find()))
        return [process for process in seen if alive(process)]

    left = await asyncio.to_thread(look)
    for number, grace_s in ((signal.SIGTERM, term_grace_s), (signal.SIGKILL, kill_grace_s)):
        deadline = asyncio.get_running_loop().time() + grace_s
        asked: set[ProcessId] = set()
        while left:
            for process in left:
                if process not in asked:
                    _try(send, process, number)
            asked.update(left)
            time_left_s = deadline - asyncio.get_running_loop().time()
            await wait_until_gone(left, max(0.0, time_left_s))
            left = await asyncio.to_thread(look)
            if time_left_s <= 0:
                break
    return left


async def wait_until_gone(processes: Collection[ProcessId], timeout_s: float | None) -> None:
    """Wait until none of them lives, at most so long. None: without limit."""
    watched: list[EndNotice] = []
    try:
        async with asyncio.timeout(timeout_s):
            watched += (EndNotice(process, lambda: None) for process in processes)
            for notice in watched:
                await notice.ended.wait()
    except TimeoutError:
        pass
    finally:
        for notice in watched:
            notice.close()


class EndNotice:
    """Tells when a process has ended. Made on the loop that it tells; ``close`` it when it is not wanted any more."""

    def __init__(self, process: ProcessId, callback: Callable[[], None]) -> None:
        """Args:
        process: the process; it may be gone already.
        callback: called once, on the loop, never from within this constructor.

        Raises:
            OSError: we have too many files open.
        """
        self.ended = asyncio.Event()
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: int | None = None
        self._closed = False
        if sys.platform != "linux":
            threading.Thread(target=self._wait_in_thread, args=(process,), daemon=True).start()
            return
        try:
            self._handle = os.pidfd_open(process.pid)
            living = alive(process)
        except ProcessLookupError:
            living = False
        except BaseException:
            self.close()
            raise
        if living and self._handle is not None:
            self._loop.add_reader(self._handle, self._notice)
        else:
            self._loop.call_soon(self._notice)

    def close(self) -> None:
        """Tell nothing any more. May be called again."""
        self._closed = True
        if self._handle is not None:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = None

    def _notice(self) -> None:
        if not self._closed:
            self.close()
            self.ended.set()
            self._callback()

    def _wait_in_thread(self, process: ProcessId) -> None:
        while alive(process):
            try:
                psutil.Process(process.pid).wait(timeout=1.0)
            except psutil.TimeoutExpired:
                if self._closed or self._loop.is_closed():
                    return
            except psutil.Error:
                break
        try:
            self._loop.call_soon_threadsafe(self._notice)
        except RuntimeError:
            return  # the loop is closed: nobody waits


def spawn(argv: Collection[str], env: dict[str, str], output: int) -> ProcessId:
    """Start a program in a session and group of its own, without a terminal's or our input.

    Args:
        argv: its words; the first is its path.
        env: its whole environment.
        output: descriptor that takes what it writes.

    Raises:
        OSError: it cannot be started.
    """
    words = list(argv)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        # posix_spawn: no object of ours claims the child, which may well outlive us. Our own descriptors close by
        # themselves (PEP 446). Signals that Python ignores are given back their meaning.
        pid = os.posix_spawn(
            words[0],
            words,
            env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM],
        )
    finally:
        os.close(null)
    info = read_process(pid)
    assert info is not None, "a child is there until it is reaped"
    return info.id


@cache
def _inheritable() -> list[int]:
    """Descriptors that we got from our own parent: an engine would keep its pipes open after we are gone.

    Looked for once, because that asks after each descriptor, and none comes later: what we open is not inherited.
    """
    found = []
    for entry in os.listdir("/dev/fd"):  # noqa: PTH208 - only numbers are wanted
        try:
            if int(entry) > 2 and os.get_inheritable(int(entry)):
                found.append(int(entry))
        except OSError:
            continue  # the listing's own
    return found


def reap(process: ProcessId) -> int | None:
    """Take the exit status of a child that has ended (negative: by that signal).

    None: it lives, or is not our child: then the system's first process has reaped it.
    """
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if pid else None


def _try(send: Send, process: ProcessId, number: signal.Signals) -> None:
    try:
        send(process, number)
    except PermissionError:
        pass  # it stays among those that are left, which is what the caller must know


def _read_linux(pid: int) -> ProcessInfo | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError as error:
        _raise_if_blind(error)
        return None
    fields = _fields(text)
    started = f"{_boot()}:{int(fields[19])}"
    # Its first thread is shown as dead while others still end: until then nobody can reap it, and it holds its memory.
    zombie = fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1
    return ProcessInfo(ProcessId(pid, started), int(fields[1]), int(fields[2]), int(fields[3]), zombie)


def _fields(stat: bytes) -> list[bytes]:
    """Of ``/proc/PID/stat``, from the state on: the name before it stands in parentheses and may hold any byte."""
    return stat[stat.rindex(b")") + 2 :].split()


def _is_being_loaded(pid: int) -> bool:
    """Whether it has memory of its own, and the kernel has not yet put its arguments and environment there.

    Raises:
        OSError: it is gone, or we have too many files open.
    """
    fields = _fields(Path(f"/proc/{pid}/stat").read_bytes())
    memory_bytes, environment_end = int(fields[20]), int(fields[48])
    return memory_bytes > 0 and environment_end == 0


def _environment(pid: int) -> bytes:
    """What a process was started with, once it is loaded; empty: nothing, as a process of the kernel's.

    Raises:
        OSError: it is gone or may not be read, or we have too many files open.
    """
    patient_until = time.monotonic() + _LOADING_S
    environment, loading, late = _shown_environment(pid), True, False
    while not environment and loading and not late:
        os.sched_yield()
        late = time.monotonic() >= patient_until  # before the look: we may have stood still ourselves
        loading = _is_being_loaded(pid)  # before the look: else it may be loaded in between
        environment = _shown_environment(pid)
    return environment


def _shown_environment(pid: int) -> bytes:
    process = Path(f"/proc/{pid}")
    with contextlib.suppress(ProcessLookupError):
        if environment := (process / "environ").read_bytes():
            return environment
    # Its first thread may have ended (older kernels show nothing then): those that have not show it.
    for thread in (process / "task").iterdir():
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if environment := (thread / "environ").read_bytes():
                return environment
    return b""


def _raise_if_blind(error: OSError) -> None:
    """We have too many files open to see any process: that must never pass for there being none."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise error


@cache
def _boot() -> str:
    """Which run of the machine this is: ticks count from its start."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return "?"


def _children(pid: int) -> list[int]:
    """Each thread has a list of its own."""
    if sys.platform == "linux" and _tasks_list_children():
        found: list[int] = []
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, task.read_bytes().split())
            except OSError:
                continue  # a thread that has ended
        return found
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


@cache
def _tasks_list_children() -> bool:
    """Most kernels are built with it."""
    return Path("/proc/thread-self/children").exists()


def _read_elsewhere(pid: int) -> ProcessInfo | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return ProcessInfo(
                id=ProcessId(pid, f"{process.create_time():.6f}"),
                parent=process.ppid(),
                group=os.getpgid(pid),
                session=os.getsid(pid),
                zombie=process.status() == psutil.STATUS_ZOMBIE,
            )
    except (psutil.Error, OSError):
        return None
