"""Workloads as data: what an agent's session looks like.

A workload file (``workloads/*.toml``) says how long the layers of a prompt are, how many turns a session
has, and how long an agent's tools run between turns. ``sessions`` draws from it. Sizes are tokens at
``BYTES_PER_TOKEN`` bytes each, which is the simulated engine's fixed rule; for a real tokenizer they are
nominal, and the results carry what the engine counted.
"""

from __future__ import annotations

import itertools
import math
from importlib import resources
from random import Random

import msgspec

from lmwarden.bench.errors import PlanError

BYTES_PER_TOKEN = 4
"""A three-letter word and its space: one token of the simulated engine, and of most real tokenizers."""


class Layers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the parts of a prompt, in tokens; pairs are the bounds of a uniform draw, both included."""

    shared_system_tokens: int
    first_message_tokens: tuple[int, int]
    turn_tokens: tuple[int, int]

    def __post_init__(self) -> None:
        if self.shared_system_tokens < 0:
            raise ValueError("shared_system_tokens must be 0 or more")
        for name in ("first_message_tokens", "turn_tokens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be [low, high] with 1 <= low <= high")


class SessionShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a session is."""

    turns: int
    """Requests in a session, the first included."""
    max_output_tokens: int

    def __post_init__(self) -> None:
        if self.turns < 1 or self.max_output_tokens < 1:
            raise ValueError("turns and max_output_tokens must be at least 1")


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
        raise PlanError(f"workload {source}: {error}") from error


def workload_names() -> list[str]:
    """Names of the workloads that ship with the product."""
    folder = resources.files("lmwarden.bench") / "workloads"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_workload(name: str) -> Workload:
    """Load a shipped workload.

    Raises:
        PlanError: there is none of that name.
    """
    names = workload_names()
    if name not in names:
        raise PlanError(f"--workload {name}: known workloads are {', '.join(names)}")
    text = (resources.files("lmwarden.bench") / "workloads" / f"{name}.toml").read_bytes()
    return decode_workload(text, f"{name}.toml")
