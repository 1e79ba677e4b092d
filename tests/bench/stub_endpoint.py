"""An endpoint for tests of the load tester: a warden's client port, console and engine metrics in one.

It answers at once, keeps what it was asked, and misbehaves where a test tells it to.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CACHE_PAGE = b"""# HELP vllm:prefix_cache_queries_total Prefix cache queries.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} %d.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 100.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.79e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} %d.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 50.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 4000.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.79e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 300.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 6.0
"""


class StubEndpoint:
    """State and answers; ``url`` is set while it serves."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.patches: list[dict[str, Any]] = []
        self.routing: dict[str, Any] = {"affinity": True, "placement": "hash", "admission": "auto"}
        self.model = "m"
        """The only one that the console knows."""
        self.password: str | None = None
        """The console asks for it; None: it asks for none."""
        self.console_authorizations: list[str | None] = []
        self.resets = 0
        """How often the engine was asked to empty its caches."""
        self.can_reset = True
        self.looks = 0
        """How often the console was asked how the model stands."""
        self.scrapes = 0
        """How often the engine's metrics were read."""
        self.running: list[int | None] = [1, 0]
        self.engines = ["e0/0", "e0/1"]
        """What the console lists."""
        self.known_here = ["e0/0", "e0/1"]
        """What the client port knows."""
        self.answer: Handler = self.whole_answer
        self.decision: str | None = "sticky"
        self.decisions: dict[str, int] = {}
        """What the console has counted."""
        self.counts = True
        """False: the console belongs to another warden."""
        self.probes: list[str | None] = []
        """Replicas that test requests named."""
        self.probed = asyncio.Event()
        self.arrived = asyncio.Event()
        """Set by the first generation request."""

    async def whole_answer(self, request: web.Request) -> web.StreamResponse:
        """Stream a complete answer of two pieces and 41 tokens, in the API that was asked."""
        response = web.StreamResponse(headers=self.answer_headers())
        response.content_type = "text/event-stream"
        await response.prepare(request)
        pieces = MESSAGES_STREAM if "messages" in request.path else CHAT_STREAM
        for piece in pieces:
            await response.write(piece)
        return response

    def answer_headers(self) -> dict[str, str]:
        """Heads as a warden gives them; none where ``decision`` is None."""
        if self.decision is None:
            return {}
        return {
            "X-LMWarden-Decision": self.decision,
            "X-LMWarden-Replica": "e0/1",
            "X-LMWarden-Wait-Ms": "0",
        }

    def _count(self) -> None:
        if self.counts and self.decision is not None:
            self.decisions[self.decision] = self.decisions.get(self.decision, 0) + 1

    async def _probe(self, request: web.Request) -> web.StreamResponse:
        """A short request that is not streamed."""
        replica = request.headers.get("X-LMWarden-Replica")
        self.probes.append(replica)
        self.probed.set()
        if replica is not None and replica not in self.known_here:
            return web.json_response({"error": {"message": "no such replica"}}, status=400)
        self._count()
        return web.json_response({}, headers=self.answer_headers())

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if b'"max_tokens":1,' in await request.read():
            return await self._probe(request)
        self._count()
        self.bodies.append(msgspec.json.decode(await request.read()))
        self.headers.append(dict(request.headers))
        self.arrived.set()
        return await self.answer(request)

    async def _reset(self, request: web.Request) -> web.Response:
        self.resets += 1
        return web.json_response({"success": True}) if self.can_reset else web.Response(status=404)

    async def _routing(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != self.model:
            return web.Response(status=404)
        given = request.headers.get("Authorization")
        self.console_authorizations.append(given)
        if self.password is not None and given != f"Basic {b64encode(f'lmwarden:{self.password}'.encode()).decode()}":
            return web.Response(status=401)
        if request.method == "PATCH":
            patch = await request.json()
            self.patches.append(patch)
            self.routing |= patch
        else:
            self.looks += 1
        replicas = [
            {"replica": name, "running": running} for name, running in zip(self.engines, self.running, strict=True)
        ]
        shown = self.routing | {"admission": {"mode": self.routing.get("admission"), "engaged": False}}
        return web.json_response(shown | {"in_flight": 0, "replicas": replicas, "decisions": self.decisions})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        self.scrapes += 1
        asked = len(self.bodies)
        return web.Response(body=CACHE_PAGE % (100 * asked, 80 * asked), content_type="text/plain")

    def application(self) -> web.Application:
        """Routes of the client port, the console and the engine."""
        application = web.Application(client_max_size=1 << 26)
        application.router.add_post("/v1/messages", self._generate)
        application.router.add_post("/v1/chat/completions", self._generate)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_post("/reset_prefix_cache", self._reset)
        application.router.add_route("*", "/api/models/{name:.+}/routing", self._routing)
        return application


@asynccontextmanager
async def serving(stub: StubEndpoint) -> AsyncIterator[StubEndpoint]:
    """Serve on a free port of the loopback interface."""
    runner = web.AppRunner(stub.application(), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    address = runner.addresses[0]
    stub.url = f"http://{address[0]}:{address[1]}"
    try:
        yield stub
    finally:
        await runner.cleanup()


def event(data: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def chat_chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    """One chunk of ``/v1/chat/completions``."""
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


MESSAGES_STREAM = [
    b"event: message_start\n"
    + event({"type": "message_start", "message": {"usage": {"input_tokens": 1000, "output_tokens": 0}}}),
    b'event: ping\ndata: {"type": "ping"}\n\n',
    event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one "}}),
    event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "two."}}),
    event({"type": "content_block_stop", "index": 0}),
    event(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens"},
            "usage": {
                "input_tokens": 100,
                "output_tokens": 41,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 900,
            },
        }
    ),
    event({"type": "message_stop"}),
]

CHAT_STREAM = [
    chat_chunk({"role": "assistant", "content": ""}),
    chat_chunk({"content": "one "}),
    chat_chunk({"content": "two."}, "length"),
    event(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 1000,
                "completion_tokens": 41,
                "prompt_tokens_details": {"cached_tokens": 900},
            },
        }
    ),
    b"data: [DONE]\n\n",
]
