"""The warden as a process: what signals do, what systemd is told, and how a start that cannot be ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.security.house import ACT, MODEL, ObedientEngine
from tests.stub_engine import MESSAGE_BEGIN, MESSAGE_END, held
from tests.waiting import PATIENCE_S

from lmwarden.daemon import START_AGAIN, ServiceManager, _before, raise_file_limit
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving

SOURCES = Path(__file__).parent.parent / "src"


async def command(*arguments: str, hang_up: signal.Handlers = signal.SIG_DFL, **environment: str) -> Process:
    """``hang_up``: what SIGHUP does where the process does not say otherwise; whoever starts it hands that on."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lmwarden", *arguments,
        stdout=PIPE, stderr=PIPE, env={**os.environ, "PYTHONPATH": str(SOURCES), **environment},
        preexec_fn=partial(signal.signal, signal.SIGHUP, hang_up),
    )  # fmt: skip


class Daemon:
    """A running ``lmwarden serve``."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.client_url = ""
        self.go_on = asyncio.Event()
        """Streams of its engine end when it is set."""

    async def ready(self) -> None:
        """Read the log until it says where it serves."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := await self.process.stderr.readline():
                event = msgspec.json.decode(line)
                if event["event"] == "ready":
                    self.client_url = event["clients"]
                    return
        raise AssertionError("it ended before it was ready")

    async def heard(self, words: str) -> None:
        """Read the log until an event contains the words."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := await self.process.stderr.readline():
                if words in msgspec.json.decode(line)["event"]:
                    return
        raise AssertionError(f"the log never said {words!r}")

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with ObedientEngine() as engine:
        process = await command(
            "serve", "--engine", f"http://127.0.0.1:{engine.port}", "--port", "0", "--console-port", "0",
            "--data-dir", str(tmp_path),
        )  # fmt: skip
        started = Daemon(process)
        engine.acts = {"held": held(MESSAGE_BEGIN, started.go_on, MESSAGE_END)}
        try:
            await started.ready()
            yield started
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def open_stream(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientResponse:
    """One that has begun."""
    body = {"model": MODEL, "stream": True, "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]}
    response = await session.post(url + "/v1/messages", json=body, headers={ACT: "held"})
    assert await response.content.readexactly(len(MESSAGE_BEGIN)) == MESSAGE_BEGIN
    return response


async def test_at_rest_one_signal_ends_it_with_status_0(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.ended() == 0


async def test_an_open_stream_finishes_after_the_first_signal(daemon: Daemon) -> None:
    session = aiohttp.ClientSession()
    async with session, await open_stream(session, daemon.client_url) as stream:
        daemon.process.send_signal(signal.SIGTERM)
        await daemon.heard("stopping")
        daemon.go_on.set()
        assert await stream.content.read() == MESSAGE_END
    assert await daemon.ended() == 0


async def test_the_second_signal_cuts_streams(daemon: Daemon) -> None:
    session = aiohttp.ClientSession()
    async with session, await open_stream(session, daemon.client_url) as stream:
        daemon.process.send_signal(signal.SIGINT)
        await daemon.heard("stopping")
        daemon.process.send_signal(signal.SIGINT)
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream.content.read()
    assert await daemon.ended() == 0


async def test_a_terminal_that_closes_cuts_no_stream_however_often_it_says_so(daemon: Daemon) -> None:
    session = aiohttp.ClientSession()
    async with session, await open_stream(session, daemon.client_url) as stream:
        daemon.process.send_signal(signal.SIGHUP)
        await daemon.heard("stopping")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.go_on.set()
        assert await stream.content.read() == MESSAGE_END
    assert await daemon.ended() == 0


@pytest.mark.parametrize(
    ("hang_up", "numbers", "status"),
    [
        (signal.SIG_DFL, [signal.SIGTERM], 0),
        (signal.SIG_DFL, [signal.SIGHUP], 0),
        (signal.SIG_DFL, [signal.SIGUSR1], START_AGAIN),
        (signal.SIG_IGN, [signal.SIGHUP, signal.SIGUSR1], START_AGAIN),  # nohup: only the second is heard
    ],
)
async def test_a_signal_ends_the_wait_for_an_engine(
    hang_up: signal.Handlers, numbers: list[signal.Signals], status: int, tmp_path: Path, dead_port: int
) -> None:
    process = await command(
        "serve", "--engine", f"http://127.0.0.1:{dead_port}", "--port", "0", "--console-port", "0",
        "--data-dir", str(tmp_path), hang_up=hang_up,
    )  # fmt: skip
    waiting = Daemon(process)
    await waiting.heard("waiting for an engine")
    for number in numbers:
        process.send_signal(number)
    assert await waiting.ended() == status
    await process.communicate()


async def test_a_signal_that_comes_as_the_start_ends_is_not_lost() -> None:
    started = asyncio.get_running_loop().create_future()
    started.set_result(None)
    signalled: asyncio.Queue[int] = asyncio.Queue()
    signalled.put_nowait(signal.SIGTERM)
    assert await _before(started, signalled) is None
    assert signalled.get_nowait() == signal.SIGTERM


async def test_a_port_in_use_is_one_line_and_status_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = await command(
            "serve", "--engine", "http://127.0.0.1:9", "--port", port, "--console-port", "0",
            "--data-dir", str(tmp_path),
        )  # fmt: skip
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode() == (
        f"lmwarden: --port: cannot listen on 127.0.0.1 port {port}: Address already in use; choose another\n"
    )


async def test_a_data_folder_in_use_is_one_line_and_status_2(daemon: Daemon, tmp_path: Path) -> None:
    process = await command(
        "serve", "--engine", "http://127.0.0.1:9", "--port", "0", "--console-port", "0", "--data-dir", str(tmp_path),
    )  # fmt: skip
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode() == (
        f"lmwarden: --data-dir: {tmp_path} is in use by another warden (process {daemon.process.pid});"
        " give each its own folder\n"
    )


async def test_an_abort_says_where_it_stood(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGABRT)
    _, errors = await daemon.process.communicate()
    assert daemon.process.returncode == -signal.SIGABRT
    # A trace of each thread, the console's among them; nothing of what was said.
    assert b"Fatal Python error: Aborted" in errors
    assert b"in _serve" in errors or b"in run" in errors


# -- systemd ----------------------------------------------------------------------------------------------------------


class Systemd:
    """The other end of ``NOTIFY_SOCKET``."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(address)
        self.heard: list[str] = []

    async def hears(self, line: str) -> None:
        """Wait until a line was said; lines before it are noted."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while line not in self.heard:
                self.heard += (await loop.sock_recv(self._socket, 4096)).decode().split("\n")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def notify_socket(request: pytest.FixtureRequest) -> Iterator[tuple[str, Systemd]]:
    """The address as systemd writes it, and the one who listens there."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # an address has 107 characters at most
        name = f"{folder}/notify" if request.param == "path" else f"@{folder}"
        systemd = Systemd("\0" + name[1:] if name.startswith("@") else name)
        yield name, systemd
        systemd.close()


