"""A scripted engine for the watch's side: health, metrics, models, each answer set by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from lmwarden.types import EngineEndpoint


def page(
    *,
    ranks: int = 2,
    kv_cache_tokens: int | None = 4096,
    started: float | None = 1000.5,
    prompt_tokens: int = 0,
    queries: int = 0,
    hits: int = 0,
) -> str:
    """A metrics page as vLLM writes it, as far as we read it."""
    lines = ["# HELP vllm:num_requests_running Number of requests.", "# TYPE vllm:num_requests_running gauge"]
    for rank in range(ranks):
        label = f'{{engine="{rank}",model_name="tiny"}}'
        lines += [
            f"vllm:num_requests_running{label} {rank + 1}.0",
            f"vllm:num_requests_waiting{label} 0.0",
            f"vllm:kv_cache_usage_perc{label} 0.25",
            f"vllm:prefix_cache_queries_total{label} {queries}.0",
            f"vllm:prefix_cache_hits_total{label} {hits}.0",
            f"vllm:prompt_tokens_total{label} {prompt_tokens}.0",
            f"vllm:generation_tokens_total{label} 7.0",
            f'vllm:time_to_first_token_seconds_bucket{{engine="{rank}",le="0.1"}} 3.0',
        ]
        if kv_cache_tokens is not None:
            lines.append(
                f'vllm:cache_config_info{{block_size="16",engine="{rank}",'
                f'kv_cache_size_tokens="{kv_cache_tokens}",num_gpu_blocks="{ranks * kv_cache_tokens // 16}"}} 1.0'
            )
    if started is not None:
        lines.append(f"process_start_time_seconds {started}")
    return "\n".join(lines) + "\n"


class FakeVllm:
    """What the engine answers. Change the attributes at any time."""

    def __init__(self) -> None:
        self.health_status = 200
        self.metrics_status = 200
        self.metrics = page()
        self.models: object = {"data": [{"id": "tiny", "root": "tiny", "max_model_len": 32768}]}
        self.models_status = 200
        self.silent = False
        """Take requests and never answer."""
        self.port = 0
        self.authorizations: set[str | None] = set()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def endpoint(self, ranks: int = 2) -> EngineEndpoint:
        return EngineEndpoint(engine="e0", host="127.0.0.1", port=self.port, ranks=ranks, model="tiny", api_key="sk-e")

    async def start(self) -> None:
        """Listen; again on the same port after ``stop``."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the listener and all connections."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request, status: int, text: str, kind: str = "text/plain") -> web.Response:
        self.authorizations.add(request.headers.get("Authorization"))
        if self.silent:
            await asyncio.Event().wait()
        return web.Response(status=status, text=text, content_type=kind)

    async def _health(self, request: web.Request) -> web.Response:
        return await self._answer(request, self.health_status, "")

    async def _metrics(self, request: web.Request) -> web.Response:
        return await self._answer(request, self.metrics_status, self.metrics)

    async def _models(self, request: web.Request) -> web.Response:
        self.authorizations.add(request.headers.get("Authorization"))
        if isinstance(self.models, str):
            return web.Response(status=self.models_status, text=self.models)
        return web.json_response(self.models, status=self.models_status)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})


@asynccontextmanager
async def fake_vllm() -> AsyncIterator[FakeVllm]:
    """A listening fake."""
    fake = FakeVllm()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()
