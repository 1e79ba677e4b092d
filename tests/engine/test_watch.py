"""Watching an engine: what cuts traffic, what does not, and what a return looks like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
from tests.engine.fake_vllm import FakeVllm, fake_vllm, page

from lmwarden.config import Flag, WatchConfig, load
from lmwarden.engine.client import EngineClient
from lmwarden.engine.watch import EngineState, EngineWatch
from lmwarden.types import ReplicaCapacity, ReplicaId, ReplicaSample


def watch_settings(**changes: float) -> WatchConfig:
    flags = [Flag("--engine", ("models",), [{"engine": {"attach": ["http://e"]}}])]
    return msgspec.structs.replace(load(None, flags).watch, **changes)


class Recorder:
    """A sink that writes down what it hears, as a transcript."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.samples: dict[ReplicaId, ReplicaSample] = {}
        self.capacities: dict[ReplicaId, ReplicaCapacity] = {}
        self.heard = asyncio.Event()

    def observe(self, replica: ReplicaId, sample: ReplicaSample) -> None:
        self.samples[replica] = sample
        self.heard.set()

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str) -> None:
        self.capacities[replica] = capacity
        self.news.append(f"up {replica} {boot_id}")

    def replica_down(self, replica: ReplicaId) -> None:
        self.news.append(f"down {replica}")

    def engine_lost(self, engine: str) -> None:
        self.news.append(f"lost {engine}")

    def take(self) -> list[str]:
        news, self.news = self.news, []
        return news


