"""Workloads as data: what an agent's session looks like.

A workload file (``workloads/*.toml``) says how long the layers of a prompt are, how many turns a session
has, how long an agent's tools run between turns, and what else happens: subagents, compaction, clients that leave,
forks, sessions that start half-way. ``sessions`` draws from it. Sizes are tokens at ``BYTES_PER_TOKEN`` bytes each,
which is the simulated engine's fixed rule; for a real tokenizer they are nominal, and the results carry what the
engine counted.

Every part but layers and session may be left out, and what is left out does not happen.
"""

from __future__ import annotations

import itertools
import math
from importlib import resources
from pathlib import Path
from random import Random

import msgspec

from lmwarden.bench.distributions import KINDS, KINDS_OF_A_PART, Distribution, check
from lmwarden.bench.errors import PlanError

BYTES_PER_TOKEN = 4
"""A three-letter word and its space: one token of the simulated engine, and of most real tokenizers."""


class Layers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the parts of a prompt, in tokens."""

    shared_system_tokens: int
    """System prompt and tools: the same text in every session, level and arm."""
    first_message_tokens: Distribution
    """Of the session's own."""
    turn_tokens: Distribution
    """What each later turn adds."""
    repositories: int = 0
    """Sessions work on one of so many repositories, whose text comes first in the first message; 0: on none."""
    repository_tokens: Distribution = 0
    """One draw per repository."""

    def __post_init__(self) -> None:
        if self.shared_system_tokens < 0 or self.repositories < 0:
            raise ValueError("shared_system_tokens and repositories must be 0 or more")
        check("first_message_tokens", self.first_message_tokens, 1)
        check("turn_tokens", self.turn_tokens, 1)
        check("repository_tokens", self.repository_tokens)


class SessionShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a session is."""

    turns: Distribution
    """Requests in a session, the first included."""
    max_output_tokens: Distribution
    """Of each request."""

    def __post_init__(self) -> None:
        check("turns", self.turns, 1)
        check("max_output_tokens", self.max_output_tokens, 1)


class Subagents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations of their own that a turn starts, all at once; the turn after it waits for all of them."""

    share: float
    """Of turns that start some; the last turn of a session starts none."""
    agents: Distribution
    """How many at once."""
    shared_system_tokens: int
    """Their system prompt and tools: one text for all subagents, which shares nothing with the main agent's."""
    first_message_tokens: Distribution
    turn_tokens: Distribution
    turns: Distribution
    max_output_tokens: Distribution

    def __post_init__(self) -> None:
        _check_share("share", self.share)
        if self.shared_system_tokens < 0:
            raise ValueError("shared_system_tokens must be 0 or more")
        for name in ("agents", "first_message_tokens", "turn_tokens", "turns", "max_output_tokens"):
            check(name, getattr(self, name), 1)


