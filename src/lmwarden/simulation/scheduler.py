"""The scheduler of one rank, step by step as vLLM's: continuous batching with chunked prefill.

Theory of operation
-------------------
A step works on at most ``max_num_batched_tokens`` tokens. First come the RUNNING requests in order: one
decode token each, or the next chunk of a prompt. Then WAITING ones are admitted in order of arrival while
tokens and places (``max_num_seqs``) are left. The head of the queue blocks those behind it: a request is
admitted only if its *whole* sequence so far fits into the free blocks, prefix hits counted.

If a running request finds no block, the last running one is preempted: its blocks are released, it goes
to the front of the queue and is computed again later (what is still cached then is hit). A step that
preempted admits nobody.

Blocks are published when the step that fills them is scheduled. So a request that is admitted later in
the same step already shares them, and of a finished request the last output token is never in the cache
(its keys and values would have been computed by the next step).

The scheduler never sees tokens: a request brings the chain hash of each of its full blocks, prompt and
output together, and how many tokens it will generate. It is pure: ``schedule`` says what the step works
on, ``complete`` what came out; the caller decides how long that took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from lmwarden.simulation.blocks import BlockId, BlockPool, ChainHash


class RequestState(Enum):
    """Life of a request in the engine."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class EngineRequest:
    """One sequence in a rank.

    Args:
        hashes: chain hash of each full block of prompt + output, for the rank's block size. It may be
            longer than that (a list that several requests share); it must not be shorter.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: how many tokens it generates, at least 1.
        arrival_s: when it came (engine clock).
        tag: whatever the driver wants to find again.
    """

    __slots__ = (
        "arrival_s",
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "created_cache_tokens",
        "first_token_s",
        "generated_tokens",
        "hashes",
        "last_token_s",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "published_blocks",
        "rank",
        "scheduled_s",
        "state",
        "tag",
    )

    def __init__(
        self,
        hashes: Sequence[ChainHash],
        prompt_tokens: int,
        output_tokens: int,
        arrival_s: float = 0.0,
        tag: object = None,
    ) -> None:
        self.hashes = hashes
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.arrival_s = arrival_s
        self.tag = tag
        self.rank = 0
        self.state = RequestState.WAITING
        self.blocks: list[BlockId] = []
        self.published_blocks = 0
        self.computed_tokens = 0
        self.generated_tokens = 0
        self.cached_tokens = 0
        """Prompt tokens that came from the cache when it was first admitted."""
        self.created_cache_tokens = 0
        """Prompt tokens that it wrote into the cache (full blocks only)."""
        self.preemptions = 0
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None

    @property
    def finished(self) -> bool:
        """It has all its output."""
        return self.state is RequestState.FINISHED


class SchedulerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's scheduling parameters of one rank."""

    block_size: int = 16
    """Tokens of one block."""
    num_blocks: int = 2625
    """Blocks of the rank, the null block included."""
    host_blocks: int = 0
    """Blocks of the CPU tier; 0: none."""
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    count_lookup_retries: bool = False
    """As vLLM 0.26: a waiting request's cache lookup is counted at every scheduling attempt."""


class StepWork(NamedTuple):
    """What one step computes; the hardware model turns it into seconds."""

    tokens: int
    """Tokens that go through the linear layers."""
    attended_tokens: float
    """Sum over those tokens of the context each attends to."""
    context_tokens: int
    """Sum over the step's sequences of the context whose keys and values are read."""
    loaded_tokens: int
    """Tokens that were loaded from the CPU tier before the step."""


class SchedulerCounters(msgspec.Struct):
    """Cumulative, as vLLM's metrics of one engine."""

    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    external_queries_tokens: int = 0
    external_hits_tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    finished_length: int = 0
    aborted: int = 0
    steps: int = 0


class NeverFitsError(ValueError):
    """A request is larger than the cache of a rank."""


