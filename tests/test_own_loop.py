"""A loop in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.own_loop import on_its_own_loop


def test_it_is_entered_and_left_there() -> None:
    seen: list[threading.Thread] = []

    @asynccontextmanager
    async def place() -> AsyncIterator[str]:
        seen.append(threading.current_thread())
        yield "made"
        seen.append(threading.current_thread())

    with on_its_own_loop(place()) as (made, loop):
        assert made == "made"
        assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "answer"), loop).result() == "answer"
    first, last = seen
    assert first is last is not threading.current_thread()
    assert not first.is_alive()


def test_who_cannot_enter_is_told_why(dead_port: int) -> None:
    @asynccontextmanager
    async def nowhere() -> AsyncIterator[None]:
        await asyncio.open_connection("127.0.0.1", dead_port)
        yield

    with pytest.raises(ConnectionRefusedError), on_its_own_loop(nowhere()):
        pass
