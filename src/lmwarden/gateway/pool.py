"""The connections to one engine.

The pool hands out the connection that was used last, and closes what has been idle for a few seconds: a shorter
time than the engine's own, because a request that meets the engine's close is lost on the way. Where none is idle, a
task opens one; whoever asked for it cancels that task when it wants the connection no more, so that none arrives late.

The pool also knows two things about its engine that only traffic can tell: when it was heard last, and, on request,
whether anybody listens on its port.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

import msgspec

from lmwarden.gateway.outbox import Outbox
from lmwarden.gateway.settings import GatewaySettings
from lmwarden.gateway.upstream import UpstreamConnection
from lmwarden.types import OUR_OWN_LACK, EngineEndpoint

_MOST_PROBES = 4
"""Something that takes connections and closes them at once is no dying process."""


class PoolUser(Protocol):
    """An exchange, as the pool sees it."""

    def connected(self, connection: UpstreamConnection) -> None:
        """Here is the connection: send."""
        ...

    def connect_failed(self) -> None:
        """There is none."""
        ...

    def cannot_connect(self) -> None:
        """There is none, for want of something of our own: other engines would not help."""
        ...

    def nobody_listens(self) -> None:
        """A ``probe`` found that the engine's port refuses connections."""
        ...


class _ProbeConnection(asyncio.Protocol):
    """Says nothing and waits for its end."""

    def __init__(self, closed: asyncio.Future[None]) -> None:
        self._closed = closed

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


class EnginePool:
    """One engine's connections. Implements ``ConnectionHome``."""

    def __init__(
        self, endpoint: EngineEndpoint, settings: GatewaySettings, loop: asyncio.AbstractEventLoop, outbox: Outbox
    ) -> None:
        self.endpoint = endpoint
        self.outbox = outbox
        self._settings = settings
        self._loop = loop
        self._idle: list[UpstreamConnection] = []
        self.connections: set[UpstreamConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context() if endpoint.tls else None
        self.heard = False
        """Bytes of an answer came since the last sweep. An answer says so at its end, and one that goes on in the sweep
        of its exchange: nothing is noted for each read."""
        self._heard_at: float | None = None
        self._swept_at = loop.time()
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        key = f"Authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
        self.fixed_lines = f" HTTP/1.1\r\nHost: {host}:{endpoint.port}\r\n{key}".encode()
        """What follows the target in every request to this engine."""
        self.raw_model = msgspec.json.encode(endpoint.model)
        """The model's name as it stands in a request body."""
        self.base_path = endpoint.base_path.encode()
        self.rank_lines = (
            tuple(b"X-data-parallel-rank: %d\r\n" % rank for rank in range(endpoint.ranks))
            if endpoint.ranks > 1
            else ()
        )
        """By rank; empty for a single-rank engine, which gets none."""

    @property
    def last_heard(self) -> float | None:
        """Loop time after which bytes of an answer came for sure; None: never.

        Up to two sweeps older than the truth and never newer, because only sweeps look at the clock.
        """
        return self._swept_at if self.heard else self._heard_at

    def acquire(self, user: PoolUser, *, fresh: bool) -> asyncio.Task[None] | None:
        """Give the user a connection: an idle one now (unless ``fresh``), else a new one later.

        Returns:
            The task that opens a new one. Cancelled, it does not call the user.
        """
        while self._idle and not fresh:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                user.connected(connection)
                return None
        return self._start(self._connect(user))

    def probe(self, user: PoolUser) -> asyncio.Task[None]:
        """Find out whether nobody listens on the engine's port, and then tell the user.

        A dying process closes its connections and its listener in any order, a moment apart. So a connection that was
        taken is kept, and if it closes, the next one is tried.

        Returns:
            The task that does. It is for the user to end it; cancelled, it does not call.
        """
        return self._start(self._probe(user))

    def put(self, connection: UpstreamConnection) -> None:
        """Take a free connection back."""
        if len(self._idle) >= self._settings.max_idle_per_engine:
            connection.transport.close()
        else:
            connection.idle_sweeps = 0
            self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if connection.user is None and connection in self._idle:
            self._idle.remove(connection)

    def sweep(self) -> None:
        """Close connections that have been idle for too long, and look at the clock."""
        limit = self._settings.engine_idle_s / self._settings.sweep_s
        for connection in self._idle:
            connection.idle_sweeps += 1
        while self._idle and self._idle[0].idle_sweeps > limit:
            self._idle.pop(0).transport.close()
        if self.heard:
            self.heard = False
            self._heard_at = self._swept_at
        self._swept_at = self._loop.time()

    def drop_idle(self) -> None:
        """Close all idle connections: the engine restarted or is gone."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.transport.abort()

    async def close(self) -> None:
        """Close everything."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.transport.abort()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, user: PoolUser) -> None:
        endpoint = self.endpoint
        try:
            async with asyncio.timeout(self._settings.connect_s):
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self), endpoint.host, endpoint.port, ssl=self._tls
                )
        except (OSError, UnicodeError) as error:  # refused, unreachable, no such host or name, TLS failure, time-out
            if isinstance(error, OSError) and error.errno in OUR_OWN_LACK:
                user.cannot_connect()
            else:
                user.connect_failed()
            return
        if connection.transport.is_closing():  # within the turn that it took to get here; nothing was sent
            user.connect_failed()
        else:
            user.connected(connection)

    async def _probe(self, user: PoolUser) -> None:
        for _ in range(_MOST_PROBES):
            closed = self._loop.create_future()
            try:
                async with asyncio.timeout(self._settings.connect_s):
                    transport, _ = await self._loop.create_connection(
                        partial(_ProbeConnection, closed), self.endpoint.host, self.endpoint.port
                    )
            except ConnectionRefusedError:
                user.nobody_listens()
                return
            except ConnectionError:  # reset while it was made: the listener is closing
                continue
            except (OSError, UnicodeError):  # no way there, or no answer: that says nothing about the process
                return
            try:
                await closed
            finally:
                transport.abort()
