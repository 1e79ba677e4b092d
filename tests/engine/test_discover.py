"""What an engine says of itself, and what has to be asked of the operator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.engine.fake_vllm import FakeVllm, fake_vllm, page
from tests.waiting import PATIENCE_S

from lmwarden.config import ConfigError
from lmwarden.engine.client import EngineClient, EngineSilentError, EngineUnwellError
from lmwarden.engine.discover import EngineFacts, discover


@pytest.fixture
async def engine() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


async def ask(engine: FakeVllm, model: str | None = None, data_parallel_size: int | None = None) -> EngineFacts:
    async with aiohttp.ClientSession() as session:
        client = EngineClient(engine.endpoint(), session, timeout_s=PATIENCE_S)
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
        boot_ids=("process-1000.500",) * 4,
        version="0.32.0",
        is_vllm=True,
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
    assert (facts.ranks, facts.kv_cache_tokens, facts.boot_ids) == (4, (None,) * 4, (None,) * 4)


async def test_a_contradiction_is_said(engine: FakeVllm) -> None:
    with pytest.raises(ConfigError, match=r"--data-parallel-size: 3 given, but the engine .* reports 2 rank"):
        await ask(engine, data_parallel_size=3)


async def test_a_metrics_page_that_fails_for_a_moment_is_waited_for_and_not_asked_around(engine: FakeVllm) -> None:
    engine.metrics_status = 500
    with pytest.raises(EngineUnwellError, match="/metrics answers 500"):
        await ask(engine)


async def test_an_engine_that_still_loads_is_waited_for(engine: FakeVllm) -> None:
    """llama.cpp lists its models while it loads them."""
    engine.health_status = 503
    with pytest.raises(EngineUnwellError, match="/health answers 503"):
        await ask(engine)


async def test_an_engine_that_is_silent_is_waited_for(engine: FakeVllm) -> None:
    engine.silent = True
    async with aiohttp.ClientSession() as session:
        client = EngineClient(engine.endpoint(), session, timeout_s=0.05)
        with pytest.raises(EngineSilentError):
            await discover(client, model=None, data_parallel_size=None)


def llama_cpp(**meta: int) -> object:
    """Its list of models, in which OpenAI's shape and Ollama's stand side by side."""
    card = {"id": "qwen.gguf", "object": "model", "created": 1, "owned_by": "llamacpp", "meta": meta or None}
    return {"models": [{"name": "qwen.gguf"}], "object": "list", "data": [card]}


LLAMA_FIGURES = "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 5\n"
LM_STUDIO_ERROR = '{"error":"Unexpected endpoint or method. (GET /metrics)"}'


@pytest.mark.parametrize(
    ("models", "health", "metrics_status", "metrics", "max_model_len"),
    [
        pytest.param(llama_cpp(n_ctx=8192, n_ctx_train=40960), 200, 501, "{}", 8192, id="llama.cpp"),
        pytest.param(llama_cpp(n_ctx_train=40960), 200, 200, LLAMA_FIGURES, None, id="llama.cpp, older, figures on"),
        pytest.param(llama_cpp(), 200, 404, "", None, id="llama.cpp without meta"),
        pytest.param({"data": [{"id": "qwen:4b", "owned_by": "library"}]}, 404, 404, "", None, id="Ollama"),
        pytest.param(
            {"data": [{"id": "qwen", "owned_by": "organization_owner"}]},
            200,
            200,
            LM_STUDIO_ERROR,
            None,
            id="LM Studio",
        ),
        pytest.param(
            {"data": [{"id": "qwen", "owned_by": "sglang", "root": "qwen", "max_model_len": 4096}]},
            200,
            200,
            "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 1\n",
            4096,
            id="SGLang",
        ),
        pytest.param(
            {"data": [{"id": "m", "max_model_len": "many", "root": 7, "meta": []}]}, 404, 404, "", None, id="odd"
        ),
    ],
)
async def test_other_servers_are_one_replica(
    engine: FakeVllm, models: object, health: int, metrics_status: int, metrics: str, max_model_len: int | None
) -> None:
    engine.models, engine.health_status, engine.version = models, health, None
    engine.metrics_status, engine.metrics = metrics_status, metrics
    facts = await ask(engine)
    assert (facts.ranks, facts.is_vllm, facts.max_model_len) == (1, False, max_model_len)
    assert (facts.kv_cache_tokens, facts.boot_ids, facts.version, facts.usage_details) == ((None,), (None,), None, None)
    assert facts.other_names == ()
    with pytest.raises(ConfigError, match=r"--data-parallel-size: 4 given, but the engine .* is no vLLM server"):
        await ask(engine, data_parallel_size=4)


async def test_models_without_named_weights_are_no_other_names_of_the_first(engine: FakeVllm) -> None:
    engine.models = {"data": [{"id": "a", "owned_by": "library"}, {"id": "b", "owned_by": "library"}]}
    engine.metrics_status = 404
    assert (await ask(engine)).other_names == ()


async def test_a_vllm_with_metrics_off_is_told_by_its_version_too(engine: FakeVllm) -> None:
    engine.metrics_status = 404
    engine.models = {"data": [{"id": "tiny"}]}
    with pytest.raises(ConfigError, match="does not report its ranks"):
        await ask(engine)
