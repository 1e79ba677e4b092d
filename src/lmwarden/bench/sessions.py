"""Draws agent sessions from a workload and a seed.

Theory of operation. Two kinds of randomness are kept apart:

* *sizes and gaps* depend on (seed, sessions of the level, session index). They are the same in every arm, so
  that arms are compared on the same work;
* *text* depends on the arm as well. No prompt is used twice across levels, arms or seeds: a cell never finds
  the caches warm with its own prompts. Only the system prompts, which all sessions share, stay the same.

``prompt_reuse`` changes that on purpose: ``across_arms`` gives every arm the same text, ``across_levels`` gives
session ``n`` the same sizes and the same text at every level as well, as a harness does that starts each run with
one random seed. Session ids differ between cells in every case: a new run is a new set of conversations.

What happens beside the plain turns (subagents, forks, compaction, ...) is drawn from a source of its own, so that
adding it to a workload does not change the sizes that were there.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from random import Random
from typing import Protocol

from lmwarden.bench.distributions import Distribution, draw
from lmwarden.bench.plans import AgentSession as AgentSession
from lmwarden.bench.plans import Branch, SharedText, TurnPlan, words
from lmwarden.bench.workload import Think, Workload


class PromptReuse(StrEnum):
    """Which cells of one seed bring the same prompts."""

    NONE = "none"
    ACROSS_ARMS = "across_arms"
    ACROSS_LEVELS = "across_levels"
    """And across arms."""


class Sessions(Protocol):
    """An endless supply of sessions for one cell."""

    def session(self, index: int) -> AgentSession:
        """Return session number ``index``, from 0; always the same."""
        ...


class SessionSource:
    """Makes the sessions of one cell (level × arm × seed), by index and without limit."""

    def __init__(
        self,
        workload: Workload,
        *,
        think: Think | None,
        seed: int,
        sessions: int,
        arm: str,
        prompt_reuse: PromptReuse | str = PromptReuse.NONE,
    ) -> None:
        reuse = PromptReuse(prompt_reuse)
        self.workload = workload
        self._think = think
        cell_key = f"{workload.name}|{seed}|{sessions}"
        self._size_key = f"{workload.name}|{seed}" if reuse is PromptReuse.ACROSS_LEVELS else cell_key
        self._id_key = f"{cell_key}|{arm}"
        self._text_key = self._id_key if reuse is PromptReuse.NONE else self._size_key
        self._system = words(f"{workload.name}|system".encode(), workload.layers.shared_system_tokens)
        subagents = workload.subagents
        self._subagent_system = words(
            f"{workload.name}|subagent system".encode(), subagents.shared_system_tokens if subagents else 0
        )
        self._repositories = [self._repository(number) for number in range(workload.layers.repositories)]

    def system_text(self) -> str:
        """Return the system prompt that all main agents of this workload share."""
        return self._system

    def session(self, index: int) -> AgentSession:
        """Return session number ``index``; the same arguments give the same session."""
        return _Draw(self, index).session()

    def _repository(self, number: int) -> SharedText:
        random = Random(f"{self._size_key}|repository|{number}")
        tokens = draw(self.workload.layers.repository_tokens, random)
        return SharedText(f"{self._text_key}|repository|{number}".encode(), tokens)


class _Draw:
    """Draws one session."""

    def __init__(self, source: SessionSource, index: int) -> None:
        self._source = source
        self._workload = source.workload
        self._index = index
        self._sizes = Random(f"{source._size_key}|{index}")
        self._extras = Random(f"{source._size_key}|{index}|extras")
        self._session_id, _ = self._keys("")

    def session(self) -> AgentSession:
        workload, extras = self._workload, self._extras
        repositories = self._source._repositories
        repository = extras.choice(repositories) if repositories else None
        began_elsewhere = workload.halfway is not None and extras.random() < workload.halfway.share
        count = draw(workload.session.turns, self._sizes)
        forks_after = None
        if workload.forks is not None and extras.random() < workload.forks.share:
            forks_after = extras.randrange(count)
        turns: list[TurnPlan] = []
        context_tokens = workload.layers.shared_system_tokens
        for number in range(count):
            turn = self._turn(first=number == 0, last=number == count - 1)
            if number == 0:
                opening_tokens = repository.tokens if repository else 0
                if began_elsewhere and workload.halfway is not None:
                    opening_tokens += draw(workload.halfway.history_tokens, extras)
                turn = replace(turn, new_tokens=turn.new_tokens + opening_tokens)
            for piece in self._compacted(turn, context_tokens, repository, first=number == 0):
                if piece.starts_over:
                    context_tokens = workload.layers.shared_system_tokens
                context_tokens += piece.new_tokens + piece.max_output_tokens
                turns.append(piece)
            branches = self._subagents(number) if number < count - 1 else ()
            if number == forks_after:
                branches += (Branch(self._fork(), copies_context=True),)
            turns[-1] = replace(turns[-1], branches=branches)
        return AgentSession(
            index=self._index,
            session_id=self._session_id,
            turns=tuple(turns),
            text_key=self._keys("")[1],
            system_text=self._source._system,
            repository=repository,
        )

    def _turn(self, *, first: bool, last: bool) -> TurnPlan:
        """One turn without what happens beside it. The order of the draws is part of what a seed means."""
        layers, shape, think = self._workload.layers, self._workload.session, self._source._think
        return TurnPlan(
            new_tokens=draw(layers.first_message_tokens if first else layers.turn_tokens, self._sizes),
            max_output_tokens=draw(shape.max_output_tokens, self._sizes),
            gap_before_s=think.draw(self._sizes) if think and not first else 0.0,
            ends_in_tool_call=not last,
            leaves_after_s=self._leaves(),
        )

    def _leaves(self) -> float | None:
        leaving = self._workload.leaving
        if leaving is None or self._extras.random() >= leaving.share:
            return None
        return self._extras.uniform(*leaving.after_first_token_s)

    def _compacted(
        self, turn: TurnPlan, context_tokens: int, repository: SharedText | None, *, first: bool
    ) -> Iterator[TurnPlan]:
        """The turn; where the context would grow too long, a call for a summary and the turn on top of that."""
        compaction = self._workload.compaction
        planned_tokens = context_tokens + turn.new_tokens + turn.max_output_tokens
        if compaction is None or first or planned_tokens <= compaction.above_context_tokens:
            yield turn
            return
        summary_tokens = draw(compaction.summary_tokens, self._extras)
        yield TurnPlan(draw(compaction.request_tokens, self._extras), summary_tokens, turn.gap_before_s)
        opening_tokens = summary_tokens + (repository.tokens if repository else 0)
        yield replace(turn, new_tokens=opening_tokens + turn.new_tokens, gap_before_s=0.0, starts_over=True)

    def _subagents(self, turn: int) -> tuple[Branch, ...]:
        shape, extras = self._workload.subagents, self._extras
        if shape is None or extras.random() >= shape.share:
            return ()
        branches = []
        for number in range(draw(shape.agents, extras)):
            turns = self._branch_turns(
                draw(shape.turns, extras), shape.first_message_tokens, shape.turn_tokens, shape.max_output_tokens
            )
            _, key = self._keys(f"|{turn}|subagent {number}")
            session = AgentSession(
                index=self._index,
                session_id=self._session_id,
                turns=turns,
                text_key=key,
                system_text=self._source._subagent_system,
                agent_id=f"a{hashlib.blake2b(key + self._session_id.encode(), digest_size=8).hexdigest()}",
            )
            branches.append(Branch(session, copies_context=False))
        return tuple(branches)

    def _fork(self) -> AgentSession:
        workload = self._workload
        assert workload.forks is not None
        layers, shape = workload.layers, workload.session
        turns = self._branch_turns(
            draw(workload.forks.turns, self._extras), layers.turn_tokens, layers.turn_tokens, shape.max_output_tokens
        )
        session_id, key = self._keys("|fork")
        return AgentSession(
            index=self._index,
            session_id=session_id,
            turns=turns,
            text_key=key,
            system_text=self._source._system,
            forked=True,
        )

    def _branch_turns(
        self, count: int, first: Distribution, later: Distribution, output: Distribution
    ) -> tuple[TurnPlan, ...]:
        extras, think = self._extras, self._source._think
        return tuple(
            TurnPlan(
                new_tokens=draw(later if number else first, extras),
                max_output_tokens=draw(output, extras),
                gap_before_s=think.draw(extras) if think and number else 0.0,
                ends_in_tool_call=number < count - 1,
            )
            for number in range(count)
        )

    def _keys(self, branch: str) -> tuple[str, bytes]:
        """Session id and text key of a conversation of this session."""
        source = self._source
        named = hashlib.blake2b(f"{source._id_key}|{self._index}{branch}".encode(), digest_size=32).digest()
        worded = hashlib.blake2b(f"{source._text_key}|{self._index}{branch}".encode(), digest_size=32).digest()
        return str(uuid.UUID(bytes=named[:16], version=4)), worded[16:]
