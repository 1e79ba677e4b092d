"""A profile from timings: recovered from a simulated engine whose hardware is known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lmwarden.bench.calibrate import HostFacts, PromptTime, StepModel, StepTime, chunks, errors, fit, profile_toml
from lmwarden.bench.calibrate_probe import ANSWER_TOKENS, measure
from lmwarden.bench.errors import BenchError
from lmwarden.simulation.engine import ApiServers, SimulatedEngine
from lmwarden.simulation.hardware import HardwareProfile, load_profile
from lmwarden.simulation.options import SimulatedEngineOptions, scheduler_limits
from lmwarden.simulation.scheduler import EngineRequest
from lmwarden.simulation.tokens import chain_hashes

FACTS = HostFacts(44_000, 16, 32_768, 32, 2048)


class VirtualProbe:
    """Times the engine model in virtual time: what the HTTP probe would see on a quiet host, and nothing else."""

    def __init__(self, hardware: HardwareProfile, network_s: float) -> None:
        limits = scheduler_limits(SimulatedEngineOptions(), hardware)
        self._engine = SimulatedEngine(hardware, limits, 1, ApiServers("0.27", 1, 1))
        self._network_s = network_s
        self._prompts = 0
        self._now_s = 0.0

    async def prompt(self, prompt_tokens: int) -> PromptTime:
        ((_, first_s, _),) = self._play(1, prompt_tokens, 1)
        return PromptTime(prompt_tokens, first_s)

    async def answers(self, count: int, prompt_tokens: int, answer_tokens: int) -> StepTime:
        played = self._play(count, prompt_tokens, answer_tokens)
        begin, end = max(first_s for _, first_s, _ in played), min(last_s for _, _, last_s in played)
        request, _, _ = played[-1]
        tokens = [moment for moment in self._moments[request] if begin <= moment - self._sent_s <= end]
        context = prompt_tokens + answer_tokens - len(tokens) / 2
        return StepTime(count, context, (tokens[-1] - tokens[0]) / (len(tokens) - 1))

    def _play(self, count: int, prompt_tokens: int, answer_tokens: int) -> list[tuple[EngineRequest, float, float]]:
        """Each request with its first and last token, seconds after the send."""
        self._sent_s = self._now_s
        self._moments: dict[EngineRequest, list[float]] = {}
        for _ in range(count):
            self._prompts += 1
            tokens = range(self._prompts << 20, (self._prompts << 20) + prompt_tokens + answer_tokens)
            request = EngineRequest(chain_hashes(tokens, 16), prompt_tokens, answer_tokens)
            self._moments[request] = []
            self._engine.submit(request, self._now_s, 0)
        while (event := self._engine.next_event()) is not None:
            self._now_s = event
            for progress in self._engine.advance(event):
                self._moments[progress.request].append(progress.at_s)
        network_s = self._network_s
        return [
            (request, moments[0] - self._sent_s + network_s, moments[-1] - self._sent_s)
            for request, moments in self._moments.items()
        ]


async def calibrated(hardware: HardwareProfile, network_s: float) -> StepModel:
    prompts, steps = await measure(
        VirtualProbe(hardware, network_s), hardware.max_model_len, hardware.kv_cache_tokens, lambda _: None
    )
    return fit(prompts, steps, hardware.max_num_batched_tokens)


@pytest.mark.parametrize("network_s", [0.0, 0.08])
@pytest.mark.parametrize("name", ["a4000-qwen3-4b", "5090-qwen3-27b", "h100-qwen3-32b"])
async def test_the_profile_predicts_what_was_not_measured(name: str, network_s: float, tmp_path: Path) -> None:
    hardware = load_profile(name)
    model = await calibrated(hardware, network_s)
    assert model.network_s == pytest.approx(network_s, abs=0.01)
    file = tmp_path / "mine.toml"
    file.write_text(
        profile_toml("mine", "", model, FACTS._replace(max_num_batched_tokens=hardware.max_num_batched_tokens))
    )
    ours, theirs = VirtualProbe(load_profile(str(file)), 0.0), VirtualProbe(hardware, 0.0)
    for tokens in (300, 1500, 3300, 6500, 12_000):
        predicted, true = await ours.prompt(tokens), await theirs.prompt(tokens)
        assert predicted.seconds == pytest.approx(true.seconds, rel=0.1), tokens
    for count, tokens in ((1, 6000), (3, 800), (3, 9000), (6, 2000), (12, 1000)):
        step = await ours.answers(count, tokens, ANSWER_TOKENS)
        true_step = await theirs.answers(count, tokens, ANSWER_TOKENS)
        assert step.seconds == pytest.approx(true_step.seconds, rel=0.1), (count, tokens)


TRUE = StepModel(0.05, 0.004, 0.02, 2e-4, 1e-8, 4e-7, 2048)


def timings(noise: float = 0.0) -> tuple[list[PromptTime], list[StepTime]]:
    """What a host of the model ``TRUE`` would show, alternately a little too slow and too fast."""
    prompts = [PromptTime(tokens, TRUE.first_token_s(tokens)) for tokens in (64, 192, 512, 1024, 2000, 4000, 8000)]
    steps = [
        StepTime(answers, context, TRUE.step_s(answers, context))
        for answers, context in ((1, 64), (1, 3000), (1, 10_000), (2, 1500), (8, 1500), (16, 500))
    ]
    factors = [1 + noise * (-1) ** number for number in range(len(prompts))]
    return (
        [timing._replace(seconds=timing.seconds * factor) for timing, factor in zip(prompts, factors, strict=True)],
        [timing._replace(seconds=timing.seconds * factors[number]) for number, timing in enumerate(steps)],
    )


def test_exact_timings_give_the_model_back() -> None:
    model = fit(*timings(), 2048)
    assert max(abs(error) for error in errors(model, *timings())) < 0.01
    assert model.token_s == pytest.approx(TRUE.token_s, rel=0.05)
    assert model.overhead_s + model.weights_s == pytest.approx(TRUE.overhead_s + TRUE.weights_s, rel=0.02)


def test_noise_of_five_percent_stays_noise() -> None:
    model = fit(*timings(0.05), 2048)
    assert max(abs(error) for error in errors(model, *timings())) < 0.1


def test_nothing_becomes_negative() -> None:
    prompts, steps = timings()
    model = fit([timing._replace(seconds=timing.seconds - 0.05) for timing in prompts], steps, 2048)
    assert min(model[:6]) >= 0


def test_too_little_and_impossible_timings_are_refused() -> None:
    prompts, steps = timings()
    with pytest.raises(BenchError, match="too few timings"):
        fit(prompts[:2], steps, 2048)
    with pytest.raises(BenchError, match="0 s or less"):
        fit(prompts, [*steps, StepTime(1, 10, 0.0)], 2048)


def test_a_prompt_is_computed_in_chunks() -> None:
    assert chunks(2048, 2048) == [2048]
    assert chunks(5000, 2048) == [2048, 2048, 904]


def test_what_was_not_measured_says_so(tmp_path: Path) -> None:
    text = profile_toml('m"\\\n', "d", TRUE, HostFacts(None, None, None, 32, 2048))
    assert "NOT MEASURED, a guess: put in what vLLM logs." in text
    file = tmp_path / "p.toml"
    file.write_text(text)
    profile = load_profile(str(file))
    assert profile.name == "m"
    assert profile.kv_cache_tokens == 4 * 32_768
    known = profile_toml("m", "d", TRUE, FACTS)
    assert "From the engine's metrics." in known
    assert msgspec.toml.decode(known)["kv_cache_tokens"] == 44_000
