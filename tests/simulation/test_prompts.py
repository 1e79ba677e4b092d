"""Bodies to tokens: what a real chat template keeps, drops and puts in order."""

from __future__ import annotations

from typing import Any

import pytest

from lmwarden.simulation.prompts import (
    BadRequestError,
    Marker,
    anthropic_prompt,
    chat_prompt,
    completion_prompt,
    responses_prompt,
)
from lmwarden.simulation.tokens import text_tokens, token_text


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_the_order_is_system_tools_messages_and_the_turn_of_the_model() -> None:
    tokens = anthropic_prompt({"system": "rules", "tools": [{"name": "ls"}], "messages": [user("hi")]})
    assert tokens == [
        *[Marker.SYSTEM, *text_tokens("rules"), Marker.END],
        *[Marker.TOOLS, *text_tokens('{"name":"ls"}'), Marker.END],
        *[Marker.USER, *text_tokens("hi"), Marker.END],
        Marker.ASSISTANT,
    ]


def test_chat_and_messages_render_alike() -> None:
    chat = chat_prompt({"messages": [{"role": "system", "content": "rules"}, user("hi")]})
    assert chat == anthropic_prompt({"system": "rules", "messages": [user("hi")]})


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "hello"}],
        [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}],
        [{"type": "text", "text": ""}, {"type": "text", "text": "hello"}],
        [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "hello"}],
    ],
)
def test_a_string_is_one_text_block_and_cache_control_is_ignored(content: object) -> None:
    assert anthropic_prompt({"messages": [user(content)]}) == anthropic_prompt({"messages": [user("hello")]})


def test_cache_control_on_tools_is_ignored() -> None:
    plain = {"tools": [{"name": "ls"}], "messages": [user("hi")]}
    marked = {"tools": [{"name": "ls", "cache_control": {"type": "ephemeral"}}], "messages": [user("hi")]}
    assert anthropic_prompt(plain) == anthropic_prompt(marked)


def test_the_billing_line_is_dropped_from_system_only() -> None:
    line = "x-anthropic-billing-header: cc_version=1;"
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": "rules"}]
    assert anthropic_prompt({"system": blocks, "messages": [user("hi")]}) == anthropic_prompt(
        {"system": "rules", "messages": [user("hi")]}
    )
    inline = {"role": "system", "content": line}
    assert anthropic_prompt({"messages": [user("hi"), inline]}) == anthropic_prompt({"messages": [user("hi")]})
    assert len(anthropic_prompt({"messages": [user(line)]})) > 10


def test_system_messages_stay_where_they_are() -> None:
    tokens = anthropic_prompt({"messages": [user("hi"), {"role": "system", "content": "note"}]})
    assert tokens.index(Marker.SYSTEM) > tokens.index(Marker.USER)


def test_tool_calls_and_results_are_part_of_the_prompt() -> None:
    calls: list[dict[str, Any]] = [
        user("list"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}}]},
        user([{"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"}, {"type": "text", "text": "go on"}]),
    ]
    tokens = anthropic_prompt({"messages": calls})
    assert tokens.count(Marker.TOOL) == 1
    assert tokens.index(Marker.TOOL) < len(tokens) - 4
    calls[2]["content"][0]["content"] = "b.txt"
    assert anthropic_prompt({"messages": calls}) != tokens
    openai = [
        user("list"),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": {"name": "ls"}}]},
        {"role": "tool", "tool_call_id": "x", "content": "a.txt"},
    ]
    assert chat_prompt({"messages": openai}).count(Marker.TOOL) == 1


def test_what_is_said_beside_a_tools_result_follows_it() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"}
    both = anthropic_prompt({"messages": [user([{"type": "text", "text": "go on"}, result])]})
    assert both == [
        *[Marker.TOOL, *text_tokens("a.txt"), Marker.END],
        *[Marker.USER, *text_tokens("go on"), Marker.END],
        Marker.ASSISTANT,
    ]
    assert anthropic_prompt({"messages": [user([result])]}).count(Marker.USER) == 0
    assert anthropic_prompt({"messages": [user([])]}).count(Marker.USER) == 1


def test_the_id_of_a_tools_call_is_not_in_the_prompt_but_what_it_does_is() -> None:
    def call(number: str, path: str) -> list[int]:
        block = {"type": "tool_use", "id": number, "name": "ls", "input": {"path": path}}
        return anthropic_prompt({"messages": [user("list"), {"role": "assistant", "content": [block]}]})

    assert call("t1", ".") == call("t2", ".") != call("t1", "..")


def test_markers_are_no_text_and_differ() -> None:
    assert len(set(Marker)) == len(Marker.__members__) == 8
    assert {token_text(marker) for marker in Marker} == {""}


def test_images_differ_by_their_data() -> None:
    def image(data: str) -> list[int]:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return anthropic_prompt({"messages": [user([{"type": "image", "source": source}])]})

    assert image("AAAA") == image("AAAA")
    assert image("AAAA") != image("BBBB")
    assert Marker.IMAGE in image("AAAA")


def test_the_answer_continues_the_prompt_it_answers() -> None:
    before = anthropic_prompt({"messages": [user("one")]})
    turns = [user("one"), {"role": "assistant", "content": [{"type": "text", "text": "kab dob."}]}, user("two")]
    after = anthropic_prompt({"messages": turns})
    assert after[: len(before) + 2] == [*before, *text_tokens("kab dob.")]


def test_responses_take_text_items_and_instructions() -> None:
    assert responses_prompt({"input": "hi"}) == chat_prompt({"messages": [user("hi")]})
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "a.txt"},
    ]
    tokens = responses_prompt({"instructions": "rules", "input": items})
    assert tokens[0] == Marker.SYSTEM
    assert [tokens.count(m) for m in (Marker.USER, Marker.ASSISTANT, Marker.TOOL)] == [1, 2, 1]


@pytest.mark.parametrize("prompt", ["abcdefgh", [1684234849, 1751606885], ["abcdefgh"], [[1684234849, 1751606885]]])
def test_completions_take_text_or_token_ids(prompt: object) -> None:
    assert completion_prompt({"prompt": prompt}) == text_tokens("abcdefgh")


@pytest.mark.parametrize(
    ("render", "body"),
    [
        (chat_prompt, {}),
        (chat_prompt, {"messages": []}),
        (chat_prompt, {"messages": "hi"}),
        (chat_prompt, {"messages": [{"role": "king", "content": "hi"}]}),
        (chat_prompt, {"messages": [user(7)]}),
        (anthropic_prompt, {"messages": [user([{"type": "text"}])]}),
        (anthropic_prompt, {"messages": [user("x")], "tools": "ls"}),
        (responses_prompt, {"input": 7}),
        (completion_prompt, {}),
        (completion_prompt, {"prompt": ""}),
        (completion_prompt, {"prompt": []}),
        (completion_prompt, {"prompt": [1, -1]}),
        (completion_prompt, {"prompt": [1, True]}),
        (completion_prompt, {"prompt": ["a", "b"]}),
    ],
)
def test_bad_shapes_are_named(render: Any, body: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        render(body)
