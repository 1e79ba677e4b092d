"""Something that serves on a loop of its own, in another thread: for tests whose thread belongs to somebody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

from tests.waiting import PATIENCE_S

T = TypeVar("T")


@contextmanager
def on_its_own_loop(context: AbstractAsyncContextManager[T]) -> Iterator[tuple[T, asyncio.AbstractEventLoop]]:
    """Enter the context there, and leave it with the block. An error of its beginning is raised here."""
    entered: Future[tuple[T, asyncio.AbstractEventLoop]] = Future()
    leave = asyncio.Event()

    async def live() -> None:
        try:
            async with context as made:
                entered.set_result((made, asyncio.get_running_loop()))
                await leave.wait()
        except Exception as error:
            if entered.done():
                raise
            entered.set_exception(error)

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    made, loop = entered.result(PATIENCE_S)
    try:
        yield made, loop
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join(PATIENCE_S)
