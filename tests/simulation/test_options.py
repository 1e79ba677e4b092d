"""Options to limits, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.options import SimulatedEngineOptions, scheduler_limits

CARD = load_profile("a4000-qwen3-4b")


def test_the_profile_decides_what_the_options_leave_open() -> None:
    limits = scheduler_limits(SimulatedEngineOptions(), CARD)
    assert limits.block_size == 16
    assert limits.num_blocks == 44_000 // 16
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.host_blocks) == (32, 2048, 0)


def test_options_win_over_the_profile() -> None:
    options = SimulatedEngineOptions(
        kv_cache_tokens=160 * 32, block_size=32, cpu_cache_tokens=640, max_num_seqs=3, max_num_batched_tokens=99
    )
    limits = scheduler_limits(options, CARD)
    assert (limits.num_blocks, limits.host_blocks) == (160, 20)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (3, 99)


@pytest.mark.parametrize(
    ("balancer", "version", "retries"),
    [("0.26", "0.26.0", True), ("0.26-moe", "0.26.0", True), ("0.27", "0.32.0", False)],
)
def test_the_balancer_says_which_vllm_it_is(balancer: str, version: str, retries: bool) -> None:
    options = msgspec.convert({"balancer": balancer}, SimulatedEngineOptions)
    assert options.version == version
    assert scheduler_limits(options, CARD).count_lookup_retries is retries


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("replicas", 0, "replicas must be above 0"),
        ("speed", 0.0, "speed must be above 0"),
        ("speed", -1.0, "speed must be above 0"),
        ("api_servers", -1, "api_servers must be above 0"),
        ("kv_cache_tokens", -5, "kv_cache_tokens must be above 0"),
        ("kv_cache_tokens", 31, "at least two blocks of 16"),
        ("cpu_cache_tokens", -1, "cpu_cache_tokens must be 0 or more"),
        ("max_answer_tokens", 0, "max_answer_tokens must be above 0"),
        ("balancer", "0.25", "balancer must be one of 0.26, 0.26-moe, 0.27"),
    ],
)
def test_values_out_of_range_are_named(field: str, value: object, match: str) -> None:
    options = msgspec.structs.replace(SimulatedEngineOptions(), **{field: value})
    with pytest.raises(ValueError, match=match):
        scheduler_limits(options, CARD)
