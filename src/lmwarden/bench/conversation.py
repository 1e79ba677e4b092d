"""What a client holds of one conversation, and the request bodies it makes of it, as Claude Code does.

``Conversation`` holds the history and builds each body: the system prompt, every message so far and
the new one, whose block carries the moving ``cache_control`` mark, as Claude Code's does. The answer that
really came is appended, so the next turn's prompt extends what the engine has cached.

Tools are sent only where the plan says so: a vLLM without a tool parser refuses them. Then every body carries one tool,
the system prompt is shorter by as many tokens as the tool takes, and a turn that ends by itself forbids its use. Of
an answer only the text is sent back, so that sizes are the same with tools and without.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from lmwarden.bench.plans import LEFT_TEXT, AgentSession, Branch, TurnPlan
from lmwarden.bench.workload import BYTES_PER_TOKEN

_USER_AGENT = "claude-cli/2.1.332 (external, sdk-cli)"
_DEVICE_ID = "0" * 64
_NO_TEXT = "(no text)"
"""Stands for an answer without text: the APIs refuse an empty assistant message."""
_TEMPLATE_TOKENS = 2
"""Beginning and end of the list of tools in the simulated engine's chat template."""

_TOOL_NAME = "read_file"
_TOOL_TEXT = "Reads a file and returns its text."
_TOOL_ARGUMENTS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


class Api(StrEnum):
    """Which API the sessions speak."""

    MESSAGES = "messages"
    CHAT = "chat"
    COMPLETIONS = "completions"
    """Plain text without a chat template: for replayed traces alone."""

    @property
    def path(self) -> str:
        """Path and query of the API."""
        return _PATHS[self]


_PATHS = {
    Api.MESSAGES: "/v1/messages?beta=true",
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
}


class Dialogue(Protocol):
    """One conversation as the client needs it; ``turn`` counts from 0, and turns come in order."""

    @property
    def index(self) -> int:
        """Number of the session that it belongs to."""
        ...

    @property
    def agent_id(self) -> str | None:
        """Of a subagent; None: the main agent."""
        ...

    @property
    def turns(self) -> tuple[TurnPlan, ...]:
        """What each turn is."""
        ...

    def body(self, turn: int) -> bytes:
        """The request's JSON; may be asked for in advance."""
        ...

    def headers(self) -> dict[str, str]:
        """Headers that name the client and its session."""
        ...

    def answered(self, text: str) -> None:
        """The last turn's answer came whole."""
        ...

    def left(self) -> None:
        """The client left in the middle of the last turn's answer."""
        ...

    def started_by(self, branches: tuple[Branch, ...]) -> Sequence[tuple[Dialogue, bool]]:
        """The conversations that a turn's branches start now, each with whether it is a fork."""
        ...


@dataclass(slots=True)
class Conversation:
    """One session's history, as the client holds it."""

    session: AgentSession
    model: str
    api: Api
    tools: bool = False
    _messages: list[dict[str, object]] = field(default_factory=list)
    _made: tuple[int, bytes] | None = None
    """A body that was made in advance."""

    @property
    def index(self) -> int:
        """See ``Dialogue.index``."""
        return self.session.index

    @property
    def agent_id(self) -> str | None:
        """See ``Dialogue.agent_id``."""
        return self.session.agent_id

    @property
    def turns(self) -> tuple[TurnPlan, ...]:
        """See ``Dialogue.turns``."""
        return self.session.turns

    def body(self, turn: int) -> bytes:
        """Append the message of ``turn`` and return the request's JSON."""
        if self._made is None or self._made[0] != turn:
            self._made = (turn, self._make(turn))
        return self._made[1]

    def headers(self) -> dict[str, str]:
        """See ``Dialogue.headers``."""
        session = self.session
        if self.api is Api.CHAT:
            # No header of this API names an agent, so a subagent is a session of its own there.
            name = session.session_id if session.agent_id is None else f"{session.session_id}/{session.agent_id}"
            return {"X-Session-Id": name}
        headers = {
            "User-Agent": _USER_AGENT,
            "X-Claude-Code-Session-Id": session.session_id,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219",
            "x-app": "cli",
        }
        if session.agent_id is not None:
            headers["x-claude-code-agent-id"] = session.agent_id
        return headers

    def answered(self, text: str) -> None:
        """Append the answer that came."""
        text = text or _NO_TEXT
        content: object = text if self.api is Api.CHAT else [{"type": "text", "text": text}]
        self._messages.append({"role": "assistant", "content": content})

    def left(self) -> None:
        """See ``Dialogue.left``."""
        self.answered(LEFT_TEXT)

    def started_by(self, branches: tuple[Branch, ...]) -> Sequence[tuple[Conversation, bool]]:
        """See ``Dialogue.started_by``."""
        return [(self.branch(branch.session), branch.copies_context) for branch in branches]

    def branch(self, session: AgentSession) -> Conversation:
        """Return the conversation that this one starts now; a fork gets a copy of the history."""
        history = list(self._messages) if session.forked else []
        return Conversation(session, self.model, self.api, self.tools, history)

    def _make(self, turn: int) -> bytes:
        text, plan = self.session.message_text(turn), self.turns[turn]
        if plan.starts_over:
            self._messages.clear()
        body: dict[str, object] = {"model": self.model, "max_tokens": plan.max_output_tokens, "stream": True}
        if self.tools:
            body |= _tool_fields(self.api, ends_in_tool_call=plan.ends_in_tool_call)
        system_text = self._system_text()
        if self.api is Api.CHAT:
            self._messages.append({"role": "user", "content": text})
            system = [{"role": "system", "content": system_text}] if system_text else []
            body |= {"messages": [*system, *self._messages], "stream_options": {"include_usage": True}}
        else:
            mark = {"type": "ephemeral"}
            marked = {"type": "text", "text": text, "cache_control": mark}
            body |= {
                "messages": [*self._messages, {"role": "user", "content": [marked]}],
                "system": [{"type": "text", "text": system_text, "cache_control": mark}] if system_text else [],
                "metadata": {"user_id": self._user_id()},
            }
            self._messages.append({"role": "user", "content": text})
        return msgspec.json.encode(body)

    def _system_text(self) -> str:
        text = self.session.system_text
        return text[: max(0, len(text) - BYTES_PER_TOKEN * tool_tokens(self.api))] if self.tools else text

    def _user_id(self) -> str:
        identity = {"device_id": _DEVICE_ID, "account_uuid": "", "session_id": self.session.session_id}
        return msgspec.json.encode(identity).decode()


def tool_tokens(api: Api) -> int:
    """Return how many tokens the one tool takes in a prompt of the simulated engine."""
    written = json.dumps(_tool(api), separators=(",", ":"))
    return _TEMPLATE_TOKENS - (-len(written) // BYTES_PER_TOKEN)


def _tool(api: Api) -> dict[str, object]:
    if api is Api.MESSAGES:
        return {"name": _TOOL_NAME, "description": _TOOL_TEXT, "input_schema": _TOOL_ARGUMENTS}
    function = {"name": _TOOL_NAME, "description": _TOOL_TEXT, "parameters": _TOOL_ARGUMENTS}
    return {"type": "function", "function": function}


def _tool_fields(api: Api, *, ends_in_tool_call: bool) -> dict[str, object]:
    word = "auto" if ends_in_tool_call else "none"
    return {"tools": [_tool(api)], "tool_choice": {"type": word} if api is Api.MESSAGES else word}
