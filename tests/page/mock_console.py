"""A console without a warden: the built page and made-up data, for developing the page and for its tests.

``./run python -m tests.page.mock_console [--port 8090] [--large]`` serves it for a look, from the root of the clone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.page.made_up import World
from tests.waiting import PATIENCE_S

from lmwarden.console import static_files
from lmwarden.console.connect_texts import TEXTS, Settings

Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
WINDOW_S = {"1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800}


class _Headers:
    """What the real console adds to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                policy = static_files.CONTENT_SECURITY_POLICY.encode()
                message["headers"] = [*message["headers"], (b"content-security-policy", policy)]
            await send(message)

        await self._app(scope, receive, send_with)


class MockConsole:
    """One console in a thread. Its fields are what a test may turn."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.password: str | None = None
        self.version = "0.1.0"
        self.may_change = True
        self.down = False
        """The stream breaks and stays broken."""
        self.silent = False
        """It hangs, or the way to it: nothing more comes on the streams of this time, also not afterwards."""
        self.keyless = "nobody"
        """Whose requests need no key."""
        self.changes: list[tuple[str, str, Json]] = []
        """Every change that came: method, path, body."""
        self._tokens: set[str] = set()
        self._wrong = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._end: Callable[[], object] = lambda: None

    # -- running

    def start(self, port: int = 0) -> str:
        """Serve; returns the address."""
        listener = socket.create_server(("127.0.0.1", port))
        app = Starlette(routes=self._routes(), middleware=[Middleware(_Headers)])
        config = uvicorn.Config(
            app,
            loop="asyncio",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener, begun)), daemon=True)
        self._thread.start()
        assert begun.wait(PATIENCE_S)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def _serve(self, listener: socket.socket, begun: threading.Event) -> None:
        assert self._server is not None
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._end = lambda: loop.call_soon_threadsafe(stopped.set)
        serving = asyncio.create_task(self._server.serve([listener]))
        begun.set()
        await stopped.wait()
        self._server.should_exit = True
        # Pages may still hold their streams, which would go on for ever.
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await serving

    def stop(self) -> None:
        """End it."""
        if self._thread:
            self._end()
            self._thread.join(PATIENCE_S)

    def request_arrives(self) -> None:
        """A client's first request ends."""
        row = {
            **self.world.list_requests({})[-1],
            "finished_at": time.time(),
            "client": "claude-code",
            "replica": "e2/0",
            "decision": "placed",
        }
        self.world.extra_requests.append(row)

    # -- routes

    def _routes(self) -> list[Route]:
        api: list[tuple[str, str, Handler]] = [
            ("GET", "/api/overview", self._overview),
            ("GET", "/api/events", self._events),
            ("GET", "/api/checks", self._checks),
            ("GET", "/api/engines/{engine}/logs", self._logs),
            ("PATCH", "/api/models/{name}/routing", self._patch),
            ("GET", "/api/models/{name}/conversations", self._conversations),
            ("POST", "/api/models/{name}/replicas/{engine}/{rank}/{command}", self._replica),
            ("POST", "/api/models/{name}/rolling-restart", self._rolling),
            ("DELETE", "/api/models/{name}/operation", self._cancel),
            ("GET", "/api/models/{name}", self._model),
            ("GET", "/api/conversations/{key}", self._conversation),
            ("GET", "/api/prefix-breakers", self._breakers),
            ("GET", "/api/requests", self._requests),
            ("GET", "/api/stats/{what}", self._stats),
            ("GET", "/api/keys", self._keys),
            ("POST", "/api/keys", self._make_key),
            ("DELETE", "/api/keys/{name}", self._revoke),
            ("GET", "/api/settings", self._settings),
            ("GET", "/api/connect", self._connect),
        ]
        session = [
            Route("/api/session", handler, methods=[method])
            for method, handler in (("GET", self._session), ("POST", self._sign_in), ("DELETE", self._sign_out))
        ]
        return [
            *static_files.routes(),
            *session,
            *(Route(path, self._guarded(handler), methods=[method]) for method, path, handler in api),
        ]

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if self.password and not self._signed_in(request):
                return JSONResponse({"error": "sign in first"}, 401)
            if request.method != "GET":
                if request.headers.get("content-type") != "application/json":
                    return JSONResponse({"error": "changes need the content type application/json"}, 415)
                if self.password and request.headers.get("x-csrf-token") != "token-of-the-session":
                    return JSONResponse({"error": "the change token is missing"}, 403)
                self.changes.append((request.method, request.url.path, json.loads(await request.body() or b"{}")))
            return await handler(request)

        return guarded

    def _signed_in(self, request: Request) -> bool:
        return not self.password or request.cookies.get("session") in self._tokens

    async def _session(self, request: Request) -> Response:
        is_in = self._signed_in(request)
        return JSONResponse(
            {
                "sign_in": self.password is not None,
                "signed_in": is_in,
                "may_change": is_in and self.may_change,
                "csrf": "token-of-the-session" if self.password and is_in else None,
                "version": self.version,
                "speed": 1.0,
            }
        )

    async def _sign_in(self, request: Request) -> Response:
        if json.loads(await request.body())["password"] != self.password:
            self._wrong += 1
            if self._wrong > 2:
                return JSONResponse({"error": "too many tries"}, 429, headers={"Retry-After": "30"})
            return JSONResponse({"error": "that is not the password"}, 401)
        token = secrets.token_hex(8)
        self._tokens.add(token)
        answer = Response(status_code=204)
        answer.set_cookie("session", token, httponly=True, samesite="strict")
        return answer

    async def _sign_out(self, request: Request) -> Response:
        self._tokens.discard(request.cookies.get("session", ""))
        return Response(status_code=204)

    async def _overview(self, request: Request) -> Response:
        return JSONResponse(self.world.snapshot())

    async def _events(self, request: Request) -> Response:
        if self.down:
            return Response(status_code=502)

        async def lines() -> AsyncIterator[str]:
            yield "retry: 2000\n\n"
            while not self.down:
                if self.silent:
                    await asyncio.Event().wait()
                if self.world.frozen_at is not None:
                    yield "event: still\ndata: {}\n\n"
                else:
                    yield f"event: snapshot\ndata: {json.dumps(self.world.snapshot())}\n\n"
                await asyncio.sleep(1)

        if self.silent:
            await asyncio.Event().wait()
        return StreamingResponse(lines(), media_type="text/event-stream")

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self.world.model(request.path_params["name"]))

    async def _patch(self, request: Request) -> Response:
        values = json.loads(await request.body())
        if values.get("spill_threshold") == 999:
            return JSONResponse({"error": "spill_threshold: this mock does not like 999"}, 400)
        return JSONResponse(self.world.patch(request.path_params["name"], values))

    async def _replica(self, request: Request) -> Response:
        name, command = request.path_params["name"], request.path_params["command"]
        replica = f"{request.path_params['engine']}/{request.path_params['rank']}"
        if command == "restart":
            return JSONResponse(self.world.begin_rolling_restart(), 202)
        (self.world.drained.add if command == "drain" else self.world.drained.discard)(replica)
        return JSONResponse(self.world.model(name)["routing"])

    async def _rolling(self, request: Request) -> Response:
        return JSONResponse(self.world.begin_rolling_restart(), 202)

    async def _cancel(self, request: Request) -> Response:
        self.world.operation = None
        return JSONResponse({"operation": None})

    async def _logs(self, request: Request) -> Response:
        lines = [
            f"INFO 11-30 00:{n // 60:02}:{n % 60:02} [loggers.py:257] Avg prompt throughput: {n * 13 % 4000}.0 tokens/s"
            for n in range(600)
        ]
        words = request.query_params.get("search", "").casefold()
        lines = [line for line in lines if words in line.casefold()][-int(request.query_params.get("lines", 200)) :]
        if "download" in request.query_params:
            return PlainTextResponse("\n".join(lines), headers={"Content-Disposition": 'attachment; filename="e0.log"'})
        return JSONResponse({"engine": request.path_params["engine"], "lines": lines})

    async def _conversations(self, request: Request) -> Response:
        query = request.query_params
        rows = self.world.list_conversations(
            request.path_params["name"], query.get("state", "live"), query.get("sort", "last_used")
        )
        return _page(request, rows)

    async def _conversation(self, request: Request) -> Response:
        found = self.world.conversation(request.path_params["key"])
        return JSONResponse(found or {"error": "no such conversation"}, 200 if found else 404)

    async def _requests(self, request: Request) -> Response:
        return _page(request, self.world.list_requests(dict(request.query_params)))

    async def _breakers(self, request: Request) -> Response:
        return JSONResponse({"items": self.world.breakers(request.query_params.get("window", "24h"))})

    async def _stats(self, request: Request) -> Response:
        query = request.query_params
        if "from" in query:
            window_s, to = float(query["to"]) - float(query["from"]), float(query["to"])
        else:
            window_s, to = WINDOW_S[query.get("window", "1h")], self.world.now()
        what = request.path_params["what"]
        if what == "cached":
            return JSONResponse(self.world.stats_cached(window_s, to, query["model"]))
        answer = (
            self.world.stats_tokens(window_s, to, query.get("model", ""))
            if what == "tokens"
            else getattr(self.world, f"stats_{what}")(window_s, to)
        )
        if query.get("format") == "csv":
            names = list(answer["points"][0])
            rows = [
                ",".join("" if point[name] is None else str(point[name]) for name in names)
                for point in answer["points"]
            ]
            return PlainTextResponse("\n".join([",".join(names), *rows]), media_type="text/csv")
        return JSONResponse(answer)

    async def _keys(self, request: Request) -> Response:
        return JSONResponse({"items": self.world.keys, "next": None, "keyless": self.keyless})

    async def _make_key(self, request: Request) -> Response:
        asked = json.loads(await request.body())
        name = asked["name"]
        if any(key["name"] == name for key in self.world.keys):
            return JSONResponse({"error": f"keys: {name!r} exists already"}, 400)
        self.world.keys.append(
            {
                "name": name,
                "models": asked.get("models"),
                "created_at": time.time(),
                "last_used_at": None,
                "requests_24h": 0,
                "prompt_tokens_24h": 0,
                "completion_tokens_24h": 0,
            }
        )
        return JSONResponse({"name": name, "key": "lmw_" + secrets.token_urlsafe(32)}, 201)

    async def _revoke(self, request: Request) -> Response:
        self.world.keys = [key for key in self.world.keys if key["name"] != request.path_params["name"]]
        return Response(status_code=204)

    async def _settings(self, request: Request) -> Response:
        file = "/etc/lmwarden/lmwarden.toml"
        values = (
            ("client.host", "127.0.0.1", "default"),
            ("client.port", 8080, "default"),
            ("client.max_body_bytes", 67_108_864, "default"),
            ("console.port", 8081, "--console-port"),
            ("console.allowed_hosts", ["warden.example"], file),
            ("storage.dir", "/var/lib/lmwarden", file),
            ("models[0].name", "qwen3-4b", file),
            ("models[0].engine.launch", "vllm", file),
            ("models[0].routing.affinity", True, "default"),
            ("models[0].routing.spill_threshold", "auto", "console"),
        )
        return JSONResponse(
            {"file": file, "items": [{"key": key, "value": value, "source": source} for key, value, source in values]}
        )

    async def _connect(self, request: Request) -> Response:
        model = request.query_params["model"]
        settings = Settings("http://127.0.0.1:8080", model, key=None, key_needed=True, max_model_len=32_768)
        texts = [{"client": client, "text": text(settings)} for client, text in TEXTS.items()]
        return JSONResponse(
            {
                "model": model,
                "url": "http://127.0.0.1:8080",
                "clients": texts,
                "key_needed": True,
                "first_request_at": self.world.started_at + 30,
            }
        )

    async def _checks(self, request: Request) -> Response:
        warnings = self.world.model("qwen3-27b")["warnings"]
        checks = [
            {
                "code": "data_loop",
                "level": "ok",
                "text": "requests are relayed",
                "what_to_do": None,
                "model": None,
                "engine": None,
            },
            *({**warning, "model": "qwen3-27b", "engine": None} for warning in warnings),
        ]
        return JSONResponse({"version": self.version, "checks": checks})


def _page(request: Request, rows: list[Json]) -> Response:
    first = int(request.query_params.get("before", 0))
    last = first + min(500, int(request.query_params.get("limit", 100)))
    return JSONResponse(
        {"items": rows[first:last], "next": str(last) if last < len(rows) else None, "total": len(rows)}
    )


def main() -> None:
    """Serve until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--large", action="store_true", help="64 replicas and 5,000 conversations")
    parser.add_argument("--password")
    options = parser.parse_args()
    mock = MockConsole(World(64, 5000) if options.large else None)
    mock.password = options.password
    print(mock.start(options.port))  # noqa: T201 the address is what it is started for
    threading.Event().wait()


if __name__ == "__main__":
    main()
