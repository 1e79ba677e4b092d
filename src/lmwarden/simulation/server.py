"""A simulated vLLM behind HTTP: the endpoints, the rank header and the life of a request.

Who honours ``X-data-parallel-rank`` (first line wins, as in vLLM):

=====================================  =========  ==========================  =======================
endpoint                               honoured   out of range                not an integer
=====================================  =========  ==========================  =======================
chat/completions, completions          yes        400                         ignored
messages                               yes        500 (0.26) or 400 (0.32)    ignored
responses                              no         ignored                     ignored
count_tokens, tokenize                 no         ignored (no engine asked)   ignored
=====================================  =========  ==========================  =======================

Ignored means that the internal balancer chooses. A client that disconnects takes its request out of the engine at
once, streamed or not, before or after the first token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
from aiohttp import web
from prometheus_client import REGISTRY, generate_latest

from lmwarden.simulation.driver import EngineDriver, Stream
from lmwarden.simulation.engine import ApiServers, SimulatedEngine
from lmwarden.simulation.generation import Generation, RequestError, parse_generation
from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.metrics import EngineMetrics
from lmwarden.simulation.options import SimulatedEngineOptions, scheduler_limits
from lmwarden.simulation.prompts import BadRequestError, anthropic_prompt, chat_prompt, completion_prompt
from lmwarden.simulation.protocol import (
    Answer,
    AnswerContext,
    Api,
    ChatAnswer,
    CompletionAnswer,
    MessagesAnswer,
    TokenUsage,
    error_body,
)
from lmwarden.simulation.responses import ResponsesAnswer
from lmwarden.simulation.scheduler import EngineRequest
from lmwarden.simulation.tokens import answer_tokens, chain_hashes, token_text

_SHUTDOWN_S = 0.2
"""Open answers get so long to end when the server stops."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def run_server(options: SimulatedEngineOptions, *, on_listening: Callable[[str], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        options: what to simulate.
        on_listening: called with the base URL once the port is bound.

    Raises:
        ValueError: the options contradict each other.
        OSError: the port cannot be bound.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving(options) as url:
        if on_listening is not None:
            on_listening(url)
        await stop.wait()


@contextlib.asynccontextmanager
async def serving(options: SimulatedEngineOptions) -> AsyncIterator[str]:
    """A running simulated engine; yields its base URL (``port=0`` takes a free one).

    Raises:
        ValueError: the options contradict each other.
        OSError: the port cannot be bound.
    """
    server = SimulatedServer(options)
    # handler_cancellation: aiohttp cancels a handler when its client disconnects, which is our abort.
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port, backlog=4096)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        await runner.cleanup()
        server.close()


