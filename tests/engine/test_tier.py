"""How many tokens a CPU tier holds."""

from __future__ import annotations

from lmwarden.engine.tier import NO_TIER, Tier


def test_its_memory_over_that_of_a_token() -> None:
    # Qwen3-4B in bf16: 144 KiB a token.
    assert Tier(gib=16.0).tokens(147_456.0) == 116_508


def test_what_the_operator_states_holds() -> None:
    assert Tier(stated_tokens=100_000, gib=16.0).tokens(147_456.0) == 100_000
    assert Tier(stated_tokens=100_000).tokens(None) == 100_000


def test_what_is_not_known_is_none() -> None:
    assert Tier(gib=16.0).tokens(None) is None
    assert NO_TIER.tokens(147_456.0) is None
