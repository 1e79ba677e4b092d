"""The step-time model and the profiles that ship."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from lmwarden.simulation.engine import ApiServers, SimulatedEngine
from lmwarden.simulation.hardware import HardwareProfile, load_profile, profile_names
from lmwarden.simulation.scheduler import EngineRequest, SchedulerLimits, StepWork
from lmwarden.simulation.tokens import chain_hashes

SIMPLE = HardwareProfile(
    name="simple",
    description="",
    parameters=50.0,
    weights_bytes=200.0,
    attention_flops_per_pair=2.0,
    kv_bytes_per_token=4.0,
    memory_bytes_per_s=100.0,
    flops_per_s=1000.0,
    host_bytes_per_s=8.0,
    overhead_s=0.5,
    kv_cache_tokens=1000,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=512,
)


def toml(profile: HardwareProfile) -> str:
    """Numbers, texts and lists of numbers are written alike in JSON and TOML."""
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in msgspec.structs.asdict(profile).items())


def test_few_tokens_cost_the_weights_many_cost_arithmetic() -> None:
    assert SIMPLE.step_s(StepWork(1, 0, 0, 0)) == pytest.approx(0.5 + 2.0)
    assert SIMPLE.step_s(StepWork(40, 0, 0, 0)) == pytest.approx(0.5 + 4.0)


def test_context_costs_arithmetic_memory_and_loading() -> None:
    base = SIMPLE.step_s(StepWork(1, 0, 0, 0))
    assert SIMPLE.step_s(StepWork(1, 500, 0, 0)) - base == pytest.approx(1.0)
    assert SIMPLE.step_s(StepWork(1, 0, 50, 0)) - base == pytest.approx(2.0)
    assert SIMPLE.step_s(StepWork(1, 0, 0, 6)) - base == pytest.approx(3.0)


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_is_complete_and_plausible(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.description
    assert profile.max_model_len < profile.kv_cache_tokens
    decode_s = profile.step_s(StepWork(1, 10_000, 10_000, 0))
    prefill_s = profile.step_s(StepWork(profile.max_num_batched_tokens, 0, 0, 0))
    assert 0.001 < decode_s < 0.2
    assert decode_s / 10 < prefill_s < 2


def test_the_fitted_card_decodes_and_prefills_at_its_known_rates() -> None:
    card = load_profile("a4000-qwen3-4b")
    assert card.step_s(StepWork(1, 12_000, 12_000, 0)) == pytest.approx(0.028, abs=0.001)
    # 12.4k tokens, 3.5k of them cached: about 2.3 s of a measured time to first byte of 2.05 to 2.4 s.
    assert card.step_s(StepWork(8_900, 8_900 * (3_500 + 4_450), 12_400, 0)) == pytest.approx(2.5, abs=0.2)


def test_a_profile_can_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(SIMPLE))
    assert load_profile(str(path)) == SIMPLE


def test_unknown_names_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed are 5090-qwen3-27b, a4000"):
        load_profile("abacus")
    with pytest.raises(ValueError, match=r"cannot read .*gone\.toml"):
        load_profile(str(tmp_path / "gone.toml"))
    path = tmp_path / "broken.toml"
    path.write_text("name = 1")
    with pytest.raises(ValueError, match=r"broken\.toml is not a hardware profile"):
        load_profile(str(path))
    path.write_text(toml(msgspec.structs.replace(SIMPLE, flops_per_s=0.0)))
    with pytest.raises(ValueError, match="flops_per_s must be above 0"):
        load_profile(str(path))


def test_a_slow_card_stretches_the_steps_of_its_rank_alone() -> None:
    mixed = msgspec.structs.replace(SIMPLE, rank_slowdown=(1.0, 2.0))
    assert [mixed.slowdown(rank) for rank in range(3)] == [1.0, 2.0, 1.0]
    times = []
    for rank in (0, 1, 2):
        engine = SimulatedEngine(mixed, SchedulerLimits(), 3, ApiServers("0.26", 1, 3))
        engine.submit(EngineRequest(chain_hashes(range(40), 16), 30, 1), 0.0, rank)
        times.append(engine.next_event())
    assert times[0] == times[2]
    assert times[1] == pytest.approx(2 * (times[0] or 0.0))


def test_a_slowdown_must_be_above_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(msgspec.structs.replace(SIMPLE, rank_slowdown=(1.0, 0.0))))
    with pytest.raises(ValueError, match="each of rank_slowdown must be above 0"):
        load_profile(str(path))


def test_the_published_host_is_the_card_four_times_with_one_that_is_slower() -> None:
    card, host = load_profile("a4000-qwen3-4b"), load_profile("a4000-qwen3-4b-published")
    same = msgspec.structs.replace(host, name=card.name, description=card.description, rank_slowdown=())
    assert same == card
    assert sorted(host.rank_slowdown)[:3] == [1.0, 1.0, 1.0]
