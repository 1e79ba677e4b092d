"""Levels in virtual time: deterministic, the same prompts as over HTTP, and a gain that a random router loses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmwarden.bench.conversation import Api, Conversation
from lmwarden.bench.errors import PlanError
from lmwarden.bench.results import LevelResult
from lmwarden.bench.sessions import PromptReuse, SessionSource
from lmwarden.bench.virtual import SimulationPlan, VirtualSessions, simulate_plan
from lmwarden.bench.workload import Forks, Leaving, Subagents, Workload, load_workload, workload_names
from lmwarden.routing.baselines import PerRequestRouter, random_choice
from lmwarden.routing.contract import RouterContract
from lmwarden.simulation.prompts import anthropic_prompt
from lmwarden.simulation.tokens import TokenChain, token_text
from lmwarden.simulation.virtual import Outage
from lmwarden.types import RoutingSettings

DATA = Path(__file__).parents[1] / "data"
WORKLOAD = load_workload("claude-code")


def simulated(arm: str, sessions: int = 8, seed: int = 1, **more: Any) -> LevelResult:
    plan = SimulationPlan(workload=WORKLOAD, levels=[sessions], arms=[arm], seeds=[seed], **more)
    return simulate_plan(plan)[0]


level = cache(simulated)
"""The same arguments give the same row, so several tests look at one."""


def random_router(settings: RoutingSettings, *, engines: Mapping[str, int], seed: int = 0) -> RouterContract:
    return PerRequestRouter(settings, engines=engines, choose=random_choice(seed))


def hits(row: LevelResult) -> float:
    assert row.prefix_hit_ratio is not None
    return row.prefix_hit_ratio


def test_the_same_arguments_give_the_same_row() -> None:
    row = simulated("on", seconds=60.0)
    assert row == simulated("on", seconds=60.0)
    assert row != simulated("on", seconds=60.0, seed=2)


def test_tokens_are_those_that_the_engine_makes_of_the_client_s_body() -> None:
    """Three turns of a session, rendered by the engine's chat template and by the virtual client."""
    source = SessionSource(WORKLOAD, think=None, seed=1, sessions=4, arm="on")
    conversation = Conversation(source.session(0), "m", Api.MESSAGES)
    context = TokenChain(16)
    turns = list(VirtualSessions(source).session(0).virtual_turns())
    for number, turn in enumerate(turns[:3]):
        context.extend(turn.token_ids)
        body = msgspec.json.decode(conversation.body(number))
        assert anthropic_prompt(body) == context.tokens
        context.extend_with_answer(turn.output_tokens)
        answer = context.tokens[-turn.output_tokens :]
        conversation.answered("".join(map(token_text, answer)))


@pytest.mark.parametrize("sessions", [4, 8, 16])
def test_affinity_gains_up_to_capacity(sessions: int) -> None:
    off, on = level("off", sessions), level("on", sessions)
    assert hits(on) > hits(off) + 0.2
    assert on.output_tokens_per_minute is not None and off.output_tokens_per_minute is not None
    assert on.output_tokens_per_minute > 1.2 * off.output_tokens_per_minute
    assert on.ttfb_s.p50 is not None and off.ttfb_s.p50 is not None
    assert on.ttfb_s.p50 < off.ttfb_s.p50 / 2


@pytest.mark.parametrize("sessions", [4, 8, 16])
def test_random_placement_gains_nothing(sessions: int) -> None:
    off, placed_at_random = level("off", sessions), level("on", sessions, make_router=random_router)
    assert hits(placed_at_random) == pytest.approx(hits(off), abs=0.1)


