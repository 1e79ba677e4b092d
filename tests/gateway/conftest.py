"""Fixtures for the gateway: scripted engines behind a real gateway, raw sockets in front of it.

``Scene`` builds all of that; at its end it checks what must hold whatever happened: nothing is in flight, every
ticket was closed exactly once, no request body is still counted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httptools
import msgspec
import pytest
import uvloop
from tests.stub_engine import StubEngine
from tests.waiting import PATIENCE_S, turns, until

from lmwarden.gateway import Gateway, GatewaySettings, ServedModel
from lmwarden.gateway.prefix_watch import PrefixWatch
from lmwarden.types import (
    Action,
    ConversationView,
    Decision,
    Dispatch,
    EngineEndpoint,
    Grounds,
    Home,
    HomeChanges,
    KeyIdentity,
    Outcome,
    Refuse,
    RefuseReason,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    RequestRecord,
    RouterView,
    RoutingRequest,
    RoutingSettings,
    Ticket,
    Usage,
)

KEY = b"sk-test"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n"
USUAL_LIMITS = {"linger_s": PATIENCE_S, "ping_s": PATIENCE_S}
"""However slow its machine is, a test may send on after its answer, and its stream is as quiet as its engine."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that serves in production."""
    return {"uvloop": uvloop.new_event_loop}


class ScriptedRouter:
    """Sends each request where the test says, and keeps the books of the contract."""

    def __init__(self, engines: dict[str, int]) -> None:
        self.replicas = [ReplicaId(name, rank) for name, ranks in engines.items() for rank in range(ranks)]
        self.choose: Callable[[RoutingRequest], ReplicaId | str | RefuseReason | None] = self._first
        """A replica, an engine's name (unrouted), a refusal, or None: wait."""
        self.retry_at: ReplicaId | None = None
        """Where a request that failed before its response goes; None: nowhere."""
        self.offered: list[RoutingRequest] = []
        self.asked = asyncio.Event()
        """Something was offered."""
        self.open: dict[Ticket, RoutingRequest] = {}
        self.retried: set[Ticket] = set()
        self.first_bytes: list[Ticket] = []
        self.ends: dict[Ticket, tuple[Outcome, Usage | None]] = {}
        self.found: dict[Ticket, Grounds] = {}
        """What a decision was made on, where a test says it."""
        self.deadline: float | None = None
        self.at_tick: list[Action] = []
        self.also: list[Action] = []
        """For others, with the next offer."""

    def _first(self, request: RoutingRequest) -> ReplicaId:
        if request.engine is not None:
            return ReplicaId(request.engine, 0)
        return request.pin if request.pin is not None else self.replicas[0]

    def offer(self, request: RoutingRequest, now: float) -> tuple[Ticket, Sequence[Action]]:
        self.offered.append(request)
        self.asked.set()
        ticket = len(self.offered)
        choice = self.choose(request)
        if isinstance(choice, RefuseReason):
            self.ends[ticket] = (Outcome.REFUSED, None)
            return ticket, (Refuse(ticket, choice, 7),)
        self.open[ticket] = request
        also, self.also = self.also, []
        return ticket, (*also, *(() if choice is None else (self.dispatch(ticket, choice),)))

    def refuse(self, ticket: Ticket, reason: RefuseReason) -> tuple[Refuse]:
        """Refuse one that waits."""
        del self.open[ticket]
        self.ends[ticket] = (Outcome.REFUSED, None)
        return (Refuse(ticket, reason, 7),)

    def dispatch(self, ticket: Ticket, choice: ReplicaId | str) -> Dispatch:
        if isinstance(choice, ReplicaId):
            decision = Decision.CLIENT_PINNED if self.open[ticket].pin is not None else Decision.PLACED
            return Dispatch(ticket, choice, choice.engine, decision)
        return Dispatch(ticket, None, choice, Decision.UNROUTED)

    def failed_before_response(self, ticket: Ticket, now: float) -> Sequence[Action]:
        assert ticket in self.open
        if self.retry_at is None or ticket in self.retried:
            del self.open[ticket]
            self.ends[ticket] = (Outcome.REFUSED, None)
            return (Refuse(ticket, RefuseReason.RETRY_EXHAUSTED, 3),)
        self.retried.add(ticket)
        return (Dispatch(ticket, self.retry_at, self.retry_at.engine, Decision.REHOMED),)

    def first_byte(self, ticket: Ticket, now: float) -> None:
        assert ticket in self.open
        self.first_bytes.append(ticket)

    def finished(self, ticket: Ticket, outcome: Outcome, usage: Usage | None, now: float) -> Sequence[Action]:
        assert self.open.pop(ticket, None) is not None, "finished twice, or after the end"
        self.ends[ticket] = (outcome, usage)
        return ()

    def cancelled(self, ticket: Ticket, now: float) -> Sequence[Action]:
        assert self.open.pop(ticket, None) is not None, "cancelled twice, or after the end"
        self.ends[ticket] = (Outcome.CANCELLED, None)
        return ()

    def wants_opening(self, conversation: bytes) -> bool:
        return False

    def tick(self, now: float) -> Sequence[Action]:
        self.deadline = None
        actions, self.at_tick = self.at_tick, []
        return actions

    def next_deadline(self) -> float | None:
        return self.deadline

    def observe(self, replica: ReplicaId, sample: ReplicaSample, now: float) -> None: ...

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str, now: float) -> Sequence[Action]:
        return ()

    def replica_down(self, replica: ReplicaId, now: float) -> Sequence[Action]:
        return ()

    def drain(self, replica: ReplicaId, now: float) -> None: ...

    def undrain(self, replica: ReplicaId, now: float) -> None: ...

    def configure(self, settings: RoutingSettings, now: float) -> Sequence[Action]:
        return ()

    def view(self, now: float) -> RouterView:
        return RouterView(
            settings=RoutingSettings(),
            spill_threshold=8,
            spill_threshold_source="default",
            in_flight=len(self.open),
            waiting=0,
            decisions={},
            refused=0,
            sticky_ratio=None,
            conversations=0,
            replicas=(),
            balancer=None,
        )

    def export_homes(self) -> Sequence[Home]:
        return ()

    def take_home_changes(self) -> HomeChanges:
        return HomeChanges([], [])

    def restore_homes(self, homes: Iterable[Home], boot_ids: Mapping[ReplicaId, str], now: float) -> int:
        return 0

    def explain(self, ticket: Ticket) -> Any:
        raise KeyError(ticket)

    def grounds(self, ticket: Ticket) -> Grounds | None:
        return self.found.get(ticket)

    def conversations(self, now: float, most: int) -> Sequence[ConversationView]:
        return ()


