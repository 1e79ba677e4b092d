"""Agent sessions from a seed.

Theory of operation. A session is a few turns; each turn sends everything before it again, plus a new
message. Two kinds of randomness are kept apart:

* *sizes and gaps* depend on (seed, sessions of the level, session index). They are the same in every arm, so
  that arms are compared on the same work;
* *text* depends on the arm as well. No prompt is used twice across levels, arms or seeds: a cell never finds
  the caches warm with its own prompts. Only the system prompt, which all sessions share, stays the same.

Text is a sequence of three-letter words, each with one space: four bytes, one token of the simulated
engine and of most real tokenizers. A word stands for one byte of a SHAKE-256 stream, so a message of 7,300
tokens costs well under a millisecond, and two messages differ within their first cache block.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from importlib import resources
from random import Random

from lmwarden.bench.workload import Think, Workload


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One request of a session."""

    new_tokens: int
    """Size of the message that this turn adds."""
    max_output_tokens: int
    gap_before_s: float
    """Time that the agent's tools run before this turn is sent; 0 before the first."""


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One session: sizes, gaps, and the key that its texts are made from."""

    index: int
    session_id: str
    """A UUID, as Claude Code sends it."""
    turns: tuple[TurnPlan, ...]
    text_key: bytes

    def message_text(self, turn: int) -> str:
        """Return the new message of one turn, ``turns[turn].new_tokens`` tokens long."""
        return words(self.text_key + turn.to_bytes(4, "big"), self.turns[turn].new_tokens)


class SessionSource:
    """Makes the sessions of one cell (level × arm × seed), by index and without limit."""

    def __init__(self, workload: Workload, *, think: Think | None, seed: int, sessions: int, arm: str) -> None:
        self.workload = workload
        self._think = think
        self._size_key = f"{workload.name}|{seed}|{sessions}"
        self._text_key = f"{self._size_key}|{arm}"

    def system_text(self) -> str:
        """Return the system prompt that all sessions of this workload share."""
        key = f"{self.workload.name}|system".encode()
        return words(key, self.workload.layers.shared_system_tokens)

    def session(self, index: int) -> AgentSession:
        """Return session number ``index``; the same arguments give the same session."""
        random = Random(f"{self._size_key}|{index}")
        layers, shape = self.workload.layers, self.workload.session
        turns = tuple(
            TurnPlan(
                new_tokens=random.randint(*(layers.turn_tokens if turn else layers.first_message_tokens)),
                max_output_tokens=shape.max_output_tokens,
                gap_before_s=self._think.draw(random) if self._think and turn else 0.0,
            )
            for turn in range(shape.turns)
        )
        digest = hashlib.blake2b(f"{self._text_key}|{index}".encode(), digest_size=32).digest()
        session_id = str(uuid.UUID(bytes=digest[:16], version=4))
        return AgentSession(index=index, session_id=session_id, turns=turns, text_key=digest[16:])


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
