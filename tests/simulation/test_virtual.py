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
    VirtualOptions,
    VirtualRecord,
    VirtualRun,
    VirtualTurn,
    run_virtual,
)
from lmwarden.types import Action, Decision, Refuse, RefuseReason, RoutingRequest, RoutingSettings, Ticket

CARD = load_profile("a4000-qwen3-4b")
SHARED = range(3500)


@dataclass(frozen=True)
class Session:
    """A session of the published workload: sizes fixed, tokens of its own."""

    index: int
    gap_s: float

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
        sessions=sessions,
        seconds=seconds,
        warmup_s=warmup_s,
        network_s=network_s,
    )
    return run_virtual(Workload(gap_s), router or our_router(), ApiServers("0.26", 4, 4), options)


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
        assert record.last_turn is (record.turn == 5)
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
    over = {record.session for record in result.records if record.last_turn and record.ended_s is not None}
    assert over
    assert len(started) == 8 + len(over)


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

    assert 7_400 < tokens_per_minute(run(our_router(affinity=False), seconds=180.0, network_s=0.12)) < 9_400
    assert 10_500 < tokens_per_minute(run(seconds=180.0, network_s=0.12)) < 12_800
