"""A control over a real router and no network, for the tests of control and console."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tests.waiting import PATIENCE_S

from lmwarden.config import Flag, load
from lmwarden.control import Control, ModelHandle
from lmwarden.engine.client import EngineClient
from lmwarden.engine.launch_state import EnginePhase, LaunchState
from lmwarden.engine.pins import PinReport
from lmwarden.engine.watch import EngineWatch
from lmwarden.gateway.counters import ModelCounters
from lmwarden.gateway.driver import HeldRequest
from lmwarden.routing.router import Router
from lmwarden.types import (
    Action,
    Decision,
    Dispatch,
    EngineEndpoint,
    Outcome,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    RoutingRequest,
    RoutingSettings,
    Usage,
)


def launched(phase: EnginePhase = EnginePhase.RUNNING, **facts: Any) -> LaunchState:
    """What a supervisor says of a process."""
    usual: dict[str, Any] = {
        "detail": "it serves.",
        "step": None,
        "progress_ratio": None,
        "since": time.time(),
        "pid": 100,
        "restarts": 0,
        "exit_status": None,
        "last_lines": (),
        "taken_over": False,
        "outdated": False,
        "command": "vllm serve org/model",
        "log": "/data/engines/e0.log",
    }
    return LaunchState(phase=phase, **usual | facts)


class FakeEngine:
    """A launched engine whose restart ends when the test says so."""

    def __init__(self, engine: str, log_path: Path | None = None) -> None:
        self.engine = engine
        self.launched = True
        self.log_path = log_path
        self.told: LaunchState | None = launched()
        self.restarts = 0
        self.asked = asyncio.Event()
        """Its restart was asked for."""
        self.process_runs = asyncio.Event()
        """Set: the new process runs, so a restart returns."""
        self.trouble: Exception | None = None

    def state(self) -> LaunchState | None:
        return self.told

    def becomes(self, phase: EnginePhase, **changes: Any) -> None:
        assert self.told is not None
        self.told = msgspec.structs.replace(self.told, phase=phase, since=time.time(), **changes)

    async def restart(self) -> None:
        self.restarts += 1
        self.asked.set()
        await self.process_runs.wait()
        if self.trouble is not None:
            raise self.trouble
        assert self.told is not None and self.told.pid is not None
        self.becomes(EnginePhase.STARTING, pid=self.told.pid + 1)


class Scene:
    """One model with the given engines (usually one of two ranks). Made on a running loop; the watches are only read,
    they never look."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        name: str = "org/model",
        *,
        engines: Mapping[str, int] | None = None,
        handles: Sequence[FakeEngine] = (),
        drain_s: float = 60.0,
    ) -> None:
        ranks = {"e0": 2} if engines is None else engines
        self.router = Router(RoutingSettings(), engines=ranks)
        self.counters = ModelCounters()
        self.carried_out: list[Action] = []
        self.dropped_rows = 0
        self.ledger_trouble: str | None = None
        self.held: list[HeldRequest] = []
        """What stands in the waiting room, by the gateway's word."""
        self.kept_settings: list[tuple[str, dict[str, Any]]] = []
        settings = load(None, [Flag("--engine", ("models",), [{"engine": {"attach": ["http://h:1"]}}])]).watch
        self.watches = []
        for engine, count in ranks.items():
            endpoint = EngineEndpoint(
                engine=engine, host="h", port=1, ranks=count, model="m", api_key="sk-engine-secret"
            )
            client = EngineClient(endpoint, session, 1.0)
            self.watches.append(EngineWatch(endpoint, client, self, settings=settings, clock=time.monotonic))
        self.watch = self.watches[0]
        self.all_up()
        handle = ModelHandle(
            name=name,
            aliases=("claude-*",),
            max_model_len=32768,
            router=self.router,
            carry_out=self.carry_out,
            watches=tuple(self.watches),
            urls=dict.fromkeys(ranks, "http://h:1"),
            versions=dict.fromkeys(ranks, "0.32.0"),
            engines=tuple(handles),
            held=lambda: self.held,
        )
        self.control = Control(
            [handle],
            clock=time.monotonic,
            counters=lambda: {name: self.counters.snapshot(open_exchanges=0, buffered_bytes=0, client_connections=0)},
            dropped_rows=lambda: self.dropped_rows,
            ledger_trouble=lambda: self.ledger_trouble,
            drain_s=drain_s,
            on_settings=lambda model, changes: self.kept_settings.append((model, dict(changes))),
        )

    def all_up(self, *engines: str, boot_id: str = "boot-1") -> None:
        """These engines' replicas (none named: all) come up."""
        for watch in self.watches:
            if not engines or watch.endpoint.engine in engines:
                for replica in watch.replicas:
                    self.replica_up(replica, ReplicaCapacity(kv_cache_tokens=42000, max_num_seqs=32), boot_id)

    def all_down(self, *engines: str) -> None:
        """These engines' replicas go."""
        for watch in self.watches:
            if watch.endpoint.engine in engines:
                for replica in watch.replicas:
                    self.replica_down(replica)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop run, snapshot after snapshot, until something holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0)
                self.refresh()

    def refresh(self) -> None:
        """What the control does once a second."""
        self.control.take()

    def turn(self, conversation: bytes, *, finish: bool = True) -> Dispatch:
        """One request of a conversation."""
        ticket, (action,) = self.router.offer(RoutingRequest(conversation=conversation), time.monotonic())
        assert isinstance(action, Dispatch)
        if finish:
            usage = Usage(prompt_tokens=100, cached_tokens=60, completion_tokens=7)
            self.router.first_byte(ticket, time.monotonic())
            self.router.finished(ticket, Outcome.OK, usage, time.monotonic())
            self.counters.ended(Decision(action.decision), Outcome.OK, 0.3, usage)
        return action

    def carry_out(self, actions: Sequence[Action]) -> None:
        """The driver's side."""
        self.carried_out.extend(actions)

    def observe(self, replica: ReplicaId, sample: ReplicaSample) -> None:
        """The watch's news."""
        self.router.observe(replica, sample, time.monotonic())

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str) -> None:
        """The watch's news."""
        self.router.replica_up(replica, capacity, boot_id, time.monotonic())

    def engine_lost(self, engine: str) -> None:
        """The watch's news; there is no gateway here."""

    def pins(self, engine: str, path: str, report: PinReport) -> None:
        """The watch's news; there is no gateway here."""

    def replica_down(self, replica: ReplicaId) -> None:
        """The watch's news."""
        self.router.replica_down(replica, time.monotonic())


MODEL = "/api/models/org/model"
ROUTING = f"{MODEL}/routing"


class Console:
    """A running console and a client for it."""

    def __init__(self, scene: Scene, session: aiohttp.ClientSession, url: str) -> None:
        self.scene = scene
        self.session = session
        self.url = url

    async def post(self, path: str, status: int, body: Any = None, **headers: str) -> Any:
        """A command; ``path`` is below the model."""
        return await self.ask("POST", f"{MODEL}/{path}", status, body, **headers)

    async def ask(self, method: str, path: str, status: int, body: Any = None, **headers: str) -> Any:
        """Anything that needs the content type of a change."""
        data = b"" if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} | headers
        async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
            answer = await response.read()
            assert response.status == status, answer
            return msgspec.json.decode(answer) if answer else None

    async def get(self, path: str, status: int = 200) -> Any:
        async with self.session.get(self.url + path) as response:
            assert response.status == status
            return await response.json()

    async def patch(self, body: Any, status: int, **headers: str) -> Any:
        async with self.session.patch(self.url + ROUTING, json=body, headers=headers) as response:
            assert response.status == status
            return await response.json()
