"""The request for the engine, and our lines for the client."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from lmwarden.gateway.forward import our_lines, upstream_request
from lmwarden.gateway.outbox import Outbox
from lmwarden.gateway.pool import EnginePool
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.routes import ROUTES
from lmwarden.gateway.settings import GatewaySettings
from lmwarden.gateway.splice import Edit
from lmwarden.types import Decision, Dispatch, EngineEndpoint, ReplicaId


async def pool(**members: Any) -> EnginePool:
    loop = asyncio.get_running_loop()
    endpoint = EngineEndpoint(engine="e0", host="::1", port=8000, model="m", **members)
    return EnginePool(endpoint, GatewaySettings(), loop, Outbox(loop))


HERE = Dispatch(1, ReplicaId("e0", 2), "e0", Decision.STICKY)
CHAT = ROUTES[b"/v1/chat/completions"]


async def test_the_whole_request() -> None:
    request = ClientRequest(b"POST", False, query=b"?a=b", onward=[b"X-A", b": ", b"1", b"\r\n"], body=b"{}")
    engine = await pool(ranks=4, base_path="/prefix", api_key="secret")
    assert b"".join(upstream_request(request, CHAT, engine, HERE, ())) == (
        b"POST /prefix/v1/chat/completions?a=b HTTP/1.1\r\nHost: [::1]:8000\r\n"
        b"Authorization: Bearer secret\r\nX-A: 1\r\n"
        b"Accept-Encoding: identity\r\nX-data-parallel-rank: 2\r\nContent-Length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize(("ranks", "replica"), [(1, ReplicaId("e0", 0)), (4, None)])
async def test_no_rank_where_none_was_chosen_or_there_is_only_one(ranks: int, replica: ReplicaId | None) -> None:
    request = ClientRequest(b"POST", False, body=b"{}")
    parts = upstream_request(request, CHAT, await pool(ranks=ranks), msgspec.structs.replace(HERE, replica=replica), ())
    assert b"rank" not in b"".join(parts)


async def test_a_head_that_repeats_goes_to_each_engine_and_rank_as_its_own() -> None:
    single = ClientRequest(b"POST", False, onward=[b"X-A: 1\r\n"])
    repeated = single.copied()
    engines = [await pool(ranks=4), await pool(ranks=4, base_path="/other"), await pool()]
    for turn, rank in enumerate([2, 2, 1, 1, 2, 0, 0, 2, 2, 2]):
        engine = engines[turn % 5 % 3]
        action = msgspec.structs.replace(HERE, replica=ReplicaId("e0", rank) if turn != 6 else None)
        single.body = repeated.body = b"{}" + b" " * turn
        parts = upstream_request(repeated, CHAT, engine, action, ())
        assert parts == upstream_request(single, CHAT, engine, action, ())


async def test_a_large_body_is_edited_without_a_copy() -> None:
    body = bytearray(b"{" + b" " * 100_000 + b"}")
    request = ClientRequest(b"POST", False, body=body)
    parts = upstream_request(request, CHAT, await pool(), HERE, (Edit(1, 1, b'"a":1'),))
    assert b"Content-Length: %d\r\n" % (len(body) + 5) in bytes(parts[0])
    assert b"".join(parts[1:]) == b'{"a":1' + bytes(body[1:])
    assert any(isinstance(part, memoryview) and part.obj is body for part in parts)


def test_our_lines() -> None:
    assert b"".join(our_lines(b"X: y\r\n", None, 0.0)) == b"X: y\r\nX-LMWarden-Wait-Ms: 0\r\n"
    assert b"".join(our_lines(b"", bytes(range(16)), 1.2345)) == (
        b"X-LMWarden-Conversation: 00010203\r\nX-LMWarden-Wait-Ms: 1234\r\n"
    )
