"""Virtual time: the same router and engine, told apart from the clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from lmwarden.routing.baselines import PerRequestRouter, random_choice
from lmwarden.routing.contract import RouterContract
from lmwarden.routing.router import Router
from lmwarden.simulation.engine import ApiServers
from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.options import SimulatedEngineOptions, scheduler_limits
from lmwarden.simulation.virtual import (
    ENGINE,
    Outage,
    VirtualHost,
    VirtualLevel,
    VirtualOptions,
    VirtualRun,
)
from lmwarden.simulation.virtual_load import VirtualBranch, VirtualRecord, VirtualTurn
from lmwarden.types import (
    Action,
    Decision,
    Outcome,
    Refuse,
    RefuseReason,
    RoutingRequest,
    RoutingSettings,
    Ticket,
    Usage,
)

CARD = load_profile("a4000-qwen3-4b")
SHARED = range(3500)


@dataclass(frozen=True)
class Session:
    """A session of the published workload: sizes fixed, tokens of its own."""

    index: int
    gap_s: float
    agent_id: str | None = None

    @property
    def session_id(self) -> str:
        return f"session-{self.index}"

    def virtual_turns(self) -> Iterable[VirtualTurn]:
        own = 1_000_000 * (self.index + 1)
        yield VirtualTurn([*SHARED, *range(own, own + 7350)], 256)
        for turn in range(1, 6):
            start = own + 10_000 * turn
            yield VirtualTurn(range(start, start + 400), 256, self.gap_s)


class Workload(NamedTuple):
    gap_s: float = 0.0

    def session(self, index: int) -> Session:
        return Session(index, self.gap_s)


def our_router(*, affinity: bool = True) -> Router:
    return Router(RoutingSettings(affinity=affinity), engines={ENGINE: 4})


def run(
    router: RouterContract | None = None,
    *,
    sessions: int = 8,
    seconds: float = 60.0,
    warmup_s: float = 0.0,
    network_s: float = 0.0,
    gap_s: float = 0.0,
) -> VirtualRun:
    options = VirtualOptions(
        hardware=CARD,
        limits=scheduler_limits(SimulatedEngineOptions(), CARD),
        network_s=network_s,
    )
    host = VirtualHost(router or our_router(), ApiServers("0.26", 4, 4), options)
    return host.play(Workload(gap_s), VirtualLevel(sessions=sessions, seconds=seconds, warmup_s=warmup_s))


def hit_ratio(records: Sequence[VirtualRecord]) -> float:
    served = [record for record in records if record.first_token_s is not None]
    return sum(record.cached_tokens for record in served) / sum(record.prompt_tokens for record in served)


def test_the_same_inputs_give_the_same_run_to_the_last_digit() -> None:
    first, second = run(), run()
    assert first.records == second.records
    assert first.router == second.router
    assert first.counters_at_end == second.counters_at_end


def test_records_tell_each_request_from_send_to_end() -> None:
    result = run(network_s=0.12)
    ended = [record for record in result.records if record.ended_s is not None]
    assert len(ended) > 20
    for record in ended:
        assert record.dispatched_s == pytest.approx(record.sent_s + 0.12)
        assert record.first_token_s is not None
        assert record.ended_s is not None
        assert record.sent_s + 0.12 < record.first_token_s < record.ended_s <= 60.0
        assert record.output_tokens == 256
        assert record.prompt_tokens == 3500 + 7350 + record.turn * (256 + 400)
        assert record.replica is not None
        assert record.decision is (Decision.STICKY if record.turn else Decision.PLACED)
    unfinished = [record for record in result.records if record.ended_s is None]
    assert len(unfinished) <= 8
    assert sum(record.output_tokens for record in result.records) == sum(
        counters.generation_tokens for counters in result.counters_at_end
    )


def test_the_router_and_the_engine_agree_at_every_end() -> None:
    result = run()
    open_requests = sum(record.ended_s is None and record.dispatched_s is not None for record in result.records)
    assert result.router.in_flight == open_requests
    assert sum(result.router.decisions.values()) == sum(record.decision is not None for record in result.records)


def test_a_turn_follows_its_predecessor_after_the_gap() -> None:
    for gap_s in (0.0, 2.5):
        result = run(gap_s=gap_s)
        by_turn = {(record.session, record.turn): record for record in result.records}
        followers = [key for key in by_turn if key[1]]
        assert followers
        for session, turn in followers:
            before = by_turn[session, turn - 1].ended_s
            assert before is not None
            assert by_turn[session, turn].sent_s == pytest.approx(before + gap_s)


def test_a_session_that_ends_makes_room_for_the_next() -> None:
    result = run(seconds=120.0)
    started = {record.session for record in result.records}
    assert result.sessions
    assert len(started) == 8 + len(result.sessions)
    ends = {(record.session, record.turn): record.ended_s for record in result.records}
    assert [ends[number, 5] for number, _, _ in result.sessions] == [ended_s for _, _, ended_s in result.sessions]


def test_staying_hits_the_whole_context() -> None:
    result = run(sessions=4)
    for record in result.records:
        if record.turn and record.first_token_s is not None:
            # All of the last turn's prompt and answer, but the answer's last token and the block it is in.
            assert record.cached_tokens >= record.prompt_tokens - 400 - 16 - 1


def test_hits_come_from_tokens_whatever_the_router_does() -> None:
    wandering = run(PerRequestRouter(RoutingSettings(), engines={ENGINE: 4}, choose=random_choice(1)))
    off = run(our_router(affinity=False))
    staying = run()
    assert hit_ratio(wandering.records) < hit_ratio(staying.records) - 0.2
    assert abs(hit_ratio(wandering.records) - hit_ratio(off.records)) < 0.15
    assert {record.decision for record in off.records} == {Decision.UNROUTED}
    assert len({record.replica for record in off.records}) == 4


def test_the_window_starts_after_the_warm_up() -> None:
    result = run(seconds=30.0, warmup_s=20.0)
    assert (result.start_s, result.end_s) == (20.0, 50.0)
    assert len(result.busy_replicas) == 30
    assert set(result.busy_replicas) <= {0, 1, 2, 3, 4}
    before = sum(counters.generation_tokens for counters in result.counters_at_start)
    after = sum(counters.generation_tokens for counters in result.counters_at_end)
    assert 0 < before < after


class RefusesOnce(Router):
    """Refuses the first offer, as a router does that has no replica."""

    offers = 0

    def offer(self, request: RoutingRequest, now: float) -> tuple[Ticket, Sequence[Action]]:
        self.offers += 1
        if self.offers == 1:
            return -1, [Refuse(-1, RefuseReason.NO_REPLICA, 7)]
        return super().offer(request, now)


def test_a_refused_request_comes_again_when_the_router_said() -> None:
    result = run(RefusesOnce(RoutingSettings(), engines={ENGINE: 4}), sessions=1)
    first = result.records[0]
    assert (first.refusals, first.sent_s, first.dispatched_s) == (1, 0.0, 7.0)
    assert first.ended_s is not None


class HoldsUntilDeadline(Router):
    """Keeps every request for a while and dispatches it from ``tick``, as a waiting room does."""

    def __init__(self, hold_s: float) -> None:
        super().__init__(RoutingSettings(), engines={ENGINE: 4})
        self.hold_s = hold_s
        self.held: list[tuple[float, Sequence[Action]]] = []
        self.ticks: list[float] = []

    def offer(self, request: RoutingRequest, now: float) -> tuple[Ticket, Sequence[Action]]:
        ticket, actions = super().offer(request, now)
        self.held.append((now + self.hold_s, actions))
        return ticket, ()

    def next_deadline(self) -> float | None:
        return self.held[0][0] if self.held else None

    def tick(self, now: float) -> Sequence[Action]:
        self.ticks.append(now)
        return self.held.pop(0)[1]


@pytest.mark.parametrize("hold_s", [1.5, -3.0])
def test_the_routers_deadlines_are_kept_and_its_time_never_goes_back(hold_s: float) -> None:
    router = HoldsUntilDeadline(hold_s)
    result = run(router, network_s=5.0)
    assert router.ticks == sorted(router.ticks)
    for record in result.records:
        if record.dispatched_s is not None:
            assert record.dispatched_s == pytest.approx(record.sent_s + 5.0 + max(0.0, hold_s))


def test_what_still_waits_in_the_router_at_the_end_was_never_dispatched() -> None:
    result = run(HoldsUntilDeadline(60.5), seconds=60.0)  # after the end, before the next scrape
    assert len(result.records) == 8
    for record in result.records:
        assert (record.dispatched_s, record.decision, record.replica) == (None, None, None)


def test_the_fitted_card_reproduces_what_is_known_of_it() -> None:
    """Eight sessions for three minutes: 8.4k output tokens a minute off, 12k with perfect balance."""

    def tokens_per_minute(result: VirtualRun) -> float:
        return sum(counters.generation_tokens for counters in result.counters_at_end) / 3

    assert 7_400 < tokens_per_minute(run(our_router(affinity=False), seconds=180.0, network_s=0.12)) < 9_900
    assert 10_500 < tokens_per_minute(run(seconds=180.0, network_s=0.12)) < 12_800


# -- a host that lives on ----------------------------------------------------------------------------------------------


def new_host(router: RouterContract | None = None) -> VirtualHost:
    options = VirtualOptions(hardware=CARD, limits=scheduler_limits(SimulatedEngineOptions(), CARD))
    return VirtualHost(router or our_router(), ApiServers("0.26", 4, 4), options)


def test_the_next_level_finds_the_caches_of_the_one_before_and_none_of_its_clients() -> None:
    host = new_host()
    first = host.play(Workload(), VirtualLevel(sessions=4, seconds=20.0))
    assert host.router.view(host.now_s).in_flight == 0
    again = host.play(Workload(), VirtualLevel(sessions=4, seconds=20.0))
    assert (again.start_s, again.end_s) == (20.0, 40.0)
    assert {record.session for record in again.records} == {0, 1, 2, 3}
    assert all(record.sent_s >= 20.0 for record in again.records)
    openings = [record for record in again.records if record.turn == 0]
    assert all(record.cached_tokens > 10_000 for record in openings)
    assert all(record.cached_tokens < 4_000 for record in first.records if record.turn == 0)
    generated = [[rank.generation_tokens for rank in run_] for run_ in (first.counters_at_end, again.counters_at_start)]
    assert generated[0] == generated[1]


def test_levels_in_a_row_are_told_apart_from_their_sum() -> None:
    host = new_host()
    runs = [host.play(Workload(), VirtualLevel(sessions=sessions, seconds=30.0)) for sessions in (2, 4)]
    for run_, sessions in zip(runs, (2, 4), strict=True):
        assert len({record.session for record in run_.records if record.turn == 0}) >= sessions
        assert len(run_.busy_replicas) == 30
        assert max(run_.busy_replicas) <= sessions


# -- what a session may do besides plain turns -------------------------------------------------------------------------


class Scripted(NamedTuple):
    """A conversation of given turns."""

    session_id: str
    turns: Sequence[VirtualTurn]
    agent_id: str | None = None

    def virtual_turns(self) -> Iterable[VirtualTurn]:
        return self.turns


class Once(NamedTuple):
    """The given session first, then ones that do not matter."""

    first: Scripted

    def session(self, index: int) -> Scripted:
        return self.first if index == 0 else Scripted(f"other {index}", [VirtualTurn(range(16), 1, 1e6)])


def play_once(*turns: VirtualTurn, router: RouterContract | None = None) -> VirtualRun:
    return new_host(router).play(Once(Scripted("s", turns)), VirtualLevel(sessions=1, seconds=120.0))


def of(result: VirtualRun, agent_id: str | None = None) -> list[VirtualRecord]:
    return [record for record in result.records if record.session == 0 and record.agent_id == agent_id]


def ended(record: VirtualRecord) -> float:
    assert record.ended_s is not None
    return record.ended_s


def test_a_turn_that_starts_over_drops_the_context() -> None:
    first, over, after = of(
        play_once(
            VirtualTurn(range(4000), 100),
            VirtualTurn([*range(3200), *range(9000, 9100)], 100, starts_over=True),
            VirtualTurn(range(9500, 9600), 100),
        )
    )
    assert (first.prompt_tokens, over.prompt_tokens, after.prompt_tokens) == (4000, 3300, 3300 + 100 + 100)
    assert over.cached_tokens == 3200


def test_a_client_that_leaves_takes_its_request_along_and_goes_on_without_the_answer() -> None:
    router = our_router()
    first, second = of(
        play_once(
            VirtualTurn(range(4000), 1000, leaves_after_s=2.0, left_token_ids=[7, 8, 9]),
            VirtualTurn(range(9000, 9100), 100),
            router=router,
        )
    )
    assert first.left
    assert first.first_token_s is not None
    assert ended(first) == pytest.approx(first.first_token_s + 2.0)
    assert 0 < first.output_tokens < 1000
    assert second.sent_s == ended(first)
    assert second.prompt_tokens == 4000 + 3 + 100
    assert not second.left
    assert router.view(120.0).in_flight == 0


def test_an_answer_that_ends_before_its_client_would_leave_has_ended() -> None:
    first, second = of(
        play_once(VirtualTurn(range(4000), 10, leaves_after_s=60.0, left_token_ids=[7]), VirtualTurn(range(50), 10))
    )
    assert not first.left
    assert second.prompt_tokens == 4000 + 10 + 50


def subagent(name: str, tokens: int, turns: int = 2) -> VirtualBranch:
    start = 1_000_000 * (1 + ord(name))
    script = [VirtualTurn(range(start, start + tokens), 20)]
    script += [VirtualTurn(range(start + 50_000 * turn, start + 50_000 * turn + 100), 20) for turn in range(1, turns)]
    return VirtualBranch(Scripted("s", script, agent_id=name), copies_context=False)


def test_subagents_run_at_once_and_the_next_turn_waits_for_the_last() -> None:
    result = play_once(
        VirtualTurn(range(4000), 50, branches=[subagent("a", 1000), subagent("b", 9000, turns=3)]),
        VirtualTurn(range(9000, 9100), 50),
    )
    (main, after), a, b = of(result), of(result, "a"), of(result, "b")
    assert [record.turn for record in (*a, *b)] == [0, 1, 0, 1, 2]
    assert a[0].sent_s == b[0].sent_s == ended(main)
    assert after.sent_s == max(ended(a[-1]), ended(b[-1]))
    assert a[0].prompt_tokens == 1000
    assert {record.decision for record in (a[1], b[1], b[2], after)} == {Decision.STICKY}
    assert result.sessions == [(0, 0.0, ended(after))]


def test_a_fork_copies_the_context_and_nobody_but_the_session_waits_for_it() -> None:
    fork = Scripted("fork", [VirtualTurn(range(7000, 7100), 400), VirtualTurn(range(7500, 7600), 400)])
    result = play_once(
        VirtualTurn(range(4000), 50, branches=[VirtualBranch(fork, copies_context=True)]),
        VirtualTurn(range(9000, 9100), 20),
    )
    copy, copy_after = (record for record in of(result) if record.output_tokens == 400)
    first, original = (record for record in of(result) if record.output_tokens != 400)
    assert original.sent_s == copy.sent_s == ended(first)
    assert original.prompt_tokens == copy.prompt_tokens == 4000 + 50 + 100
    assert copy_after.prompt_tokens == copy.prompt_tokens + 400 + 100
    # The router knows that it resembles the original, so it starts where the cache is.
    assert copy.decision is Decision.PLACED
    assert copy.cached_tokens >= 4000
    assert result.sessions == [(0, 0.0, ended(copy_after))]


def test_the_router_learns_how_an_answer_ended() -> None:
    reasons: list[str | None] = []

    class Listens(Router):
        def finished(self, ticket: Ticket, outcome: Outcome, usage: Usage | None, now: float) -> Sequence[Action]:
            assert usage is not None
            reasons.append(usage.finish_reason)
            return super().finished(ticket, outcome, usage, now)

    play_once(
        VirtualTurn(range(1000), 10, finish_reason="tool_calls"),
        VirtualTurn(range(100), 10),
        router=Listens(RoutingSettings(), engines={ENGINE: 4}),
    )
    assert reasons == ["tool_calls", "length"]


def test_in_the_open_loop_sessions_start_when_they_come() -> None:
    host = new_host()
    host.rest(100.0)
    result = host.play(Workload(), VirtualLevel(starts_s=iter([1.0, 1.5, 2.0]), seconds=60.0))
    assert [record.sent_s for record in result.records if record.turn == 0] == [101.0, 101.5, 102.0]
    assert len(result.sessions) == 3


def test_a_rank_that_dies_loses_what_ran_and_is_back_empty() -> None:
    """Its clients' answers broke off: they send their turns again, and where it was is read again."""
    options = VirtualOptions(hardware=CARD, limits=scheduler_limits(SimulatedEngineOptions(), CARD))
    router = our_router()
    host = VirtualHost(router, ApiServers("0.26", 4, 4), options)
    result = host.play(
        Workload(), VirtualLevel(sessions=8, seconds=90.0, outage=Outage(rank=1, down_s=30.0, up_s=40.0))
    )
    there = [record for record in result.records if record.replica == (ENGINE, 1)]
    assert not any(record.dispatched_s and 30.0 <= record.dispatched_s < 40.0 for record in there)
    assert not any(record.dispatched_s and record.dispatched_s < 30.0 <= (record.ended_s or 90.0) for record in there)
    assert any(record.dispatched_s and record.dispatched_s >= 40.0 for record in there)
    again = [r for r in result.records if r.dispatched_s == 30.0 and r.sent_s < 30.0 and r.turn]
    assert again, "nobody had to send a turn again"
    assert all(r.decision is Decision.REHOMED and r.cached_tokens < 4_000 and r.ended_s for r in again)
    assert router.view(90.0).in_flight == 0


def test_the_router_may_be_told_another_capacity_than_there_is() -> None:
    limits = scheduler_limits(SimulatedEngineOptions(), CARD)
    told = VirtualOptions(hardware=CARD, limits=limits, told_kv_ratio=0.5)
    router = our_router()
    VirtualHost(router, ApiServers("0.26", 4, 4), told)
    assert {row.capacity.kv_cache_tokens for row in router.view(0.0).replicas} == {limits.num_blocks * 16 // 2}
