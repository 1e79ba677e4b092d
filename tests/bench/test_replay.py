"""A replayed trace finds in an engine's caches what the recorded requests found.

The original are sessions with everything in them (repositories, subagents, forks, compaction, clients that leave),
played one request after the other against the simulated engine; what it reports as cached is recorded. The replay is
made from the trace alone and played in the same order against a fresh engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from lmwarden.bench.conversation import Api, Conversation
from lmwarden.bench.replay import Replay, ReplaySource, _Piece
from lmwarden.bench.sessions import SessionSource
from lmwarden.bench.trace import Trace, TraceHead, TraceRequest, TraceWriter, read_trace
from lmwarden.bench.workload import load_workload
from lmwarden.simulation.engine import ApiServers, SimulatedEngine
from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.options import SimulatedEngineOptions, scheduler_limits
from lmwarden.simulation.prompts import anthropic_prompt, completion_prompt
from lmwarden.simulation.scheduler import EngineRequest
from lmwarden.simulation.tokens import TokenChain, answer_tokens, token_text

BLOCK = 16


class OneAfterTheOther:
    """A simulated engine that serves one request at a time."""

    def __init__(self, kv_cache_tokens: int) -> None:
        options = SimulatedEngineOptions(replicas=1, kv_cache_tokens=kv_cache_tokens)
        profile = load_profile(options.hardware)
        limits = scheduler_limits(options, profile)
        self._engine = SimulatedEngine(profile, limits, 1, ApiServers("0.26", servers=1, ranks=1))
        self._now_s = 0.0

    def serve(self, tokens: list[int], output_tokens: int) -> tuple[int, str]:
        """Return how many tokens were cached, and the answer's text."""
        chain = TokenChain(BLOCK)
        chain.extend(tokens)
        answer = answer_tokens(tokens, output_tokens)
        chain.extend(answer)
        request = EngineRequest(chain.hashes, len(tokens), output_tokens)
        self._engine.submit(request, self._now_s, 0)
        while (next_s := self._engine.next_event()) is not None:
            self._now_s = next_s
            self._engine.advance(next_s)
        return request.cached_tokens, "".join(map(token_text, answer))


@dataclass
class Original:
    """Sessions that take turns, so that they push each other out of a small cache."""

    engine: OneAfterTheOther
    writer: TraceWriter

    def play(self, sessions: int) -> None:
        workload = load_workload("mixed")
        source = SessionSource(workload, think=None, seed=4, sessions=sessions, arm="on")
        waiting = [self._turns(Conversation(source.session(index), "m", Api.MESSAGES)) for index in range(sessions)]
        while waiting:
            waiting = [turns for turns in waiting if next(turns, None) is not None]

    def _turns(self, conversation: Conversation) -> Iterator[int]:
        """Play one conversation, one request at each step; what it starts is played where it starts."""
        session = conversation.session
        for number, turn in enumerate(conversation.turns):
            tokens = anthropic_prompt(msgspec.json.decode(conversation.body(number)))
            cached, answer = self.engine.serve(tokens, turn.max_output_tokens)
            leaves = turn.leaves_after_s is not None
            self._record(
                session.session_id, session.agent_id, tokens, cached, None if leaves else turn.max_output_tokens
            )
            if leaves:
                conversation.left()
            else:
                conversation.answered(answer)
            yield number
            for started, _ in conversation.started_by(turn.branches):
                yield from self._turns(started)

    def _record(
        self, session_id: str, agent_id: str | None, tokens: list[int], cached: int, output: int | None
    ) -> None:
        plain = [int(token) for token in tokens]
        blocks = [str(plain[at : at + BLOCK]).encode() for at in range(0, len(plain) - BLOCK + 1, BLOCK)]
        request = TraceRequest(
            t_s=0.0,
            conversation=session_id if agent_id is None else agent_id,
            parent=None if agent_id is None else session_id,
            prompt=len(tokens),
            cached_tokens=cached,
            output_tokens=output,
        )
        self.writer.add(request, self.writer.hashes(blocks))


def recorded(path: Path, kv_cache_tokens: int, sessions: int = 12) -> Trace:
    with path.open("wb") as file:
        writer = TraceWriter(file, TraceHead(unit="tokens", block=BLOCK))
        Original(OneAfterTheOther(kv_cache_tokens), writer).play(sessions)
    return read_trace(path)


