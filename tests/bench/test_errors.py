"""Reasons are words for a person."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import msgspec
import pytest
from tests.listening import listening
from tests.waiting import PATIENCE_S

from lmwarden.bench.errors import plain_reason


async def error_of(url: str, limit_s: float = PATIENCE_S) -> Exception:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit_s)) as http:
        with pytest.raises(Exception) as caught:
            await http.get(url)
    return caught.value


async def test_each_way_to_fail_has_its_words(dead_port: int) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with listening(close) as server:
        assert plain_reason(await error_of(f"http://127.0.0.1:{server.port}")) == "the connection broke"
        assert plain_reason(await error_of(f"http://127.0.0.1:{server.port}", 1e-6)) == "no answer in time"
    assert plain_reason(await error_of(f"http://127.0.0.1:{dead_port}")) == "connection refused"
    assert plain_reason(await error_of("http://")) == "the address is no URL"
    assert plain_reason(msgspec.DecodeError("x")) == "the answer has another form"


async def test_a_name_that_nobody_knows_is_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the resolver says it; the machine's own may take longer to say so than any test waits."""

    async def unknown(*asked: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    assert plain_reason(await error_of("http://no-such-host.invalid")) == "no such host"


def test_no_words_are_the_name_of_a_class() -> None:
    for error in (OSError(), aiohttp.ClientError("ServerDisconnectedError"), TimeoutError(), RuntimeError("x")):
        assert "Error" not in plain_reason(error)