def test_every_arm_reports_what_it_did() -> None:
    off, hashed, on = (level(arm, seconds=60.0) for arm in ("off", "hash", "on"))
    assert (off.balancer, hashed.balancer, on.balancer) == ("engine", None, None)
    assert off.decisions is not None and on.decisions is not None
    assert off.decisions["unrouted"] > 0 and off.stayed_ratio is None
    assert on.decisions["placed"] >= 8 and on.stayed_ratio == 1.0
    for row in (off, hashed, on):
        assert row.decisions is not None
        # What is still on its way when the window closes has no decision yet.
        assert 0 <= row.requests - sum(row.decisions.values()) <= 8
        assert row.waited_in_room == 0
        assert row.replicas_busy is not None and 0 < row.replicas_busy <= 4
        assert row.prefix_hit_ratio_engine is not None


def test_warm_up_is_cut_off() -> None:
    row = level("on", seconds=60.0, warmup_s=60.0)
    assert row.seconds == 60
    assert row.sessions_per_hour


def test_agents_that_think_load_the_engine_less() -> None:
    busy, thinking = level("on", seconds=120.0), level("on", seconds=120.0, think="agent")
    assert busy.output_tokens_per_minute is not None and thinking.output_tokens_per_minute is not None
    assert thinking.output_tokens_per_minute < busy.output_tokens_per_minute


def test_unknown_gaps_and_hardware_are_refused() -> None:
    with pytest.raises(PlanError, match="none, agent"):
        level("on", think="deep")
    with pytest.raises(ValueError, match="a4000-qwen3-4b"):
        level("on", hardware="abacus")


def ramp(reuse: PromptReuse) -> list[LevelResult]:
    return simulate_plan(
        SimulationPlan(
            workload=WORKLOAD, levels=[2, 4], arms=["off", "on"], seeds=[1, 2], seconds=30.0, prompt_reuse=reuse
        )
    )


@pytest.mark.parametrize("reuse", list(PromptReuse))
def test_cells_come_level_by_level_or_as_ramps_of_one_host(reuse: PromptReuse) -> None:
    names = [(row.seed, row.sessions, row.arm) for row in ramp(reuse)]
    if reuse is PromptReuse.NONE:
        order = [(2, "off"), (2, "on"), (4, "off"), (4, "on")]
    else:
        order = [(2, "off"), (4, "off"), (2, "on"), (4, "on")]
    assert names == [(seed, *pair) for seed in (1, 2) for pair in order]


def test_prompts_that_come_again_are_hit() -> None:
    fresh, arms, levels = (
        {(row.sessions, row.arm): hits(row) for row in ramp(reuse) if row.seed == 1} for reuse in PromptReuse
    )
    assert arms[2, "on"] > fresh[2, "on"] + 0.05
    assert levels[4, "off"] > arms[4, "off"] + 0.05


@pytest.mark.parametrize("name", workload_names())
def test_every_shipped_workload_plays(name: str) -> None:
    plan = SimulationPlan(
        workload=load_workload(name), levels=[3], arms=["on"], seconds=60.0, think="none", kv_cache_tokens=200_000
    )
    (row,) = simulate_plan(plan)
    assert row.failed == 0
    assert row.ttfb_s.p50 is not None


def test_subagents_forks_and_left_turns_are_in_the_records() -> None:
    workload = msgspec.structs.replace(
        WORKLOAD,
        leaving=Leaving(share=0.5, after_first_token_s=(0.5, 1.0)),
        forks=Forks(share=1.0, turns=1),
        subagents=Subagents(
            share=1.0,
            agents=2,
            shared_system_tokens=500,
            first_message_tokens=500,
            turn_tokens=100,
            turns=2,
            max_output_tokens=50,
        ),
    )
    (row,) = simulate_plan(SimulationPlan(workload=workload, levels=[2], arms=["on"], seconds=120.0))
    assert row.left > 3
    assert row.requests > 30
    assert row.sessions_per_hour


def test_the_open_loop_has_a_backlog_where_the_host_cannot_follow() -> None:
    plan = SimulationPlan(workload=WORKLOAD, levels=[3000], arms=["on"], seconds=60.0, open_loop=True)
    (row,) = simulate_plan(plan)
    assert (row.loop, row.sessions) == ("open", 3000)
    assert row.open_at_start == 0
    assert row.open_at_end is not None
    assert row.open_at_end > 30


