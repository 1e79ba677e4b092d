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
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lmwarden import __version__
from lmwarden.access.keys import KeyStore
from lmwarden.config import Config
from lmwarden.console import connect_api, conversations, requests, session, settings_api, static_files, stats
from lmwarden.console.answers import MAX_ITEMS, encode, error_answer, json_answer, number_of, read_object, result_of
from lmwarden.console.check_client import keyless
from lmwarden.console.checks import check_all
from lmwarden.console.engines import LogLines, engine_lines
from lmwarden.console.events import Events
from lmwarden.console.findings import Check
from lmwarden.console.guard import Guard, too_many
from lmwarden.console.keys_api import KeysApi
from lmwarden.console.metrics import CONTENT_TYPE, exposition
from lmwarden.console.overview import CachedShares, live_message
from lmwarden.console.session import SignIn, TooManyTriesError
from lmwarden.console.shapes import model_detail, model_lines, routing_state
from lmwarden.console.shared import SharedAnswers
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
from lmwarden.ledger.ledger import Ledger

USUAL_LOG_LINES = 200
LOG_BYTES = 4 << 20
"""End of an engine's log that is looked at."""
METRICS_PATH = "/metrics"
RETRY_AFTER_S = 5
"""What a caller is told to wait where the console cannot answer just now."""
LOG_READERS = 2
"""Logs read at the same time: each may hold those bytes a few times over."""


class Parts(NamedTuple):
    """What the console shows besides the control's snapshots."""

    config: Config
    client_port: int
    """Where agents are served, as it was bound."""
    ledger: Ledger
    keys: KeyStore
    speed: float = 1.0
    """Modelled seconds per second."""


class OperationAnswer(msgspec.Struct, frozen=True):
    """``/api/models/{name}/operation``."""

    operation: Operation | None


class Checks(msgspec.Struct, frozen=True):
    """``/api/checks``."""

    version: str
    checks: list[Check]


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

    def __init__(
        self,
        control: Control,
        host: str | None,
        shares: CachedShares,
        *,
        has_password: bool,
        parts: Parts | None,
    ) -> None:
        self._control = control
        self._host = host
        self._shares = shares
        self._has_password = has_password
        self._parts = parts
        self._once = _OncePerSnapshot(control)
        self._log_readers = asyncio.Semaphore(LOG_READERS)

    # -- reads

    async def models(self, request: Request) -> Response:
        return json_answer(self._once.get("models", lambda snapshot: encode(model_lines(snapshot))))

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]

        def build(snapshot: Snapshot) -> bytes:
            return encode(model_detail(snapshot.model(name), snapshot.counting_since))

        return json_answer(self._once.get(("model", name), build))

    async def overview(self, request: Request) -> Response:
        return json_answer(await self.live_message())

    async def live_message(self) -> bytes:
        """What ``/api/events`` tells of the latest snapshot."""
        await self._shares.refresh(model.name for model in self._control.snapshot.models)
        return self._once.get("live", lambda snapshot: encode(live_message(snapshot, self._shares.get)))

    async def engines(self, request: Request) -> Response:
        return json_answer(self._once.get("engines", lambda snapshot: encode(engine_lines(snapshot))))

    async def metrics(self, request: Request) -> Response:
        return Response(self._once.get("metrics", exposition), media_type=CONTENT_TYPE)

    async def checks(self, request: Request) -> Response:
        # Not kept: the age of the snapshot is one of the things to look at.
        return json_answer(encode(Checks(__version__, self._check_all())))

    def _check_all(self) -> list[Check]:
        snapshot, now, parts = self._control.snapshot, time.time(), self._parts
        client, keys = (None, None) if parts is None else (parts.config.client, parts.keys)
        return check_all(snapshot, now, self._host, has_password=self._has_password, client=client, keys=keys)

    async def logs(self, request: Request) -> Response:
        engine, query = request.path_params["engine"], request.query_params
        count = number_of(request, "lines", 1, MAX_ITEMS, USUAL_LOG_LINES)
        words = query.get("search", "").casefold()
        everything = LOG_BYTES  # no line is shorter than a byte
        wanted = everything if words or "download" in query else count
        async with self._log_readers:
            lines = await asyncio.to_thread(self._control.log_lines, engine, wanted, LOG_BYTES)
        if words:
            lines = [line for line in lines if words in line.casefold()]
        if "download" in query:
            attachment = {"Content-Disposition": f'attachment; filename="{engine}.log"'}
            return PlainTextResponse("".join(f"{line}\n" for line in lines), headers=attachment)
        return json_answer(encode(LogLines(engine=engine, lines=lines[-count:])))

    # -- changes

    async def routing(self, request: Request) -> Response:
        name = request.path_params["name"]
        if request.method == "PATCH":
            return await self._routing_after(self._control.patch_routing(name, await read_object(request)))

        def build(snapshot: Snapshot) -> bytes:
            return encode(routing_state(snapshot.model(name), snapshot.counting_since))

        return json_answer(self._once.get(("routing", name), build))

    async def replica(self, request: Request) -> Response:
        name, command = request.path_params["name"], request.path_params["command"]
        replica = f"{request.path_params['engine']}/{request.path_params['rank']}"
        options = await read_object(request, may_be_empty=True)
        if command == "restart":
            return _operation(await result_of(self._control.restart(name, replica, options)), 202)
        commands = {"drain": self._control.drain, "undrain": self._control.undrain}
        if command not in commands:
            raise HTTPException(404, "a replica knows the commands drain, undrain and restart")
        return await self._routing_after(commands[command](name, replica, options))

    async def rolling_restart(self, request: Request) -> Response:
        options = await read_object(request, may_be_empty=True)
        return _operation(await result_of(self._control.rolling_restart(request.path_params["name"], options)), 202)

    async def operation(self, request: Request) -> Response:
        name = request.path_params["name"]
        if request.method == "DELETE":
            return _operation(await result_of(self._control.cancel_restart(name)))
        return _operation(self._control.snapshot.model(name))

    async def _routing_after(self, change: Future[ModelSnapshot]) -> Response:
        model = await result_of(change)
        return json_answer(encode(routing_state(model, self._control.snapshot.counting_since)))