class Keys:
    """One key, or none needed."""

    def __init__(self, required: bool) -> None:
        self.required = required
        self.revoked = False

    def check(self, credential: bytes) -> KeyIdentity | None:
        return KeyIdentity("tester", b"d" * 16) if credential == KEY and not self.revoked else None

    def still_good(self, key: KeyIdentity) -> KeyIdentity | None:
        return None if self.revoked else key


class Rows(list[RequestRecord]):
    """A request log in memory."""

    def record(self, record: RequestRecord) -> None:
        self.append(record)


@dataclass
class Response:
    """A response as a strict client reads it."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    taken: bytearray = field(default_factory=bytearray)
    complete: bool = False
    """Its framing came to its end."""
    closed: bool = False
    """The connection ended after it."""

    @property
    def body(self) -> bytes:
        return bytes(self.taken)

    def header(self, name: str) -> str | None:
        values = self.values(name)
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class _Collector:
    def __init__(self) -> None:
        self.done: list[Response] = []
        self.current = Response()
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self.current = Response()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.current.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.current.status = self.parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self.current.taken += piece

    def on_message_complete(self) -> None:
        self.current.complete = True
        if self.current.status != 100:
            self.done.append(self.current)


class Client:
    """A raw connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._collector = _Collector()
        self.received = bytearray()
        """Every byte that came."""

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def response(self) -> Response:
        """The next response: complete, or cut by the end of the connection."""
        while not self._collector.done:
            try:
                data = await asyncio.wait_for(self._reader.read(65536), PATIENCE_S)
            except ConnectionError:
                data = b""
            self.received += data
            if not data:
                self._collector.current.closed = True
                return self._collector.current
            self._collector.parser.feed_data(data)
        return self._collector.done.pop(0)

    async def until(self, text: bytes) -> None:
        """Read until these bytes have come."""
        while text not in self.received:
            data = await asyncio.wait_for(self._reader.read(65536), PATIENCE_S)
            assert data, f"closed before {text!r}; got {self.received!r}"
            self.received += data
            self._collector.parser.feed_data(data)

    async def rest(self) -> bytearray:
        """Read to the end of the connection."""
        while data := await asyncio.wait_for(self._reader.read(65536), PATIENCE_S):
            self.received += data
        return self.received

    def leave(self) -> None:
        self._writer.close()

    def finish_sending(self) -> None:
        """Close one side: no more comes from here."""
        self._writer.write_eof()

    async def closed(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass


def post(path: str, body: bytes | dict[str, Any], *lines: str, version: str = "1.1", key: bytes = KEY) -> bytes:
    """A request's bytes."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = [f"POST {path} HTTP/{version}", "Host: gateway", f"Content-Length: {len(data)}", *lines]
    if key:
        head.append(f"Authorization: Bearer {key.decode()}")
    return "\r\n".join((*head, "", "")).encode("latin-1") + data


def chat(**members: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **members}


@dataclass
class Scene:
    """Engines, gateway and its books."""

    gateway: Gateway
    engines: list[StubEngine]
    router: ScriptedRouter
    rows: Rows
    clients: list[Client] = field(default_factory=list)

    @property
    def engine(self) -> StubEngine:
        return self.engines[0]

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port, ssl=tls)
        client = Client(reader, writer)
        self.clients.append(client)
        return client

    async def ask(self, request: bytes) -> Response:
        """One request on a connection of its own."""
        client = await self.connect()
        await client.send(request)
        response = await client.response()
        client.leave()
        return response

    async def sweeps(self, count: int) -> None:
        """Wait until the gateway has looked at the clock so many times more."""
        for _ in range(count):
            await self._sweep()

    async def _sweep(self) -> None:
        due = self.gateway._sweep_timer
        await until(lambda: self.gateway._sweep_timer is not due)

    async def stands_still(self, sent: Callable[[], int]) -> None:
        """Wait until clients that do not read have stopped the gateway, and it what an engine has ``sent``."""

        async def stuck() -> bool:
            before = sent()
            await turns()
            return sent() == before > 0 and all(client.write_paused for client in self.gateway.connections)

        await until(stuck)

    async def at_rest(self) -> None:
        """Wait until no request is open, then check the books."""

        def held() -> tuple[object, ...]:
            gateway = self.gateway
            return self.router.open, gateway.exchanges, gateway._decoding.open, gateway.budget.held_bytes

        await until(lambda: not any(held()), lambda: f"in flight or held at rest: {held()}")
        assert len(self.router.ends) == len(self.router.offered) == len(self.rows)


SceneMaker = Callable[..., Any]


@pytest.fixture
def make_scene() -> SceneMaker:
    """``async with make_scene(...) as scene``."""

    @asynccontextmanager
    async def make(
        *,
        engines: int = 1,
        ranks: int = 1,
        required: bool = True,
        model: str = "m",
        engine_model: str = "m",
        aliases: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        ports: Sequence[int] = (),
        prefixes: PrefixWatch | None = None,
        **settings: Any,
    ) -> AsyncIterator[Scene]:
        async with AsyncExitStack() as stack:
            stubs = [await stack.enter_async_context(StubEngine()) for _ in range(0 if ports else engines)]
            endpoints = {
                f"e{number}": EngineEndpoint(
                    engine=f"e{number}",
                    host="127.0.0.1",
                    port=port,
                    ranks=ranks,
                    model=engine_model,
                    api_key="engine-key",
                )
                for number, port in enumerate(ports or [stub.port for stub in stubs])
            }
            router = ScriptedRouter(dict.fromkeys(endpoints, ranks))
            rows = Rows()
            served = ServedModel(
                name=model,
                router=router,
                engines=endpoints,
                identity_secret=b"s" * 32,
                aliases=aliases,
                max_model_len=4096,
            )
            limits = GatewaySettings(**(USUAL_LIMITS | settings))
            gateway = Gateway([served], Keys(required), rows, limits, prefixes=prefixes)
            await gateway.start("127.0.0.1", 0, ssl=tls)
            scene = Scene(gateway, stubs, router, rows)
            try:
                yield scene
                await scene.at_rest()
            finally:
                for client in scene.clients:
                    await client.closed()
                await gateway.stop(0)

    return make
