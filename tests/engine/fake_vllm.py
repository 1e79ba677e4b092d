"""A scripted engine for the watch's side: health, metrics, models, each answer set by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from tests.waiting import PATIENCE_S

from lmwarden.engine.port_hold import PortHold
from lmwarden.types import EngineEndpoint

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PROMPT_TOKENS = 22
"""Of each request that the fake serves."""


def page(
    *,
    ranks: int = 2,
    kv_cache_tokens: int | None = 4096,
    started: float | None = 1000.5,
    created: Sequence[float] = (),
    prompt_tokens: int | Sequence[int] = 0,
    one_token_requests: Sequence[int] = (),
    generation_tokens: int = 7,
    waiting: int = 0,
    kv_used_ratio: float = 0.25,
    queries: int = 0,
    hits: int = 0,
) -> str:
    """A metrics page as vLLM writes it, as far as we read it. Sequences are by rank."""
    lines = ["# HELP vllm:num_requests_running Number of requests.", "# TYPE vllm:num_requests_running gauge"]
    for rank in range(ranks):
        label = f'{{engine="{rank}",model_name="tiny"}}'
        tokens = prompt_tokens if isinstance(prompt_tokens, int) else prompt_tokens[rank]
        lines += [
            f"vllm:num_requests_running{label} {rank + 1}.0",
            f"vllm:num_requests_waiting{label} {waiting}.0",
            f"vllm:kv_cache_usage_perc{label} {kv_used_ratio}",
            f"vllm:prefix_cache_queries_total{label} {queries}.0",
            f"vllm:prefix_cache_hits_total{label} {hits}.0",
            f"vllm:prompt_tokens_total{label} {tokens}.0",
            f"vllm:generation_tokens_total{label} {generation_tokens}.0",
            f'vllm:time_to_first_token_seconds_bucket{{engine="{rank}",le="0.1"}} 3.0',
        ]
        if created:
            lines.append(f"vllm:prompt_tokens_created{label} {created[rank]}")
        if one_token_requests:
            bucket = f'{{engine="{rank}",le="1.0",model_name="tiny"}}'
            lines.append(f"vllm:request_params_max_tokens_bucket{bucket} {one_token_requests[rank]}.0")
        if kv_cache_tokens is not None:
            lines.append(
                f'vllm:cache_config_info{{block_size="16",engine="{rank}",'
                f'kv_cache_size_tokens="{kv_cache_tokens}",num_gpu_blocks="{ranks * kv_cache_tokens // 16}"}} 1.0'
            )
    if started is not None:
        lines.append(f"process_start_time_seconds {started}")
    return "\n".join(lines) + "\n"


class Served:
    """The ranks of a fake that serves requests, and their counters."""

    def __init__(self, ranks: int) -> None:
        self.prompt_tokens = [0] * ranks
        self.one_token_requests: list[int] = [0] * ranks
        """Empty: a version that does not count them."""
        self.chooses: Callable[[str, int | None], int] = lambda path, named: named or 0
        """Which rank serves a request, given the one that its header names."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Other people's requests, with each of ours."""
        self.details: bool | None = True
        """Whether usage has prompt_tokens_details; None: only when something was cached, as old versions do."""

    def page(self) -> str:
        return page(
            ranks=len(self.prompt_tokens),
            prompt_tokens=self.prompt_tokens,
            one_token_requests=self.one_token_requests,
        )

    def serve(self, path: str, rank: int) -> None:
        self.prompt_tokens[rank] += PROMPT_TOKENS
        if self.one_token_requests:
            self.one_token_requests[rank] += 1


