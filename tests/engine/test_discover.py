"""What an engine says of itself, and what has to be asked of the operator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.engine.fake_vllm import FakeVllm, fake_vllm, page

from lmwarden.config import ConfigError
from lmwarden.engine.client import EngineClient
from lmwarden.engine.discover import EngineFacts, discover


@pytest.fixture
async def engine() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


async def ask(engine: FakeVllm, model: str | None = None, data_parallel_size: int | None = None) -> EngineFacts:
    async with aiohttp.ClientSession() as session:
        client = EngineClient(engine.endpoint(), session, timeout_s=5.0)
        return await discover(client, model=model, data_parallel_size=data_parallel_size)


async def test_everything_is_found_out(engine: FakeVllm) -> None:
    engine.metrics = page(ranks=4, kv_cache_tokens=42000)
    facts = await ask(engine)
    assert facts == EngineFacts(
        model="tiny",
        other_names=(),
        max_model_len=32768,
        ranks=4,
        kv_cache_tokens=(42000,) * 4,
        boot_id="process-1000.500",
        version="0.32.0",
    )
    capacity = facts.capacity(3, max_num_seqs=32)
    assert (capacity.kv_cache_tokens, capacity.max_num_seqs) == (42000, 32)


async def test_other_served_names_are_aliases_and_adapters_are_not(engine: FakeVllm) -> None:
    engine.models = {
        "data": [
            {"id": "a", "root": "weights"},
            {"id": "b", "root": "weights"},
            {"id": "lora", "root": "elsewhere", "parent": "a"},
        ]
    }
    facts = await ask(engine)
    assert (facts.model, facts.other_names) == ("a", ("b",))
    assert (await ask(engine, model="lora")).other_names == ()


async def test_a_model_that_it_does_not_serve(engine: FakeVllm) -> None:
    with pytest.raises(ConfigError, match=r"--model: .* does not serve 'big'; it serves: tiny"):
        await ask(engine, model="big")


async def test_ranks_are_asked_for_by_name_where_metrics_are_off(engine: FakeVllm) -> None:
    engine.metrics_status = 404
    with pytest.raises(ConfigError, match=r"--data-parallel-size: .* does not report its ranks"):
        await ask(engine)
    facts = await ask(engine, data_parallel_size=4)
    assert (facts.ranks, facts.kv_cache_tokens, facts.boot_id) == (4, (None,) * 4, None)


async def test_a_contradiction_is_said(engine: FakeVllm) -> None:
    with pytest.raises(ConfigError, match=r"--data-parallel-size: 3 given, but the engine .* reports 2 rank"):
        await ask(engine, data_parallel_size=3)
