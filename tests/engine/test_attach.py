"""Attaching at start: waiting for engines, or starting without those that were described."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.engine.fake_vllm import FakeVllm, fake_vllm, page
from tests.waiting import PATIENCE_S

from lmwarden.config import Config, ConfigError, Flag, load
from lmwarden.engine.attach import Attached, attach_engines, by_model, together


@pytest.fixture
async def engine() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


def config(*urls: str, **engine: Any) -> Config:
    flags = [Flag("--engine", ("models",), [{"engine": {"attach": list(urls), **engine}}])]
    return load(None, flags)


async def attach(settings: Config, first_number: int = 0) -> list[Attached]:
    engine = settings.models[0].engine
    async with aiohttp.ClientSession() as session:
        return await attach_engines(
            engine,
            stated_model=engine.model,
            first_number=first_number,
            session=session,
            settings=msgspec.structs.replace(settings.watch, attach_retry_s=0.01),
        )


async def test_engines_are_numbered_and_described(engine: FakeVllm) -> None:
    async with fake_vllm() as other:
        other.metrics = page(ranks=1)
        one, two = await attach(config(engine.url, other.url + "/v1", max_num_seqs=16), first_number=3)
    assert (one.endpoint.engine, one.endpoint.ranks, one.endpoint.model) == ("e3", 2, "tiny")
    assert (two.endpoint.engine, two.endpoint.ranks, two.endpoint.port) == ("e4", 1, other.port)
    assert one.max_num_seqs == 16
    assert {name: len(engines) for name, engines in by_model([one, two]).items()} == {"tiny": 2}


async def test_it_waits_until_the_engine_answers(engine: FakeVllm) -> None:
    await engine.stop()
    waiting = asyncio.ensure_future(attach(config(engine.url)))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    await engine.start()
    (attached,) = await asyncio.wait_for(waiting, PATIENCE_S)
    assert attached.facts is not None


async def test_a_llama_cpp_that_still_loads_is_waited_for_and_then_is_one_replica(engine: FakeVllm) -> None:
    engine.health_status, engine.metrics_status, engine.version = 503, 501, None
    engine.models = {"data": [{"id": "qwen.gguf", "owned_by": "llamacpp", "meta": None}]}
    waiting = asyncio.ensure_future(attach(config(engine.url)))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    assert "/v1/models" not in engine.asked
    engine.health_status = 200
    engine.models = {"data": [{"id": "qwen.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 8192}}]}
    (attached,) = await asyncio.wait_for(waiting, PATIENCE_S)
    assert (attached.endpoint.ranks, attached.endpoint.model) == (1, "qwen.gguf")
    assert attached.facts is not None
    assert attached.facts.max_model_len == 8192


async def test_ranks_alone_or_a_model_alone_are_no_reason_not_to_wait(engine: FakeVllm) -> None:
    await engine.stop()
    for stated in ({"data_parallel_size": 2}, {"model": "tiny"}):
        waiting = asyncio.ensure_future(attach(config(engine.url, **stated)))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        waiting.cancel()
        await asyncio.wait([waiting])
    (attached,) = await attach(config(engine.url, data_parallel_size=3, model="tiny"))
    assert attached.facts is None
    assert (attached.endpoint.ranks, attached.endpoint.model) == (3, "tiny")
    await engine.start()


async def test_one_contradiction_ends_the_wait_for_the_others(engine: FakeVllm) -> None:
    engine.models = {"data": [{"id": "other"}]}
    with pytest.raises(ConfigError, match="does not serve 'tiny'"):
        await attach(config("http://127.0.0.1:9", engine.url, model="tiny"))


async def test_together_leaves_nothing_behind() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("forever")

    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await together([forever(), fails()])
    assert ended == ["forever"]
