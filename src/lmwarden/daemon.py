"""The warden as a process of its own: signals, systemd, and what only the owner of a process may do.

First SIGTERM or SIGINT: new requests are refused and open streams finish within ``client.drain_s``. Second:
open streams are cut. Third: the process ends where it stands. SIGUSR1 is a SIGTERM that leaves launched engines
running, whatever ``on_exit`` says, for the next warden to take over: so a new configuration is applied without a cold
start. SIGHUP (the terminal was closed) is a SIGTERM too, but only ever the first: kernel and shell both send it.

Under systemd (``Type=notify``) it says when it is ready, what it does, and that it stops; and it feeds the watchdog
from the data loop itself, so that a loop that is stuck misses the beat and is restarted. systemd then sends SIGABRT,
which makes the process write where each of its threads stood.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import resource
import signal
import socket
from collections.abc import MutableMapping
from typing import Any

import structlog
import uvloop

from lmwarden.config import Config
from lmwarden.serve import Warden
from lmwarden.types import ReplicaState

log = structlog.get_logger("lmwarden")

WANTED_FILES = 65_536
"""Open at a time, as the unit says."""
START_AGAIN = 75
"""Exit status after SIGUSR1 (EX_TEMPFAIL): the unit starts the warden again on it."""
STATUS_EVERY_S = 5.0
"""Between two looks at what ``systemctl status`` should show, where no watchdog asks for more."""


class ServiceManager:
    """systemd, as far as it wants to be told. Without ``NOTIFY_SOCKET`` nobody does, and nothing is sent."""

    def __init__(self, environ: MutableMapping[str, str], pid: int) -> None:
        """Args:
        environ: asked for systemd's variables, which are taken out, so that no engine inherits them.
        pid: of this process: the watchdog may be meant for another one.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        beat_us, meant_for = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        # A leading @ stands for the abstract name space.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        meant = address and beat_us.isdigit() and meant_for in ("", str(pid))
        self.watchdog_s = int(beat_us) / 1e6 if meant else None
        """It wants to hear from us this often; None: it does not care."""

    @property
    def listens(self) -> bool:
        """Whether anything is sent."""
        return bool(self._address)

    def tell(self, *lines: str) -> None:
        """Send ``KEY=value`` lines. Never waits; what cannot be sent is lost, as it would be without systemd."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)

    def status(self, sentence: str) -> None:
        """What ``systemctl status`` shows; sent when it changed."""
        if sentence != self._status:
            self._status = sentence
            self.tell(f"STATUS={sentence}")

    async def keep_told(self, warden: Warden) -> None:
        """Feed the watchdog and keep the status up to date, from the loop that calls this, until cancelled."""
        every_s = STATUS_EVERY_S if self.watchdog_s is None else min(STATUS_EVERY_S, self.watchdog_s / 2)
        while True:
            if self.watchdog_s is not None:
                self.tell("WATCHDOG=1")
            try:
                self.status(_summary(warden))
            except Exception:
                log.exception("the status could not be told")  # and the beat goes on
            await asyncio.sleep(every_s)


def run(config: Config) -> int:
    """Serve until a signal, in a process of its own. A second signal ends at once.

    Returns:
        The exit status: 0, or ``START_AGAIN`` after SIGUSR1, also where that came before it was ready.

    Raises:
        ConfigError, StorageError: it could not start.
    """
    with contextlib.suppress(OSError, ValueError):  # a standard error that is no file
        faulthandler.enable()
    raise_file_limit()
    return uvloop.run(_serve(config, ServiceManager(os.environ, os.getpid())))


async def _serve(config: Config, manager: ServiceManager) -> int:
    warden = Warden(config)
    signalled = _signals()
    manager.status("starting; waits for engines")
    starting = asyncio.ensure_future(warden.start())
    ended_by = await _before(starting, signalled)
    if ended_by is not None:
        return START_AGAIN if ended_by == signal.SIGUSR1 else 0
    manager.tell("READY=1")
    telling = asyncio.ensure_future(manager.keep_told(warden)) if manager.listens else None
    # From here on the heap is mostly immortal: keep it out of collections, and collect all of it next to never, because
    # a full collection over 100,000 conversations would stop every stream for as long as it takes. New objects (most of
    # them conversations) are looked at a few at a time: 50,000 at once stopped everything for 50 ms.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 1, 10_000)
    leave = await signalled.get() == signal.SIGUSR1
    log.info("stopping; open streams may finish", drain_s=config.client.drain_s, engines="left" if leave else "on_exit")
    manager.tell("STOPPING=1")
    stopping = asyncio.ensure_future(warden.stop(leave_engines=leave))
    if await _before(stopping, signalled) is not None:
        log.warning("second signal; open streams are cut")
        await warden.stop(drain_s=0, leave_engines=leave)
    if telling is not None:
        telling.cancel()
    return START_AGAIN if leave else 0


def _summary(warden: Warden) -> str:
    """One line on how it goes."""
    models = warden.control.snapshot.models
    replicas = [replica for model in models for replica in model.view.replicas]
    ready = sum(replica.state is ReplicaState.READY for replica in replicas)
    in_flight = sum(model.view.in_flight for model in models)
    return f"{ready} of {len(replicas)} replicas ready, {in_flight} requests in flight"


async def _before(work: asyncio.Future[None], signalled: asyncio.Queue[int]) -> int | None:
    """Wait for work; None: it is done. A signal cancels it and is returned; one that came with its end stays there."""
    interrupt = asyncio.ensure_future(signalled.get())
    waited: list[asyncio.Future[Any]] = [work, interrupt]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        if not interrupt.cancel():
            signalled.put_nowait(interrupt.result())
        work.result()
        return None
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return interrupt.result()


def raise_file_limit() -> None:
    """Each stream takes two descriptors, and a login shell allows 1,024: take more of what the system allows anyway."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _signals() -> asyncio.Queue[int]:
    """SIGTERM, SIGINT, SIGUSR1 and SIGHUP as a queue; from the third on the process ends where it stands."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    seen = 0

    def arrived(number: int) -> None:
        nonlocal seen
        if number == signal.SIGHUP and seen:
            return
        seen += 1
        if seen > 2:
            os._exit(128 + number)
        queue.put_nowait(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        loop.add_signal_handler(number, arrived, number)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: it is to go on
        loop.add_signal_handler(signal.SIGHUP, arrived, signal.SIGHUP)
    return queue
