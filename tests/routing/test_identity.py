"""Who is asking: every source, their order, and what is not an id."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.routing.identity import Identity, decode_fields, identify, is_resumed, opening, text_of

S1 = "6b2cf2f0-7d39-4d3c-9a0e-0f1f6f0c8a11"
S2 = "0d4a8f5e-5a5e-4a7c-8c62-b2a5ac3c0d22"
SECRET = b"s" * 32
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def who_sends(header: str, value: str) -> Identity:
    """Identity of a request with one header, its name as in ``who``."""
    headers: dict[str, Any] = {header: value}
    return who(**headers)


def who(
    body: dict[str, Any] | None = None,
    *,
    model: str = "m",
    key_digest: bytes = b"",
    operator: tuple[bytes, ...] = (),
    **headers: str,
) -> Identity:
    """Identity of a request; header names are written with underscores for hyphens (``session_id`` stays itself)."""
    names = {
        name.replace("__", "\0").replace("_", "-").replace("\0", "_").encode(): value.encode()
        for name, value in headers.items()
    }
    fields = decode_fields(json.dumps(HELLO if body is None else body).encode())
    return identify(names, fields, secret=SECRET, model=model, key_digest=key_digest, operator_headers=operator)


CLAUDE = who(x_claude_code_session_id=S1)


@pytest.mark.parametrize(
    "user_id",
    [
        f"user_aa11_account__session_{S1}",
        f"user_aa11_account_bb22_session_{S1}",
        json.dumps({"device_id": "d", "account_uuid": "", "session_id": S1}),
        "  " + json.dumps({"session_id": S1}),
    ],
)
def test_every_form_of_user_id_names_the_session_of_the_header(user_id: str) -> None:
    found = who({**HELLO, "metadata": {"user_id": user_id}})
    assert found.conversation == CLAUDE.conversation
    assert (found.source, found.derived) == ("metadata.user_id", False)


def test_the_header_goes_before_the_metadata() -> None:
    body = {**HELLO, "metadata": {"user_id": json.dumps({"session_id": S1})}}
    assert who(body, x_claude_code_session_id=S2).conversation == who(x_claude_code_session_id=S2).conversation


@pytest.mark.parametrize(
    "metadata",
    [
        {"user_id": '{"session_id":'},
        {"user_id": 17},
        {"user_id": None},
        {"user_id": '{"session_id": 5}'},
        {"user_id": "plain"},
        {"user_id": '{"session_id": "null"}'},
        {"user_id": "{\ud800"},
        [],
        "text",
        None,
        {},
    ],
)
def test_broken_metadata_is_no_id(metadata: object) -> None:
    assert who({**HELLO, "metadata": metadata}).source == "opening"


@pytest.mark.parametrize(
    "header",
    [
        "session_id",
        "session__id",
        "x_session_id",
        "x_session_affinity",
        "x_opencode_session",
        "x_smg_routing_key",
        "x_dynamo_session_id",
    ],
)
def test_other_clients_headers(header: str) -> None:
    found = who_sends(header, S1)
    assert found.conversation == CLAUDE.conversation, "one id is one conversation wherever it stands"
    assert not found.derived
    assert who_sends(header, S2).conversation != found.conversation


@pytest.mark.parametrize(
    "member",
    [
        {"prompt_cache_key": S1},
        {"conversation": S1},
        {"conversation": {"id": S1}},
        {"user": S1},
    ],
)
def test_body_members(member: dict[str, Any]) -> None:
    assert who({**HELLO, **member}).conversation == CLAUDE.conversation


@pytest.mark.parametrize("user", ["alice", "alice@example.com", "a long name without digits", 17, None])
def test_a_user_that_is_a_person_is_no_conversation(user: object) -> None:
    assert who({**HELLO, "user": user}).source == "opening"


@pytest.mark.parametrize("conversation", [17, {"id": 5}, {}, {"id": ""}, [], "", None])
def test_a_broken_conversation_member(conversation: object) -> None:
    assert who({**HELLO, "conversation": conversation}).source == "opening"


def test_the_operators_headers_come_first() -> None:
    operator = (b"x-tenant-chat", b"x-other")
    found = who(x_claude_code_session_id=S1, x_other=S2, operator=operator)
    assert found.source == "x-other"
    assert found.conversation == who(x_session_id=S2).conversation
    assert who(x_claude_code_session_id=S1, operator=operator).conversation == CLAUDE.conversation
    with_agent = who(x_claude_code_session_id=S1, x_other=S2, x_claude_code_agent_id="a1", operator=operator)
    assert with_agent.parent == found.conversation


@pytest.mark.parametrize("header", ["x_request_id", "x_correlation_id", "x_stainless_retry_count", "traceparent"])
def test_per_request_ids_are_never_read(header: str) -> None:
    assert who_sends(header, S1).conversation == who().conversation


@pytest.mark.parametrize(
    "value",
    ["", "   ", "null", "Null", "undefined", "None", "nil", "[object Object]", "0", "-", "default", "x" * 257,
     "a\x00b", "a\tb", "a\x7fb", "00000000-0000-0000-0000-000000000000", "{}"],
)  # fmt: skip
def test_what_stands_for_nothing_is_absent(value: str) -> None:
    assert who(x_session_id=value).source == "opening"
    assert who({**HELLO, "prompt_cache_key": value}).source == "opening"


@pytest.mark.parametrize("value", ["7", "x" * 256, "🙂🙂", "../../x", "<script>", "a b", "%0d%0a"])
def test_odd_ids_are_ids(value: str) -> None:
    assert who(x_session_id=value).conversation is not None
    assert who(x_session_id=value).source == "x-session-id"


def test_model_and_key_are_part_of_it() -> None:
    keys = {
        who(x_session_id=S1, model=model, key_digest=digest).conversation
        for model in ("m", "n")
        for digest in (b"", b"1", b"2")
    }
    assert len(keys) == 6


def test_parts_cannot_be_confused() -> None:
    assert who(x_session_id="ab", model="c").conversation != who(x_session_id="b", model="ca").conversation


class TestAgents:
    def test_a_subagent_is_a_conversation_of_its_own_with_a_parent(self) -> None:
        agent = who(x_claude_code_session_id=S1, x_claude_code_agent_id="a0123456789abcdef")
        assert agent.conversation not in (None, CLAUDE.conversation)
        assert agent.parent == CLAUDE.conversation
        assert CLAUDE.parent is None

    def test_nested(self) -> None:
        outer = who(x_claude_code_session_id=S1, x_claude_code_agent_id="a1")
        inner = who(x_claude_code_session_id=S1, x_claude_code_agent_id="a2", x_claude_code_parent_agent_id="a1")
        assert inner.parent == outer.conversation

    def test_only_with_a_claude_code_session(self) -> None:
        assert who(x_session_id=S1, x_claude_code_agent_id="a1").parent is None


class TestAuxiliary:
    TITLE: dict[str, Any] = {**HELLO, "tools": [], "output_config": {"format": {"type": "json_schema"}}}  # noqa: RUF012

    def test_a_title_call(self) -> None:
        assert who(self.TITLE, x_claude_code_session_id=S1).auxiliary
        without_tools = {name: value for name, value in self.TITLE.items() if name != "tools"}
        assert who(without_tools, x_claude_code_session_id=S1).auxiliary

    def test_the_hint_header(self) -> None:
        assert who(x_claude_code_session_id=S1, x_claude_code_request_class="Auxiliary").auxiliary
        assert who(x_claude_code_request_class="auxiliary").auxiliary

    @pytest.mark.parametrize(
        "change",
        [
            {"tools": [{"name": "Bash"}]},
            {"output_config": {"effort": "high"}},
            {"output_config": {"format": None}},
            {"output_config": 5},
            {"output_config": None},
        ],
    )
    def test_not_a_title_call(self, change: dict[str, Any]) -> None:
        assert not who({**self.TITLE, **change}, x_claude_code_session_id=S1).auxiliary

    def test_not_without_a_claude_session_nor_for_a_subagent(self) -> None:
        assert not who(self.TITLE, x_session_id=S1).auxiliary
        assert not who(self.TITLE, x_claude_code_session_id=S1, x_claude_code_agent_id="a1").auxiliary

    def test_compaction_is_an_ordinary_turn(self) -> None:
        assert not who(x_claude_code_session_id=S1, x_claude_code_request_class="compaction").auxiliary


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

    @pytest.mark.parametrize("half", ["\\ud83d", "\\uD83D", "\\udc00"])
    def test_half_a_character_is_no_broken_json(self, half: str) -> None:
        body = {"model": "m", "user": "HALF01234567890123456", "messages": [{"role": "user", "content": "cut HALF"}]}
        text = json.dumps(body).replace("HALF", half)
        fields = decode_fields(text.encode())
        assert text_of(fields.model) == "m"
        found = identify({}, fields, secret=SECRET, model="m", key_digest=b"")
        assert found.derived
        assert found == identify({}, decode_fields(text.encode()), secret=SECRET, model="m", key_digest=b"")

    @pytest.mark.parametrize("body", [b'{"a":"\\ud83d"', b'["\\ud83d"]', b"[" * 100_000 + b"\\ud83d"])
    def test_broken_json_with_half_a_character_is_broken(self, body: bytes) -> None:
        with pytest.raises(msgspec.DecodeError):
            decode_fields(body)


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


def test_fields_that_are_no_object() -> None:
    for body in (b"", b"[]", b"17", b'"x"', b"{", b'{"a":}', b"\xff"):
        with pytest.raises(msgspec.DecodeError):
            decode_fields(body)


def test_text_of() -> None:
    fields = decode_fields(b'{"model":"m","stream":true}')
    assert text_of(fields.model) == "m"
    assert text_of(fields.stream) is None
    assert text_of(fields.messages) is None


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
    identify({}, fields, secret=SECRET, model="m", key_digest=b"")
    is_resumed(fields)


@pytest.mark.parametrize(
    "body",
    [
        b'{"system":"' + b"x-anthropic-\\n" * 150_000 + b'","messages":[{"role":"user","content":"x"}]}',
        b'{"messages":[{"role":"user","content":"' + b"<system-reminder></system-reminder>" * 60_000 + b'"}]}',
        b'{"messages":[{"role":"user","content":[' + b"[]," * 700_000 + b"1]}]}",
        b'{"tools":[' + b"[]," * 700_000 + b'1],"messages":[{"role":"user","content":"x"}]}',
        b'{"tools":"' + b',\\"cache_control\\":{' * 100_000 + b'","messages":[{"role":"user","content":"x"}]}',
        b'{"user":"' + b"a1-" * 700_000 + b'","messages":[{"role":"user","content":"x"}]}',
    ],
    ids=["harness lines", "preambles", "blocks", "tools", "marks", "user"],
)
def test_two_megabytes_of_anything_are_hashed_without_a_walk_in_python(body: bytes) -> None:
    """Counts what Python does, not seconds: a quadratic or per-element pass makes millions of calls or copies."""
    fields = decode_fields(body)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        identify({}, fields, secret=SECRET, model="m", key_digest=b"")
    finally:
        sys.setprofile(None)
    assert calls < 1_000_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(
    ["model", "metadata", "prompt_cache_key", "conversation", "user", "system", "instructions", "tools", "messages",
     "input", "output_config", "stream"]
)  # fmt: skip

messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": json_values}), max_size=3
)


@given(
    body=st.dictionaries(members, json_values | messages),
    headers=st.dictionaries(
        st.sampled_from([b"x-claude-code-session-id", b"x-claude-code-agent-id", b"x-session-id", b"session_id",
                         b"x-claude-code-request-class"]),
        st.binary(max_size=300),
    ),
)  # fmt: skip
def test_no_input_raises_and_the_same_input_is_the_same_conversation(
    body: dict[str, Any], headers: dict[bytes, bytes]
) -> None:
    fields = decode_fields(json.dumps(body).encode())
    found = identify(headers, fields, secret=SECRET, model="m", key_digest=b"k")
    assert found == identify(headers, fields, secret=SECRET, model="m", key_digest=b"k")
    assert found.conversation is None or len(found.conversation) == 16
    assert found.derived == (found.opening is not None)
    computed = opening(fields, secret=SECRET, model="m")
    assert found.opening in (None, computed)
