"""Sessions are deterministic, of the wanted sizes, and never reuse a prompt across cells."""

from __future__ import annotations

import msgspec
import pytest

from lmwarden.bench.plans import AgentSession
from lmwarden.bench.sessions import PromptReuse, SessionSource
from lmwarden.bench.workload import BYTES_PER_TOKEN, Workload, load_workload, workload_names

WORKLOAD = load_workload("claude-code")


def source(seed: int = 1, sessions: int = 8, arm: str = "on", think: str = "none") -> SessionSource:
    return SessionSource(WORKLOAD, think=WORKLOAD.think_named(think), seed=seed, sessions=sessions, arm=arm)


def test_the_same_arguments_give_the_same_session() -> None:
    first, again = source().session(3), source().session(3)
    assert first == again
    assert first.message_text(2) == again.message_text(2)


def test_sizes_are_as_the_workload_says() -> None:
    assert len(source().system_text()) == 3500 * BYTES_PER_TOKEN
    for index in range(50):
        session = source().session(index)
        sizes = [turn.new_tokens for turn in session.turns]
        assert len(sizes) == 6
        assert 7200 <= sizes[0] <= 7500
        assert all(360 <= size <= 440 for size in sizes[1:])
        assert len(session.message_text(0)) == sizes[0] * BYTES_PER_TOKEN
        assert {turn.max_output_tokens for turn in session.turns} == {256}


@pytest.mark.parametrize("other", [{"arm": "off"}, {"sessions": 4}, {"seed": 2}])
def test_no_prompt_is_used_in_two_cells(other: dict[str, object]) -> None:
    here = {source().session(index).message_text(0)[:64] for index in range(40)}
    there = {source(**other).session(index).message_text(0)[:64] for index in range(40)}  # type: ignore[arg-type]
    assert len(here) == len(there) == 40
    assert not here & there


def test_session_ids_differ_between_arms_and_sessions() -> None:
    ids = {source(arm=arm).session(index).session_id for arm in ("off", "on") for index in range(40)}
    assert len(ids) == 80


def test_arms_are_compared_on_the_same_sizes_and_gaps() -> None:
    off = source(arm="off", think="agent").session(5)
    on = source(arm="on", think="agent").session(5)
    assert off.turns == on.turns


def test_the_system_prompt_is_shared_by_all() -> None:
    assert source().system_text() == source(seed=9, sessions=4, arm="off").system_text()


def test_agent_gaps_follow_the_measured_shares() -> None:
    gaps = [turn.gap_before_s for index in range(2000) for turn in source(think="agent").session(index).turns[1:]]
    under = {limit: sum(gap <= limit for gap in gaps) / len(gaps) for limit in (1.0, 10.0, 60.0)}
    assert under[1.0] == pytest.approx(0.86, abs=0.02)
    assert under[10.0] == pytest.approx(0.95, abs=0.02)
    assert under[60.0] == 1.0
    assert min(gaps) >= 0.05
    assert source(think="agent").session(0).turns[0].gap_before_s == 0


def texts(session: AgentSession) -> list[str]:
    return [session.message_text(turn) for turn in range(len(session.turns))]


def cell(reuse: PromptReuse, **changes: object) -> AgentSession:
    fields: dict[str, object] = {"seed": 1, "sessions": 8, "arm": "on", **changes}
    return SessionSource(WORKLOAD, think=None, prompt_reuse=reuse, **fields).session(3)  # type: ignore[arg-type]


def test_reuse_across_arms_gives_every_arm_the_same_text_under_other_ids() -> None:
    off, on = cell(PromptReuse.ACROSS_ARMS, arm="off"), cell(PromptReuse.ACROSS_ARMS)
    assert texts(off) == texts(on)
    assert off.session_id != on.session_id
    assert texts(cell(PromptReuse.ACROSS_ARMS, sessions=4)) != texts(on)


def test_reuse_across_levels_makes_a_session_the_same_at_every_level_of_a_seed() -> None:
    four, eight = cell(PromptReuse.ACROSS_LEVELS, sessions=4, arm="off"), cell(PromptReuse.ACROSS_LEVELS)
    assert four.turns == eight.turns
    assert texts(four) == texts(eight)
    assert four.session_id != eight.session_id
    assert texts(cell(PromptReuse.ACROSS_LEVELS, seed=2)) != texts(eight)