def test_the_engine_s_counters_stand_beside_the_clients_figures() -> None:
    row = level("on", seconds=60.0)
    assert row.engine is not None
    assert row.engine.hit_ratio == row.prefix_hit_ratio_engine
    assert row.engine.generation_tokens is not None and row.output_tokens_per_minute is not None
    assert row.engine.generation_tokens >= row.output_tokens_per_minute


@pytest.mark.parametrize("sessions", [24, 32])
def test_beyond_capacity_the_waiting_room_gives_more_output_and_a_low_median(sessions: int) -> None:
    on, room = (level(arm, sessions, seconds=400.0, warmup_s=120.0) for arm in ("on", "on+admission"))
    assert on.output_tokens_per_minute is not None and room.output_tokens_per_minute is not None
    assert room.output_tokens_per_minute > 1.2 * on.output_tokens_per_minute
    assert on.ttfb_s.p50 is not None and room.ttfb_s.p50 is not None
    assert room.ttfb_s.p50 < on.ttfb_s.p50 * 0.75
    assert hits(room) > hits(on) + 0.2
    assert room.waited_in_room


@pytest.mark.parametrize(("sessions", "more"), [(8, {}), (16, {}), (24, {"cpu_cache_tokens": 100_000})])
def test_the_waiting_room_is_not_felt_where_everything_fits(sessions: int, more: dict[str, int]) -> None:
    assert level("on+admission", sessions, **more).waited_in_room == 0


def test_preferring_the_median_only_first_turns_wait() -> None:
    row = level("on+admission", 24, seconds=400.0, warmup_s=120.0, prefer="median")
    assert row.ttfb_s.p50 is not None and row.ttfb_s.p95 is not None
    assert row.ttfb_s.p50 < 1.0 < 20.0 < row.ttfb_s.p95


def replaced(name: str, **changes: Any) -> Workload:
    """The shipped workload with another part of that name."""
    part = msgspec.structs.replace(getattr(WORKLOAD, name), **changes)
    return msgspec.structs.replace(WORKLOAD, **{name: part})


@pytest.mark.parametrize(
    ("sessions", "more"),
    [
        (24, {"told_kv_ratio": 1.2}),
        (24, {"told_kv_ratio": 0.8}),
        (24, {"workload": replaced("session", max_output_tokens=(20, 256))}),
        (24, {"workload": load_workload("mixed")}),
        (24, {"outage": Outage(rank=2, down_s=100.0, up_s=140.0)}),
        (8, {"workload": load_workload("claude-code-subagents")}),
        (16, {"think": "agent"}),
        (20, {"think": "agent", "hardware": str(DATA / "fast-card.toml"), "replicas": 2, "seconds": 100.0}),
    ],
    ids=["kv+20", "kv-20", "outputs", "mixed", "lost", "fan-out", "gaps", "short-turns"],
)
def test_the_waiting_room_does_no_harm_where_it_is_wrong_or_surprised(sessions: int, more: dict[str, Any]) -> None:
    on, room = (played(arm, sessions, **more) for arm in ("on", "on+admission"))
    assert on.output_tokens_per_minute is not None and room.output_tokens_per_minute is not None
    assert room.output_tokens_per_minute >= 0.95 * on.output_tokens_per_minute
    assert room.room_wait_s.max is None or room.room_wait_s.max <= 240.0, "somebody waited beyond the hard bound"
    assert room.failed == 0


def played(arm: str, sessions: int, **more: Any) -> LevelResult:
    plan: dict[str, Any] = {"workload": WORKLOAD, "seconds": 200.0, "warmup_s": 30.0, **more}
    return simulate_plan(SimulationPlan(levels=[sessions], arms=[arm], seeds=[1], **plan))[0]
