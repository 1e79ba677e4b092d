"""Counters have a fixed shape and add up."""

from __future__ import annotations

from lmwarden.gateway.counters import TIME_TO_FIRST_BYTE_BOUNDS_S, GatewaySnapshot, ModelCounters
from lmwarden.types import Decision, Outcome, Usage


def snapshot(counters: ModelCounters) -> GatewaySnapshot:
    return counters.snapshot(open_exchanges=1, buffered_bytes=2, client_connections=3)


def test_every_pair_is_counted_apart() -> None:
    counters = ModelCounters()
    pairs = [(decision, outcome) for decision in (None, *Decision) for outcome in Outcome]
    for number, (decision, outcome) in enumerate(pairs, start=1):
        for _ in range(number):
            counters.ended(decision, outcome, None, None)
    assert snapshot(counters).requests == {pair: number for number, pair in enumerate(pairs, start=1)}
    assert sum(snapshot(counters).first_byte_counts) == 0


def test_tokens() -> None:
    counters = ModelCounters()
    for usage in (
        Usage(prompt_tokens=100, cached_tokens=60, completion_tokens=5),
        Usage(prompt_tokens=100),
        Usage(completion_tokens=3),
        Usage(),
    ):
        counters.ended(Decision.STICKY, Outcome.OK, None, usage)
    view = snapshot(counters)
    assert (view.prompt_tokens_cached, view.prompt_tokens_computed) == (60, 140)
    assert view.prompt_tokens_unknown == 100, "of the second nothing is known"
    assert (view.completion_tokens, view.usage_rows) == (8, 2)
    assert (view.open_exchanges, view.buffered_bytes, view.client_connections) == (1, 2, 3)


def test_buckets_hold_their_upper_bound() -> None:
    counters = ModelCounters()
    for seconds in (0.0, 0.05, 0.0501, 240.0, 241.0):
        counters.ended(Decision.STICKY, Outcome.OK, seconds, None)
    counts = snapshot(counters).first_byte_counts
    assert len(counts) == len(TIME_TO_FIRST_BYTE_BOUNDS_S) + 1
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (2, 1, 1, 1)
    assert snapshot(counters).first_byte_sum_s == sum((0.0, 0.05, 0.0501, 240.0, 241.0))


def test_generations_by_how_their_conversation_was_recognised() -> None:
    counters = ModelCounters()
    for conversation, derived, times in ((b"c", False, 3), (b"c", True, 2), (None, False, 1)):
        for _ in range(times):
            counters.identified(conversation, derived)
    view = snapshot(counters)
    assert (view.identity_sent, view.identity_derived, view.identity_none) == (3, 2, 1)
