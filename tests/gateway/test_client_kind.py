"""Which program asks, by what the real ones send."""

from __future__ import annotations

import pytest

from lmwarden.gateway.client_kind import client_of, kind_of
from lmwarden.types import RoutingRequest

KEY = b"k" * 16


@pytest.mark.parametrize(
    ("agent", "word"),
    [
        (b"claude-cli/2.1.332 (external, cli)", "claude-code"),
        (b"claude-code/2.1.332", "claude-code"),
        (b"codex_cli_rs/0.50.0 (Debian 12; x86_64)", "codex"),
        (b"codex_exec/0.50.0", "codex"),
        (b"opencode/1.0.1 ai-sdk/provider-utils", "opencode"),
        (b"OpenAI/Python 2.1.0", "openai"),
        (b"AsyncOpenAI/Python 2.1.0", "openai"),
        (b"Anthropic/JS 0.60.0", "anthropic"),
        (b"AsyncAnthropic/Python 0.60.0", "anthropic"),
        (b"curl/8.5.0", "curl"),
        (b"my own agent, hello", "other"),
        (b"", "other"),
    ],
)
def test_a_program_is_known_by_the_beginning_of_its_user_agent(agent: bytes, word: str) -> None:
    assert client_of({b"user-agent": agent}) == word


def test_who_sends_no_user_agent_is_not_known() -> None:
    assert client_of({}) is None


def test_opencode_is_known_by_its_header_whatever_library_it_uses() -> None:
    assert client_of({b"user-agent": b"ai-sdk/x", b"x-opencode-session": b"s"}) == "opencode"


@pytest.mark.parametrize(
    ("request_", "headers", "kind"),
    [
        (RoutingRequest(), {}, None),
        (RoutingRequest(conversation=KEY), {}, "main"),
        (RoutingRequest(conversation=KEY, parent=KEY), {}, "subagent"),
        (RoutingRequest(conversation=KEY, auxiliary=True), {}, "auxiliary"),
        (RoutingRequest(conversation=KEY), {b"x-claude-code-compaction": b"auto"}, "compaction"),
        (RoutingRequest(conversation=KEY), {b"x-claude-code-request-class": b"compaction"}, "compaction"),
        (RoutingRequest(conversation=KEY), {b"x-claude-code-request-class": b"main"}, "main"),
    ],
)
def test_kinds(request_: RoutingRequest, headers: dict[bytes, bytes], kind: str | None) -> None:
    assert kind_of(request_, headers) == kind
