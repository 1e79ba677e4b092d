"""The same sessions, arms and results in virtual time.

``simulate_level`` plays one cell with the router object that the gateway uses and the engine model of the
simulation, without waiting: seconds of the model cost milliseconds. The sessions are those of ``sessions``,
as tokens: each turn appends its message between the role markers that the simulated engine's chat template
would put there, so that prompts have the same length and share the same blocks as over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lmwarden.bench.arms import routing_settings
from lmwarden.bench.measure import LevelRecords, SessionRecord, TurnRecord, Window, level_result
from lmwarden.bench.results import LevelResult
from lmwarden.bench.sessions import AgentSession, SessionSource
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
from lmwarden.simulation.virtual import ENGINE, VirtualOptions, VirtualRecord, VirtualRun, VirtualTurn, run_virtual
from lmwarden.types import RoutingSettings

NETWORK_S = 0.12
"""Client, network and HTTP before the router: fitted by hand to the published table, whose client was far away."""


class MakeRouter(Protocol):
    """Makes the router of a cell; a test or a study puts another one in its place."""

    def __call__(self, settings: RoutingSettings, *, engines: Mapping[str, int], seed: int = 0) -> RouterContract:
        """``engines``: short name to number of ranks."""
        ...


def simulate_level(
    workload: Workload,
    *,
    level: int,
    arm: str,
    seed: int = 1,
    seconds: float = 180.0,
    warmup_s: float = 0.0,
    hardware: str = "a4000-qwen3-4b",
    replicas: int = 4,
    balancer: BalancerVersion = "0.26",
    think: str = "none",
    kv_cache_tokens: int | None = None,
    cpu_cache_tokens: int = 0,
    network_s: float = NETWORK_S,
    make_router: MakeRouter = Router,
) -> LevelResult:
    """Play one cell in virtual time. The same arguments give the same row.

    Args:
        workload: the sessions.
        level: concurrent sessions.
        arm: off, hash or on.
        seed: of sessions and of everything else that is drawn.
        seconds: the measured window.
        warmup_s: time before it.
        hardware: name of a hardware profile, or a TOML file.
        replicas: data-parallel ranks of the one engine.
        balancer: the engine's own, which decides in ``off``.
        think: name of the workload's gaps, or ``none``.
        kv_cache_tokens: KV cache of each rank; None: the profile's.
        cpu_cache_tokens: CPU tier of each rank.
        network_s: added to each request on its way in.
        make_router: makes the router.

    Raises:
        PlanError: the workload has no gaps of that name.
        ValueError: the hardware is unknown, or a value is out of range.
    """
    profile = load_profile(hardware)
    options = SimulatedEngineOptions(
        replicas=replicas,
        hardware=hardware,
        balancer=balancer,
        kv_cache_tokens=kv_cache_tokens,
        cpu_cache_tokens=cpu_cache_tokens,
    )
    source = SessionSource(workload, think=workload.think_named(think), seed=seed, sessions=level, arm=arm)
    run = run_virtual(
        VirtualSessions(source),
        make_router(routing_settings(arm), engines={ENGINE: replicas}, seed=seed),
        ApiServers(balancer, servers=replicas, ranks=replicas, seed=seed),
        VirtualOptions(
            hardware=profile,
            limits=scheduler_limits(options, profile),
            replicas=replicas,
            sessions=level,
            seconds=seconds,
            warmup_s=warmup_s,
            network_s=network_s,
        ),
    )
    window = Window(run.start_s, run.end_s)
    return level_result(level_records(run, network_s), window, sessions=level, arm=arm, seed=seed)


class VirtualSessions:
    """A source of sessions as the simulation wants them: tokens instead of text."""

    def __init__(self, source: SessionSource) -> None:
        self._source = source
        self._system_tokens = text_tokens(source.system_text())

    def session(self, index: int) -> TokenSession:
        """Return session number ``index``."""
        return TokenSession(self._source.session(index), self._system_tokens)


@dataclass(frozen=True, slots=True)
class TokenSession:
    """One session as tokens."""

    _session: AgentSession
    _system_tokens: Sequence[int]

    @property
    def session_id(self) -> str:
        """The id that the client would send."""
        return self._session.session_id

    def virtual_turns(self) -> Iterable[VirtualTurn]:
        """Its turns, each made when it is asked for."""
        head = [Marker.SYSTEM, *self._system_tokens, Marker.END] if self._system_tokens else []
        for number, turn in enumerate(self._session.turns):
            message = text_tokens(self._session.message_text(number))
            tokens = [*head, Marker.USER, *message, Marker.END, Marker.ASSISTANT]
            yield VirtualTurn(tokens, turn.max_output_tokens, turn.gap_before_s)
            head = [Marker.END]  # closes the answer that came in between


def level_records(run: VirtualRun, network_s: float) -> LevelRecords:
    """Return a virtual run in the form that a run in wall time has."""
    started_s = {record.session: record.sent_s for record in run.records if record.turn == 0}
    return LevelRecords(
        turns=[_turn(record, network_s) for record in run.records],
        sessions=[
            SessionRecord(record.session, started_s[record.session], record.ended_s)
            for record in run.records
            if record.last_turn and record.ended_s is not None
        ],
        busy=run.busy_replicas,
        engine_hit_ratio=_hit_ratio(run.counters_at_start, run.counters_at_end),
        balancer="engine" if run.router.balancer == "engine" else None,
    )


def _turn(record: VirtualRecord, network_s: float) -> TurnRecord:
    waited_s = None if record.dispatched_s is None else record.dispatched_s - record.sent_s - network_s
    return TurnRecord(
        session=record.session,
        turn=record.turn,
        sent_s=record.sent_s,
        first_token_s=record.first_token_s,
        first_content_s=record.first_token_s,
        ended_s=record.ended_s,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        decision=record.decision,
        replica=str(record.replica) if record.replica is not None else None,
        waited_s=waited_s if waited_s is None or waited_s > 1e-9 else 0.0,
    )


def _hit_ratio(before: Sequence[SchedulerCounters], after: Sequence[SchedulerCounters]) -> float | None:
    queries = sum(rank.prefix_queries_tokens for rank in after) - sum(r.prefix_queries_tokens for r in before)
    hits = sum(rank.prefix_hits_tokens for rank in after) - sum(rank.prefix_hits_tokens for rank in before)
    return hits / queries if queries else None
