"""The gateway: listens, holds what its connections share, and answers what needs no engine.

Everything here runs on one event loop; other threads only call ``snapshot``. A sweep once a second looks at all
time limits, so that no request arms a timer of its own.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Sequence

from lmwarden.gateway import envelope, intake
from lmwarden.gateway import request as client_request
from lmwarden.gateway.body_decoding import BodyDecoding
from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.client_side import ClientConnection
from lmwarden.gateway.connection_limit import limit_for
from lmwarden.gateway.counters import GatewaySnapshot
from lmwarden.gateway.driver import HeldRequest
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.exchange import Exchange
from lmwarden.gateway.models import ModelNames, is_glob, listing
from lmwarden.gateway.outbox import Outbox
from lmwarden.gateway.prefix_watch import PrefixWatch
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.routes import Local
from lmwarden.gateway.scope import may_use
from lmwarden.gateway.serving import ModelService
from lmwarden.gateway.settings import Authenticator, GatewaySettings, RequestLog, ServedModel
from lmwarden.gateway.tls_port import Listening, open_tls_port
from lmwarden.types import Action, Clock, KeyIdentity, ReplicaState

_READ_BUFFER_BYTES = 16 * 1024
"""A read of nothing but the shortest requests has 450 of them, which take a few milliseconds. Bodies have buffers of
their own."""
_BACKLOG = 4096


class Gateway:
    """The data plane. ``start`` it on the data loop; ``stop`` it there too."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        authenticator: Authenticator,
        request_log: RequestLog,
        settings: GatewaySettings | None = None,
        clock: Clock = time.monotonic,
        prefixes: PrefixWatch | None = None,
    ) -> None:
        """
        Args:
            models: What is served; names must differ.
            clock: Monotonic seconds, modelled ones under ``--speed``.
            prefixes: Looks at prompts beside; started and stopped by the caller. None: nobody does.

        Raises:
            ValueError: two models share a name or an exact alias.
        """
        if len({model.name for model in models}) != len(models):
            raise ValueError("two served models have the same name")
        self.settings = settings if settings is not None else GatewaySettings()
        self.clock = clock
        self.request_log = request_log
        self.prefixes = prefixes
        self.budget = BufferBudget(self.settings.max_buffered_bytes)
        self.read_buffer = memoryview(bytearray(_READ_BUFFER_BYTES))
        self.connections: set[ClientConnection] = set()
        self.connection_limit = limit_for(self.settings.max_connections, self.settings.max_connections_per_peer)
        self.exchanges: set[Exchange] = set()
        self.outbox: Outbox
        self.draining = False
        self._own_answers: Counter[tuple[int, str]] = Counter()
        self._drained = asyncio.Event()
        self._served = list(models)
        self._authenticator = authenticator
        self._services: dict[str, ModelService] = {}
        self._names: ModelNames[ModelService] = ModelNames({}, {})
        self._decoding = BodyDecoding(self.settings, self.budget, self.begin, self.check_drained)
        self._server: Listening | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._listing = b""
        self._max_model_len = {served.name: served.max_model_len for served in self._served}
        self._host = ""
        # Fail early on clashing aliases, before there is a loop.
        ModelNames({model.name: model for model in models}, {model.name: model.aliases for model in models})

    # -- life -----------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port that is listened on.

        Raises:
            RuntimeError: not started.
        """
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the gateway is not listening")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(
        self, host: str, port: int, ssl: ssl.SSLContext | None = None, *, serve_at_once: bool = True
    ) -> None:
        """Take the port. Port 0 takes a free one.

        Args:
            host: address.
            port: number.
            ssl: with TLS.
            serve_at_once: accept connections; else ``serve`` does.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._host = host
        self.outbox = Outbox(loop)
        self._services = {
            served.name: ModelService(served, self.settings, self.clock, loop, self.outbox) for served in self._served
        }
        self._names = ModelNames(self._services, {served.name: served.aliases for served in self._served})
        self._listing = self._list()
        if ssl is not None:
            self._server = await open_tls_port(self, ssl, host, port, _BACKLOG)
        else:
            self._server = await loop.create_server(
                lambda: ClientConnection(self), host, port, backlog=_BACKLOG, start_serving=False
            )
        if serve_at_once:
            await self.serve()
        self._sweep_timer = loop.call_later(self.settings.sweep_s, self._sweep)

    async def serve(self) -> None:
        """Accept connections from now on."""
        assert self._server is not None
        await self._server.start_serving()

    async def stop(self, drain_s: float) -> None:
        """Refuse new requests with 503, let open ones finish for up to ``drain_s`` real seconds, then close."""
        self.draining = True
        for connection in list(self.connections):
            connection.shutdown()
        self.check_drained()
        try:
            await asyncio.wait_for(self._drained.wait(), drain_s)
        except TimeoutError:
            pass  # what is still open is ended here
        for service in self._services.values():
            service.driver.close()
        for exchange in sorted(self.exchanges, key=lambda exchange: not exchange.waits):
            exchange.stop()  # those in a waiting room first: the ends of the others would let them out
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.shutdown()
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.abort()
        await self._decoding.close()
        for service in self._services.values():
            for pool in service.pools.values():
                await pool.close()
        await asyncio.sleep(0)

    # -- for other rooms ------------------------------------------------------------------------------------

    def perform(self, model: str, actions: Sequence[Action]) -> None:
        """Carry out actions that another room's call to the model's router returned. On the data loop."""
        self._services[model].driver.perform(actions)

    def engine_lost(self, model: str, engine: str) -> None:
        """The engine's process is known to be dead, or its boot id changed: its open requests will not be answered.

        Call it after the router was told. Requests with no byte at their client go elsewhere; others are cut.
        """
        self.engine_restarted(model, engine)
        for exchange in [exchange for exchange in self.exchanges if exchange.service is self._services[model]]:
            exchange.engine_lost(engine)

    def engine_restarted(self, model: str, engine: str) -> None:
        """Another run of the engine answers: what the old one kept is gone. Part of ``engine_lost``.

        Call it where a restart is seen whose open requests have ended by themselves.
        """
        service = self._services[model]
        service.pools[engine].drop_idle()
        service.responses.forget(engine)
        service.runs[engine] += 1

    def last_heard(self, model: str, engine: str) -> float | None:
        """Loop time after which the engine sent bytes of an answer for sure; None: it never did.

        Up to two sweeps older than the truth, never newer.
        """
        return self._services[model].pools[engine].last_heard

    def pin_honoured(self, model: str, engine: str, path: str, honoured: bool) -> None:
        """The engine was seen to obey a named rank on this path (``/v1/messages``), or not to.

        While one of a model's engines does not, no request on that path names a rank: it is ``unrouted``.
        """
        self._services[model].pin_honoured(engine, path, honoured)

    def held(self, model: str) -> list[HeldRequest]:
        """What stands in the model's waiting room, the oldest first. On the data loop."""
        return self._services[model].held()

    def describe(self, model: str, max_model_len: int | None) -> None:
        """The model's context window has become known, or has changed: the listing follows."""
        if self._max_model_len[model] != max_model_len:
            self._max_model_len[model] = max_model_len
            self._listing = self._list()

    def snapshot(self) -> dict[str, GatewaySnapshot]:
        """Every model's counters, by name. May be called from another thread."""
        return {
            name: service.counters.snapshot(
                open_exchanges=service.driver.open_tickets,
                buffered_bytes=self.budget.held_bytes,
                client_connections=len(self.connections),
                unread_prompts=self.prefixes.dropped if self.prefixes is not None else 0,
            )
            for name, service in self._services.items()
        }

    def own_answers(self) -> dict[tuple[int, str], int]:
        """How many requests were refused before a router knew them, by status and kind: they have no row.

        May be called from another thread.
        """
        return dict(self._own_answers)

    def check_drained(self) -> None:
        """An exchange or a decoding ended, or draining began: is it the last?"""
        if self.draining and not self.exchanges and not self._decoding.open:
            self._drained.set()

    # -- for the client connections -------------------------------------------------------------------------

    def examine(self, request: ClientRequest) -> Problem | None:
        """Judge a request by its head."""
        return client_request.examine(request, self._authenticator, self.settings.max_body_bytes, self._host)

    def check_key(self, request: ClientRequest) -> Problem | None:
        """Check the key of a request whose head was judged before."""
        return client_request.check_key(request, self._authenticator)

    def begin(self, connection: ClientConnection, request: ClientRequest) -> None:
        """Answer a complete request, now or later."""
        route, problem = request.route, request.problem
        try:
            if problem is None:
                assert route is not None  # else it had one
                if route.local is not None:
                    self._answer_locally(connection, request, route.local)
                    return
                if self.draining:
                    problem = envelope.DRAINING
                    request.close = True
                elif request.coding:
                    if not self._decoding.decode(connection, request):
                        return
                    problem = request.problem
            if problem is None and route is not None:
                problem = intake.take(self, self._names, connection, request, route)
                if problem is None:
                    return
        except Exception as error:  # whatever it is, nothing of the request may stay behind
            asyncio.get_running_loop().call_exception_handler({"message": "a request met a fault", "exception": error})
            if connection.answering is not None:
                connection.abort()  # who answers it ends with its client
                return
            problem = envelope.OUR_FAULT
            request.close = True
        assert problem is not None
        self._own_answers[problem.status, problem.kind] += 1
        self._free(request)
        head_only = request.method == b"HEAD"
        response = envelope.render(problem, request.api, close=request.close, head_only=head_only)
        connection.answer(response, request)
        self.check_drained()

    def _list(self, key: KeyIdentity | None = None) -> bytes:
        return listing(
            [
                (name, self._max_model_len[served.name])
                for served in self._served
                if may_use(key, served.name)
                for name in (served.name, *(alias for alias in served.aliases if not is_glob(alias)))
            ]
        )

    def _answer_locally(self, connection: ClientConnection, request: ClientRequest, local: Local) -> None:
        self._free(request)
        status, body = 200, b""
        if local is Local.MODELS:
            body = self._listing if request.key is None or request.key.models is None else self._list(request.key)
        elif local is Local.HEALTH:
            body = b'{"status":"ok"}'
        elif local is Local.READY:
            ready = not self.draining and any(map(self._is_ready, self._services.values()))
            status, body = (200, b'{"status":"ready"}') if ready else (503, b'{"status":"not ready"}')
        head = envelope.head(status, content_type=b"application/json", length=len(body), close=request.close)
        connection.answer(head + body, request)

    def _is_ready(self, service: ModelService) -> bool:
        view = service.driver.router.view(self.clock())
        return any(replica.state is ReplicaState.READY for replica in view.replicas)

    def _free(self, request: ClientRequest) -> None:
        """The body of a request that goes nowhere."""
        if request.body:
            self.budget.give_back(len(request.body))
            request.body = b""

    def _sweep(self) -> None:
        self._sweep_timer = asyncio.get_running_loop().call_later(self.settings.sweep_s, self._sweep)
        for exchange in list(self.exchanges):
            exchange.sweep()
        for connection in list(self.connections):
            connection.sweep()
        for service in self._services.values():
            service.driver.rearm()
            for pool in service.pools.values():
                pool.sweep()