class Halfway(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions that began elsewhere: their first message carries a history."""

    share: float
    """Of sessions."""
    history_tokens: Distribution

    def __post_init__(self) -> None:
        _check_share("share", self.share)
        check("history_tokens", self.history_tokens, 1)


class Compaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the context grows beyond a limit, one call asks for a summary, and the context is replaced by it."""

    above_context_tokens: int
    request_tokens: Distribution
    """What the call adds to the whole context."""
    summary_tokens: Distribution
    """Its answer, and what the next turn begins with."""

    def __post_init__(self) -> None:
        if self.above_context_tokens < 1:
            raise ValueError("above_context_tokens must be at least 1")
        check("request_tokens", self.request_tokens, 1)
        check("summary_tokens", self.summary_tokens, 1)


class Leaving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that leave in the middle of an answer, as at the Escape key; the session goes on with its next turn."""

    share: float
    """Of turns."""
    after_first_token_s: tuple[float, float]
    """Uniform between the two; an answer that ended earlier ended."""

    def __post_init__(self) -> None:
        _check_share("share", self.share)
        if not 0 <= self.after_first_token_s[0] <= self.after_first_token_s[1]:
            raise ValueError("after_first_token_s must be [low, high] with 0 <= low <= high")


class Forks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions of which another session continues a copy; both go on."""

    share: float
    """Of sessions, after one of their turns."""
    turns: Distribution
    """Requests of the copy."""

    def __post_init__(self) -> None:
        _check_share("share", self.share)
        check("turns", self.turns, 1)


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be from 0 to 1")


class Think(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gaps between a turn's end and the next turn, as a quantile function."""

    gap_s: tuple[tuple[float, float], ...]
    """(share of gaps that are shorter, seconds), rising from share 0 to share 1."""

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.gap_s]
        seconds = [gap for _, gap in self.gap_s]
        rising = all(a < b for a, b in itertools.pairwise(shares))
        if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1 or not rising:
            raise ValueError("gap_s must be pairs whose shares rise from 0 to 1")
        if seconds[0] <= 0 or seconds != sorted(seconds):
            raise ValueError("gap_s must be pairs whose seconds are above 0 and do not fall")

    def draw(self, random: Random) -> float:
        """Return one gap in seconds."""
        share = random.random()
        for (left, short), (right, long) in itertools.pairwise(self.gap_s):
            if share <= right:
                part = (share - left) / (right - left)
                return math.exp(math.log(short) + part * (math.log(long) - math.log(short)))
        return self.gap_s[-1][1]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of session."""

    name: str
    layers: Layers
    session: SessionShape
    think: dict[str, Think] = {}
    subagents: Subagents | None = None
    halfway: Halfway | None = None
    compaction: Compaction | None = None
    leaving: Leaving | None = None
    forks: Forks | None = None

    def think_named(self, name: str) -> Think | None:
        """Return the gaps called ``name``; None for ``none``: no gaps at all.

        Raises:
            PlanError: the workload has no such gaps.
        """
        if name == "none":
            return None
        think = self.think.get(name)
        if think is None:
            allowed = ", ".join(["none", *sorted(self.think)])
            raise PlanError(f"--think {name}: workload {self.name!r} has {allowed}")
        return think


def decode_workload(text: bytes, source: str) -> Workload:
    """Read a workload from TOML; ``source`` names it in errors.

    Raises:
        PlanError: it is not TOML, or a key is missing, unknown or out of range.
    """
    try:
        return msgspec.toml.decode(text, type=Workload)
    except (msgspec.DecodeError, ValueError) as error:
        raise PlanError(f"workload {source}: {_mistake(error)}") from error


def _mistake(error: Exception) -> str:
    """One line, with what is allowed where the library does not say it."""
    said = " ".join(str(error).split())
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return f"not TOML: {said}"
    if said.endswith(".kind`"):
        said += f"; allowed: {KINDS_OF_A_PART if said.endswith('.of.kind`') else KINDS}"
    return said


def workload_names() -> list[str]:
    """Names of the workloads that ship with the product."""
    folder = resources.files("lmwarden.bench") / "workloads"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def typed_path(text: str) -> Path:
    """Return a path as a person typed it.

    A shell expands ``~`` at the head of an argument only, not behind ``trace:`` or ``=``.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:  # the home of somebody who is not there
        return Path(text)


def load_workload(name: str) -> Workload:
    """Load a shipped workload by its name, or one of your own by the path of its ``.toml`` file.

    Raises:
        PlanError: there is none of that name, or the file cannot be used.
    """
    if name.endswith(".toml"):
        try:
            return decode_workload(typed_path(name).read_bytes(), name)
        except OSError as error:
            raise PlanError(f"--workload {name}: {error.strerror}") from error
    names = workload_names()
    if name not in names:
        raise PlanError(f"--workload {name}: known workloads are {', '.join(names)}, or the path of a .toml file")
    text = (resources.files("lmwarden.bench") / "workloads" / f"{name}.toml").read_bytes()
    return decode_workload(text, f"{name}.toml")
