"""Plays a trace: prompts of made-up text that share exactly what the recorded prompts shared.

Theory of operation. The text of a prompt is built from pieces. What a request shares with an earlier one, by its block
hashes, is taken from the text of that one, and the rest is new words. A request that has all blocks of an earlier one
and room for its answer continues it: then the answer that *really* came stands between, because the engine keeps the
blocks that it generated as well. So an engine finds in its caches what it found when the trace was recorded.

The prompts go to ``/v1/completions`` without a chat template, so that their lengths are the recorded ones to the token
(with the simulated engine; for a real tokenizer lengths are nominal, as everywhere in this tester). Answers are asked
for in their recorded length.

A trace is finite. When its last conversation has been started the first one comes again, with other text.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

import msgspec

from lmwarden.bench.plans import Branch, TurnPlan, words
from lmwarden.bench.trace import Trace
from lmwarden.bench.workload import BYTES_PER_TOKEN

_DEFAULT_OUTPUT_TOKENS = 256
"""For a request whose answer was not recorded to its end."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some text and how many tokens it stands for."""

    text: str
    tokens: int

    def cut(self, tokens: int) -> _Piece:
        """The beginning of it. Our own words are four bytes a token; of an answer the text is cut in proportion."""
        if tokens >= self.tokens:
            return self
        length = len(self.text)
        kept = tokens * BYTES_PER_TOKEN if length == self.tokens * BYTES_PER_TOKEN else length * tokens // self.tokens
        return _Piece(self.text[:kept], tokens)


class Replay:
    """One pass through a trace: the texts of its prompts, made when they are needed.

    Args:
        trace: what is played.
        key: makes this pass's text its own.
    """

    def __init__(self, trace: Trace, key: str) -> None:
        self._trace = trace
        self._key = key
        self._scale = trace.tokens_per_unit()
        self._prompts: dict[int, list[_Piece]] = {}
        self._answers: dict[int, _Piece] = {}
        self._owners: dict[str, int] = {}
        """Block hash to the request whose text holds it."""
        self._before: dict[int, int] = {}
        """Request to the one before it in its conversation."""
        last: dict[str, int] = {}
        for number, request in enumerate(trace.requests):
            if request.conversation in last:
                self._before[number] = last[request.conversation]
            last[request.conversation] = number

    def prompt(self, number: int) -> str:
        """Return the text of request ``number``; asked for when it is sent."""
        if number not in self._prompts:
            self._prompts[number] = self._build(number)
        return "".join(piece.text for piece in self._prompts[number])

    def answered(self, number: int, text: str) -> None:
        """The answer to request ``number`` came."""
        tokens = self._trace.requests[number].output_tokens
        if tokens:
            self._answers[number] = _Piece(text, tokens)

    def tokens(self, number: int) -> int:
        """Return the length of request ``number``'s prompt in tokens; at least one."""
        return max(1, self._position(self._trace.requests[number].prompt))

    def _position(self, units: int) -> int:
        return round(units * self._scale)

    def _build(self, number: int) -> list[_Piece]:
        hashes, length = self._trace.hashes[number], self.tokens(number)
        owner, shared_blocks = self._shared(number)
        pieces: list[_Piece] = []
        if owner is not None:
            pieces = self._continued(owner, length) if shared_blocks == len(self._trace.hashes[owner]) else []
            if not pieces:
                kept = min(length, self._position(shared_blocks * self._trace.head.block))
                pieces = _cut(self._prompts[owner], kept)
        missing = length - sum(piece.tokens for piece in pieces)
        if missing:
            pieces.append(_Piece(words(f"{self._key}|{number}".encode(), missing), missing))
        for block in hashes[shared_blocks:]:
            self._owners.setdefault(block, number)
        return pieces

    def _shared(self, number: int) -> tuple[int | None, int]:
        """The request whose text this one begins with, and with how many blocks."""
        hashes = self._trace.hashes[number]
        before = self._before.get(number)
        if before is not None and before in self._prompts:
            theirs = self._trace.hashes[before]
            if hashes[: len(theirs)] == theirs:
                return before, len(theirs)
        for blocks in range(len(hashes), 0, -1):
            owner = self._owners.get(hashes[blocks - 1])
            if owner is not None:
                return owner, blocks
        return None, 0

    def _continued(self, owner: int, length: int) -> list[_Piece]:
        """The owner's prompt and answer, if they fit into ``length`` tokens; nothing if not."""
        answer = self._answers.get(owner)
        if answer is None or self.tokens(owner) + answer.tokens > length:
            return []
        return [*self._prompts[owner], answer]


