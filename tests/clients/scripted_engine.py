"""A vLLM server as clients and warden see it, whose model says what the test wants.

The model is a *brain*: a coroutine from a received request to a reply. It may wait for an event, so that a test
decides what overlaps. Everything else is as in vLLM: data-parallel ranks that the header ``X-data-parallel-rank``
chooses (``/v1/responses`` ignores it), a rank in turn where it is absent, a prefix cache per rank, counters per rank
on ``/metrics``, usage in each answer, the engine's own name as ``model``. ``count_tokens`` reaches no rank.

Every request of a client is kept in ``seen`` with the rank that served it: that, and not a header of the warden's,
is the witness of where a conversation went. The warden's own test requests are answered and not kept.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, takewhile
from typing import Any

from aiohttp import web
from tests.clients.answers import Counts, Failure, Reply, error_body, events, whole_body

from lmwarden.engine.port_hold import PortHold
from lmwarden.simulation.prompts import anthropic_prompt, chat_prompt, responses_prompt
from lmwarden.simulation.tokens import chain_hashes

BLOCK_SIZE_TOKENS = 16
KV_CACHE_TOKENS = 1_000_000
MAX_MODEL_LEN_TOKENS = 200_000

_PROMPTS = {
    "/v1/messages": anthropic_prompt,
    "/v1/chat/completions": chat_prompt,
    "/v1/responses": responses_prompt,
}


@dataclass
class Seen:
    """One request to generate, as it arrived."""

    engine: str
    rank: int
    path: str
    headers: Mapping[str, str]
    """Case-insensitive."""
    body: dict[str, Any]
    prompt_tokens: int
    cached_tokens: int
    outcome: str = "open"
    """``open``, then ``done``, ``failed``, ``broken`` (by us) or ``left`` (by the other side)."""
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the answer has come to where it stalls."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def replica(self) -> str:
        """Where it was served, as the warden writes it."""
        return f"{self.engine}/{self.rank}"

    @property
    def is_test(self) -> bool:
        """Whether the warden itself sent it, to see which rank serves it."""
        return self.body.get("max_tokens") == 1

    @property
    def session(self) -> str | None:
        """Claude Code's session."""
        return self.headers.get("X-Claude-Code-Session-Id")

    @property
    def agent(self) -> str | None:
        """Of a Claude Code subagent: its id."""
        return self.headers.get("x-claude-code-agent-id")

    @property
    def request_class(self) -> str | None:
        """What Claude Code says that the request is: main, subagent, auxiliary, compaction."""
        return self.headers.get("x-claude-code-request-class")

    @property
    def answers(self) -> int:
        """How many answers of the model the conversation already holds."""
        return sum(map(_is_answer, self.messages))

    @property
    def texts(self) -> list[str]:
        """All texts and tool results of the conversation, in order; what harnesses put in front included."""
        return [text for message in self.messages for text in _texts(message)]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The turns of the conversation, in the request's own shape."""
        turns = self.body.get("messages", self.body.get("input"))
        return turns if isinstance(turns, list) else [{"role": "user", "content": turns}]

    def said(self, word: str) -> bool:
        """Whether what came after the model's last answer, be it typed or a tool's result, holds ``word``."""
        news = takewhile(lambda message: not _is_answer(message), reversed(self.messages))
        return any(word in text for message in news for text in _texts(message))


Brain = Callable[[Seen], Awaitable[Reply | Failure]]


async def say_hello(seen: Seen) -> Reply | Failure:
    """The brain of an engine that nobody told anything."""
    return Reply("Hello.")