class Scene:
    """One engine, its watch, and what the watch said."""

    def __init__(self, engine: FakeVllm, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.sink = Recorder()
        self.now = 100.0
        self.session = session
        self.watch = self.make()

    def make(self, **settings: float) -> EngineWatch:
        chosen = watch_settings(**settings)
        endpoint = self.engine.endpoint()
        client = EngineClient(endpoint, self.session, chosen.probe_timeout_s)
        self.watch = EngineWatch(endpoint, client, self.sink, settings=chosen, clock=lambda: self.now, max_num_seqs=32)
        return self.watch


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with fake_vllm() as engine, aiohttp.ClientSession() as session:
        yield Scene(engine, session)


UP = ["up e0/0 process-1000.500", "up e0/1 process-1000.500"]
DOWN = ["down e0/0", "down e0/1"]


async def test_first_look_brings_it_up_with_figures(scene: Scene) -> None:
    await scene.watch.look()
    assert scene.sink.take() == UP
    assert scene.sink.capacities[ReplicaId("e0", 1)] == ReplicaCapacity(kv_cache_tokens=4096, max_num_seqs=32)
    sample = scene.sink.samples[ReplicaId("e0", 1)]
    assert (sample.taken_at, sample.running, sample.kv_used_ratio) == (100.0, 2, 0.25)
    assert scene.watch.scraped_at == 100.0
    await scene.watch.look()
    assert scene.sink.take() == []


async def test_one_refused_look_cuts_nothing_and_two_do(scene: Scene) -> None:
    await scene.watch.look()
    await scene.engine.stop()
    scene.sink.take()
    await scene.watch.look()
    assert scene.sink.take() == []
    await scene.watch.look()
    assert scene.sink.take() == [*DOWN, "lost e0"]
    await scene.watch.look()
    assert scene.sink.take() == []
    await scene.engine.start()
    scene.engine.metrics = page(started=2000.0)
    await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 process-2000.000", "up e0/1 process-2000.000", "lost e0"]


async def test_a_good_look_between_two_bad_ones_forgives_the_first(scene: Scene) -> None:
    await scene.watch.look()
    scene.sink.take()
    for status in (503, 200, 503, 200):
        scene.engine.health_status = status
        await scene.watch.look()
    assert scene.sink.take() == []
    scene.engine.health_status = 503
    await scene.watch.look()
    await scene.watch.look()
    assert scene.sink.take() == DOWN


async def test_silence_cuts_nothing_until_it_lasted(scene: Scene) -> None:
    watch = scene.make(probe_timeout_s=0.02, silent_down_s=1000.0)
    watch_that_waited = EngineWatch(
        watch.endpoint,
        EngineClient(watch.endpoint, scene.session, 0.02),
        scene.sink,
        settings=watch_settings(silent_down_s=1e-9),
        clock=lambda: scene.now,
    )
    await scene.make().look()
    scene.sink.take()
    scene.engine.silent = True
    for _ in range(3):
        await watch.look()
    assert scene.sink.take() == []
    await watch_that_waited.look()
    await watch_that_waited.look()
    assert scene.sink.take() == DOWN


async def test_a_restart_between_two_looks_is_seen(scene: Scene) -> None:
    await scene.watch.look()
    scene.sink.take()
    scene.engine.metrics = page(started=2000.0)
    await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 process-2000.000", "up e0/1 process-2000.000"]


async def test_without_a_start_time_fallen_counters_tell_a_restart(scene: Scene) -> None:
    for tokens in (1000, 1200):
        scene.engine.metrics = page(started=None, prompt_tokens=tokens)
        await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 run-1", "up e0/1 run-1"]
    scene.engine.metrics = page(started=None, prompt_tokens=50)
    await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 run-2", "up e0/1 run-2"]


async def test_it_does_not_come_up_with_another_model_or_another_number_of_ranks(scene: Scene) -> None:
    scene.engine.models = {"data": [{"id": "other"}]}
    await scene.watch.look()
    assert scene.sink.take() == []
    scene.engine.models = {"data": [{"id": "tiny"}]}
    scene.engine.metrics = page(ranks=4)
    await scene.watch.look()
    assert scene.watch.state is EngineState.DOWN
    assert scene.sink.take() == DOWN
    scene.engine.metrics = page(ranks=2)
    await scene.watch.look()
    assert scene.sink.take() == UP


async def test_without_metrics_it_serves_and_has_no_figures(scene: Scene) -> None:
    scene.engine.metrics_status = 404
    await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 run-1", "up e0/1 run-1"]
    assert scene.sink.samples == {}
    assert scene.watch.scraped_at is None


async def test_the_hit_ratio_counts_from_the_first_look_and_survives_a_restart(scene: Scene) -> None:
    for queries, hits, started in ((1000, 900, 1.0), (1100, 950, 1.0), (100, 100, 2.0)):
        scene.engine.metrics = page(queries=queries, hits=hits, started=started)
        await scene.watch.look()
    assert scene.watch.prefix_totals[0].hit_ratio == 0.75


async def test_run_looks_again_and_again_and_survives_its_own_errors(scene: Scene) -> None:
    watch = scene.make(interval_s=0.001)
    task = asyncio.ensure_future(watch.run())
    try:
        for _ in range(3):
            scene.sink.heard.clear()
            await asyncio.wait_for(scene.sink.heard.wait(), 10)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert scene.sink.take() == UP


async def test_what_the_operator_said_holds_before_an_engine_answers() -> None:
    """Its capacity is known, yet no request goes there; and its first boot id is no restart."""
    async with fake_vllm() as engine, aiohttp.ClientSession() as session:
        recorder = Recorder()
        watch = EngineWatch(
            engine.endpoint(ranks=1),
            EngineClient(engine.endpoint(ranks=1), session, timeout_s=20.0),
            recorder,
            settings=watch_settings(),
            clock=lambda: 0.0,
            max_num_seqs=64,
        )
        watch.expect()
        assert recorder.take() == ["up e0/0 ", "down e0/0"]
        assert recorder.capacities[ReplicaId("e0", 0)].max_num_seqs == 64
        assert watch.state is EngineState.STARTING
        engine.metrics = page(ranks=1)
        await watch.look()
        (news,) = recorder.take()
        assert news.startswith("up e0/0 ")
        assert recorder.capacities[ReplicaId("e0", 0)] == ReplicaCapacity(kv_cache_tokens=4096, max_num_seqs=64)