class Scheduler:
    """One rank: a queue, a running batch and a block pool."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, limits.host_blocks)
        self.counters = SchedulerCounters()
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        self._in_step: list[EngineRequest] = []
        self._blocked: tuple[EngineRequest, int, int] | None = None

    def add(self, request: EngineRequest) -> None:
        """Queue a request behind the others.

        Raises:
            NeverFitsError: it is larger than the cache.
            ValueError: its lengths or hashes make no sense.
        """
        total_tokens = request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if -(-total_tokens // self.limits.block_size) > self.pool.usable_blocks:
            raise NeverFitsError(
                f"a request of {total_tokens} tokens never fits into {self.pool.usable_blocks} blocks"
                f" of {self.limits.block_size} tokens"
            )
        if len(request.hashes) < (total_tokens - 1) // self.limits.block_size:
            raise ValueError("a request must bring the hash of each of its full blocks")
        self.waiting.append(request)

    def abort(self, request: EngineRequest) -> bool:
        """Take a request out at once and release its blocks; False if it had ended before."""
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state is RequestState.RUNNING:
            self.running.remove(request)
        else:
            return False
        self._release(request)
        request.state = RequestState.ABORTED
        self.counters.aborted += 1
        return True

    def schedule(self, now: float) -> StepWork | None:
        """Choose what the next step works on; None: nothing to do."""
        step = _StepBuilder(self.limits.max_num_batched_tokens)
        preempted = self._schedule_running(step)
        if not preempted:
            self._admit_waiting(step, now)
        self._in_step = step.requests
        if not step.requests:
            return None
        self.counters.steps += 1
        return StepWork(step.tokens, step.attended_tokens, step.context_tokens, step.loaded_tokens)

    def complete(self, now: float) -> list[tuple[EngineRequest, float | None]]:
        """End the scheduled step: the requests that got one token each, in batch order.

        With each comes the time since its token before (None: it was the first). A request whose ``state`` is
        FINISHED had its last token and has left the rank.
        """
        got_token: list[tuple[EngineRequest, float | None]] = []
        counters = self.counters
        any_finished = False
        for request in self._in_step:
            if (
                request.state is not RequestState.RUNNING
                or request.computed_tokens < request.prompt_tokens + request.generated_tokens
            ):
                continue
            last_s = request.last_token_s
            if last_s is None:
                self._first_token(request, now)
            request.generated_tokens += 1
            request.last_token_s = now
            counters.generation_tokens += 1
            if request.generated_tokens >= request.output_tokens:
                request.state = RequestState.FINISHED
                counters.finished_length += 1
                self._release(request)
                any_finished = True
            got_token.append((request, None if last_s is None else now - last_s))
        if any_finished:
            self.running = [r for r in self.running if r.state is RequestState.RUNNING]
        self._in_step = []
        return got_token

    # -- running ---------------------------------------------------------------------------------------

    def _schedule_running(self, step: _StepBuilder) -> bool:
        """Give every running request its tokens; True if one had to be preempted."""
        preempted = False
        index = 0
        while index < len(self.running) and step.budget_tokens > 0:
            request = self.running[index]
            new_tokens = min(
                request.prompt_tokens + request.generated_tokens - request.computed_tokens, step.budget_tokens
            )
            end = request.computed_tokens + new_tokens
            while not self._extend(request, end):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is request:
                    return True
            step.add(request, new_tokens)
            self._publish(request, end)
            request.computed_tokens = end
            index += 1
        return preempted

    def _extend(self, request: EngineRequest, end_tokens: int) -> bool:
        """Blocks for the request's first ``end_tokens`` tokens; False if not enough are free."""
        missing = -(-end_tokens // self.limits.block_size) - len(request.blocks)
        if missing <= 0:
            return True
        if missing > self.pool.free_blocks:
            return False
        request.blocks += self.pool.allocate(missing)
        return True

    def _preempt(self, victim: EngineRequest) -> None:
        self._release(victim)
        victim.state = RequestState.WAITING
        victim.computed_tokens = 0
        victim.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(victim)

    # -- waiting ---------------------------------------------------------------------------------------

    def _admit_waiting(self, step: _StepBuilder, now: float) -> None:
        while self.waiting and step.budget_tokens > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            if self._still_blocked(request):
                return
            if not self._admit(request, step):
                return
            self.waiting.popleft()
            self.running.append(request)
            request.state = RequestState.RUNNING
            if request.scheduled_s is None:
                request.scheduled_s = now

    def _still_blocked(self, request: EngineRequest) -> bool:
        """The head failed before and no block changed since: it fails again, without another lookup."""
        blocked = self._blocked
        if blocked is None or blocked[0] is not request or blocked[1] != self.pool.version:
            return False
        self._count_lookup(request, blocked[2], admitted=False)
        return True

    def _admit(self, request: EngineRequest, step: _StepBuilder) -> bool:
        block_size = self.limits.block_size
        pool = self.pool
        total = request.prompt_tokens + request.generated_tokens
        # The last token is always computed, to have something to sample from.
        max_hit_blocks = (total - 1) // block_size
        hits = pool.longest_prefix(request.hashes, max_hit_blocks)
        host_hits = pool.host_prefix(request.hashes, len(hits), max_hit_blocks)
        missing = -(-total // block_size) - len(hits)
        if missing + pool.count_idle(hits) > pool.free_blocks:
            self._count_lookup(request, len(hits), admitted=False)
            self._blocked = (request, pool.version, len(hits))
            return False
        self._blocked = None
        self._count_lookup(request, len(hits), admitted=True)
        pool.touch(hits)
        request.blocks = hits
        request.published_blocks = len(hits)
        cached_tokens = (len(hits) + host_hits) * block_size
        if host_hits:
            pool.host_used(request.hashes[len(hits) : len(hits) + host_hits])
            step.loaded_tokens += host_hits * block_size
        if self.limits.host_blocks:
            self.counters.external_queries_tokens += total - len(hits) * block_size
            self.counters.external_hits_tokens += host_hits * block_size
        if not request.preemptions:
            request.cached_tokens = cached_tokens
        new_tokens = min(total - cached_tokens, step.budget_tokens)
        end = cached_tokens + new_tokens
        self._extend(request, end)
        request.computed_tokens = cached_tokens
        step.add(request, new_tokens)
        self._publish(request, end)
        request.computed_tokens = end
        return True

    def _count_lookup(self, request: EngineRequest, hit_blocks: int, *, admitted: bool) -> None:
        # vLLM keeps the lookups of preempted requests in a counter that no metric shows.
        if request.preemptions or not (admitted or self.limits.count_lookup_retries):
            return
        self.counters.prefix_queries_tokens += request.prompt_tokens + request.generated_tokens
        self.counters.prefix_hits_tokens += hit_blocks * self.limits.block_size

    # -- both ------------------------------------------------------------------------------------------

    def _publish(self, request: EngineRequest, end_tokens: int) -> None:
        full = end_tokens // self.limits.block_size
        for index in range(request.published_blocks, full):
            self.pool.publish(request.blocks[index], request.hashes[index])
        if full > request.published_blocks:
            request.published_blocks = full

    def _first_token(self, request: EngineRequest, now: float) -> None:
        request.first_token_s = now
        written = min(request.published_blocks * self.limits.block_size, request.prompt_tokens)
        request.created_cache_tokens = max(0, written - request.cached_tokens)
        self.counters.prompt_tokens += request.prompt_tokens
        self.counters.cached_prompt_tokens += request.cached_tokens

    def _release(self, request: EngineRequest) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.published_blocks = 0


class _StepBuilder:
    """Collects what a step works on."""

    __slots__ = (
        "attended_tokens",
        "budget_tokens",
        "context_tokens",
        "loaded_tokens",
        "requests",
        "tokens",
    )

    def __init__(self, budget_tokens: int) -> None:
        self.budget_tokens = budget_tokens
        self.requests: list[EngineRequest] = []
        self.tokens = 0
        self.attended_tokens = 0.0
        self.context_tokens = 0
        self.loaded_tokens = 0

    def add(self, request: EngineRequest, new_tokens: int) -> None:
        """The step computes the next ``new_tokens`` tokens of ``request``."""
        before = request.computed_tokens
        self.requests.append(request)
        self.budget_tokens -= new_tokens
        self.tokens += new_tokens
        self.attended_tokens += new_tokens * (before + new_tokens / 2)
        self.context_tokens += before + new_tokens