class SimulatedServer:
    """The application. One instance per engine, on a running event loop."""

    def __init__(self, options: SimulatedEngineOptions) -> None:
        hardware = load_profile(options.hardware)
        limits = scheduler_limits(options, hardware)
        self.options = options
        api_servers = ApiServers(options.balancer, options.api_servers or options.replicas, options.replicas)
        self.engine = SimulatedEngine(hardware, limits, options.replicas, api_servers)
        self.max_model_len = min(
            options.max_model_len or hardware.max_model_len,
            (limits.num_blocks - 1) * limits.block_size,
        )
        self._metrics = EngineMetrics(self.engine, options.model)
        self._driver = EngineDriver(self.engine, self._metrics, options.speed)
        self._boot = uuid.uuid4().hex[:8]
        self._started = int(time.time())
        self._load = 0

    def close(self) -> None:
        """Stop the engine's clock."""
        self._driver.close()

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=0, middlewares=[_errors_as_json])
        for path, api in (
            ("/v1/chat/completions", "chat"),
            ("/v1/completions", "completions"),
            ("/v1/messages", "messages"),
            ("/v1/responses", "responses"),
        ):
            app.router.add_post(path, self._generation_handler(api))  # type: ignore[arg-type]
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._empty)
        app.router.add_route("*", "/ping", self._empty)
        app.router.add_get("/version", self._version)
        app.router.add_get("/load", self._server_load)
        app.router.add_get("/metrics", self._metrics_page)
        return app

    # -- generations -----------------------------------------------------------------------------------

    def _generation_handler(self, api: Api) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            self._load += 1
            try:
                body = await _json_body(request)
                generation = parse_generation(api, body, self.options, self.max_model_len)
                rank = None if api == "responses" else self._rank(request, api)
                return await self._generate(request, generation, rank)
            except RequestError as error:
                return _error(api, error.status, str(error), error.kind)
            except BadRequestError as error:
                return _error(api, 400, str(error), param=error.param)
            finally:
                self._load -= 1

        return handle

    async def _generate(self, request: web.Request, generation: Generation, rank: int | None) -> web.StreamResponse:
        output = answer_tokens(generation.tokens, generation.output_tokens)
        words = [token_text(token) for token in output]
        engine_request = EngineRequest(
            chain_hashes([*generation.tokens, *output], self.engine.limits.block_size),
            len(generation.tokens),
            generation.output_tokens,
        )
        stream = Stream(engine_request, words, generation.finish)
        answer = self._answer(request, generation)
        self._driver.submit(stream, rank)
        try:
            if generation.stream:
                return await self._relay(request, stream, answer)
            await stream.whole()
            return _json_response(answer.whole(_usage(engine_request), words, stream.finish))
        finally:
            self._driver.abort(stream)

    async def _relay(self, request: web.Request, stream: Stream, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        # A connection that is closing refuses writes shortly before aiohttp cancels us: then nobody listens any more.
        with contextlib.suppress(ConnectionResetError):
            await response.prepare(request)
            sent = 0
            while sent < len(stream.words):
                available = await stream.more(sent)
                await response.write(_events(answer, stream, sent, available))
                sent = available
            await response.write_eof()
        return response

    def _answer(self, request: web.Request, generation: Generation) -> Answer:
        context = AnswerContext(
            base_id=request.headers.get("X-Request-Id") or uuid.uuid4().hex[:16],
            created=int(time.time()),
            model=generation.model or self.options.model,
            fingerprint=f"vllm-{self.options.version}-dp{self.engine.ranks}-{self._boot}",
            prompt_tokens=len(generation.tokens),
            include_usage=generation.include_usage,
            continuous_usage=generation.continuous_usage,
            cache_details=self.options.prompt_tokens_details,
            tool=generation.tool,
            legacy=self.options.legacy,
        )
        if generation.api == "chat":
            return ChatAnswer(context)
        if generation.api == "completions":
            return CompletionAnswer(context)
        if generation.api == "messages":
            return MessagesAnswer(context)
        return ResponsesAnswer(context, generation.output_tokens)

    def _rank(self, request: web.Request, api: Api) -> int | None:
        text = request.headers.get("X-data-parallel-rank")
        if text is None:
            return None
        try:
            rank = int(text)
        except ValueError:
            return None
        if not 0 <= rank < self.engine.ranks:
            message = f"data_parallel_rank {rank} is out of range [0, {self.engine.ranks})."
            if api == "messages" and self.options.legacy:
                raise RequestError(500, message, "internal_error")
            raise RequestError(400, message)
        return rank

    # -- the rest --------------------------------------------------------------------------------------

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        try:
            count = len(anthropic_prompt(await _json_body(request)))
        except BadRequestError as error:
            return _error("messages", 400, str(error))
        return web.json_response({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await _json_body(request)
            tokens = chat_prompt(body) if "messages" in body else completion_prompt(body)
        except BadRequestError as error:
            return _error("chat", 400, str(error))
        return web.json_response(
            {"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens, "token_strs": None}
        )

    async def _reset_prefix_cache(self, request: web.Request) -> web.StreamResponse:
        done = [self.engine.scheduler(rank).pool.reset() for rank in range(self.engine.ranks)]
        return web.json_response({"success": all(done)})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        card = {
            "id": self.options.model,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": self.options.model,
            "parent": None,
            "max_model_len": self.max_model_len,
            "permission": [],
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _empty(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=200)

    async def _version(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"version": self.options.version})

    async def _server_load(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"server_load": self._load})

    async def _metrics_page(self, request: web.Request) -> web.StreamResponse:
        page = generate_latest(REGISTRY) + self._metrics.render().encode()
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _events(answer: Answer, stream: Stream, sent: int, available: int) -> bytes:
    """What a stream that has ``sent`` tokens gets now that ``available`` are out."""
    complete = available == len(stream.words)
    data = b"" if sent else answer.begin()
    data += answer.tokens(stream.words[sent:available], sent, stream.finish if complete else None)
    if complete:
        data += answer.end(_usage(stream.request), stream.words, stream.finish)
    return data


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Unknown paths and methods in vLLM's form."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error("chat", error.status, error.reason, error.reason)


async def _json_body(request: web.Request) -> Mapping[str, object]:
    if request.content_type != "application/json":
        raise BadRequestError("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        body = _decoded(await request.read())
    except msgspec.DecodeError as error:
        raise BadRequestError(f"JSON decode error: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    return body


def _decoded(body: bytes) -> object:
    """A JSON value. As with vLLM, half a character (an escaped lone surrogate) is no mistake; it is read as ``?``.

    Raises:
        msgspec.DecodeError: broken JSON.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        try:
            whole = json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")
        except (ValueError, RecursionError):
            whole = body
        return msgspec.json.decode(whole)


def _usage(request: EngineRequest) -> TokenUsage:
    return TokenUsage(
        prompt_tokens=request.prompt_tokens,
        completion_tokens=request.generated_tokens,
        cached_tokens=request.cached_tokens,
        created_cache_tokens=request.created_cache_tokens,
    )


def _json_response(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _error(api: Api, status: int, message: str, kind: str | None = None, param: str | None = None) -> web.Response:
    return _json_response(error_body(api, status, message, kind=kind, param=param), status)