@pytest.mark.parametrize("kv_cache_tokens", [42_000, 400_000], ids=["too small", "large"])
def test_cached_tokens_are_those_of_the_original(kv_cache_tokens: int, tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t.jsonl", kv_cache_tokens)
    engine, replay = OneAfterTheOther(kv_cache_tokens), Replay(trace, "again")
    seen = []
    for number, request in enumerate(trace.requests):
        tokens = completion_prompt({"prompt": replay.prompt(number)})
        assert len(tokens) == request.prompt
        cached, answer = engine.serve(tokens, request.output_tokens or 256)
        if request.output_tokens:
            replay.answered(number, answer)
        seen.append(cached)
    original = [request.cached_tokens for request in trace.requests]
    assert len(seen) > 100
    assert sum(1 for cached in seen if cached > 4000) > 50
    assert seen == original


def small(tmp_path: Path, *requests: tuple[str, list[bytes], int, int | None]) -> Trace:
    """Requests as (conversation, blocks, prompt, output)."""
    with (tmp_path / "s.jsonl").open("wb") as file:
        writer = TraceWriter(file, TraceHead(unit="tokens", block=4))
        for number, (name, blocks, prompt, output) in enumerate(requests):
            one = TraceRequest(
                t_s=10.0 * number, ended_s=10.0 * number + 3, conversation=name, prompt=prompt, output_tokens=output
            )
            writer.add(one, writer.hashes(blocks))
    return read_trace(tmp_path / "s.jsonl")


def test_an_answer_stands_in_the_next_prompt_only_where_it_fits(tmp_path: Path) -> None:
    trace = small(
        tmp_path,
        ("a", [b"1", b"2"], 9, 3),
        ("a", [b"1", b"2", b"3"], 14, 3),
        ("b", [b"1", b"2"], 10, 3),
    )
    replay = Replay(trace, "k")
    first = replay.prompt(0)
    replay.answered(0, "yes it is.")
    assert replay.prompt(1).startswith(first + "yes it is.")
    assert replay.prompt(2).startswith(first[: 8 * 4])
    assert not replay.prompt(2).startswith(first + "yes")


def test_of_an_answer_the_text_is_cut_in_proportion() -> None:
    """Our own words are four bytes a token, those of an engine are what they are."""
    piece, ours = _Piece("a long answer in few tokens", 3), _Piece("ab  cd  ef  ", 3)
    assert (piece.cut(2), piece.cut(3), piece.cut(9)) == (_Piece("a long answer in f", 2), piece, piece)
    assert ours.cut(1) == _Piece("ab  ", 1)


def test_who_shares_one_block_begins_with_the_same_text(tmp_path: Path) -> None:
    trace = small(tmp_path, ("a", [b"1", b"2"], 9, 3), ("b", [b"1", b"x"], 9, 3), ("c", [b"y", b"2"], 9, 3))
    replay = Replay(trace, "k")
    first, second, third = (replay.prompt(number) for number in range(3))
    assert second[: 4 * 4] == first[: 4 * 4]
    assert second[4 * 4 :] != first[4 * 4 :]
    assert third[: 4 * 4] != first[: 4 * 4]


def test_conversations_come_again_with_other_text(tmp_path: Path) -> None:
    trace = small(tmp_path, ("a", [b"1"], 5, 3), ("b", [b"1"], 5, 3), ("a", [b"1", b"2"], 12, None))
    source = ReplaySource(trace, model="m", cell_key="1|4|on", keep_gaps=True)
    first, second, again = (source.dialogue(index) for index in range(3))
    assert [len(one.turns) for one in (first, second, again)] == [2, 1, 2]
    assert [turn.gap_before_s for turn in first.turns] == [0.0, 17.0]
    assert [turn.max_output_tokens for turn in first.turns] == [3, 256]
    assert first.body(0) != again.body(0)
    assert first.headers() != again.headers() != second.headers()
    assert source.start_times_s == [0.0, 10.0]
    assert first.started_by(()) == []


def test_a_subagent_names_its_parent_s_session(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with path.open("wb") as file:
        writer = TraceWriter(file, TraceHead(unit="tokens", block=4))
        writer.add(TraceRequest(t_s=0.0, conversation="main", prompt=3), ())
        writer.add(TraceRequest(t_s=1.0, conversation="sub", parent="main", prompt=3), ())
    source = ReplaySource(read_trace(path), model="m", cell_key="k", keep_gaps=False)
    main, sub = source.dialogue(0).headers(), source.dialogue(1).headers()
    assert main["X-Claude-Code-Session-Id"] == sub["X-Claude-Code-Session-Id"]
    assert "x-claude-code-agent-id" in sub and "x-claude-code-agent-id" not in main
