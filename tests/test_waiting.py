"""The helpers that wait."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.waiting import turns, until


async def test_until_returns_when_it_holds_and_asks_again_who_does_not_answer() -> None:
    looks: list[int] = []

    def third_time() -> bool:
        looks.append(len(looks))
        if len(looks) < 3:
            raise ConnectionRefusedError
        return True

    async def fourth_time() -> bool:
        looks.append(len(looks))
        return len(looks) > 3

    await until(third_time)
    assert len(looks) == 3
    await until(fourth_time)


async def test_until_gives_up_and_says_how_things_stand() -> None:
    with pytest.raises(AssertionError, match="17 of 18"):
        await until(lambda: False, lambda: "17 of 18", patience_s=0.01)


async def test_after_some_turns_the_other_side_has_read() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    received: list[bytes] = []

    class Reader(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

    writing, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    reading, _ = await loop.create_connection(Reader, sock=theirs)
    for piece in (b"a", b"b"):
        writing.write(piece)
        await turns()
    assert received == [b"a", b"b"]
    writing.close()
    reading.close()
    await turns()
