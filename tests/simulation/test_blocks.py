"""The block pool: the order in which blocks are reused, and a naive model of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmwarden.simulation.blocks import BlockPool


def filled(pool: BlockPool, hashes: Sequence[int]) -> list[int]:
    """Allocate and publish one block per hash."""
    blocks = pool.allocate(len(hashes))
    for block, chain_hash in zip(blocks, hashes, strict=True):
        pool.publish(block, chain_hash)
    return blocks


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert pool.usable_blocks == pool.free_blocks == 4
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="0 are free"):
        pool.allocate(1)


def test_a_released_context_is_evicted_from_its_end() -> None:
    pool = BlockPool(5)
    first, second, third = filled(pool, [11, 12, 13])
    pool.release([first, second, third])
    assert pool.longest_prefix([11, 12, 13], 9) == [first, second, third]
    pool.allocate(1)  # the one block that was never used
    assert pool.allocate(1) == [third]
    assert pool.longest_prefix([11, 12, 13], 9) == [first, second]


def test_a_block_that_was_never_published_is_reused_first() -> None:
    pool = BlockPool(6)
    published = filled(pool, [11, 12])
    (partial,) = pool.allocate(1)
    pool.release([*published, partial])
    assert pool.allocate(1) == [partial]


def test_the_least_recently_released_context_goes_first() -> None:
    pool = BlockPool(5)
    old, new = filled(pool, [11, 12]), filled(pool, [21, 22])
    pool.release(old)
    pool.release(new)
    pool.allocate(2)
    assert pool.longest_prefix([11], 9) == []
    assert pool.longest_prefix([21, 22], 9) == new


def test_a_hit_takes_blocks_out_of_the_queue() -> None:
    pool = BlockPool(4)
    blocks = filled(pool, [11, 12])
    pool.release(blocks)
    assert pool.count_idle(blocks) == 2
    pool.touch(blocks)
    assert pool.count_idle(blocks) == 0
    assert pool.free_blocks == 1
    assert pool.used_ratio == pytest.approx(2 / 3)


def test_the_prefix_ends_at_the_first_miss_and_at_the_limit() -> None:
    pool = BlockPool(9)
    blocks = filled(pool, [11, 12, 13])
    assert pool.longest_prefix([11, 99, 13], 9) == blocks[:1]
    assert pool.longest_prefix([11, 12, 13], 2) == blocks[:2]


def test_of_two_blocks_with_one_hash_either_may_be_evicted() -> None:
    pool = BlockPool(3)
    (one,) = filled(pool, [11])
    (other,) = filled(pool, [11])
    assert pool.longest_prefix([11], 9) == [one]
    pool.release([one])
    assert pool.allocate(1) == [one]
    assert pool.longest_prefix([11], 9) == [other]
    pool.release([other])
    pool.allocate(1)
    assert pool.longest_prefix([11], 9) == []
    pool.check()


def test_evicted_blocks_move_to_the_host_tier_and_leave_it_in_order_of_use() -> None:
    pool = BlockPool(3, host_blocks=2)
    pool.release(filled(pool, [11, 12]))
    pool.release(filled(pool, [21, 22]))
    assert pool.host_prefix([11, 12], 0, 9) == 2
    assert pool.host_prefix([11, 12], 1, 9) == 1
    pool.host_used([11])
    pool.release(filled(pool, [31]))  # evicts 22, so 12, the least recently used, leaves the host
    assert pool.host_prefix([12], 0, 9) == 0
    assert pool.host_prefix([11], 0, 9) == 1
    pool.check()


def test_a_reset_forgets_both_tiers_unless_something_is_in_use() -> None:
    pool = BlockPool(3, host_blocks=4)
    pool.release(filled(pool, [11, 12]))
    used = filled(pool, [21])
    assert not pool.reset()
    pool.release(used)
    assert (pool.host_prefix([12], 0, 9), pool.longest_prefix([21], 9)) == (1, used)
    assert pool.reset()
    assert (pool.host_prefix([12], 0, 9), pool.longest_prefix([21], 9)) == (0, [])
    pool.check()


def test_without_a_host_tier_evicted_blocks_are_gone() -> None:
    pool = BlockPool(2)
    pool.release(filled(pool, [11]))
    pool.allocate(1)
    assert pool.host_prefix([11], 0, 9) == 0


def test_reset_needs_an_idle_pool() -> None:
    pool = BlockPool(4)
    blocks = filled(pool, [11])
    assert not pool.reset()
    pool.release(blocks)
    assert pool.reset()
    assert pool.longest_prefix([11], 9) == []
    pool.check()


@pytest.mark.parametrize(("blocks", "host"), [(1, 0), (5, -1)])
def test_impossible_sizes_are_refused(blocks: int, host: int) -> None:
    with pytest.raises(ValueError, match="block"):
        BlockPool(blocks, host)


class NaivePool:
    """The same in the most obvious way: lists, searched from the front."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(1, num_blocks))
        self.refs = dict.fromkeys(self.queue, 0)
        self.published: list[tuple[int, int]] = []  # (hash, block) in order of publishing

    def allocate(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        self.published = [(h, b) for h, b in self.published if b not in taken]
        for block in taken:
            self.refs[block] = 1
        return taken

    def find(self, hashes: Sequence[int]) -> list[int]:
        found = []
        for wanted in hashes:
            blocks = [block for chain_hash, block in self.published if chain_hash == wanted]
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def touch(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.refs[block] += 1
        self.queue = [block for block in self.queue if block not in blocks]

    def release(self, blocks: Sequence[int]) -> None:
        known = {block for _hash, block in self.published}
        for block in blocks:
            self.refs[block] -= 1
        idle = [block for block in reversed(blocks) if self.refs[block] == 0]
        front = [block for block in idle if block not in known]
        self.queue = [*front, *self.queue, *(block for block in idle if block in known)]


class PoolAgainstNaiveModel(RuleBasedStateMachine):
    """Requests come, hit, grow and go in any order."""

    @initialize(size=st.integers(2, 12))
    def start(self, size: int) -> None:
        self.pool = BlockPool(size)
        self.model = NaivePool(size)
        self.held: list[tuple[list[int], list[int]]] = []  # (hashes, blocks) of a request
        self.published: list[int] = []

    @rule(family=st.integers(1, 3), depth=st.integers(1, 5), partial=st.booleans())
    def request(self, family: int, depth: int, partial: bool) -> None:
        hashes = [family * 100 + level for level in range(depth)]
        hits = self.pool.longest_prefix(hashes, depth)
        assert hits == self.model.find(hashes)
        missing = depth - len(hits) + partial
        assert self.pool.free_blocks == len(self.model.queue)
        if missing + self.pool.count_idle(hits) > self.pool.free_blocks:
            return
        self.pool.touch(hits)
        self.model.touch(hits)
        new = self.pool.allocate(missing)
        assert new == self.model.allocate(missing)
        for chain_hash, block in zip(hashes[len(hits) :], new, strict=False):
            self.pool.publish(block, chain_hash)
            self.model.published.append((chain_hash, block))
        self.held.append((hashes, [*hits, *new]))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        _hashes, blocks = self.held.pop(which % len(self.held))
        self.pool.release(blocks)
        self.model.release(blocks)

    @invariant()
    def consistent(self) -> None:
        self.pool.check()
        assert len(self.model.queue) == self.pool.free_blocks


PoolAgainstNaiveModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolAgainstNaiveModel = PoolAgainstNaiveModel.TestCase


def lose_a_block(pool: BlockPool) -> None:
    pool._free.popitem()


def double_a_block(pool: BlockPool) -> None:
    pool._free.popitem()
    pool._free[1] = None


def release_twice(pool: BlockPool) -> None:
    pool._refs[2] = -1


def forget_a_hash(pool: BlockPool) -> None:
    pool._cached.clear()


def keep_a_hash(pool: BlockPool) -> None:
    pool._hash[1] = None


def overfill_the_host(pool: BlockPool) -> None:
    pool._host.update(dict.fromkeys(range(9)))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lose_a_block, "blocks lost or doubled"),
        (double_a_block, "a referenced block is free"),
        (release_twice, "negative reference count"),
        (forget_a_hash, "the index of hashes does not match"),
        (keep_a_hash, "the index of hashes does not match"),
        (overfill_the_host, "the host tier overflowed"),
    ],
)
def test_the_check_of_a_pool_finds_what_is_wrong(spoil: Callable[[BlockPool], None], says: str) -> None:
    """The other tests rely on it."""
    pool = BlockPool(6, host_blocks=2)
    used, released = filled(pool, [11, 12])
    pool.release([released])
    assert used == 1
    pool.check()
    spoil(pool)
    with pytest.raises(AssertionError, match=says):
        pool.check()