async def test_systemd_is_told_from_start_to_stop(tmp_path: Path, notify_socket: tuple[str, Systemd]) -> None:
    address, systemd = notify_socket
    async with serving(SimulatedEngineOptions(replicas=2, speed=1.0)) as url:
        process = await command(
            "serve", "--engine", url, "--port", "0", "--console-port", "0", "--data-dir", str(tmp_path),
            NOTIFY_SOCKET=address, WATCHDOG_USEC="600000",  # what nobody reads for ten beats is lost
        )  # fmt: skip
        try:
            daemon = Daemon(process)
            await systemd.hears("STATUS=starting; waits for engines")
            assert "READY=1" not in systemd.heard
            await systemd.hears("READY=1")
            await daemon.ready()
            async with aiohttp.ClientSession() as session, session.get(daemon.client_url + "/readyz") as response:
                assert response.status == 200
            await systemd.hears("STATUS=2 of 2 replicas ready, 0 requests in flight")
            # The beat goes on.
            for _ in range(3):
                systemd.heard.clear()
                await systemd.hears("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            await systemd.hears("STOPPING=1")
            assert await daemon.ended() == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


def test_the_variables_are_taken_so_that_no_engine_inherits_them() -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7", "PATH": "/bin"}
    manager = ServiceManager(environ, 7)
    assert environ == {"PATH": "/bin"}
    assert (manager.listens, manager.watchdog_s) == (True, 30.0)


@pytest.mark.parametrize(
    "environ",
    [
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/run/x"},
        {"WATCHDOG_USEC": "30000000"},
    ],
)
def test_a_watchdog_that_is_not_ours(environ: dict[str, str]) -> None:
    assert ServiceManager(environ, 7).watchdog_s is None


def test_without_systemd_nothing_is_sent(tmp_path: Path) -> None:
    nobody = ServiceManager({}, 7)
    assert not nobody.listens
    nobody.tell("READY=1")
    # Nor does a listener that is gone harm anybody.
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}, 7).tell("READY=1")


def test_a_status_is_sent_when_it_changes(notify_socket: tuple[str, Systemd]) -> None:
    address, systemd = notify_socket
    manager = ServiceManager({"NOTIFY_SOCKET": address}, 7)
    for sentence in ("one", "one", "two"):
        manager.status(sentence)

    async def hear() -> None:
        await systemd.hears("STATUS=two")

    asyncio.run(hear())
    assert systemd.heard == ["STATUS=one", "STATUS=two"]


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to"),
    [
        (1024, 524_288, 65_536),
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 65_536),
        (100_000, 524_288, None),
        (4096, 4096, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_it_takes_as_many_files_as_the_system_allows_anyway(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised_to: int | None
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: set_to.append(limits))
    raise_file_limit()
    assert set_to == ([(raised_to, hard)] if raised_to is not None else [])
