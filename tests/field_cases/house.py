"""A whole gateway with the real router in this process: scripted engines behind it, sockets before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop
from hypothesis import settings
from tests.gateway.conftest import USUAL_LIMITS, Client, Keys, Response, Rows, post
from tests.stub_engine import CHAT, MESSAGE, STREAM_HEAD, Act, Peer, Seen, StubEngine, chunk, stream, whole
from tests.waiting import until

from lmwarden.gateway import Gateway, GatewaySettings, ServedModel
from lmwarden.routing.router import Router
from lmwarden.types import (
    EngineEndpoint,
    ReplicaCapacity,
    ReplicaId,
    RequestRecord,
    RouterView,
    RoutingSettings,
)

S1 = "3f2b8c1e-5d64-4a7a-9d0b-1c2d3e4f5a6b"
S2 = "9a8b7c6d-5e4f-4a3b-8c2d-1e0f9a8b7c6d"
FEW = settings(max_examples=25)
"""For scenarios over sockets: each example is a gateway of its own, or many requests."""

CHAT_EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
)
CHAT_END = b"data: [DONE]\n\n"
MESSAGE_EVENTS = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":0}}}'
    b"\n\n",
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
    b'"text":"hi"}}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":'
    b'{"input_tokens":100,"output_tokens":7}}\n\n',
)
MESSAGE_END = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "usage": {"input_tokens": 5, "output_tokens": 1},
}
RESPONSE_EVENTS = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}\n\n',
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n',
)
RESPONSE_END = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1","status":"completed"}}'
    b"\n\n"
)
STREAMS: Mapping[str, tuple[tuple[bytes, ...], bytes]] = {
    "/v1/messages": (MESSAGE_EVENTS, MESSAGE_END),
    "/v1/chat/completions": (CHAT_EVENTS, CHAT_END),
    "/v1/completions": (CHAT_EVENTS, CHAT_END),
    "/v1/responses": (RESPONSE_EVENTS, RESPONSE_END),
}
"""By path: the events of a short answer, and the last one."""
PATHS = tuple(STREAMS)


def user_id(session: str) -> dict[str, str]:
    """``metadata`` as Claude Code writes it."""
    return {"user_id": f'{{"device_id":"d","account_uuid":"","session_id":"{session}"}}'}


def turn(text: str = "hello", **members: Any) -> dict[str, Any]:
    """A body that all generations take."""
    return {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": text}], **members}


async def answer_as_asked(peer: Peer, seen: Seen) -> None:
    """What an engine in order does: the API of the path, streamed if so asked."""
    path = seen.line.split(b" ")[1].partition(b"?")[0].decode()
    if path in STREAMS and b'"stream": true' in seen.body.replace(b'"stream":true', b'"stream": true'):
        events, end = STREAMS[path]
        await stream([*events, end])(peer, seen)
    elif path == "/v1/messages":
        await whole(MESSAGE)(peer, seen)
    elif path == "/v1/responses":
        await whole(RESPONSE)(peer, seen)
    elif path.endswith("count_tokens"):
        await whole({"input_tokens": 12})(peer, seen)
    else:
        await whole(CHAT)(peer, seen)


def in_chunks(pieces: Sequence[bytes], end: bytes = b"0\r\n\r\n") -> Act:
    """Each piece is a chunk and a write."""

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD)
        for piece in pieces:
            await peer.send(chunk(piece))
        await peer.send(end)

    return act


def held(go_on: asyncio.Event) -> Act:
    """Answer only when told."""

    async def act(peer: Peer, seen: Seen) -> None:
        await go_on.wait()
        await answer_as_asked(peer, seen)

    return act


@dataclass
class House:
    """A gateway, its routers, its engines, its books."""

    gateway: Gateway
    routers: Mapping[str, Router]
    engines: Mapping[str, StubEngine]
    rows: Rows
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))
        self.clients.append(client)
        return client

    async def ask(self, path: str, body: bytes | dict[str, Any], *lines: str) -> Response:
        """One request on a connection of its own."""
        return await self.send(post(path, body, *lines))

    async def send(self, request: bytes) -> Response:
        client = await self.connect()
        await client.send(request)
        response = await client.response()
        client.leave()
        return response

    def view(self, model: str = "m") -> RouterView:
        return self.routers[model].view(self.gateway.clock())

    async def at_rest(self) -> None:
        """Nothing is open any more, and the books balance."""

        def open_now() -> tuple[int, int]:
            in_flight = sum(self.view(model).in_flight for model in self.routers)
            return len(self.gateway.exchanges) + in_flight, self.gateway.budget.held_bytes

        await until(lambda: not any(open_now()), lambda: f"in flight and held at rest: {open_now()}")
        for model in self.routers:
            view = self.view(model)
            assert all(replica.in_flight == 0 for replica in view.replicas)
            asked = [row for row in self.rows if row.model == model]
            assert sum(view.decisions.values()) + view.refused >= len(asked)

    def last_row(self) -> RequestRecord:
        return self.rows[-1]


@asynccontextmanager
async def house(
    models: Mapping[str, Mapping[str, int]] | None = None,
    *,
    routing: RoutingSettings | None = None,
    drop_billing_line: bool = False,
    **limits: Any,
) -> AsyncIterator[House]:
    """
    Args:
        models: each model's engines with their number of ranks; engines are named once. Usually one model "m" with
            four engines of one rank.
    """
    models = models if models is not None else {"m": {f"e{number}": 1 for number in range(4)}}
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with AsyncExitStack() as stack:
        engines: dict[str, StubEngine] = {}
        routers: dict[str, Router] = {}
        served = []
        for model, ranks in models.items():
            routers[model] = router = Router(routing if routing is not None else RoutingSettings(), engines=ranks)
            endpoints = {}
            for name, count in ranks.items():
                engines[name] = engine = await stack.enter_async_context(StubEngine())
                engine.default = answer_as_asked
                endpoints[name] = EngineEndpoint(
                    engine=name, host="127.0.0.1", port=engine.port, ranks=count, model=model, api_key="engine-key"
                )
            served.append(
                ServedModel(
                    name=model,
                    router=router,
                    engines=endpoints,
                    identity_secret=b"s" * 32,
                    drop_billing_line=drop_billing_line,
                )
            )
        rows = Rows()
        gateway = Gateway(served, Keys(True), rows, GatewaySettings(**(USUAL_LIMITS | limits)))
        await gateway.start("127.0.0.1", 0)
        for model, ranks in models.items():
            bring_up(routers[model], ranks, gateway)
        made = House(gateway, routers, engines, rows)
        try:
            yield made
            await made.at_rest()
            assert faults == [], "an error of ours reached the loop"
        finally:
            for client in made.clients:
                await client.closed()
            await gateway.stop(0)


def bring_up(router: Router, ranks: Mapping[str, int], gateway: Gateway, boot_id: str = "boot") -> None:
    """All replicas are ready."""
    for name, count in ranks.items():
        for rank in range(count):
            router.replica_up(ReplicaId(name, rank), ReplicaCapacity(max_num_seqs=32), boot_id, gateway.clock())


def run(scenario: Any) -> None:
    """Run a scenario on the loop that serves in production."""
    uvloop.run(scenario)
