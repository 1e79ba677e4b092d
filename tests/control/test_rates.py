"""Tokens per second over the last minute."""

from __future__ import annotations

import pytest

from lmwarden.control.rates import WINDOW_S, RateMeter, Rates
from lmwarden.gateway.counters import GatewaySnapshot, ModelCounters
from lmwarden.types import Decision, Outcome, Usage


def counters(requests: int, silent: int = 0) -> GatewaySnapshot:
    """After so many requests of 100 prompt tokens, 60 of them cached, and 7 completion tokens; of ``silent`` more the
    engine told only the prompt."""
    counted = ModelCounters()
    for _ in range(requests):
        usage = Usage(prompt_tokens=100, cached_tokens=60, completion_tokens=7)
        counted.ended(Decision.STICKY, Outcome.OK, 0.1, usage)
    for _ in range(silent):
        counted.ended(Decision.STICKY, Outcome.CANCELLED, 0.1, Usage(prompt_tokens=100))
    return counted.snapshot(open_exchanges=0, buffered_bytes=0, client_connections=0)


def test_nothing_is_known_at_first() -> None:
    meter = RateMeter()
    assert meter.note(counters(5), 100.0) == Rates()
    assert meter.note(counters(6), 101.0) == Rates()


def test_what_came_since_the_first_look() -> None:
    meter = RateMeter()
    meter.note(counters(5), 100.0)
    rates = meter.note(counters(15), 110.0)
    assert rates == Rates(prompt_tokens_per_s=100, cached_tokens_per_s=60, completion_tokens_per_s=7)
    assert meter.note(counters(15, silent=4), 120.0).unknown_tokens_per_s == 20
    # Nothing came: known, and 0.
    quiet = RateMeter()
    quiet.note(counters(5), 100.0)
    assert quiet.note(counters(5), 110.0).prompt_tokens_per_s == 0


def test_only_the_last_minute_counts() -> None:
    meter = RateMeter()
    for second in range(200):
        # One request a second for 100 s, then silence.
        rates = meter.note(counters(min(second, 100)), 1000.0 + second)
        if second == 100:
            assert rates.prompt_tokens_per_s == pytest.approx(100)
        if second == 130:
            assert rates.prompt_tokens_per_s == pytest.approx(100 * 30 / WINDOW_S)
    assert rates.prompt_tokens_per_s == 0
    assert len(meter._points) <= WINDOW_S + 2


def test_a_pause_leaves_one_point_to_compare_with() -> None:
    meter = RateMeter()
    meter.note(counters(0), 0.0)
    assert meter.note(counters(1000), 1000.0).prompt_tokens_per_s == pytest.approx(100)


def test_commands_in_quick_succession_add_no_points() -> None:
    meter = RateMeter()
    for step in range(1000):
        meter.note(counters(0), step / 1000)
    assert len(meter._points) <= 3
