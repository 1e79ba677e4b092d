"""Sizes and times as distributions, written in a workload file.

Four forms, so that the common ones stay short::

    turns = 6                                                           # a constant
    turn_tokens = [360, 440]                                            # uniform, both ends included
    turn_tokens = {kind = "lognormal", median = 400, sigma = 1.0, least = 16, most = 12000}
    turn_tokens = {kind = "mixture", parts = [{share = 0.8, of = [100, 400]}, {share = 0.2, of = 6000}]}

A constant draws nothing from the random source, so giving a distribution to one field does not change the draws of
a workload that has constants there.
"""

from __future__ import annotations

import math
from random import Random
from typing import TypeAlias

import msgspec


class Lognormal(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="lognormal"
):
    """Sizes whose logarithm is normal: many small ones, a few large. Draws outside the bounds become the bound."""

    median: int
    sigma: float
    """Of the natural logarithm: 1 puts two thirds of the draws between median / 2.7 and median * 2.7."""
    least: int = 1
    most: int

    def __post_init__(self) -> None:
        if not (0 <= self.least <= self.median <= self.most) or not 0 < self.sigma <= 5:
            raise ValueError("a lognormal needs 0 <= least <= median <= most and a sigma above 0, at most 5")


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a mixture."""

    share: float
    of: int | tuple[int, int] | Lognormal


class Mixture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="mixture"):
    """A draw comes from one of the parts, chosen by its share."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts or abs(sum(part.share for part in self.parts) - 1) > 1e-6:
            raise ValueError("a mixture needs parts whose shares sum to 1")
        if min(part.share for part in self.parts) <= 0:
            raise ValueError("a mixture needs parts whose shares are above 0")
        for part in self.parts:
            check("of", part.of)


Distribution: TypeAlias = int | tuple[int, int] | Lognormal | Mixture
KINDS_OF_A_PART = "lognormal"
KINDS = f"{KINDS_OF_A_PART}, mixture"
"""What the key ``kind`` may be."""


def check(name: str, distribution: Distribution, least: int = 0) -> None:
    """Refuse a distribution that could draw less than ``least``; ``name`` is the key in the error.

    Raises:
        ValueError: it could, or its bounds are in the wrong order.
    """
    if isinstance(distribution, tuple) and distribution[0] > distribution[1]:
        raise ValueError(f"{name} must be [low, high] with low <= high")
    if smallest(distribution) < least:
        raise ValueError(f"{name} must be at least {least}")


def smallest(distribution: Distribution) -> int:
    """Return the least value that can be drawn."""
    match distribution:
        case Lognormal():
            return distribution.least
        case Mixture():
            return min(smallest(part.of) for part in distribution.parts)
        case int():
            return distribution
        case _:
            return distribution[0]


def draw(distribution: Distribution, random: Random) -> int:
    """Return one value."""
    match distribution:
        case Lognormal():
            drawn = distribution.median * math.exp(random.gauss(0.0, distribution.sigma))
            return min(max(round(drawn), distribution.least), distribution.most)
        case Mixture():
            left = random.random()
            for part in distribution.parts:
                left -= part.share
                if left < 0:
                    return draw(part.of, random)
            return draw(distribution.parts[-1].of, random)
        case int():
            return distribution
        case _:
            return random.randint(*distribution)
