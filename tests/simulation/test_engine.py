"""Ranks side by side: time, balancing, aborts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lmwarden.routing.engine_balancer import RankLoad
from lmwarden.simulation.engine import ApiServers, Balancer, SimulatedEngine
from lmwarden.simulation.hardware import HardwareProfile
from lmwarden.simulation.scheduler import EngineRequest, SchedulerLimits

ONE_SECOND_STEPS = HardwareProfile(
    name="slow",
    description="every step takes one second",
    parameters=0.0,
    weights_bytes=0.0,
    attention_flops_per_pair=0.0,
    kv_bytes_per_token=0.0,
    memory_bytes_per_s=1.0,
    flops_per_s=1.0,
    host_bytes_per_s=1.0,
    overhead_s=1.0,
    kv_cache_tokens=1600,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=512,
)
LIMITS = SchedulerLimits(num_blocks=100, max_num_seqs=4, max_num_batched_tokens=64)


class Recorder:
    """A balancer that notes what it saw and always chooses the last rank."""

    def __init__(self) -> None:
        self.seen: list[list[RankLoad]] = []

    def choose(self, request: EngineRequest, loads: Sequence[RankLoad]) -> int:
        self.seen.append(list(loads))
        return len(loads) - 1

    def ended(self, request: EngineRequest) -> None:
        pass


def engine(balancer: Balancer | None = None, ranks: int = 2) -> SimulatedEngine:
    return SimulatedEngine(ONE_SECOND_STEPS, LIMITS, ranks, balancer or ApiServers("0.26", 1, ranks))


def request(output_tokens: int = 1, prompt_tokens: int = 4) -> EngineRequest:
    return EngineRequest(range(100), prompt_tokens, output_tokens)


def test_an_idle_engine_has_no_next_event() -> None:
    assert engine().next_event() is None
    assert engine().advance(99.0) == []


def test_tokens_come_at_the_end_of_each_step() -> None:
    it = engine()
    asked = request(3)
    it.submit(asked, 10.0, 0)
    assert it.next_event() == 11.0
    assert it.advance(10.9) == []
    progress = it.advance(20.0)
    assert [(p.at_s, p.token, p.finished, p.since_last_s) for p in progress] == [
        (11.0, 1, False, None),
        (12.0, 2, False, 1.0),
        (13.0, 3, True, 1.0),
    ]
    assert it.next_event() is None


def test_a_request_that_comes_during_a_step_joins_the_next() -> None:
    it = engine()
    first, second = request(2), request(1)
    it.submit(first, 0.0, 0)
    it.submit(second, 0.5, 0)
    assert [(p.request, p.at_s) for p in it.advance(9.0)] == [(first, 1.0), (first, 2.0), (second, 2.0)]


def test_ranks_are_independent_and_reported_in_order_of_time() -> None:
    it = engine()
    late, early = request(2), request(2)
    it.submit(late, 0.5, 1)
    it.submit(early, 0.7, 0)
    assert [(p.request.rank, p.at_s) for p in it.advance(9.0)] == [(1, 1.5), (0, 1.7), (1, 2.5), (0, 2.7)]


def test_in_flight_counts_what_has_not_ended() -> None:
    it = engine()
    done, gone = request(1), request(9)
    it.submit(done, 0.0, 0)
    it.submit(gone, 0.0, 0)
    assert it.in_flight(0) == 2
    it.advance(1.0)
    assert it.in_flight(0) == 1
    assert it.abort(gone)
    assert it.in_flight(0) == 0
    assert not it.abort(gone)
    assert not it.abort(done)
    it.advance(9.0)
    assert it.next_event() is None
    assert it.scheduler(0).pool.free_blocks == 99


def test_an_abort_during_a_step_gives_no_token() -> None:
    it = engine()
    asked = request(5)
    it.submit(asked, 0.0, 0)
    it.abort(asked)
    assert it.advance(5.0) == []


def test_a_named_rank_is_obeyed_and_an_unnamed_one_balanced() -> None:
    it = engine(Recorder(), ranks=3)
    assert it.submit(request(), 0.0, 0) == 0
    assert it.submit(request(), 0.0) == 2
    with pytest.raises(IndexError):
        it.submit(request(), 0.0, 3)


def test_the_balancer_sees_old_counts_its_own_picks_and_exact_flights() -> None:
    recorder = Recorder()
    it = engine(recorder)
    it.submit(request(50), 0.0)
    it.submit(request(50), 0.05)
    it.submit(request(50), 0.05, 1)  # a named rank adds to the flights only
    it.submit(request(50), 0.09)
    it.submit(request(50), 0.2)
    last = [loads[1] for loads in recorder.seen]
    assert [(load.own_in_flight, load.running, load.waiting) for load in last] == [
        (0, 0, 0),
        (1, 0, 1),
        (3, 0, 2),
        (4, 1, 3),  # a new snapshot: one runs, three wait for the next step
    ]
    assert last[-1].kv_used_ratio == pytest.approx(1 / 99)


def test_a_request_that_has_just_ended_is_still_counted_in_the_snapshot() -> None:
    recorder = Recorder()
    it = engine(recorder)
    it.submit(request(1), 0.0, 1)
    it.advance(1.0)
    it.submit(request(1), 1.04)  # the snapshot of 1.0 was taken before the step ended
    it.submit(request(1), 1.11)
    running = [loads[1].running for loads in recorder.seen]
    assert running == [1, 1]
    it.advance(9.0)
    it.submit(request(1), 9.0)
    assert recorder.seen[-1][1].running == 0


def test_each_api_server_counts_its_own_requests_for_all() -> None:
    balancer, idle = ApiServers("0.27", 2, 2, seed=3), [RankLoad(0, 0, 0, 0.0)] * 2
    it = engine(balancer)
    asked = [request(50) for _ in range(40)]
    ranks = [it.submit(one, 0.0) for one in asked]
    assert 15 <= sum(ranks) <= 25
    for one in asked:
        it.abort(one)
    # Nothing is counted any more: both servers begin where their rotations stand.
    assert {balancer.choose(request(), idle) for _ in range(8)} == {0, 1}
    with pytest.raises(ValueError, match="never fits"):
        it.submit(request(2000), 0.0)


def test_one_blind_api_server_rotates() -> None:
    balancer = ApiServers("0.26", 1, 4)
    idle = [RankLoad(0, 0, 0, 0.0)] * 4
    assert [balancer.choose(request(), idle) for _ in range(6)] == [0, 1, 2, 3, 0, 1]


def test_several_api_servers_spread_evenly_but_in_no_order() -> None:
    idle = [RankLoad(0, 0, 0, 0.0)] * 4
    picks = [ApiServers("0.26", 4, 4, seed).choose(request(), idle) for seed in range(400)]
    assert all(60 < picks.count(rank) < 140 for rank in range(4))
    balancer = ApiServers("0.26", 4, 4, seed=1)
    order = [balancer.choose(request(), idle) for _ in range(400)]
    assert all(80 < order.count(rank) < 120 for rank in range(4))
    assert order[:8] != [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_sighted_balancer_sees_the_right_rank_from_every_api_server() -> None:
    loads = [RankLoad(5, 5, 0, 0.0), RankLoad(5, 5, 0, 0.0), RankLoad(0, 0, 0, 0.0), RankLoad(5, 5, 0, 0.0)]
    balancer = ApiServers("0.27", 4, 4)
    picks = [balancer.choose(request(), loads) for _ in range(4)]
    assert set(picks) == {2}


@pytest.mark.parametrize("build", [lambda: engine(ranks=0), lambda: ApiServers("0.26", 0, 4)])
def test_nothing_to_run_on_is_refused(build: object) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match="at least one"):
        build()
