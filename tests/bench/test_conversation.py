"""The bodies of a conversation: history, forks, compaction, tools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from lmwarden.bench.conversation import Api, Conversation, tool_tokens
from lmwarden.bench.plans import LEFT_TEXT, AgentSession, TurnPlan, words
from lmwarden.simulation.prompts import anthropic_prompt, chat_prompt

TURN = TurnPlan(new_tokens=20, max_output_tokens=5, gap_before_s=0.0, ends_in_tool_call=True)
SYSTEM = words(b"system", 100)
APIS = [Api.MESSAGES, Api.CHAT]
PROMPTS = {Api.MESSAGES: anthropic_prompt, Api.CHAT: chat_prompt}


def session(*turns: TurnPlan, key: bytes = b"a", **more: Any) -> AgentSession:
    return AgentSession(index=0, session_id="s", turns=turns, text_key=key, system_text=SYSTEM, **more)


def body(conversation: Conversation, turn: int) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(conversation.body(turn))
    return decoded


def tokens(conversation: Conversation, turn: int) -> list[int]:
    return PROMPTS[conversation.api](body(conversation, turn))


@pytest.mark.parametrize("api", APIS)
def test_a_body_may_be_asked_for_in_advance_and_is_made_once(api: Api) -> None:
    conversation = Conversation(session(TURN, TURN), "m", api)
    first = conversation.body(0)
    assert conversation.body(0) is first
    conversation.answered("yes.")
    assert len(body(conversation, 1)["messages"]) == len(body(conversation, 1)["messages"])


@pytest.mark.parametrize("api", APIS)
def test_a_context_that_starts_over_holds_the_system_prompt_and_what_is_new(api: Api) -> None:
    over = replace(TURN, starts_over=True)
    conversation = Conversation(session(TURN, over, TURN), "m", api)
    conversation.body(0)
    conversation.answered("a summary.")
    fresh = Conversation(session(TURN, over, TURN), "m", api)
    assert tokens(conversation, 1) == tokens(fresh, 1)
    conversation.answered("yes.")
    assert tokens(conversation, 2)[: len(tokens(fresh, 1))] == tokens(fresh, 1)


@pytest.mark.parametrize("api", APIS)
def test_a_fork_extends_a_copy_of_its_parent_and_leaves_it_alone(api: Api) -> None:
    parent = Conversation(session(TURN, TURN), "m", api)
    prompt = tokens(parent, 0)
    parent.answered("yes.")
    fork = parent.branch(session(TURN, key=b"fork", forked=True))
    forked = tokens(fork, 0)
    assert forked[: len(prompt)] == prompt
    continued = tokens(parent, 1)
    shared = sum(1 for one, other in zip(forked, continued, strict=False) if one == other)
    assert continued != forked and len(prompt) < shared < len(continued)


def test_a_subagent_begins_with_nothing_and_names_itself() -> None:
    parent = Conversation(session(TURN, TURN), "m", Api.MESSAGES)
    parent.body(0)
    child = parent.branch(session(TURN, key=b"sub", agent_id="a1"))
    assert len(body(child, 0)["messages"]) == 1
    assert child.headers()["x-claude-code-agent-id"] == "a1"
    assert child.headers()["X-Claude-Code-Session-Id"] == parent.headers()["X-Claude-Code-Session-Id"]
    assert "x-claude-code-agent-id" not in parent.headers()
    over_chat = Conversation(child.session, "m", Api.CHAT)
    assert over_chat.headers() == {"X-Session-Id": "s/a1"}


@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_was_left_stands_as_a_word_about_it(api: Api) -> None:
    conversation = Conversation(session(TURN, TURN), "m", api)
    conversation.body(0)
    conversation.left()
    roles = [message["role"] for message in body(conversation, 1)["messages"] if message["role"] != "system"]
    assert roles == ["user", "assistant", "user"]
    assert LEFT_TEXT.encode() in conversation.body(1)


@pytest.mark.parametrize("api", APIS)
def test_tools_do_not_change_the_size_of_a_prompt(api: Api) -> None:
    last = replace(TURN, ends_in_tool_call=False)
    without, with_tools = (Conversation(session(TURN, last), "m", api, tools) for tools in (False, True))
    for turn in (0, 1):
        assert len(tokens(without, turn)) == len(tokens(with_tools, turn))
        for one in (without, with_tools):
            one.answered("yes.")
    assert "tools" not in body(without, 0)
    assert 30 < tool_tokens(api) < 80


def test_only_a_turn_that_ends_by_itself_forbids_the_tool() -> None:
    last = replace(TURN, ends_in_tool_call=False)
    messages, chat = (Conversation(session(TURN, last), "m", api, tools=True) for api in APIS)
    assert [body(messages, turn)["tool_choice"] for turn in (0, 1)] == [{"type": "auto"}, {"type": "none"}]
    assert [body(chat, turn)["tool_choice"] for turn in (0, 1)] == ["auto", "none"]
