"""KV-cache blocks and the prefix cache of one rank, as vLLM keeps them.

Theory of operation
-------------------
The KV cache is cut into blocks of ``block_size`` tokens. A full block has a *chain hash*: a hash of its
own tokens and of the hash before it, so an equal hash means an equal prefix up to and including that
block. A *published* block can be found by its hash. One block of the pool is vLLM's null block and never
handed out, hence ``usable_blocks = num_blocks - 1``.

A block that no request references stays published and waits in the **free queue**, least recently used
first. Allocation takes blocks from the head of the queue and forgets what they held (eviction). When a
request ends its blocks are released deepest first, so that the tail of a context is evicted before its
beginning; a block that was never published can never be hit and goes to the *head*, to be reused first.
A hit takes the block out of the queue.

Two requests that computed the same prefix at the same time hold two blocks with one hash; a lookup
answers with the one that was published first, and evicting one leaves the other.

An optional **host tier** stands for KV offloading to CPU memory: what is evicted here moves to a second,
larger LRU, from where it can be loaded instead of computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

BlockId = int
ChainHash = int


class BlockPool:
    """The blocks of one rank. All operations are O(1) per block.

    Args:
        num_blocks: blocks of the rank, the null block included (vLLM's ``num_gpu_blocks`` of one rank).
        host_blocks: blocks that the host tier holds; 0: no host tier.

    Raises:
        ValueError: fewer than two blocks, or a negative host tier.
    """

    __slots__ = ("_cached", "_free", "_hash", "_host", "_refs", "host_blocks", "num_blocks", "version")

    def __init__(self, num_blocks: int, host_blocks: int = 0) -> None:
        if num_blocks < 2:
            raise ValueError(f"a KV cache needs at least 2 blocks (one is the null block), got {num_blocks}")
        if host_blocks < 0:
            raise ValueError(f"the host tier cannot hold {host_blocks} blocks, allowed is 0 or more")
        self.num_blocks = num_blocks
        self.host_blocks = host_blocks
        self.version = 0
        """Counts every change of the pool: a lookup that failed at the same version fails again."""
        self._refs = [0] * num_blocks
        self._hash: list[ChainHash | None] = [None] * num_blocks
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._cached: dict[ChainHash, BlockId | dict[BlockId, None]] = {}
        self._host: OrderedDict[ChainHash, None] = OrderedDict()

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        """Blocks that no request references, published or not."""
        return len(self._free)

    @property
    def used_ratio(self) -> float:
        """0..1: referenced blocks over usable ones (``vllm:kv_cache_usage_perc``)."""
        return 1.0 - len(self._free) / (self.num_blocks - 1)

    def longest_prefix(self, hashes: Sequence[ChainHash], max_blocks: int) -> list[BlockId]:
        """Blocks that hold the longest published prefix of ``hashes``, at most ``max_blocks``."""
        found: list[BlockId] = []
        cached = self._cached
        for chain_hash in islice(hashes, max_blocks):
            entry = cached.get(chain_hash)
            if entry is None:
                break
            found.append(entry if isinstance(entry, int) else next(iter(entry)))
        return found

    def host_prefix(self, hashes: Sequence[ChainHash], start: int, max_blocks: int) -> int:
        """How many blocks after the first ``start`` the host tier can continue the prefix with."""
        if not self._host:
            return 0
        count = 0
        for chain_hash in islice(hashes, start, max_blocks):
            if chain_hash not in self._host:
                break
            count += 1
        return count

    def host_used(self, hashes: Iterable[ChainHash]) -> None:
        """Blocks that were loaded from the host tier become its most recently used."""
        for chain_hash in hashes:
            if chain_hash in self._host:
                self._host.move_to_end(chain_hash)

    def count_idle(self, blocks: Iterable[BlockId]) -> int:
        """How many of ``blocks`` wait in the free queue (a hit would take them out of it)."""
        refs = self._refs
        return sum(1 for block in blocks if refs[block] == 0)

    def touch(self, blocks: Iterable[BlockId]) -> None:
        """A request starts to use these published blocks."""
        refs = self._refs
        free = self._free
        for block in blocks:
            if refs[block] == 0:
                del free[block]
            refs[block] += 1
        self.version += 1

    def allocate(self, count: int) -> list[BlockId]:
        """Take ``count`` blocks from the head of the free queue and forget what they held.

        Raises:
            ValueError: fewer than ``count`` blocks are free.
        """
        free = self._free
        if count > len(free):
            raise ValueError(f"cannot allocate {count} blocks, {len(free)} are free")
        taken: list[BlockId] = []
        for _ in range(count):
            block, _none = free.popitem(last=False)
            chain_hash = self._hash[block]
            if chain_hash is not None:
                self._evict(block, chain_hash)
            self._refs[block] = 1
            taken.append(block)
        self.version += 1
        return taken

    def publish(self, block: BlockId, chain_hash: ChainHash) -> None:
        """The block is full: from now on lookups find it under ``chain_hash``."""
        self._hash[block] = chain_hash
        entry = self._cached.get(chain_hash)
        if entry is None:
            self._cached[chain_hash] = block
        elif isinstance(entry, dict):
            entry[block] = None
        else:
            self._cached[chain_hash] = {entry: None, block: None}
        self.version += 1

    def release(self, blocks: Sequence[BlockId]) -> None:
        """A request gives up its blocks, listed from the beginning of its context."""
        refs = self._refs
        free = self._free
        unpublished: list[BlockId] = []
        for block in reversed(blocks):
            refs[block] -= 1
            if refs[block] == 0:
                if self._hash[block] is None:
                    unpublished.append(block)
                else:
                    free[block] = None
        for block in reversed(unpublished):
            free[block] = None
            free.move_to_end(block, last=False)
        self.version += 1

    def reset(self) -> bool:
        """Forget everything that is cached (vLLM's ``/reset_prefix_cache``); False if a block is in use."""
        if len(self._free) != self.usable_blocks:
            return False
        self._cached.clear()
        self._host.clear()
        self._hash = [None] * self.num_blocks
        self.version += 1
        return True

    def check(self) -> None:
        """Verify the invariants; for tests.

        Raises:
            AssertionError: blocks were lost or doubled, a count is negative, or an index is wrong.
        """
        referenced = [block for block in range(1, self.num_blocks) if self._refs[block] > 0]
        assert all(refs >= 0 for refs in self._refs), "negative reference count"
        assert len(referenced) + len(self._free) == self.usable_blocks, "blocks lost or doubled"
        assert not any(block in self._free for block in referenced), "a referenced block is free"
        indexed = {
            block: chain_hash
            for chain_hash, entry in self._cached.items()
            for block in ([entry] if isinstance(entry, int) else entry)
        }
        published = {block: h for block, h in enumerate(self._hash) if h is not None}
        assert indexed == published, "the index of hashes does not match the blocks"
        assert len(self._host) <= self.host_blocks, "the host tier overflowed"

    def _evict(self, block: BlockId, chain_hash: ChainHash) -> None:
        self._hash[block] = None
        entry = self._cached[chain_hash]
        if isinstance(entry, dict) and len(entry) > 1:
            del entry[block]
            return
        del self._cached[chain_hash]
        if self.host_blocks:
            self._host[chain_hash] = None
            self._host.move_to_end(chain_hash)
            if len(self._host) > self.host_blocks:
                self._host.popitem(last=False)
