"""What changed from one prompt to the next, and what that cost: each cause by itself, and the real client's traffic."""

from __future__ import annotations

from typing import Any

import pytest
from tests.claude_code import scenarios
from tests.gateway.test_prefix_segments import BILLING, read, user

from lmwarden.gateway.prefix_changes import Finding, LastTurn, compare, conclude
from lmwarden.gateway.prefix_segments import SegmentReader, Segments
from lmwarden.routing.fields import decode_fields
from lmwarden.types import Decision, PrefixChange, Usage

LONG = "long " * 200


def prompt(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "system": f"{BILLING}\nYou are an agent. Today is 2026-11-30 09:15.",
        "tools": [{"name": "Read"}, {"name": "Write"}],
        "messages": [user("do it"), answer("yes"), user(LONG), answer("done"), user(LONG)],
    }
    return base | changes


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def reminder(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def change(before: dict[str, Any] | None, after: dict[str, Any], *, compacted: bool = False) -> Finding:
    return compare(None if before is None else read(**before), read(**after), compacted=compacted)


TURNS = prompt()["messages"]


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (prompt(), "extends"),
        (prompt(messages=[*TURNS, answer("a"), user("b")]), "extends"),
        (prompt(system=f"{BILLING}\nYou are an agent. Today is 2026-12-01 10:00."), "timestamp"),
        (prompt(system=f"{BILLING}\nYou are a poet."), "system_changed"),
        (prompt(tools=[{"name": "Read"}, {"name": "Search"}, {"name": "Write"}]), "tools_changed"),
        (prompt(tools=[{"name": "Read"}]), "tools_changed"),
        (prompt(messages=[user("do it"), answer("no"), *TURNS[2:]]), "history_edited"),
        (prompt(messages=TURNS[:3]), "history_edited"),
        (prompt(messages=[user("a summary"), user("go on")]), "compaction"),
        (prompt(messages=[user("do it"), reminder("new"), *TURNS[1:]]), "system_turn_moved"),
    ],
)
def test_each_cause(after: dict[str, Any], cause: str) -> None:
    assert change(prompt(), after).change == cause


def test_what_is_shared_is_told_in_bytes_of_the_previous_prompt() -> None:
    assert change(prompt(), prompt()).shared_ratio == 1.0
    found = change({"messages": [user("a" * 95), user("b" * 95)]}, {"messages": [user("a" * 95), user("c")]})
    assert found.shared_ratio == 0.5
    assert change({}, prompt()).shared_ratio is None


def test_a_system_turn_that_stands_elsewhere_moved_and_one_that_reads_otherwise_changed() -> None:
    before = prompt(messages=[user("a"), reminder("r"), answer("b"), user("c")])
    assert change(before, prompt(messages=[user("a"), answer("b"), reminder("r"), user("c")])).change == (
        "system_turn_moved"
    )
    assert change(before, prompt(messages=[user("a"), reminder("x"), answer("b"), user("c")])).change == (
        "system_changed"
    )


def test_a_system_turn_that_went_or_came_before_another_moved_that_one() -> None:
    one = prompt(messages=[user("a"), reminder("r"), answer("b"), user("c")])
    two = prompt(messages=[user("a"), reminder("new"), reminder("r"), answer("b"), user("c")])
    assert change(one, two).change == change(two, one).change == "system_turn_moved"


def test_a_client_that_says_so_has_compacted() -> None:
    after = prompt(system="You were an agent.", messages=TURNS)
    assert change(prompt(), after, compacted=True).change is PrefixChange.COMPACTION


def test_the_first_prompt_is_first_and_one_that_carries_answers_may_not_be() -> None:
    assert change(None, prompt(messages=[user("u")])) == (PrefixChange.FIRST, None, False, False)
    assert change(None, prompt()).change is None


def test_a_new_billing_line_and_a_new_system_turn_are_noted_beside() -> None:
    assert change(prompt(), prompt(system=f"{BILLING}2\nYou are an agent. Today is 2026-11-30 09:15.")) == (
        PrefixChange.EXTENDS, 1.0, True, False,
    )  # fmt: skip
    assert change(prompt(), prompt(messages=[*TURNS, reminder("r")])) == (PrefixChange.EXTENDS, 1.0, False, True)


# -- with what the engine counted