def make_app(
    control: Control,
    allowed_hosts: Sequence[str],
    *,
    host: str | None = None,
    sign_in: SignIn | None = None,
    open_metrics: bool = False,
    parts: Parts | None = None,
) -> Starlette:
    """The console as an ASGI application; ``state.events.close`` ends its streams.

    Args:
        control: shown and changed.
        allowed_hosts: names under which a browser may reach it, besides loopback names and the bound address.
        host: what it is bound to, to say so if that is reachable from elsewhere; None: not known.
        sign_in: asks for a password; None: there is none.
        open_metrics: ``/metrics`` is shown without it.
        parts: what else it shows; None: nothing else.
    """
    shares = CachedShares(parts.ledger.history.cached_ratio if parts is not None else None)
    api = _Api(control, host, shares, has_password=sign_in is not None, parts=parts)
    events = Events(control, api.live_message)
    page = static_files.routes()
    model = "/api/models/{name:path}"
    app = Starlette(
        routes=[
            *page,
            Route(METRICS_PATH, api.metrics),
            *session.routes(sign_in, parts.speed if parts is not None else 1.0),
            Route("/api/events", events.stream),
            Route("/api/overview", api.overview),
            Route("/api/checks", api.checks),
            Route("/api/engines", api.engines),
            Route("/api/engines/{engine}/logs", api.logs),
            *(_more(control, parts) if parts is not None else ()),
            Route("/api/models", api.models),
            Route(f"{model}/routing", api.routing, methods=["GET", "PATCH"]),
            Route(f"{model}/replicas/{{engine}}/{{rank}}/{{command}}", api.replica, methods=["POST"]),
            Route(f"{model}/rolling-restart", api.rolling_restart, methods=["POST"]),
            Route(f"{model}/operation", api.operation, methods=["GET", "DELETE"]),
            Route(model, api.model),
        ],
        middleware=[
            Middleware(
                Guard,
                allowed_hosts=allowed_hosts,
                sign_in=sign_in,
                open_paths=[route.path for route in page] + ([METRICS_PATH] if open_metrics else []),
            )
        ],
        exception_handlers={
            HTTPException: _http_error,
            TooManyTriesError: _too_many,
            CommandError: _status(400),
            ConflictError: _status(409),
            UnknownModelError: _unknown_model,
            UnknownReplicaError: _status(404),
            UnknownEngineError: _status(404),
        },
    )
    app.state.events = events
    return app


def _more(control: Control, parts: Parts) -> list[Route]:
    shared = SharedAnswers()
    return [
        *stats.routes(control, parts.ledger, speed=parts.speed),
        *shared.over((*requests.routes(parts.ledger), *conversations.routes(control, parts.ledger))),
        *KeysApi(
            parts.keys,
            parts.ledger,
            keyless(parts.config.client),
            lambda: [model.name for model in control.snapshot.models],
        ).routes(),
        *settings_api.routes(control, parts.config),
        *connect_api.routes(control, parts.config.client, parts.client_port, parts.ledger),
    ]


def _operation(model: ModelSnapshot, status: int = 200) -> Response:
    return json_answer(encode(OperationAnswer(model.operation)), status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 503:
        headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    return error_answer(error.status_code, error.detail, headers or None)


async def _too_many(request: Request, error: Exception) -> Response:
    assert isinstance(error, TooManyTriesError)
    return too_many(error)


def _status(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """A handler for errors whose text is a sentence for the caller."""

    async def answer(request: Request, error: Exception) -> Response:
        return error_answer(status, str(error))

    return answer


async def _unknown_model(request: Request, error: Exception) -> Response:
    return error_answer(404, "no model of that name is served; /api/models lists them")
