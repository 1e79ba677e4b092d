"""Engines that come, go and misbehave at random under clients that come, go and misbehave at random.

Whatever happens: every request is accounted for once, none runs twice at a time, an answer that looks whole is whole,
nothing is held in the end, and no callback raised.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
from tests.gateway.conftest import Scene, SceneMaker, chat, post
from tests.gateway.engine_process import DONE, event
from tests.stub_engine import STREAM_HEAD, Peer, Seen, StubEngine, chunk, head

from lmwarden.types import Outcome, ReplicaId, RoutingRequest

ENGINES = 3
REQUESTS = 250
AT_ONCE = 25
PIECES = 6
KINDS = ["whole"] * 6 + ["close", "reset", "head", "half", "busy", "mute", "closes", "orphan", "orphan"]
"""What an engine does with a request. ``orphan``: it closes a fresh connection and works on."""


class Stage:
    """One run: what the engines do, and what was seen."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.random = random.Random(seed)
        self.running: dict[str, Seen] = {}
        """By request: where it runs, as far as its engine knows."""
        self.twice: list[str] = []
        self.used: set[tuple[StubEngine, int]] = set()
        """Connections that carried a request."""
        self.ends: Counter[str] = Counter()

    def choose(self, request: RoutingRequest) -> ReplicaId:
        self.scene.router.retry_at = ReplicaId(f"e{self.random.randrange(ENGINES)}", 0)
        return ReplicaId(f"e{self.random.randrange(ENGINES)}", 0)

    async def act(self, engine: StubEngine, peer: Peer, seen: Seen) -> None:
        """What an engine does with a request."""
        name = json.loads(seen.body)["name"]
        for _ in range(3):  # what has just been cancelled ends first
            await asyncio.sleep(0)
        other = self.running.get(name)
        if other is not None and not other.dropped.is_set():
            self.twice.append(name)
        self.running[name] = seen
        kind = self.random.choice(KINDS)
        fresh = (engine, seen.connection) not in self.used
        self.used.add((engine, seen.connection))
        last = b"Connection: close\r\n" if kind == "closes" else b""
        try:
            if kind == "busy":
                await peer.send(head(503) + b"Content-Length: 2\r\n\r\n{}")
                return
            if kind in ("close", "reset", "mute", "orphan"):
                await self.pause()
                if kind == "orphan" and fresh:
                    peer.close()
                    await asyncio.Event().wait()  # works on until the engine ends, although nobody will hear of it
                if kind == "mute":
                    await peer.gone()
                (peer.close if kind == "close" else peer.reset)()
                return
            await peer.send(STREAM_HEAD.replace(b"\r\n\r\n", b"\r\n" + last + b"\r\n"))
            for number in range(0 if kind == "head" else PIECES // 2 if kind == "half" else PIECES):
                await peer.send(chunk(event(name, number)))
                await self.pause()
            if kind in ("head", "half"):
                peer.reset()
                return
            await peer.send(chunk(DONE) + b"0\r\n\r\n")
            if last:
                peer.close()
        finally:
            if self.running.get(name) is seen:
                del self.running[name]
            seen.dropped.set()

    async def pause(self) -> None:
        """A few turns of the loop, or a moment."""
        await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.005]))

    async def disturb(self) -> None:
        """Engines end and come back; their ends are told before, after, or never."""
        while True:
            await asyncio.sleep(self.random.uniform(0.02, 0.06))
            number = self.random.randrange(ENGINES)
            engine, told = self.scene.engines[number], self.random.choice(["before", "after", "never"])
            if told == "before":
                self.scene.gateway.engine_lost("m", f"e{number}")
            await engine.stop()
            if told == "after":
                self.scene.gateway.engine_lost("m", f"e{number}")
            await self.pause()
            await engine.listen()

    async def client(self, number: int) -> None:
        """One request, and what became of it."""
        name = f"r{number}"
        padding = "x" * self.random.choice([0, 0, 0, 300_000])
        client = await self.scene.connect()
        await client.send(post("/v1/chat/completions", chat(stream=True, name=name, padding=padding)))
        if self.random.random() < 0.1:
            await self.pause()
            client.leave()
            self.ends["left"] += 1
            return
        response = await client.response()
        whole_text = b"".join(event(name, piece) for piece in range(PIECES)) + DONE
        if response.status == 200:
            assert whole_text.startswith(response.body)
            assert response.body == whole_text or not response.complete
            self.ends["whole" if response.complete else "cut"] += 1
        else:
            assert response.complete
            assert response.status in (502, 503, 504)
            self.ends[str(response.status)] += 1
        client.leave()


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_and_nothing_runs_twice(make_scene: SceneMaker, seed: int) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    settings = {"sweep_s": 0.02, "verdict_s": 0.05, "stream_silence_s": 0.2, "answer_silence_s": 0.2}
    async with make_scene(engines=ENGINES, **settings) as scene:
        stage = Stage(scene, seed)
        scene.router.choose = stage.choose
        for engine in scene.engines:
            engine.default = partial(stage.act, engine)
        disturbing = asyncio.create_task(stage.disturb())
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                await stage.client(number)

        await asyncio.gather(*(one(number) for number in range(REQUESTS)))
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        await scene.at_rest()
        assert stage.twice == []
        assert sum(stage.ends.values()) == REQUESTS
        assert stage.ends["whole"] > REQUESTS / 8, stage.ends
        outcomes = Counter(row.outcome for row in scene.rows)
        assert outcomes[Outcome.OK] >= stage.ends["whole"]
        assert any(row.retried for row in scene.rows)
        snapshot = scene.gateway.snapshot()["m"]
        assert sum(snapshot.requests.values()) == len(scene.rows) == len(scene.router.offered)
        assert (snapshot.open_exchanges, snapshot.buffered_bytes) == (0, 0)
    assert faults == []