class ScriptedEngine:
    """One server. Change ``brain`` at any time."""

    def __init__(self, engine: str, *, ranks: int = 1, model: str = "org/engine-model") -> None:
        self.engine = engine
        self.ranks = ranks
        self.model = model
        self.brain: Brain = say_hello
        self.seen: list[Seen] = []
        self.counted_tokens = 0
        """Calls of ``count_tokens``."""
        self.port = 0
        self._totals = [Counts(0, 0, 0) for _ in range(ranks)]
        self._cache: list[set[int]] = [set() for _ in range(ranks)]
        self._running = [0] * ranks
        self._turn = cycle(range(ranks))
        self._started = time.time()
        self._hold: PortHold | None = None
        """Nobody else gets the port while it does not listen."""
        self._runner: web.AppRunner | None = None
        self._transports: set[asyncio.BaseTransport] = set()

    @property
    def url(self) -> str:
        """Without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; after ``kill`` again on the same port, with empty caches, as a restarted vLLM."""
        app = web.Application(client_max_size=64 * 1024 * 1024, middlewares=[self._remember_connection])
        for path in _PROMPTS:
            app.router.add_post(path, self._generate)
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        if self._hold is None:
            self._hold = PortHold()
            self.port = self._hold.port
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def close(self) -> None:
        """End for good."""
        try:
            await self.kill()
        finally:
            if self._hold is not None:
                self._hold.close()

    async def kill(self) -> None:
        """As ``kill -9``: every connection is reset, nobody listens any more, what was cached is lost."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for transport in list(self._transports):
            transport.abort()  # type: ignore[attr-defined]
        await runner.cleanup()
        self._totals = [Counts(0, 0, 0) for _ in range(self.ranks)]
        self._cache = [set() for _ in range(self.ranks)]
        self._started = time.time()

    @web.middleware
    async def _remember_connection(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.transport is not None:
            self._transports.add(request.transport)
        return await handler(request)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen = self._receive(request, body)
        self._running[seen.rank] += 1
        try:
            answer = await (say_hello(seen) if seen.is_test else self.brain(seen))
            if isinstance(answer, Failure):
                seen.outcome = "failed"
                body = error_body(seen.path, answer)
                return web.json_response(body, status=answer.status, headers=dict(answer.headers))
            counts = Counts(seen.prompt_tokens, seen.cached_tokens, answer.completion_tokens)
            if not body.get("stream") and answer.broken_after is None:
                seen.outcome = "done"
                return web.json_response(whole_body(seen.path, answer, counts, self.model))
            return await self._stream(request, seen, answer, counts)
        except asyncio.CancelledError:
            seen.outcome = "left"
            raise
        finally:
            self._running[seen.rank] -= 1
            seen.over.set()

    async def _stream(self, request: web.Request, seen: Seen, reply: Reply, counts: Counts) -> web.StreamResponse:
        include_usage = bool((seen.body.get("stream_options") or {}).get("include_usage"))
        pieces = events(seen.path, reply, counts, self.model, include_usage=include_usage)
        if reply.broken_after is not None:
            pieces = pieces[: reply.broken_after]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        # The last write may find that the reader has left: it had all that it wanted.
        with suppress(ConnectionResetError):
            if pieces:
                await response.prepare(request)
            for number, piece in enumerate(pieces):
                if number == reply.stalls_after:
                    seen.stalled.set()
                    await asyncio.Event().wait()
                await response.write(piece)
            if reply.broken_after is None:
                await response.write_eof()
        if reply.broken_after is not None:
            seen.outcome = "broken"
            assert request.transport is not None
            request.transport.abort()
        else:
            seen.outcome = "done"
        return response

    def _receive(self, request: web.Request, body: dict[str, Any]) -> Seen:
        wanted = request.headers.get("X-data-parallel-rank")
        rank = int(wanted) if wanted is not None and request.path != "/v1/responses" else next(self._turn)
        tokens = _PROMPTS[request.path](body)
        hashes = chain_hashes(tokens, BLOCK_SIZE_TOKENS)
        cache = self._cache[rank]
        hits = sum(1 for _ in takewhile(cache.__contains__, hashes))
        cache.update(hashes)
        seen = Seen(self.engine, rank, request.path, request.headers, body, len(tokens), hits * BLOCK_SIZE_TOKENS)
        old = self._totals[rank]
        self._totals[rank] = Counts(old.prompt_tokens + len(tokens), old.cached_tokens + seen.cached_tokens, 0)
        if not seen.is_test:
            self.seen.append(seen)
        return seen

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        self.counted_tokens += 1
        count = len(anthropic_prompt(await request.json()))
        return web.json_response({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        card = {"id": self.model, "object": "model", "root": self.model, "max_model_len": MAX_MODEL_LEN_TOKENS}
        return web.json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _version(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"version": "0.32.0"})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        lines = [f"process_start_time_seconds {self._started}"]
        for rank, totals in enumerate(self._totals):
            label = f'{{engine="{rank}",model_name="{self.model}"}}'
            lines += [
                f"vllm:num_requests_running{label} {self._running[rank]}.0",
                f"vllm:num_requests_waiting{label} 0.0",
                f"vllm:kv_cache_usage_perc{label} 0.0",
                f"vllm:prefix_cache_queries_total{label} {totals.prompt_tokens}.0",
                f"vllm:prefix_cache_hits_total{label} {totals.cached_tokens}.0",
                f"vllm:prompt_tokens_total{label} {totals.prompt_tokens}.0",
                f'vllm:cache_config_info{{block_size="{BLOCK_SIZE_TOKENS}",engine="{rank}",'
                f'kv_cache_size_tokens="{KV_CACHE_TOKENS}"}} 1.0',
            ]
        return web.Response(text="\n".join(lines) + "\n")


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" or message.get("type") in ("function_call", "reasoning")


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content", message.get("output"))
    if isinstance(content, str):
        return [content]
    texts = []
    for block in content or []:
        inner = block.get("text") if block.get("type") != "tool_result" else block.get("content")
        texts += [inner] if isinstance(inner, str) else [json.dumps(inner)]
    return texts