def many(workload: Workload, count: int = 150, **changes: object) -> list[AgentSession]:
    fields: dict[str, object] = {"seed": 1, "sessions": 8, "arm": "on", **changes}
    drawn = SessionSource(workload, think=workload.think_named("agent"), **fields)  # type: ignore[arg-type]
    return [drawn.session(index) for index in range(count)]


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_is_deterministic_and_every_message_has_its_size(name: str) -> None:
    workload = load_workload(name)
    sessions = many(workload, 40)
    assert sessions == many(workload, 40)
    for session in sessions:
        for one in session.family():
            sizes = [turn.new_tokens * BYTES_PER_TOKEN for turn in one.turns]
            assert [len(text) for text in texts(one)] == sizes


@pytest.mark.parametrize("name", workload_names())
def test_no_two_conversations_share_an_id_or_a_text_of_their_own(name: str) -> None:
    family = [one for session in many(load_workload(name), 40) for one in session.family()]
    assert len({(one.session_id, one.agent_id) for one in family}) == len(family)
    own = [text[-64:] for one in family for text in texts(one) if len(text) >= 64]
    assert len(set(own)) == len(own)


def test_the_last_turn_of_every_conversation_ends_by_itself_and_the_others_in_a_tool_call() -> None:
    for one in source().session(0).family():
        assert [turn.ends_in_tool_call for turn in one.turns] == [True] * (len(one.turns) - 1) + [False]


def test_subagents_share_a_system_prompt_of_their_own_and_their_session_s_id() -> None:
    workload = load_workload("claude-code-subagents")
    branches = [(session, branch) for session in many(workload) for turn in session.turns for branch in turn.branches]
    assert branches
    systems = {branch.session.system_text for _, branch in branches}
    assert len(systems) == 1 and systems != {many(workload, 1)[0].system_text}
    assert all(branch.session.session_id == session.session_id for session, branch in branches)
    assert all(branch.session.agent_id is not None and not branch.copies_context for _, branch in branches)
    at_once = [len(turn.branches) for session in many(workload) for turn in session.turns if turn.branches]
    assert max(at_once) >= 8 and min(at_once) == 1
    assert not any(session.turns[-1].branches for session in many(workload))


def test_subagents_do_not_change_the_sizes_of_the_main_agent() -> None:
    plain = many(load_workload("claude-code"), 20)
    # Sizes hang on the workload's name too, so the same name is given to both.
    named = msgspec.structs.replace(load_workload("claude-code-subagents"), name="claude-code")
    sizes = [[turn.new_tokens for turn in session.turns] for session in many(named, 20)]
    assert sizes == [[turn.new_tokens for turn in session.turns] for session in plain]


def test_a_context_is_compacted_before_it_grows_above_the_limit() -> None:
    workload = load_workload("mixed")
    assert workload.compaction is not None
    compactions = 0
    for session in many(workload):
        context_tokens = workload.layers.shared_system_tokens
        for number, turn in enumerate(session.turns):
            if turn.starts_over:
                compactions += 1
                assert not session.turns[number - 1].ends_in_tool_call
                context_tokens = workload.layers.shared_system_tokens
            asks_for_summary = number + 1 < len(session.turns) and session.turns[number + 1].starts_over
            context_tokens += turn.new_tokens + turn.max_output_tokens
            if number and not turn.starts_over and not asks_for_summary:
                assert context_tokens <= workload.compaction.above_context_tokens
    assert compactions


def test_forks_halfway_starts_and_leaving_clients_come_by_their_share() -> None:
    workload = load_workload("mixed")
    sessions = many(workload, 600)
    forks = sum(any(one.forked for one in session.family()) for session in sessions)
    assert forks / 600 == pytest.approx(0.08, abs=0.03)
    turns = [turn for session in sessions for turn in session.turns]
    assert sum(turn.leaves_after_s is not None for turn in turns) / len(turns) == pytest.approx(0.03, abs=0.01)
    assert len({session.repository for session in sessions}) == 5
    first = [session.turns[0].new_tokens for session in sessions]
    without = [session.turns[0].new_tokens for session in many(msgspec.structs.replace(workload, halfway=None), 600)]
    assert sum(first) > 1.1 * sum(without)