def _cut(pieces: list[_Piece], tokens: int) -> list[_Piece]:
    """The first ``tokens`` tokens."""
    kept: list[_Piece] = []
    for piece in pieces:
        if tokens <= 0:
            break
        kept.append(piece.cut(tokens))
        tokens -= piece.tokens
    return kept


class ReplaySource:
    """The conversations of a trace, in the order in which they began, again and again.

    Args:
        trace: what is played.
        model: the model's name.
        cell_key: of the level, arm and seed; no two cells have a prompt in common.
        keep_gaps: whether the recorded time between an answer and the next turn passes again.
    """

    def __init__(self, trace: Trace, *, model: str, cell_key: str, keep_gaps: bool) -> None:
        self._trace = trace
        self._model = model
        self._cell_key = cell_key
        self._keep_gaps = keep_gaps
        self._passes: dict[int, Replay] = {}
        conversations: dict[str, list[int]] = {}
        for number, request in enumerate(trace.requests):
            conversations.setdefault(request.conversation, []).append(number)
        self._conversations = list(conversations.items())

    @property
    def start_times_s(self) -> list[float]:
        """When each conversation began, in seconds since the trace did."""
        return [self._trace.requests[numbers[0]].t_s for _, numbers in self._conversations]

    def dialogue(self, index: int) -> ReplayDialogue:
        """Return conversation number ``index``; after the last one the first one comes again."""
        turn_of, place = divmod(index, len(self._conversations))
        key = f"{self._cell_key}|{turn_of}"
        replay = self._passes.setdefault(turn_of, Replay(self._trace, key))
        name, numbers = self._conversations[place]
        parent = self._trace.requests[numbers[0]].parent
        return ReplayDialogue(
            index=index,
            turns=tuple(self._turns(numbers)),
            model=self._model,
            replay=replay,
            numbers=tuple(numbers),
            session_id=_id(key, name if parent is None else parent),
            agent_id=None if parent is None else "a" + _id(key, name).replace("-", "")[:16],
        )

    def _turns(self, numbers: list[int]) -> list[TurnPlan]:
        turns: list[TurnPlan] = []
        ended_s: float | None = None
        for number in numbers:
            request = self._trace.requests[number]
            gap_s = max(0.0, request.t_s - ended_s) if self._keep_gaps and ended_s is not None else 0.0
            turns.append(TurnPlan(request.prompt, request.output_tokens or _DEFAULT_OUTPUT_TOKENS, gap_s))
            ended_s = request.ended_s
        return turns


def _id(key: str, name: str) -> str:
    digest = hashlib.blake2b(f"{key}|{name}".encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))


@dataclass(slots=True, kw_only=True)
class ReplayDialogue:
    """One conversation of a trace, as the client needs it (``conversation.Dialogue``)."""

    index: int
    turns: tuple[TurnPlan, ...]
    model: str
    replay: Replay
    numbers: tuple[int, ...]
    """Its requests' places in the trace."""
    session_id: str
    agent_id: str | None
    _turn: int = -1

    def body(self, turn: int) -> bytes:
        """See ``Dialogue.body``."""
        self._turn = turn
        return msgspec.json.encode(
            {
                "model": self.model,
                "prompt": self.replay.prompt(self.numbers[turn]),
                "max_tokens": self.turns[turn].max_output_tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    def headers(self) -> dict[str, str]:
        """See ``Dialogue.headers``."""
        headers = {"X-Claude-Code-Session-Id": self.session_id}
        if self.agent_id is not None:
            headers["x-claude-code-agent-id"] = self.agent_id
        return headers

    def answered(self, text: str) -> None:
        """See ``Dialogue.answered``."""
        self.replay.answered(self.numbers[self._turn], text)

    def left(self) -> None:
        """Nobody leaves in a replay: an answer that was cut when it was recorded is asked for in that length."""

    def started_by(self, branches: tuple[Branch, ...]) -> list[tuple[ReplayDialogue, bool]]:
        """A trace has every conversation as one of its own; none starts another."""
        return []
