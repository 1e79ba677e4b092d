"""The console's routes. Reads show the latest snapshot; every change goes through the control.

Answers are serialised once per snapshot, however many viewers there are: the bytes are kept until the next
snapshot replaces them. Commands answer as soon as they took effect; a restart, which takes minutes, when it has
begun (202).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from lmwarden import __version__
from lmwarden.console.checks import check_all
from lmwarden.console.engines import LogLines, engine_lines
from lmwarden.console.findings import Check
from lmwarden.console.guard import Guard
from lmwarden.console.metrics import CONTENT_TYPE, exposition
from lmwarden.console.shapes import model_detail, model_lines, routing_state
from lmwarden.control import (
    CommandError,
    ConflictError,
    Control,
    ModelSnapshot,
    Operation,
    Snapshot,
    UnknownEngineError,
    UnknownModelError,
    UnknownReplicaError,
)

MAX_BODY_BYTES = 65536
"""Of a change; the largest legal one is below 200 bytes."""
CHANGE_TIMEOUT_S = 10.0
"""The data loop answers within milliseconds; beyond this it is stuck, and we say so."""
MAX_LOG_LINES = 500
USUAL_LOG_LINES = 200
LOG_BYTES = 4 << 20
"""End of an engine's log that is looked at."""
LOG_READERS = 2
"""Logs read at the same time: each may hold those bytes a few times over."""


class OperationAnswer(msgspec.Struct, frozen=True):
    """``/api/models/{name}/operation``."""

    operation: Operation | None


class Checks(msgspec.Struct, frozen=True):
    """``/api/checks``."""

    version: str
    checks: list[Check]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>LM Warden</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:3em auto;padding:0 1em}</style></head>
<body><h1>LM Warden</h1>
<p>This version has no console page yet. What it would show is here as data:</p>
<ul><li><a href="/api/models">/api/models</a>: the models that are served;
<code>/api/models/NAME</code> and <code>/api/models/NAME/routing</code> for one of them</li>
<li><a href="/api/engines">/api/engines</a>: the engines; <code>/api/engines/NAME/logs</code> for the log of one</li>
<li><a href="/api/checks">/api/checks</a>: what is not as it should be, and what to do
(<code>lmwarden doctor</code>)</li>
<li><a href="/metrics">/metrics</a>: for Prometheus</li></ul>
<p>Changes are made from this machine: <code>PATCH /api/models/NAME/routing</code>,
<code>POST /api/models/NAME/replicas/REPLICA/drain</code> (<code>undrain</code>, <code>restart</code>),
<code>POST /api/models/NAME/rolling-restart</code>.</p>
</body></html>
"""


class _OncePerSnapshot:
    """Keeps the bytes that were built from the latest snapshot."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._of: Snapshot | None = None
        self._bytes: dict[object, bytes] = {}

    def get(self, key: object, build: Callable[[Snapshot], bytes]) -> bytes:
        snapshot = self._control.snapshot
        if snapshot is not self._of:
            self._of = snapshot
            self._bytes = {}
        if key not in self._bytes:
            self._bytes[key] = build(snapshot)
        return self._bytes[key]


