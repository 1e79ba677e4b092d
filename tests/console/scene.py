"""A control over a real router and no network, for the tests of control and console."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from lmwarden.config import Flag, load
from lmwarden.control import Control, ModelHandle
from lmwarden.engine.client import EngineClient
from lmwarden.engine.watch import EngineWatch
from lmwarden.gateway.counters import ModelCounters
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


class Scene:
    """One model with one engine of two ranks. Made on a running loop; the watch is only read, it never looks."""

    def __init__(self, session: aiohttp.ClientSession, name: str = "org/model") -> None:
        self.router = Router(RoutingSettings(), engines={"e0": 2})
        self.counters = ModelCounters()
        self.carried_out: list[Action] = []
        self.dropped_rows = 0
        endpoint = EngineEndpoint(engine="e0", host="h", port=1, ranks=2, model="m", api_key="sk-engine-secret")
        client = EngineClient(endpoint, session, 1.0)
        settings = load(None, [Flag("--engine", ("models",), [{"engine": {"attach": ["http://h:1"]}}])]).watch
        self.watch = EngineWatch(endpoint, client, self, settings=settings, clock=time.monotonic)
        for replica in self.watch.replicas:
            self.replica_up(replica, ReplicaCapacity(kv_cache_tokens=42000, max_num_seqs=32), "boot-1")
        handle = ModelHandle(
            name=name,
            aliases=("claude-*",),
            max_model_len=32768,
            router=self.router,
            carry_out=self.carry_out,
            watches=(self.watch,),
            urls={"e0": client.url},
            versions={"e0": "0.32.0"},
        )
        self.control = Control(
            [handle],
            clock=time.monotonic,
            counters=lambda: {name: self.counters.snapshot(open_exchanges=0, buffered_bytes=0, client_connections=0)},
            dropped_rows=lambda: self.dropped_rows,
        )

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

    def replica_down(self, replica: ReplicaId) -> None:
        """The watch's news."""
        self.router.replica_down(replica, time.monotonic())


ROUTING = "/api/models/org/model/routing"


class Console:
    """A running console and a client for it."""

    def __init__(self, scene: Scene, session: aiohttp.ClientSession, url: str) -> None:
        self.scene = scene
        self.session = session
        self.url = url

    async def get(self, path: str, status: int = 200) -> Any:
        async with self.session.get(self.url + path) as response:
            assert response.status == status
            return await response.json()

    async def patch(self, body: Any, status: int, **headers: str) -> Any:
        async with self.session.patch(self.url + ROUTING, json=body, headers=headers) as response:
            assert response.status == status
            return await response.json()
