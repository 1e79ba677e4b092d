"""The same sessions, arms and results in virtual time.

``SimulationRun`` plays cells with the router object that the gateway uses and the engine model of the simulation,
without waiting: seconds of the model cost milliseconds. The sessions are those of ``sessions``, as tokens: each turn
appends its message between the role markers that the simulated engine's chat template would put there, so that prompts
have the same length and share the same blocks as over HTTP.

A cell starts with empty caches, and with prompts that no other cell uses. With ``prompt_reuse`` it does not: then one
engine and one router live through all cells of a seed, arm after arm as a ramp of levels each, and the same prompts
come again in the next arm, or at the next level too. That is how the published table was taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from lmwarden.bench.arms import routing_settings
from lmwarden.bench.counters import EngineCounters
from lmwarden.bench.measure import LevelRecords, SessionRecord, TurnRecord, Window, level_result
from lmwarden.bench.plan import Cell
from lmwarden.bench.plans import LEFT_TEXT, AgentSession, Branch, TurnPlan
from lmwarden.bench.player import poisson_starts
from lmwarden.bench.replay import ReplaySource
from lmwarden.bench.results import AS_RECORDED, LevelResult
from lmwarden.bench.sessions import PromptReuse, Sessions, SessionSource
from lmwarden.bench.trace import Trace
from lmwarden.bench.virtual_replay import VirtualReplays
from lmwarden.bench.workload import Workload
from lmwarden.routing.contract import RouterContract
from lmwarden.routing.engine_balancer import BalancerVersion
from lmwarden.routing.router import Router
from lmwarden.simulation.engine import ApiServers
from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.options import SimulatedEngineOptions, scheduler_limits
from lmwarden.simulation.prompts import Marker
from lmwarden.simulation.scheduler import SchedulerCounters
from lmwarden.simulation.tokens import text_tokens
from lmwarden.simulation.virtual import (
    ENGINE,
    Outage,
    VirtualHost,
    VirtualLevel,
    VirtualOptions,
    VirtualRun,
)
from lmwarden.simulation.virtual_load import VirtualBranch, VirtualRecord, VirtualTurn, VirtualWorkload
from lmwarden.types import RoutingSettings

NETWORK_S = 0.12
"""Client, network and HTTP before the router: fitted to the published table, whose client was far away."""


REST_S = 30.0
"""Between two cells of one host. The router expects clients that left a moment ago to come back, and would place the
next cell's sessions around them."""


class MakeRouter(Protocol):
    """Makes the router of a host; a test or a study puts another one in its place."""

    def __call__(self, settings: RoutingSettings, *, engines: Mapping[str, int], seed: int = 0) -> RouterContract:
        """``engines``: short name to number of ranks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """What to play, on what."""

    workload: Workload | Trace
    levels: Sequence[int] = (4, 8, 16, 24, 32)
    """Sessions at once; in the open loop, sessions that start per hour."""
    open_loop: bool = False
    """Sessions start at random moments, whether or not earlier ones have ended."""
    arms: Sequence[str] = ("off", "on")
    seeds: Sequence[int] = (1,)
    """Of sessions and of everything else that is drawn."""
    seconds: float = 180.0
    """The measured window, modelled seconds."""
    warmup_s: float = 0.0
    think: str = "none"
    """Name of the workload's gaps, or ``none``."""
    balancer: BalancerVersion = "0.26"
    """The engine's own, which decides in ``off``."""
    hardware: str = "a4000-qwen3-4b"
    """Name of a hardware profile, or a TOML file."""
    replicas: int = 4
    """Data-parallel ranks of the one engine."""
    kv_cache_tokens: int | None = None
    """KV cache of each rank; None: the profile's."""
    cpu_cache_tokens: int = 0
    """CPU tier of each rank; 0: none."""
    prefer: str = "balanced"
    """What the waiting room favours, in the arm that has one: ``balanced``, ``median`` or ``tail``."""
    prompt_reuse: PromptReuse = PromptReuse.NONE
    network_s: float = NETWORK_S
    """Added to each request on its way in."""
    told_kv_ratio: float = 1.0
    """The router is told so many times the true KV capacity."""
    outage: Outage | None = None
    """A rank that dies and comes back, in every cell."""
    make_router: MakeRouter = Router


