"""What to run, against what, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lmwarden.bench.conversation import Api
from lmwarden.bench.errors import PlanError
from lmwarden.bench.results import AS_RECORDED
from lmwarden.bench.sessions import PromptReuse
from lmwarden.bench.trace import Trace
from lmwarden.bench.workload import Workload
from lmwarden.types import Clock

REST_S = 30.0
MOST_PER_HOUR = 1_000_000


class Caches(StrEnum):
    """What a cell finds in the engine's prefix caches."""

    FRESH = "fresh"
    """Nothing of this run: emptied before each cell where the engine can do that, and no prompt comes twice."""
    WARM = "warm"
    """Whatever the cells before left there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run, against what."""

    url: str
    model: str
    workload: Workload | Trace
    levels: list[int]
    """Sessions at once; in the open loop, sessions that start per hour."""
    arms: list[str]
    seconds: float
    clock: Clock
    open_loop: bool = False
    """Sessions start at random moments, whether or not earlier ones have ended."""
    speed: float = 1.0
    warmup_s: float = 0.0
    rest_s: float = REST_S
    """Between two cells of a warden. What the tester cancelled at a cell's end looks like conversations that are about
    to go on; a warden expects these back for some seconds, and would place the next cell's sessions around them."""
    repeats: int = 1
    seed: int = 1
    """Of the first repeat; the next repeats use the next numbers."""
    think: str = "none"
    prompt_reuse: PromptReuse = PromptReuse.NONE
    caches: Caches = Caches.FRESH
    network_s: float = 0.0
    """(Modelled) delay before each request: clients that are far away."""
    api: Api = Api.MESSAGES
    tools: bool = False
    key: str | None = None
    console_url: str | None = None
    console_password: str | None = None
    engine_url: str | None = None
    """Where the engine's own /metrics are; None: its counters are not read."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One level in one arm with one seed."""

    sessions: int
    arm: str
    seed: int
    open_loop: bool = False

    def __str__(self) -> str:
        if self.open_loop and self.sessions == AS_RECORDED:
            return f"sessions as recorded, {self.arm}"
        return f"{self.sessions} sessions{' an hour' if self.open_loop else ''}, {self.arm}"


def plan_cells(plan: Plan) -> list[Cell]:
    """Return the cells in the order in which they run.

    Arms of one level follow each other. Each repeat begins with the next arm, so that over the repeats no arm
    always runs on what another one left: with two arms off → on, on → off, off → on, ...
    """
    return [
        Cell(level, arm, plan.seed + repeat, plan.open_loop)
        for repeat in range(plan.repeats)
        for level in plan.levels
        for arm in rotated(plan.arms, repeat)
    ]


def run_seconds(plan: Plan) -> float:
    """Return how long a run takes, in (modelled) seconds."""
    cells = len(plan_cells(plan))
    rests = cells - 1 if plan.console_url is not None else 0
    return cells * (plan.warmup_s + plan.seconds) + rests * plan.rest_s


def rotated(arms: list[str], by: int) -> list[str]:
    """Return the arms beginning with number ``by``, the first ones at the end."""
    start = by % len(arms)
    return arms[start:] + arms[:start]


def parse_rates(text: str) -> list[int]:
    """Read a comma-separated list of sessions per hour, or ``recorded``.

    Raises:
        PlanError: one is not a whole number from 1 to ``MOST_PER_HOUR``, or is repeated.
    """
    if text == "recorded":
        return [AS_RECORDED]
    try:
        rates = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise PlanError(f"--open-loop {text}: expected sessions per hour, whole numbers, e.g. 240,480") from error
    if not all(1 <= rate <= MOST_PER_HOUR for rate in rates) or len(set(rates)) != len(rates):
        raise PlanError(f"--open-loop {text}: expected different numbers from 1 to {MOST_PER_HOUR} sessions per hour")
    return rates
