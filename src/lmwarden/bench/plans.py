"""Agent sessions as data.

A session is a conversation of a few turns; each turn sends everything before it again, plus a new message. A turn may
start *branches* when its answer has ended: subagents, which are conversations of their own that the next turn waits
for, and forks, which continue a copy of the context and are waited for by nobody. The whole tree is known before the
first turn is sent: ``sessions`` draws it, ``client`` plays it over HTTP and ``virtual`` in virtual time.

What a context holds is one rule for all: the session's system prompt, then for each turn its message and the answer
that really came. A turn that *starts over* (after a compaction) drops everything but the system prompt first. An
answer that the client did not wait for stands in the context as ``LEFT_TEXT``.

Text is a sequence of three-letter words, each with one space: four bytes, one token of the simulated
engine and of most real tokenizers. A word stands for one byte of a SHAKE-256 stream, so a message of 7,300
tokens costs well under a millisecond, and two messages differ within their first cache block.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib import resources

LEFT_TEXT = "(interrupted)"
"""Stands in the context for an answer whose client left. A user message never follows a user message, because
chat templates of some models refuse that."""


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One request of a conversation."""

    new_tokens: int
    """Size of the message that this turn adds."""
    max_output_tokens: int
    gap_before_s: float
    """Time that the agent's tools run before this turn is sent; 0 before the first."""
    ends_in_tool_call: bool = False
    """The agent will go on by itself. Costs no token."""
    starts_over: bool = False
    """The context before it is dropped, except for the system prompt: its message is a summary and what is new."""
    leaves_after_s: float | None = None
    """The client leaves so long after the first token; None: it reads to the end."""
    branches: tuple[Branch, ...] = ()
    """Started when this turn's answer has ended, or was left."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A conversation that another one starts."""

    session: AgentSession
    copies_context: bool
    """True: a fork, with a copy of the context so far; the parent goes on at once.
    False: a subagent with a system prompt of its own; the parent's next turn waits for its end."""


@dataclass(frozen=True, slots=True)
class SharedText:
    """A text that several sessions have in common."""

    key: bytes
    tokens: int


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One conversation: sizes, gaps, and the keys that its texts are made from."""

    index: int
    """Number of the session; branches have that of the session that they belong to."""
    session_id: str
    """A UUID, as Claude Code sends it. Subagents have their session's."""
    turns: tuple[TurnPlan, ...]
    text_key: bytes
    system_text: str = field(default="", repr=False)
    agent_id: str | None = None
    """Of a subagent; None: the main agent."""
    repository: SharedText | None = None
    """What stands first in a message that begins a context."""
    forked: bool = False
    """Its context begins with a copy of another's, so its first message brings no repository."""

    def message_text(self, turn: int) -> str:
        """Return the new message of one turn, ``turns[turn].new_tokens`` tokens long."""
        plan, key = self.turns[turn], self.text_key + turn.to_bytes(4, "big")
        if self.repository is not None and (plan.starts_over or (turn == 0 and not self.forked)):
            shared = self.repository
            return words(shared.key, shared.tokens) + words(key, plan.new_tokens - shared.tokens)
        return words(key, plan.new_tokens)

    def family(self) -> list[AgentSession]:
        """Return this conversation and all that it starts, at any depth."""
        found = [self]
        for turn in self.turns:
            for branch in turn.branches:
                found += branch.session.family()
        return found


def words(key: bytes, tokens: int) -> str:
    """Return ``tokens`` words of text, four bytes each, determined by ``key``; it ends in a full stop."""
    if tokens == 0:
        return ""
    stream = hashlib.shake_256(key).digest(tokens)
    return " ".join([_VOCABULARY[byte] for byte in stream]) + "."


def _vocabulary() -> tuple[str, ...]:
    text = (resources.files("lmwarden.bench") / "workloads" / "words.txt").read_text("ascii")
    vocabulary = tuple(text.split())
    if len(set(vocabulary)) != 256 or any(len(word) != 3 for word in vocabulary):
        raise ValueError("words.txt must hold 256 different words of three letters")
    return vocabulary


_VOCABULARY = _vocabulary()