class FakeVllm:
    """What the engine answers. Change the attributes at any time."""

    def __init__(self) -> None:
        self.health_status = 200
        self.metrics_status = 200
        self.metrics = page()
        self.models: object = {
            "data": [{"id": "tiny", "root": "tiny", "max_model_len": 32768, "parent": None, "owned_by": "vllm"}]
        }
        self.models_status = 200
        self.version: str | None = "0.32.0"
        self.silent = False
        """Take requests and never answer."""
        self.breaks: set[str] = set()
        """Paths at which the connection is broken off instead of an answer: as good as silence, and at once."""
        self.drips = False
        """Answer the metrics byte by byte, without an end."""
        self.served: Served | None = None
        """Serve requests, and report those counters as metrics."""
        self.post_status: Mapping[str, int] = {}
        self.posts: list[tuple[str, str | None]] = []
        """Path and rank header of each request."""
        self.bodies: list[dict[str, Any]] = []
        self._posted = asyncio.Event()
        self._hold: PortHold | None = None
        self.authorizations: set[str | None] = set()
        self.asked: list[str] = []
        """Paths of all questions."""
        self.let_answer = asyncio.Event()
        self.let_answer.set()
        """Cleared: health is answered when it is set again."""
        self.health_asked = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """Where it listens, or listened: nobody else gets it meanwhile."""
        assert self._hold is not None
        return self._hold.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def endpoint(self, ranks: int = 2) -> EngineEndpoint:
        return EngineEndpoint(engine="e0", host="127.0.0.1", port=self.port, ranks=ranks, model="tiny", api_key="sk-e")

    async def start(self) -> None:
        """Listen on a free port; again after ``stop``: on the same one."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_post(CHAT, self._generate)
        app.router.add_post(MESSAGES, self._generate)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        if self._hold is None:
            self._hold = PortHold()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()

    async def stop(self) -> None:
        """Close the listener and all connections."""
        assert self._runner is not None
        await self._runner.cleanup()

    def release(self) -> None:
        """Somebody else may have the port."""
        if self._hold is not None:
            self._hold.close()

    async def until_posts(self, count: int) -> None:
        """Wait until so many requests came."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.posts) < count:
                self._posted.clear()
                await self._posted.wait()

    async def _answer(self, request: web.Request, status: int, text: str, kind: str = "text/plain") -> web.Response:
        self._note(request)
        if self.silent:
            await asyncio.Event().wait()
        if request.path in self.breaks and request.transport is not None:
            request.transport.abort()
        return web.Response(status=status, text=text, content_type=kind)

    def _note(self, request: web.Request) -> None:
        self.authorizations.add(request.headers.get("Authorization"))
        self.asked.append(request.path)

    async def _health(self, request: web.Request) -> web.Response:
        self.health_asked.set()
        await self.let_answer.wait()
        return await self._answer(request, self.health_status, "")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if self.drips:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b"#")
                await asyncio.sleep(0)
        text = self.metrics if self.served is None else self.served.page()
        return await self._answer(request, self.metrics_status, text)

    async def _models(self, request: web.Request) -> web.Response:
        self._note(request)
        if isinstance(self.models, str):
            return web.Response(status=self.models_status, text=self.models)
        return web.json_response(self.models, status=self.models_status)

    async def _version(self, request: web.Request) -> web.Response:
        self._note(request)
        if self.version is None:
            return web.Response(status=404)
        return web.json_response({"version": self.version})

    async def _generate(self, request: web.Request) -> web.Response:
        self._note(request)
        named = request.headers.get("X-data-parallel-rank")
        self.posts.append((request.path, named))
        self._posted.set()
        body = json.loads(await request.read())
        cached = 16 if body in self.bodies and len(body["messages"][0]["content"]) > 100 else 0
        self.bodies.append(body)
        status = self.post_status.get(request.path, 200)
        if status != 200:
            return web.json_response({"error": {"message": "no"}}, status=status)
        if self.served is None:
            return web.json_response({"error": {"message": "not served"}}, status=404)
        rank = self.served.chooses(request.path, int(named) if named is not None else None)
        self.served.serve(request.path, rank)
        self.served.meanwhile()
        if request.path == MESSAGES:
            return web.json_response({"usage": {"input_tokens": PROMPT_TOKENS - 16, "cache_read_input_tokens": 16}})
        usage: dict[str, object] = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 1}
        if self.served.details or (self.served.details is None and cached):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return web.json_response({"usage": usage})


@asynccontextmanager
async def fake_vllm() -> AsyncIterator[FakeVllm]:
    """A listening fake."""
    fake = FakeVllm()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()
        fake.release()