@dataclass(slots=True)
class SimulationRun:
    """A plan, checked, and its hosts.

    Raises:
        PlanError: the workload has no gaps of that name.
        ValueError: the hardware is unknown, or a value is out of range; the text names it.
    """

    plan: SimulationPlan
    cells: list[Cell] = field(init=False)
    """All cells in the order in which they must be played."""
    _options: VirtualOptions = field(init=False)
    _hosts: dict[int, VirtualHost] = field(init=False, default_factory=dict)
    """One for each seed, where it lives through the cells."""

    def __post_init__(self) -> None:
        plan = self.plan
        if not 0 < plan.seconds < math.inf:
            raise ValueError(f"seconds must be above 0, got {plan.seconds:g}")
        if not 0 <= plan.warmup_s < math.inf:
            raise ValueError(f"warmup must be 0 or more, got {plan.warmup_s:g}")
        if not 0 <= plan.network_s < math.inf:
            raise ValueError(f"network_s must be 0 or more, got {plan.network_s:g}")
        plan.workload.think_named(plan.think)
        profile = load_profile(plan.hardware)
        options = SimulatedEngineOptions(
            replicas=plan.replicas,
            hardware=plan.hardware,
            balancer=plan.balancer,
            kv_cache_tokens=plan.kv_cache_tokens,
            cpu_cache_tokens=plan.cpu_cache_tokens,
        )
        self._options = VirtualOptions(
            hardware=profile,
            limits=scheduler_limits(options, profile),
            replicas=plan.replicas,
            network_s=plan.network_s,
            told_kv_ratio=plan.told_kv_ratio,
        )
        if plan.prompt_reuse is PromptReuse.NONE:
            pairs = [(level, arm) for level in plan.levels for arm in plan.arms]
        else:
            pairs = [(level, arm) for arm in plan.arms for level in plan.levels]
        self.cells = [Cell(level, arm, seed, plan.open_loop) for seed in plan.seeds for level, arm in pairs]

    def play(self, cell: Cell) -> LevelResult:
        """Play one cell. The same plan and order of cells give the same row."""
        run = self.records(cell)
        records = level_records(run, self.plan.network_s, open_loop=cell.open_loop)
        window = Window(run.start_s, run.end_s)
        return level_result(records, window, sessions=cell.sessions, arm=cell.arm, seed=cell.seed)

    def records(self, cell: Cell) -> VirtualRun:
        """Play one cell, and return every request of it."""
        plan = self.plan
        workload: VirtualWorkload
        starts_s = poisson_starts(cell.sessions, cell.seed)
        if isinstance(plan.workload, Trace):
            source = ReplaySource(
                plan.workload,
                model="",
                cell_key=f"{cell.seed}|{cell.sessions}|{cell.arm}",
                keep_gaps=plan.workload.keeps_gaps(plan.think),
            )
            workload = VirtualReplays(source)
            if cell.sessions == AS_RECORDED:
                starts_s = iter(source.start_times_s)
        else:
            workload = VirtualSessions(_drawn(plan, cell, plan.workload))
        level = VirtualLevel(
            sessions=cell.sessions,
            starts_s=starts_s if cell.open_loop else None,
            seconds=plan.seconds,
            warmup_s=plan.warmup_s,
            outage=plan.outage,
        )
        return self._host(cell).play(workload, level)

    def _host(self, cell: Cell) -> VirtualHost:
        plan = self.plan
        settings = routing_settings(cell.arm, plan.prefer)
        host = self._hosts.get(cell.seed)
        if host is not None:
            host.rest(REST_S)
            host.router.configure(settings, host.now_s)
            return host
        host = VirtualHost(
            plan.make_router(settings, engines={ENGINE: plan.replicas}, seed=cell.seed),
            ApiServers(plan.balancer, servers=plan.replicas, ranks=plan.replicas, seed=cell.seed),
            self._options,
        )
        if plan.prompt_reuse is not PromptReuse.NONE:
            self._hosts[cell.seed] = host
        return host


def _drawn(plan: SimulationPlan, cell: Cell, workload: Workload) -> SessionSource:
    return SessionSource(
        workload,
        think=workload.think_named(plan.think),
        seed=cell.seed,
        sessions=cell.sessions,
        arm=cell.arm,
        prompt_reuse=plan.prompt_reuse,
    )


def simulate_plan(plan: SimulationPlan) -> list[LevelResult]:
    """Play all cells of a plan.

    Raises:
        PlanError, ValueError: as ``SimulationRun``.
    """
    run = SimulationRun(plan)
    return [run.play(cell) for cell in run.cells]


def hardware_name(hardware: str) -> str:
    """Return a profile's own name.

    Raises:
        ValueError: there is no such profile.
    """
    return load_profile(hardware).name


class VirtualSessions:
    """A source of sessions as the simulation wants them: tokens instead of text."""

    def __init__(self, source: Sessions) -> None:
        self._source = source

    def session(self, index: int) -> TokenSession:
        """Return session number ``index``."""
        return TokenSession(self._source.session(index))