class _Api:
    """The handlers."""

    def __init__(self, control: Control, host: str | None) -> None:
        self._control = control
        self._host = host
        self._once = _OncePerSnapshot(control)
        self._log_readers = asyncio.Semaphore(LOG_READERS)

    # -- reads

    async def page(self, request: Request) -> Response:
        return HTMLResponse(_PAGE)

    async def models(self, request: Request) -> Response:
        return _json(self._once.get("models", lambda snapshot: _encode(model_lines(snapshot))))

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]

        def build(snapshot: Snapshot) -> bytes:
            return _encode(model_detail(snapshot.model(name), snapshot.counting_since))

        return _json(self._once.get(("model", name), build))

    async def engines(self, request: Request) -> Response:
        return _json(self._once.get("engines", lambda snapshot: _encode(engine_lines(snapshot))))

    async def metrics(self, request: Request) -> Response:
        return Response(self._once.get("metrics", exposition), media_type=CONTENT_TYPE)

    async def checks(self, request: Request) -> Response:
        # Not kept: the age of the snapshot is one of the things to look at.
        return _json(_encode(Checks(__version__, check_all(self._control.snapshot, time.time(), self._host))))

    async def logs(self, request: Request) -> Response:
        engine, query = request.path_params["engine"], request.query_params
        count, words = _count(query.get("lines")), query.get("search", "").casefold()
        everything = LOG_BYTES  # no line is shorter than a byte
        wanted = everything if words or "download" in query else count
        async with self._log_readers:
            lines = await asyncio.to_thread(self._control.log_lines, engine, wanted, LOG_BYTES)
        if words:
            lines = [line for line in lines if words in line.casefold()]
        if "download" in query:
            attachment = {"Content-Disposition": f'attachment; filename="{engine}.log"'}
            return PlainTextResponse("".join(f"{line}\n" for line in lines), headers=attachment)
        return _json(_encode(LogLines(engine=engine, lines=lines[-count:])))

    # -- changes

    async def routing(self, request: Request) -> Response:
        name = request.path_params["name"]
        if request.method == "PATCH":
            return await self._routing_after(self._control.patch_routing(name, await _read_object(request)))

        def build(snapshot: Snapshot) -> bytes:
            return _encode(routing_state(snapshot.model(name), snapshot.counting_since))

        return _json(self._once.get(("routing", name), build))

    async def replica(self, request: Request) -> Response:
        name, command = request.path_params["name"], request.path_params["command"]
        replica = f"{request.path_params['engine']}/{request.path_params['rank']}"
        options = await _read_object(request, may_be_empty=True)
        if command == "restart":
            return _operation(await _result(self._control.restart(name, replica, options)), 202)
        commands = {"drain": self._control.drain, "undrain": self._control.undrain}
        if command not in commands:
            raise HTTPException(404, "a replica knows the commands drain, undrain and restart")
        return await self._routing_after(commands[command](name, replica, options))

    async def rolling_restart(self, request: Request) -> Response:
        options = await _read_object(request, may_be_empty=True)
        return _operation(await _result(self._control.rolling_restart(request.path_params["name"], options)), 202)

    async def operation(self, request: Request) -> Response:
        name = request.path_params["name"]
        if request.method == "DELETE":
            return _operation(await _result(self._control.cancel_restart(name)))
        return _operation(self._control.snapshot.model(name))

    async def _routing_after(self, change: Future[ModelSnapshot]) -> Response:
        model = await _result(change)
        return _json(_encode(routing_state(model, self._control.snapshot.counting_since)))


def make_app(control: Control, allowed_hosts: Sequence[str], *, host: str | None = None) -> Starlette:
    """The console as an ASGI application.

    Args:
        control: shown and changed.
        allowed_hosts: names under which a browser may reach it, besides loopback names and the bound address.
        host: what it is bound to, to say so if that is reachable from elsewhere; None: not known.
    """
    api = _Api(control, host)
    model = "/api/models/{name:path}"
    return Starlette(
        routes=[
            Route("/", api.page),
            Route("/metrics", api.metrics),
            Route("/api/checks", api.checks),
            Route("/api/engines", api.engines),
            Route("/api/engines/{engine}/logs", api.logs),
            Route("/api/models", api.models),
            Route(f"{model}/routing", api.routing, methods=["GET", "PATCH"]),
            Route(f"{model}/replicas/{{engine}}/{{rank}}/{{command}}", api.replica, methods=["POST"]),
            Route(f"{model}/rolling-restart", api.rolling_restart, methods=["POST"]),
            Route(f"{model}/operation", api.operation, methods=["GET", "DELETE"]),
            Route(model, api.model),
        ],
        middleware=[Middleware(Guard, allowed_hosts=allowed_hosts)],
        exception_handlers={
            HTTPException: _http_error,
            CommandError: _status(400),
            ConflictError: _status(409),
            UnknownModelError: _unknown_model,
            UnknownReplicaError: _status(404),
            UnknownEngineError: _status(404),
        },
    )


async def _result(change: Future[ModelSnapshot]) -> ModelSnapshot:
    """What the data loop answers."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(change), CHANGE_TIMEOUT_S)
    except TimeoutError:
        raise HTTPException(503, "the data loop did not answer; the change may still happen") from None


def _operation(model: ModelSnapshot, status: int = 200) -> Response:
    return _json(_encode(OperationAnswer(model.operation)), status)


def _count(text: str | None) -> int:
    if text is None:
        return USUAL_LOG_LINES
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and 1 <= int(text) <= MAX_LOG_LINES):
        raise HTTPException(400, f"lines: must be an integer from 1 to {MAX_LOG_LINES}, not {text!r:.40}")
    return int(text)


async def _read_object(request: Request, *, may_be_empty: bool = False) -> dict[str, Any]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body may have at most {MAX_BODY_BYTES} bytes")
    if may_be_empty and not body:
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, "the body must be a JSON object, not nested deeply") from None


def _encode(thing: msgspec.Struct) -> bytes:
    return msgspec.json.encode(thing)


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type="application/json")


def _error(status: int, sentence: str) -> Response:
    return _json(msgspec.json.encode({"error": sentence}), status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail)


def _status(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """A handler for errors whose text is a sentence for the caller."""

    async def answer(request: Request, error: Exception) -> Response:
        return _error(status, str(error))

    return answer


async def _unknown_model(request: Request, error: Exception) -> Response:
    return _error(404, "no model of that name is served; /api/models lists them")
