"""How a conversation begins: what counts, what moves between turns, and what hostile bodies cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.asking import HELLO, SECRET, steps_of, who

from lmwarden.routing.fields import decode_fields
from lmwarden.routing.identity import Asker
from lmwarden.routing.opening import is_resumed


class TestOpening:
    """Only when there is no id."""

    BODY: dict[str, Any] = {  # noqa: RUF012
        "model": "m",
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"},
            {"type": "text", "text": "You are T.", "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [{"name": "Bash", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "first"}]}],
    }

    def changed(self, **changes: object) -> bytes | None:
        return who({**self.BODY, **changes}).conversation

    def test_later_turns_are_the_same_conversation(self) -> None:
        later = [
            *self.BODY["messages"],
            {"role": "assistant", "content": "yes"},
            {"role": "system", "content": "<total_tokens>900 left</total_tokens>"},
            {"role": "user", "content": "more"},
        ]
        assert self.changed(messages=later) == self.changed()
        assert who(self.BODY).derived

    @pytest.mark.parametrize(
        "changes",
        [
            {"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=zzz;"}, {"text": "You are T."}]},
            {"system": "x-anthropic-billing-header: cch=zzz;\nYou are T."},
            {"system": "You are T."},
            {"messages": [{"role": "user", "content": "first"}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "first", "cache_control": {}}]}]},
            {"messages": [{"role": "user", "content": "<system-reminder>today is Monday</system-reminder>"},
                          {"role": "user", "content": "first"}]},
            {"messages": [{"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>x</system-reminder>"}, {"type": "text", "text": "first"}]}]},
            {"tools": [{"name": "Bash", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}]},
            {"tools": [{"cache_control": {"type": "ephemeral"}, "name": "Bash", "input_schema": {"type": "object"}}]},
            {"tools": [{"name": "Bash", "cache_control": None, "input_schema": {"type": "object"}}]},
            {"system": [{"text": "x-anthropic-billing-header: cch=1;\nx-anthropic-other: 2\nYou are T."}]},
            {"messages": [{"role": "user", "content": "<system-reminder>a</system-reminder>\n\n"
                           "<environment_context>b</environment_context>\nfirst"}]},
            {"max_tokens": 5, "temperature": 0.3, "stream": True},
        ],
    )  # fmt: skip
    def test_what_moves_between_turns_does_not_count(self, changes: dict[str, Any]) -> None:
        assert self.changed(**changes) == self.changed()

    @pytest.mark.parametrize(
        "changes",
        [
            {"system": "You are U."},
            {"messages": [{"role": "user", "content": "First"}]},
            {"messages": [{"role": "user", "content": "x-anthropic-billing-header: cch=1;\nfirst"}]},
            {"tools": []},
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "first"}]},
        ],
    )
    def test_what_the_conversation_begins_with_does_count(self, changes: dict[str, Any]) -> None:
        assert self.changed(**changes) != self.changed()

    def test_a_mark_inside_of_a_text_is_text(self) -> None:
        marked = '{"a": 1, "cache_control": {"type": "x"}}'
        tools = [[{"name": "Bash", "description": text}] for text in (marked, '{"a": 1}')]
        assert self.changed(tools=tools[0]) != self.changed(tools=tools[1])

    @pytest.mark.parametrize("tools", [None, []])
    def test_no_tools_is_no_tools_however_it_is_written(self, tools: object) -> None:
        body = {name: value for name, value in self.BODY.items() if name != "tools"}
        assert who({**body, "tools": tools}).conversation == who(body).conversation

    def test_the_model_counts(self) -> None:
        assert who(self.BODY, model="other").conversation != self.changed()

    def test_the_whole_first_message_counts(self) -> None:
        long = "x" * 100_000
        bodies = [{"messages": [{"role": "user", "content": long + end}]} for end in "ab"]
        assert who(bodies[0]).conversation != who(bodies[1]).conversation

    @pytest.mark.parametrize(
        "body",
        [
            {"input": "hello", "instructions": "be brief"},
            {"input": [{"role": "developer", "content": "x"}, {"role": "user", "content": [{"text": "hi"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"data": "aGk="}}]}]},
            {"messages": [{"role": "user", "content": {"odd": 1}}]},
            {"messages": [{"role": "developer"}, {"role": "user", "content": "x"}]},
        ],
    )
    def test_other_shapes_have_one_too(self, body: dict[str, Any]) -> None:
        assert who(body).derived
        assert who(body).conversation == who(body).conversation

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"prompt": "text to complete"},
            {"messages": []},
            {"messages": [{"role": "user"}]},
            {"messages": [{"role": "user", "content": ""}]},
            {"messages": [{"role": "user", "content": None}]},
            {"messages": [{"role": "user", "content": "<system-reminder>x"}]},
            {"messages": [{"role": "assistant", "content": "x"}]},
            {"messages": {"role": "user"}},
            {"messages": [17]},
            {"messages": [{"role": 17, "content": "x"}]},
        ],
    )
    def test_nothing_to_recognise(self, body: dict[str, Any]) -> None:
        found = who(body)
        assert (found.conversation, found.source) == (None, "none")


@pytest.mark.parametrize(
    ("body", "resumed"),
    [
        (HELLO, False),
        ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "hi"}, *HELLO["messages"]]}, True),
        ({"messages": [{"role": "system", "content": "s"}, *HELLO["messages"]]}, False),
        ({"messages": [*HELLO["messages"], {"role": "system", "content": "s"}]}, False),
        ({"input": [{"role": "user", "content": "x"}, {"type": "function_call", "name": "f"}]}, True),
        ({"input": "hello"}, False),
        ({"messages": [{"role": 5}]}, False),
        ({"messages": 5}, False),
        ({}, False),
    ],
)
def test_a_request_that_carries_an_answer_is_resumed(body: dict[str, Any], resumed: bool) -> None:
    assert is_resumed(decode_fields(json.dumps(body).encode())) is resumed


@pytest.mark.parametrize(
    "body",
    [
        b'{"user":"\xff","messages":[]}',
        b'{"prompt_cache_key":"\xff"}',
        b'{"messages":[{"role":"user","content":' + b"[" * 900 + b"]" * 900 + b"}]}",
        b'{"tools":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b',"messages":[{"role":"user","content":"x"}]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"system":"\xff","messages":[{"role":"user","content":[{"text":"\xff"}]}]}',
        b'{"metadata":{"user_id":"{\\"session_id\\":\xff}"}}',
    ],
)
def test_nasty_bodies_raise_nothing(body: bytes) -> None:
    fields = decode_fields(body)
    Asker({}, secret=SECRET, model="m", key_digest=b"").identify(fields)
    is_resumed(fields)


TAIL = b'"messages":[{"role":"user","content":"x"}]}'


@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        (b'{"system":"', b"x-anthropic-\\n", b'",' + TAIL),
        (b'{"system":"x-anthropic-', b" ", b'",' + TAIL),
        (b'{"tools":[', b"[],", b"1]," + TAIL),
        (b'{"tools":"', b',\\"cache_control\\":{', b'",' + TAIL),
        (b'{"tools":[', b'{"cache_control":{"a":1}},', b"0]," + TAIL),
        (b'{"tools":[{"a":1,', b" ", b'"cache_control":null}],' + TAIL),
        (b'{"tools":[{"a":1,"cache_control"', b" ", b":5}]," + TAIL),
        (b'{"user":"', b"a1-", b'",' + TAIL),
        (b'{"messages":[{"role":"user","content":[', b"[],", b"1]}]}"),
        (b'{"messages":[{"role":"user","content":[', b'{"text":"x"},', b"1]}]}"),
        (b'{"messages":[{"role":"user","content":"', b"<system-reminder></system-reminder>", b'"}]}'),
        (b'{"messages":[', b'{"role":"user","content":"<system-reminder></system-reminder>"},', b"0]}"),
        (b'{"messages":[', b'{"role":"system","content":"a"},', b'{"role":"user","content":"x"}]}'),
        (b'{"messages":[', b'{"role":"system","content":[%b0]},' % (b"{}," * 100), b"0]}"),
        (b'{"input":[', b"7,", b"7]}"),
    ],
)
def test_a_body_twice_as_long_takes_no_more_steps(before: bytes, unit: bytes, after: bytes) -> None:
    """Counts what Python does, not seconds."""

    def steps(size: int) -> int:
        fields = decode_fields(before + unit * (size // len(unit)) + after)

        def work() -> None:
            Asker({}, secret=SECRET, model="m", key_digest=b"").identify(fields)
            is_resumed(fields)

        return steps_of(work)

    assert steps(500_000) == steps(1_000_000) < 40_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{"y":%b},"messages":[{"role":"user","content":"x"}]}',
        b'{"system":[{"text":"a","y":%b}],"messages":[{"role":"user","content":"x"}]}',
        b'{"tools":[{"y":%b}],"messages":[{"role":"user","content":"x"}]}',
        b'{"messages":[{"role":"user","content":[{"text":"x","y":%b}]}]}',
        b'{"messages":[{"role":"user","y":%b,"content":"x"}]}',
        b'{"messages":[{"role":"user","content":"x"},%b]}',
        b'{"messages":%b}',
        b'{"user":"\\ud83d","messages":[{"role":"user","content":[{"text":"x","y":%b}]}]}',
    ],
)
def test_whatever_could_be_read_is_not_too_deep_for_the_opening(body: bytes) -> None:
    """The interpreter allows fewer levels the more calls are open, and here are more than at the first reading."""

    def deeper(calls: int, work: Callable[[], object]) -> object:
        return work() if calls == 0 else deeper(calls - 1, work)

    read = 0
    for depth in range(700, 1100):
        try:
            fields = decode_fields(body % (b"[" * depth + b"]" * depth))
        except RecursionError:
            break
        read += 1
        asker = Asker({}, secret=SECRET, model="m", key_digest=b"")
        for work in (partial(asker.identify, fields), partial(is_resumed, fields)):
            deeper(20, work)
    assert read


def test_behind_very_many_preambles_everything_was_typed() -> None:
    preamble = "<system-reminder></system-reminder> "
    for count, alike in ((100, True), (101, False)):
        found = (who({"messages": [{"role": "user", "content": preamble * more + "x"}]}) for more in (1, count))
        assert (len({one.conversation for one in found}) == 1) is alike


PREAMBLES = (
    ("<system-reminder>", "</system-reminder>"),
    ("<environment_context>", "</environment_context>"),
    ("<user_instructions>", "</user_instructions>"),
    ("# AGENTS.md instructions", "</INSTRUCTIONS>"),
    ("<INSTRUCTIONS>", "</INSTRUCTIONS>"),
)


@given(st.lists(st.sampled_from([*(mark for pair in PREAMBLES for mark in pair), " ", "\n\x0c", "typed"]), max_size=9))
def test_preambles_go_as_one_by_one(pieces: list[str]) -> None:
    text = "".join(pieces)
    kept = text
    while begun := next((pair for pair in PREAMBLES if kept.startswith(pair[0])), None):
        _, closed, kept = kept.partition(begun[1])
        kept = kept.lstrip() if closed else ""
    found = who({"messages": [{"role": "user", "content": text}, {"role": "user", "content": "else"}]})
    assert found.conversation == who({"messages": [{"role": "user", "content": kept or "else"}]}).conversation


def test_a_first_user_message_that_comes_late_is_not_found() -> None:
    """And the conversation of such a body is none, where no id names one."""
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "first"}
    assert who({"messages": [*[system] * 99, user]}).derived
    assert who({"messages": [*[system] * 100, user]}).conversation is None
    blocks = {"role": "system", "content": [{"type": "text", "text": "s"}] * 500}
    assert who({"messages": [blocks, blocks, user]}).derived
    assert who({"messages": [blocks, blocks, system, user]}).conversation is None


def test_an_answer_that_comes_late_is_not_found() -> None:
    user, answer = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
    for count, resumed in ((1000, True), (1001, False)):
        body = {"messages": [*[user] * count, answer, *[user] * 1000]}
        assert is_resumed(decode_fields(json.dumps(body).encode())) is resumed


def test_a_plain_string_is_an_opening() -> None:
    """``/v1/responses`` takes one instead of a list of items."""
    texts = ["fix the bug", "fix the bug", "fix the other bug"]
    first, same, other = (who({"model": "m", "input": text}) for text in texts)
    assert first.conversation == same.conversation != other.conversation
    assert first.derived


def test_an_answer_before_the_first_question_does_not_count() -> None:
    """A greeting, or what a client shortened."""
    question = {"role": "user", "content": "first"}
    greetings = [[], [{"role": "assistant", "content": "hi"}], [{"role": "assistant", "content": "good day"}]]
    assert len({who({"messages": [*before, question]}).conversation for before in greetings}) == 1
