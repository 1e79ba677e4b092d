"""A trace in virtual time: recorded prompts, recorded starts, and what the original shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmwarden.bench.errors import PlanError
from lmwarden.bench.results import AS_RECORDED
from lmwarden.bench.trace import Trace, TraceHead, TraceRequest, TraceWriter, read_trace
from lmwarden.bench.virtual import SimulationPlan, SimulationRun, simulate_plan

BLOCK = 16


def trace(path: Path, *requests: tuple[str, float, int, int]) -> Trace:
    """Requests as (conversation, sent at, blocks of its own, shared blocks before them); answers of 20 tokens."""
    with path.open("wb") as file:
        writer = TraceWriter(file, TraceHead(unit="tokens", block=BLOCK))
        for name, sent_s, own, shared in requests:
            blocks = [b"shared %d" % n for n in range(shared)] + [f"{name} {n}".encode() for n in range(own)]
            request = TraceRequest(
                t_s=sent_s,
                ended_s=sent_s + 2.0,
                conversation=name,
                prompt=len(blocks) * BLOCK + 3,
                output_tokens=20,
            )
            writer.add(request, writer.hashes(blocks))
    return read_trace(path)


@pytest.fixture
def recorded(tmp_path: Path) -> Trace:
    return trace(
        tmp_path / "t.jsonl",
        ("a", 0.0, 100, 50),
        ("b", 5.0, 80, 50),
        ("a", 12.0, 130, 50),
        ("b", 40.0, 90, 50),
    )


def test_prompts_have_their_recorded_lengths_and_share_what_they_shared(recorded: Trace) -> None:
    plan = SimulationPlan(workload=recorded, levels=[1], arms=["on"], seconds=60.0, replicas=1, network_s=0.0)
    run = SimulationRun(plan)
    records = run.records(run.cells[0]).records
    first_pass = [record for record in records if record.session < 2]
    assert [(record.session, record.turn, record.prompt_tokens) for record in first_pass] == [
        (0, 0, 150 * BLOCK + 3),
        (0, 1, 180 * BLOCK + 3),
        (1, 0, 130 * BLOCK + 3),
        (1, 1, 140 * BLOCK + 3),
    ]
    cached = [record.cached_tokens for record in first_pass]
    assert cached[0] == 0
    assert cached[1] >= 150 * BLOCK  # its own first turn, and the answer to it
    assert cached[2] == 50 * BLOCK
    assert cached[3] >= 130 * BLOCK


def test_a_trace_comes_again_with_other_text(recorded: Trace) -> None:
    plan = SimulationPlan(workload=recorded, levels=[1], arms=["on"], seconds=60.0, replicas=1, network_s=0.0)
    run = SimulationRun(plan)
    again = [record for record in run.records(run.cells[0]).records if record.session == 2]
    assert again[0].prompt_tokens == 150 * BLOCK + 3
    assert again[0].cached_tokens == 0


def test_sessions_start_and_think_as_recorded(recorded: Trace) -> None:
    plan = SimulationPlan(
        workload=recorded,
        levels=[AS_RECORDED],
        arms=["off", "on"],
        seconds=60.0,
        open_loop=True,
        think="recorded",
        network_s=0.0,
    )
    run = SimulationRun(plan)
    records = run.records(run.cells[0]).records
    assert [(record.session, record.turn) for record in records] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [records[0].sent_s, records[1].sent_s] == [0.0, 5.0]
    assert records[0].ended_s is not None
    assert records[2].sent_s == pytest.approx(records[0].ended_s + 10.0)
    rows = simulate_plan(plan)
    assert [row.requests for row in rows] == [4, 4]


def test_a_trace_has_gaps_of_its_own(recorded: Trace) -> None:
    with pytest.raises(PlanError, match="--think agent: a trace has none, recorded"):
        SimulationRun(SimulationPlan(workload=recorded, think="agent"))
