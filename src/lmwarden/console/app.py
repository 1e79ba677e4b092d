"""The console's routes. Reads show the latest snapshot; the one change goes through the control.

Answers are serialised once per snapshot, however many viewers there are: the bytes are kept until the next
snapshot replaces them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lmwarden.console.guard import Guard
from lmwarden.console.metrics import CONTENT_TYPE, exposition
from lmwarden.console.shapes import model_detail, model_lines, routing_state
from lmwarden.control import Control, SettingsError, Snapshot, UnknownModelError

MAX_BODY_BYTES = 65536
"""Of a change; the largest legal one is below 200 bytes."""
CHANGE_TIMEOUT_S = 10.0
"""The data loop answers within milliseconds; beyond this it is stuck, and we say so."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>LM Warden</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:3em auto;padding:0 1em}</style></head>
<body><h1>LM Warden</h1>
<p>This version has no console page yet. What it would show is here as data:</p>
<ul><li><a href="/api/models">/api/models</a>: the models that are served;
<code>/api/models/NAME</code> and <code>/api/models/NAME/routing</code> for one of them</li>
<li><a href="/metrics">/metrics</a>: for Prometheus</li></ul>
<p>Routing is changed with <code>PATCH /api/models/NAME/routing</code>, from this machine.</p>
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

    def __init__(self, control: Control) -> None:
        self._control = control
        self._once = _OncePerSnapshot(control)

    async def page(self, request: Request) -> Response:
        return HTMLResponse(_PAGE)

    async def models(self, request: Request) -> Response:
        return _json(self._once.get("models", lambda snapshot: _encode(model_lines(snapshot))))

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]

        def build(snapshot: Snapshot) -> bytes:
            return _encode(model_detail(snapshot.model(name), snapshot.counting_since))

        return _json(self._once.get(("model", name), build))

    async def routing(self, request: Request) -> Response:
        name = request.path_params["name"]
        if request.method == "PATCH":
            return await self._patch_routing(name, request)

        def build(snapshot: Snapshot) -> bytes:
            return _encode(routing_state(snapshot.model(name), snapshot.counting_since))

        return _json(self._once.get(("routing", name), build))

    async def metrics(self, request: Request) -> Response:
        return Response(self._once.get("metrics", exposition), media_type=CONTENT_TYPE)

    async def _patch_routing(self, name: str, request: Request) -> Response:
        changes = await _read_object(request)
        future = self._control.patch_routing(name, changes)
        try:
            model = await asyncio.wait_for(asyncio.wrap_future(future), CHANGE_TIMEOUT_S)
        except TimeoutError:
            raise HTTPException(503, "the data loop did not answer; the change may still happen") from None
        return _json(_encode(routing_state(model, self._control.snapshot.counting_since)))


def make_app(control: Control, allowed_hosts: Sequence[str]) -> Starlette:
    """The console as an ASGI application."""
    api = _Api(control)
    return Starlette(
        routes=[
            Route("/", api.page),
            Route("/metrics", api.metrics),
            Route("/api/models", api.models),
            Route("/api/models/{name:path}/routing", api.routing, methods=["GET", "PATCH"]),
            Route("/api/models/{name:path}", api.model),
        ],
        middleware=[Middleware(Guard, allowed_hosts=allowed_hosts)],
        exception_handlers={
            HTTPException: _http_error,
            SettingsError: _settings_error,
            UnknownModelError: _unknown_model,
        },
    )


async def _read_object(request: Request) -> dict[str, Any]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body may have at most {MAX_BODY_BYTES} bytes")
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


async def _settings_error(request: Request, error: Exception) -> Response:
    return _error(400, str(error))


async def _unknown_model(request: Request, error: Exception) -> Response:
    return _error(404, "no model of that name is served; /api/models lists them")
