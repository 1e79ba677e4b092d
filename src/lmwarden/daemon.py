"""The warden as a process of its own: signals, and what only the owner of a process may do.

First SIGTERM or SIGINT: new requests are refused and open streams finish within ``client.drain_s``. Second:
open streams are cut. Third: the process ends where it stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from typing import Any

import structlog
import uvloop

from lmwarden.config import Config
from lmwarden.serve import Warden

log = structlog.get_logger("lmwarden")


def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, in a process of its own. A second signal ends at once.

    Raises:
        ConfigError, StorageError: it could not start.
    """
    uvloop.run(_serve(config))


async def _serve(config: Config) -> None:
    warden = Warden(config)
    signalled = _signals()
    starting = asyncio.ensure_future(warden.start())
    if not await _before(starting, signalled):
        return
    # From here on the heap is mostly immortal: keep it out of collections, and collect rarely, because a full
    # collection over 100,000 conversations would stop every stream for as long as it takes.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    await signalled.get()
    log.info("stopping; open streams may finish", drain_s=config.client.drain_s)
    stopping = asyncio.ensure_future(warden.stop())
    if not await _before(stopping, signalled):
        log.warning("second signal; open streams are cut")
        await warden.stop(drain_s=0)


async def _before(work: asyncio.Future[None], signalled: asyncio.Queue[int]) -> bool:
    """Wait for work; a signal cancels it and makes this False."""
    interrupt = asyncio.ensure_future(signalled.get())
    waited: list[asyncio.Future[Any]] = [work, interrupt]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    interrupt.cancel()
    if work.done():
        work.result()
        return True
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return False


def _signals() -> asyncio.Queue[int]:
    """SIGTERM and SIGINT as a queue; from the third on the process ends where it stands."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    seen = 0

    def arrived(number: int) -> None:
        nonlocal seen
        seen += 1
        if seen > 2:
            os._exit(128 + number)
        queue.put_nowait(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived, number)
    return queue