LAST = LastTurn("e0/1", "e0", 3, 10_000)
EXTENDS = Finding(PrefixChange.EXTENDS, 1.0)


def concluded(
    finding: Finding | None = EXTENDS,
    *,
    last: LastTurn | None = LAST,
    replica: str | None = "e0/1",
    decision: Decision = Decision.STICKY,
    prompt_tokens: int | None = 11_000,
    cached: int | None = 0,
    restarted: bool = False,
) -> tuple[str | None, int | None]:
    usage = Usage(prompt_tokens=prompt_tokens, cached_tokens=cached)
    return conclude(finding, last, replica, decision, usage, restarted=restarted)


def test_what_was_cached_is_well() -> None:
    assert concluded(cached=10_000) == ("extends", 0)
    assert concluded(cached=9_968) == ("extends", 32)  # a block, and the end of a template


def test_what_was_not_cached_has_a_cause() -> None:
    assert concluded(cached=2_000) == ("evicted", 8_000)
    assert concluded(cached=2_000, replica="e0/2") == ("moved", 8_000)
    assert concluded(cached=0, restarted=True) == ("engine_restarted", 10_000)
    assert concluded(cached=0, restarted=True, replica="e0/2") == ("engine_restarted", 10_000)
    assert concluded(Finding(PrefixChange.EXTENDS, 1.0, True, True)) == ("billing_line", 10_000)
    assert concluded(Finding(PrefixChange.EXTENDS, 1.0, False, True)) == ("system_turn_moved", 10_000)


def test_a_changed_prompt_keeps_its_cause_wherever_it_went() -> None:
    assert concluded(Finding(PrefixChange.TOOLS_CHANGED, 0.4), replica="e0/2", restarted=True) == (
        "tools_changed",
        10_000,
    )


def test_a_shorter_prompt_can_not_have_lost_more_than_it_has() -> None:
    assert concluded(Finding(PrefixChange.COMPACTION, 0.7), prompt_tokens=4_000, cached=3_000) == ("compaction", 1_000)


def test_what_is_not_known_is_not_made_up() -> None:
    assert concluded(None, cached=2_000) == (None, 8_000)
    assert concluded(cached=None) == ("extends", None)
    assert concluded(last=None) == ("extends", None)
    assert concluded(prompt_tokens=None) == ("extends", None)
    # its engine chose the rank itself
    assert concluded(replica=None, decision=Decision.UNROUTED) == (None, 10_000)


def test_the_first_turn_of_a_fork_is_a_first_turn() -> None:
    assert concluded(Finding(None, None), last=None, decision=Decision.PLACED) == ("first", None)
    assert concluded(Finding(None, None), last=None) == (None, None)


# -- the real client


def changes_of(name: str) -> list[str]:
    memory: dict[Any, Segments] = {}
    found = []
    for request in scenarios()[name]:
        if not request.is_generation or request.is_title:
            continue
        reader = SegmentReader(b"s" * 32)
        for piece in reader.pieces(decode_fields(request.body)):
            reader.take(piece)
        segments = reader.segments()
        conversation = request.session, request.agent, request.members["model"]
        compacted = request.header("x-claude-code-context-compacted") is not None
        finding = compare(memory.get(conversation), segments, compacted=compacted)
        memory[conversation] = segments
        found.append(str(finding.change))
    return found


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("headless_tool_loop_2.1.332_git_hints", ["first", "extends", "extends", "extends"]),
        ("headless_tool_loop_2.1.197", ["first", "extends", "extends", "extends"]),
        ("interactive_2.1.197", ["first", *["extends"] * 4]),
        ("toolsearch_changes_tools_2.1.332", ["first", "tools_changed", "extends"]),
        ("cut_in_tool_use_2.1.332", ["first", "extends"]),
        ("retry_503_2.1.332", ["first", "extends", "extends", "extends"]),
        ("fanout_14_subagents_2.1.332", [*["first"] * 15, "extends"]),
        # a fork carries answers from its first turn on; before the summary the compacting call was sent twice
        (
            "session_continue_resume_fork_compact_context_2.1.332",
            ["first", "extends", "extends", "None", "extends", "history_edited", "compaction"],
        ),
    ],
)
def test_the_real_clients_conversations(scenario: str, changes: list[str]) -> None:
    assert changes_of(scenario) == changes
