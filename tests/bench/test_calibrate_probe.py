"""The timings of ``calibrate`` over HTTP, against a simulated engine."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.bench.stub_endpoint import StubEndpoint
from tests.bench.stub_endpoint import serving as stub_serving
from tests.waiting import PATIENCE_S

from lmwarden.bench import calibrate_probe
from lmwarden.bench.calibrate import PromptTime, StepTime
from lmwarden.bench.calibrate_probe import (
    CacheFacts,
    HttpProbe,
    NotAtOnceError,
    cache_facts,
    max_model_len,
    measure,
    parse_cache_facts,
    together,
)
from lmwarden.bench.errors import BenchError, PlanError
from lmwarden.bench.plans import words
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving

SPEED = 2.0
OPTIONS = SimulatedEngineOptions(replicas=2, speed=SPEED, model="m")


class PatientProbe(HttpProbe):
    """Asks again where the answers did not overlap, because the machine stood still while they were generated."""

    asked = 0
    """For answers."""

    async def answers(self, count: int, prompt_tokens: int, answer_tokens: int) -> StepTime:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self.asked += count
                try:
                    return await super().answers(count, prompt_tokens, answer_tokens)
                except NotAtOnceError:
                    continue


async def test_prompts_and_answers_are_timed_in_the_clock_s_seconds() -> None:
    async with (
        serving(OPTIONS) as url,
        PatientProbe(url, "m", key=None, clock=lambda: time.monotonic() * SPEED) as probe,
    ):
        timing = await probe.prompt(1000)
        assert timing.prompt_tokens == pytest.approx(1000, abs=5)
        assert timing.seconds > 0
        step = await probe.answers(3, 200, 96)
        assert step.answers == 3
        assert 200 < step.context_tokens < 300
        assert step.seconds > 0
        assert probe.pins_rank


async def test_prompts_have_the_wanted_size_by_the_endpoint_s_own_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_probe, "words", lambda key, tokens: words(key, 3 * tokens))
    async with serving(OPTIONS) as url, HttpProbe(url, "m", key=None, clock=time.monotonic) as probe:
        assert (await probe.prompt(100)).prompt_tokens > 250
        assert (await probe.prompt(2000)).prompt_tokens == pytest.approx(2000, rel=0.02)


async def test_answers_at_once_share_one_replica_and_prompts_are_never_cached() -> None:
    async with serving(OPTIONS) as url:
        probe = PatientProbe(url, "m", key=None, clock=time.monotonic)
        async with probe:
            for _ in range(2):
                await probe.answers(2, 500, 96)
        page = await _metrics(url)
        counter = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="m"}'
        assert f"{counter} {probe.asked}" in page
        assert 'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 0' in page


async def test_all_timings_that_fit_into_the_context_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_probe, "PROMPT_TOKENS", (64, 300, 5000))
    monkeypatch.setattr(calibrate_probe, "ANSWERS", ((1, 64), (2, 200), (1, 3000)))
    said: list[str] = []
    async with serving(OPTIONS) as url, PatientProbe(url, "m", key=None, clock=time.monotonic) as probe:
        prompts, steps = await measure(probe, 1000, None, said.append)
    assert [timing.prompt_tokens for timing in prompts] == pytest.approx([64, 300], abs=15)
    assert [step.answers for step in steps] == [1, 2]
    assert len(said) == 4


async def test_what_does_not_fit_the_cache_together_is_made_shorter_and_what_was_not_at_once_is_left_out() -> None:
    asked: list[tuple[int, int]] = []

    class Small:
        async def prompt(self, prompt_tokens: int) -> PromptTime:
            return PromptTime(prompt_tokens, 1.0)

        async def answers(self, count: int, prompt_tokens: int, answer_tokens: int) -> StepTime:
            asked.append((count, prompt_tokens))
            if count > 4:
                raise NotAtOnceError("not at once")
            return StepTime(count, prompt_tokens, 1.0)

    said: list[str] = []
    prompts, steps = await measure(Small(), 4096, 5000, said.append)
    assert max(timing.prompt_tokens for timing in prompts) == 2000
    assert asked == [(1, 64), (1, 3000), (2, 1500), (4, 904), (8, 404), (16, 154)]
    assert [step.answers for step in steps] == [1, 1, 2, 4]
    assert sum("left out" in line for line in said) == 2


async def test_an_endpoint_without_ranks_is_asked_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_probe, "_RANK_HEADER", {"X-data-parallel-rank": "7"})
    async with serving(OPTIONS) as url, HttpProbe(url, "m", key=None, clock=time.monotonic) as probe:
        await probe.prompt(100)
        assert not probe.pins_rank


async def test_a_refusal_is_one_sentence() -> None:
    async with serving(OPTIONS) as url, HttpProbe(url, "another", key=None, clock=time.monotonic) as probe:
        with pytest.raises(BenchError, match=r"--url: .* answered 404: .*does not exist"):
            await probe.prompt(100)


async def test_a_dead_endpoint_is_one_sentence(dead_port: int) -> None:
    url = f"http://127.0.0.1:{dead_port}"
    async with HttpProbe(url, "m", key=None, clock=time.monotonic) as probe:
        with pytest.raises(BenchError, match="connection refused"):
            await probe.prompt(100)
    assert await cache_facts(url) == CacheFacts()
    with pytest.raises(BenchError, match="connection refused"):
        await max_model_len(url, "m", None)


async def test_the_engine_says_what_its_cache_holds_and_how_long_a_context_may_be() -> None:
    async with serving(OPTIONS) as url:
        assert await cache_facts(url) == CacheFacts(44_000, 16)
        assert await max_model_len(url, "m", None) == 32_768
        with pytest.raises(PlanError, match=r"--model x: .* serves m"):
            await max_model_len(url, "x", None)


async def test_an_endpoint_may_say_nothing_of_either() -> None:
    stub = StubEndpoint()
    async with stub_serving(stub):
        assert await cache_facts(stub.url) == CacheFacts()
        assert await max_model_len(stub.url, "m", None) is None


def test_blocks_of_all_ranks_are_shared_among_them() -> None:
    line = 'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="200"} 1.0'
    assert parse_cache_facts(f"{line % 0}\n{line % 1}\n") == CacheFacts(1600, 16)
    assert parse_cache_facts('vllm:cache_config_info{block_size="None"} 1.0') == CacheFacts()


def test_answers_that_did_not_overlap_cannot_be_timed() -> None:
    first, second = calibrate_probe._Answer(0.0), calibrate_probe._Answer(0.0)
    for answer, start in ((first, 1.0), (second, 10.0)):
        answer.usage = calibrate_probe._Usage(10, 20)
        answer.token_s = [start + number / 10 for number in range(20)]
    with pytest.raises(BenchError, match="not generated at once"):
        together([first, second])
    assert together([first]).seconds == pytest.approx(0.1)
    with pytest.raises(BenchError, match="without tokens or without usage"):
        together([calibrate_probe._Answer(0.0)])


async def _metrics(url: str) -> str:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        return await response.text()