@dataclass(frozen=True, slots=True)
class TokenSession:
    """One conversation as tokens, in the order of the simulated engine's chat template."""

    _session: AgentSession

    @property
    def session_id(self) -> str:
        """The id that the client would send."""
        return self._session.session_id

    @property
    def agent_id(self) -> str | None:
        """Of a subagent."""
        return self._session.agent_id

    def virtual_turns(self) -> Iterable[VirtualTurn]:
        """Its turns, each made when it is asked for."""
        session = self._session
        system_tokens = _text_tokens(session.system_text)
        system = [Marker.SYSTEM, *system_tokens, Marker.END] if system_tokens else []
        head: list[int] = [Marker.END] if session.forked else system
        for number, turn in enumerate(session.turns):
            message = text_tokens(session.message_text(number))
            before = system if turn.starts_over else head
            yield _virtual_turn(turn, [*before, Marker.USER, *message, Marker.END, Marker.ASSISTANT])
            head = [Marker.END]  # closes the answer that came in between


def _virtual_turn(turn: TurnPlan, tokens: list[int]) -> VirtualTurn:
    return VirtualTurn(
        token_ids=tokens,
        output_tokens=turn.max_output_tokens,
        gap_before_s=turn.gap_before_s,
        finish_reason="tool_calls" if turn.ends_in_tool_call else "length",
        starts_over=turn.starts_over,
        leaves_after_s=turn.leaves_after_s,
        left_token_ids=_LEFT_TOKENS if turn.leaves_after_s is not None else (),
        branches=[_virtual_branch(branch) for branch in turn.branches],
    )


def _virtual_branch(branch: Branch) -> VirtualBranch:
    return VirtualBranch(TokenSession(branch.session), branch.copies_context)


_LEFT_TOKENS = text_tokens(LEFT_TEXT)
_text_tokens = lru_cache(maxsize=8)(text_tokens)
"""For system prompts, which all sessions share."""


def level_records(run: VirtualRun, network_s: float, *, open_loop: bool = False) -> LevelRecords:
    """Return a virtual run in the form that a run in wall time has."""
    counters = _engine_counters(run)
    return LevelRecords(
        turns=[_turn(record, network_s) for record in run.records],
        sessions=[SessionRecord(index, started_s, ended_s) for index, started_s, ended_s in run.sessions],
        loop="open" if open_loop else "closed",
        open_at_start=_open_sessions(run, run.start_s) if open_loop else None,
        open_at_end=_open_sessions(run, run.end_s) if open_loop else None,
        busy=run.busy_replicas,
        engine_hit_ratio=counters.hit_ratio,
        engine=counters,
        balancer="engine" if run.router.balancer == "engine" else None,
    )


def _open_sessions(run: VirtualRun, moment_s: float) -> int:
    """Sessions that had started and not ended; the branches of one are part of it."""
    started = {record.session for record in run.records if record.sent_s <= moment_s}
    return len(started) - sum(session.ended_s <= moment_s for session in run.sessions)


def _turn(record: VirtualRecord, network_s: float) -> TurnRecord:
    waited_s = None if record.dispatched_s is None else record.dispatched_s - record.sent_s - network_s
    return TurnRecord(
        session=record.session,
        turn=record.turn,
        sent_s=record.sent_s,
        first_token_s=record.first_token_s,
        first_content_s=record.first_token_s,
        ended_s=record.ended_s,
        agent=record.agent_id,
        left=record.left,
        prompt_tokens=None if record.left else record.prompt_tokens,
        cached_tokens=None if record.left else record.cached_tokens,
        output_tokens=None if record.left else record.output_tokens,
        decision=record.decision,
        replica=str(record.replica) if record.replica is not None else None,
        waited_s=waited_s if waited_s is None or waited_s > 1e-9 else 0.0,
    )


def _engine_counters(run: VirtualRun) -> EngineCounters:
    """Growth over the window of what the engine's metrics would show, summed over its ranks."""

    def grown(count: Callable[[SchedulerCounters], int]) -> int:
        return sum(map(count, run.counters_at_end)) - sum(map(count, run.counters_at_start))

    return EngineCounters(
        requests=grown(lambda rank: rank.finished_length),
        prompt_tokens=grown(lambda rank: rank.prompt_tokens),
        generation_tokens=grown(lambda rank: rank.generation_tokens),
        prefix_queries_tokens=grown(lambda rank: rank.prefix_queries_tokens),
        prefix_hits_tokens=grown(lambda rank: rank.prefix_hits_tokens),
    )
