"""The scheduler, as transcripts: what each step works on, and what is cached afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmwarden.simulation.scheduler import EngineRequest, RequestState, Scheduler, SchedulerLimits, StepWork
from lmwarden.simulation.tokens import chain_hashes

BLOCK = 4


def scheduler(
    blocks: int = 101,
    *,
    batched_tokens: int = 64,
    seqs: int = 8,
    host_blocks: int = 0,
    count_lookup_retries: bool = False,
) -> Scheduler:
    return Scheduler(
        SchedulerLimits(
            block_size=BLOCK,
            num_blocks=blocks,
            host_blocks=host_blocks,
            max_num_seqs=seqs,
            max_num_batched_tokens=batched_tokens,
            count_lookup_retries=count_lookup_retries,
        )
    )


def request(prompt: list[int], output_tokens: int = 1, answer: int = 900) -> EngineRequest:
    output = range(answer, answer + output_tokens)
    return EngineRequest(chain_hashes([*prompt, *output], BLOCK), len(prompt), output_tokens)


def step(rank: Scheduler, now: float = 0.0) -> tuple[StepWork | None, list[EngineRequest]]:
    """One step: its work, and who got a token."""
    work = rank.schedule(now)
    return work, [got for got, _since in rank.complete(now)]


def run(rank: Scheduler) -> int:
    """Run until idle; the number of steps."""
    steps = 0
    while step(rank)[0] is not None:
        rank.pool.check()
        steps += 1
    return steps


def cached(rank: Scheduler, prompt: list[int]) -> int:
    """Prompt tokens that a request would find in the cache now."""
    probe = request(prompt)
    rank.add(probe)
    run(rank)
    return probe.cached_tokens


def text(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))


def test_a_prompt_then_one_token_per_step() -> None:
    rank = scheduler()
    asked = request(text(10), output_tokens=3)
    rank.add(asked)
    assert step(rank, 1.0) == (StepWork(10, 50.0, 10, 0), [asked])
    assert step(rank, 2.0) == (StepWork(1, 10.5, 11, 0), [asked])
    assert rank.running == [asked]
    assert step(rank, 3.0) == (StepWork(1, 11.5, 12, 0), [asked])
    assert asked.finished
    assert step(rank) == (None, [])
    assert (asked.scheduled_s, asked.first_token_s, asked.last_token_s) == (1.0, 1.0, 3.0)
    assert rank.pool.free_blocks == rank.pool.usable_blocks
    counters = rank.counters
    assert (counters.prompt_tokens, counters.generation_tokens, counters.finished_length) == (10, 3, 1)


def test_a_long_prompt_is_cut_into_chunks_and_running_requests_go_first() -> None:
    rank = scheduler(batched_tokens=8)
    short, long = request(text(4), 9), request(text(20, 100), 1)
    rank.add(short)
    rank.add(long)
    assert step(rank) == (StepWork(8, 4 * 2 + 4 * 2, 8, 0), [short])  # 4 tokens of each
    assert step(rank)[0] == StepWork(8, 1 * 4.5 + 7 * 7.5, 5 + 11, 0)
    assert step(rank)[1] == [short]
    work, got = step(rank)
    assert work is not None
    assert got == [short, long]


def test_requests_admitted_in_one_step_already_share_their_prefix() -> None:
    rank = scheduler()
    one, two = request(text(12)), request([*text(8), 77, 78, 79])
    rank.add(one)
    rank.add(two)
    work, _got = step(rank)
    assert work is not None
    assert work.tokens == 12 + 3
    assert (one.cached_tokens, two.cached_tokens) == (0, 8)


def test_a_chunked_prompt_is_shared_as_far_as_it_was_scheduled() -> None:
    rank = scheduler(batched_tokens=8)
    one, two = request(text(16)), request(text(16))
    rank.add(one)
    rank.add(two)
    step(rank)
    assert two.state is RequestState.WAITING
    run(rank)
    assert two.cached_tokens == 12  # all of it but the block that holds the last token


def test_the_last_block_of_an_aligned_prompt_is_computed_again() -> None:
    rank = scheduler()
    assert cached(rank, text(16)) == 0
    assert cached(rank, text(16)) == 12
    assert cached(rank, text(17)) == 16


def test_answers_are_cached_but_not_their_last_token() -> None:
    rank = scheduler()
    prompt = text(6)
    rank.add(request(prompt, output_tokens=6))
    run(rank)
    answer = text(6, 900)
    assert cached(rank, [*prompt, *answer, 1]) == 8  # 11 tokens computed, two blocks full


@pytest.mark.parametrize(("output_tokens", "expected"), [(2, 4), (3, 8)])
def test_a_block_counts_once_its_last_token_was_computed(output_tokens: int, expected: int) -> None:
    rank = scheduler()
    rank.add(request(text(6), output_tokens))
    run(rank)
    assert cached(rank, [*text(6), *text(output_tokens, 900), 1, 2, 3]) == expected


def test_created_cache_tokens_are_the_full_blocks_that_were_not_hit() -> None:
    rank = scheduler()
    first, second = request(text(10)), request(text(19))
    for asked in (first, second):
        rank.add(asked)
        run(rank)
    assert (first.cached_tokens, first.created_cache_tokens) == (0, 8)
    assert (second.cached_tokens, second.created_cache_tokens) == (8, 8)


def test_the_head_of_the_queue_blocks_those_behind_it() -> None:
    rank = scheduler(blocks=11)  # 10 usable
    running, large, small = request(text(20), 8), request(text(24, 100)), request(text(4, 200))
    for asked in (running, large, small):
        rank.add(asked)
    step(rank)
    assert [asked.state for asked in (large, small)] == [RequestState.WAITING] * 2
    run(rank)
    assert large.scheduled_s is not None
    assert small.state is RequestState.FINISHED


def test_idle_hits_count_against_the_free_blocks() -> None:
    rank = scheduler(blocks=9)  # 8 usable
    rank.add(request(text(16)))
    run(rank)
    held = request(text(16, 100), 4)
    rank.add(held)
    step(rank)  # holds 4 of 8; the 4 idle ones hold the first prompt
    returning = request([*text(16), *text(4, 300)])
    rank.add(returning)
    step(rank)
    # 5 blocks needed: 4 hits that would leave the free queue and one new, of 4 free ones, or fewer.
    assert list(rank.waiting) == [returning]
    run(rank)
    assert returning.finished


def test_max_num_seqs_bounds_the_batch() -> None:
    rank = scheduler(seqs=2)
    asked = [request(text(4, 10 * i), 2) for i in range(3)]
    for one in asked:
        rank.add(one)
    step(rank)
    assert (len(rank.running), len(rank.waiting)) == (2, 1)
    run(rank)
    assert all(one.finished for one in asked)


def test_the_last_running_request_is_preempted_and_comes_back_first() -> None:
    rank = scheduler(blocks=7, seqs=2)  # 6 usable
    first, second, third = request(text(8), 9), request(text(8, 100), 9), request(text(4, 200), 2)
    for asked in (first, second, third):
        rank.add(asked)
    step(rank)
    assert rank.running == [first, second]
    while not rank.counters.preemptions:
        step(rank)
    assert second.state is RequestState.WAITING
    assert rank.waiting[0] is second
    assert second.preemptions == 1
    generated = second.generated_tokens
    assert generated > 0
    run(rank)
    assert all(asked.finished for asked in (first, second, third))
    assert second.generated_tokens == 9
    assert rank.counters.preemptions == sum(asked.preemptions for asked in (first, second, third))
    assert rank.counters.generation_tokens == 9 + 9 + 2  # a preempted request repeats no token
    assert rank.counters.prompt_tokens == 8 + 8 + 4


def test_the_last_running_request_gives_way_to_those_before_it_and_to_itself() -> None:
    rank = scheduler(blocks=7)  # 6 usable
    first, last = request(text(14), 6), request(text(8, 100), 2)
    rank.add(first)
    rank.add(last)
    step(rank)  # 4 and 2 blocks: none is free
    work, got = step(rank)  # the first has room in its last block, the last would need a new one
    assert work == StepWork(1, 14.5, 15, 0)
    assert got == [first]
    assert (first.preemptions, last.preemptions) == (0, 1)
    run(rank)
    assert (first.generated_tokens, last.generated_tokens) == (6, 2)


def test_a_step_that_preempted_admits_nobody() -> None:
    rank = scheduler(blocks=7, seqs=2)  # 6 usable
    first, second = request(text(8), 9), request(text(8, 100), 9)
    rank.add(first)
    rank.add(second)
    step(rank)
    small = request(text(1, 300))
    rank.add(small)
    while second in rank.running:
        rank.schedule(0.0)
        if second in rank.running:
            rank.complete(0.0)
    # Blocks are free now, and yet nobody was admitted.
    assert rank.pool.free_blocks > 0
    assert rank.running == [first]
    assert list(rank.waiting) == [second, small]


def test_a_preempted_request_hits_what_is_still_cached_and_reports_its_first_hits() -> None:
    rank = scheduler(blocks=7)
    first, second = request(text(8), 9), request(text(8, 100), 9)
    rank.add(first)
    rank.add(second)
    run(rank)
    assert second.preemptions == 1
    assert second.cached_tokens == 0
    # Neither query nor hit of the second admission shows in the counters.
    assert rank.counters.prefix_queries_tokens == 16
    assert rank.counters.prefix_hits_tokens == 0


def test_an_abort_frees_at_once_whether_waiting_or_running() -> None:
    rank = scheduler(seqs=1)
    running, waiting = request(text(8), 5), request(text(8, 100), 5)
    rank.add(running)
    rank.add(waiting)
    rank.schedule(0.0)
    assert rank.abort(running)
    assert rank.abort(waiting)
    assert rank.pool.free_blocks == rank.pool.usable_blocks
    assert rank.complete(0.0) == []
    assert not rank.abort(running)
    assert (rank.counters.aborted, rank.counters.generation_tokens) == (2, 0)


def test_what_an_aborted_request_computed_stays_cached() -> None:
    rank = scheduler()
    asked = request(text(12), 5)
    rank.add(asked)
    step(rank)
    rank.abort(asked)
    assert cached(rank, text(12)) == 8


@pytest.mark.parametrize(("retries", "queries"), [(False, 4 + 13), (True, 4 + 13 * 6)])
def test_lookups_are_counted_once_or_at_every_attempt(retries: bool, queries: int) -> None:
    rank = scheduler(blocks=5, count_lookup_retries=retries)  # 4 usable
    rank.add(request(text(4), 5))
    rank.add(request(text(13, 100)))
    run(rank)
    # The second waits through the five steps of the first: five blocked attempts, then the admission.
    assert rank.counters.prefix_queries_tokens == queries


def test_the_host_tier_is_loaded_instead_of_computed() -> None:
    rank = scheduler(blocks=6, host_blocks=50)
    rank.add(request(text(16)))
    run(rank)
    rank.add(request(text(16, 100)))
    run(rank)  # evicts most of the first
    again = request(text(16))
    rank.add(again)
    work, _got = step(rank)
    assert work is not None
    assert work.loaded_tokens > 0
    assert again.cached_tokens == 12
    assert work.tokens == 4
    assert rank.counters.external_hits_tokens == work.loaded_tokens


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        (EngineRequest([], 0, 1), "at least one prompt token"),
        (EngineRequest([], 1, 0), "at least one prompt token"),
        (EngineRequest([1] * 99, 400, 1), "never fits"),
        (EngineRequest([1], 8, 2), "hash of each"),
    ],
)
def test_impossible_requests_are_refused(asked: EngineRequest, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        scheduler().add(asked)


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(1, 30), st.integers(1, 12)),  # family, prompt, output
        st.tuples(st.just("abort"), st.integers(0, 50)),
        st.just(("step",)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(_EVENTS, st.integers(12, 20), st.integers(1, 16), st.integers(1, 4))
def test_any_order_of_events_conserves_blocks_and_finishes_everything(
    events: list[tuple[object, ...]], blocks: int, batched_tokens: int, seqs: int
) -> None:
    rank = scheduler(blocks, batched_tokens=batched_tokens, seqs=seqs)
    asked: list[EngineRequest] = []
    for event in events:
        match event:
            case ("add", int(family), int(prompt), int(output)):
                one = request(text(prompt, family * 1000), output, answer=family * 1000 + prompt)
                if one.prompt_tokens + one.output_tokens <= rank.pool.usable_blocks * BLOCK:
                    rank.add(one)
                    asked.append(one)
            case ("abort", int(which)):
                if asked:
                    rank.abort(asked[which % len(asked)])
            case _:
                work = rank.schedule(0.0)
                assert work is None or 0 < work.tokens <= batched_tokens
                rank.pool.check()
                rank.complete(0.0)
        rank.pool.check()
        assert len(rank.running) <= seqs
    run(rank)
    assert rank.pool.free_blocks == rank.pool.usable_blocks
    for one in asked:
        assert one.state in (RequestState.FINISHED, RequestState.ABORTED)
        if one.finished:
            assert one.generated_tokens == one.output_tokens
            assert one.cached_tokens < one.prompt_tokens
    assert rank.counters.finished_length + rank.counters.aborted == len(asked)
