"""A body's buffer follows what arrived, never what was announced, and the budget counts it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.incoming_body import IncomingBody

STEP = 64 * 1024


@given(
    have=st.binary(max_size=100),
    more=st.integers(1, 2_000_000),
    reads=st.lists(st.integers(1, 300_000), min_size=1, max_size=30),
    limit=st.sampled_from([0, 100_000, 10_000_000]),
)
def test_what_is_held_is_counted_and_in_proportion(have: bytes, more: int, reads: list[int], limit: int) -> None:
    budget = BufferBudget(limit)
    budget.take(len(have))
    body = IncomingBody(have, len(have) + more, budget)
    sent = bytearray(have)
    body.reserve()
    for size in reads:
        if body.complete:
            break
        space = body.space()
        assert len(space) > 0
        assert len(body.buffer) == budget.held_bytes <= max(STEP, 4 * body.arrived_bytes)
        piece = bytes([len(sent) % 251]) * min(size, len(space))
        space[: len(piece)] = piece
        del space
        sent += piece
        assert body.take(len(piece)) or budget.held_bytes > limit
    assert body.buffer[: body.arrived_bytes] == sent
    if body.complete:
        assert budget.held_bytes == len(body.buffer) == len(have) + more
    body.give_up()
    assert budget.held_bytes == 0


def test_without_room_it_grows_in_small_steps() -> None:
    """Until the budget is full, and by no more than one of them beyond it."""
    for limit in range(100_000, 1_500_000, 100_000):
        budget = BufferBudget(limit)
        body = IncomingBody(b"", 10_000_000, budget)
        assert body.reserve()
        while body.take(len(body.space())):
            assert budget.held_bytes <= limit
        assert limit < budget.held_bytes <= limit + STEP


@pytest.mark.parametrize("announced", [1, 10**6, 64 * 2**20])
def test_an_announcement_costs_one_step(announced: int) -> None:
    budget = BufferBudget(2**30)
    body = IncomingBody(b"", announced, budget)
    body.reserve()
    assert len(body.space()) == budget.held_bytes == min(announced, STEP)
