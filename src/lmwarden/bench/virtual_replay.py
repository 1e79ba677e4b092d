"""A recorded trace in virtual time: the prompts that ``replay`` makes, as tokens.

Each turn brings its whole prompt, because what a recorded turn shares with the one before it is the trace's business.
The answer that "really came" is known in advance here, since the simulated model answers a prompt always alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lmwarden.bench.replay import ReplayDialogue, ReplaySource
from lmwarden.simulation.tokens import answer_tokens, text_tokens, token_text
from lmwarden.simulation.virtual_load import VirtualTurn


class VirtualReplays:
    """The conversations of a trace as the simulation wants them."""

    def __init__(self, source: ReplaySource) -> None:
        self._source = source

    def session(self, index: int) -> ReplayedConversation:
        """Return conversation number ``index``."""
        return ReplayedConversation(self._source.dialogue(index))


@dataclass(frozen=True, slots=True)
class ReplayedConversation:
    """One conversation of a trace as tokens."""

    _dialogue: ReplayDialogue

    @property
    def session_id(self) -> str:
        """The id that the client would send."""
        return self._dialogue.session_id

    @property
    def agent_id(self) -> str | None:
        """Of a subagent."""
        return self._dialogue.agent_id

    def virtual_turns(self) -> Iterable[VirtualTurn]:
        """Its turns, each made when it is asked for."""
        dialogue = self._dialogue
        for number, turn in zip(dialogue.numbers, dialogue.turns, strict=True):
            tokens = text_tokens(dialogue.replay.prompt(number))
            yield VirtualTurn(tokens, turn.max_output_tokens, turn.gap_before_s, starts_over=True)
            answer = answer_tokens(tokens, turn.max_output_tokens)
            dialogue.replay.answered(number, "".join(map(token_text, answer)))
