"""Who is asking: every source, their order, and what is not an id."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.asking import HELLO, S1, S2, SECRET, who, who_sends

from lmwarden.routing.fields import decode_fields
from lmwarden.routing.identity import Asker
from lmwarden.routing.opening import opening

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


@pytest.mark.parametrize("user", ["1" * 3 + "-" * 253, "-" * 253 + "123", "1" * 256, "a" * 256, "a1" * 127 + "!!"])
def test_a_user_that_is_nearly_an_id_is_told_at_once(user: str) -> None:
    body = decode_fields(json.dumps({**HELLO, "user": user}).encode())
    asker = Asker({}, secret=SECRET, model="m", key_digest=b"")
    for _ in range(5_000):  # one expression for all that an id has took 24 ms for each of the first, so two minutes
        assert asker.identify(body).source == "opening"


@pytest.mark.parametrize(
    "member",
    [
        {"metadata": {"user_id": " " * 8192 + f"_session_{S1}"}},
        {"metadata": {"user_id": json.dumps({"session_id": S1, "pad": "x" * 8192})}},
        {"prompt_cache_key": S1 + " " * 8192},
        {"conversation": {"id": S1, "pad": "x" * 8192}},
        {"user": S1 + " " * 8192},
    ],
)
def test_no_id_is_looked_for_in_what_is_as_long_as_a_text(member: dict[str, Any]) -> None:
    assert who({**HELLO, **member}).source == "opening"


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

    def test_a_session_in_the_metadata_is_one_too(self) -> None:
        body = {**HELLO, "metadata": {"user_id": json.dumps({"session_id": S1})}}
        agent = who(body, x_claude_code_agent_id="a1")
        assert agent.conversation == who(x_claude_code_session_id=S1, x_claude_code_agent_id="a1").conversation
        assert agent.parent == who(body).conversation

    def test_codex_threads(self) -> None:
        main = who(session_id=S1, thread_id=S1)
        assert main == who(session_id=S1)
        assert main.parent is None
        agent = who(session_id=S1, thread_id="thread-2", x_codex_parent_thread_id=S1)
        assert agent.conversation not in (None, main.conversation)
        assert agent.parent == main.conversation
        nested = who(session_id=S1, thread_id="thread-3", x_codex_parent_thread_id="thread-2")
        assert nested.parent == agent.conversation
        orphan = who(session_id=S1, thread_id="thread-4")
        assert orphan.parent == main.conversation
        assert who(thread_id="thread-2").source == "opening"
        assert who(x_session_id=S1, thread_id="thread-2") == who(x_session_id=S1), "only beside Codex's own session id"


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
    found = Asker(headers, secret=SECRET, model="m", key_digest=b"k").identify(fields)
    asker = Asker(headers, secret=SECRET, model="m", key_digest=b"k")
    asker.identify(
        decode_fields(b'{"metadata":{"user_id":"{\\"session_id\\":\\"another-one\\"}"},"output_config":{"format":{}}}')
    )
    assert found == asker.identify(fields), "whatever other bodies the head had before"
    assert found.conversation is None or len(found.conversation) == 16
    assert found.derived == (found.opening is not None)
    computed = opening(fields, secret=SECRET, model="m")
    assert found.opening in (None, computed)


def test_an_id_in_the_body_is_no_session_of_claude_code() -> None:
    """So Claude Code's mark of a subagent says nothing beside it."""
    body = {**HELLO, "prompt_cache_key": S1}
    assert who(body, x_claude_code_agent_id="a1") == who(body)
    assert who(body, x_claude_code_session_id=S1, x_claude_code_agent_id="a1") != who(body, x_claude_code_session_id=S1)
