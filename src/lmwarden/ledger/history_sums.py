"""What a stretch of time adds up to. Every figure of the history is a sum, so that time may be cut and joined anywhere:
the minute is the sum of its ticks, the model is the sum of its replicas, and a mean is one sum over another.

Two sources:

* **traffic** comes from request rows, the same that stand in ``requests``: what the engine counted for each finished
  request, to the token. It belongs to the moment at which the request ended (history_rows.py counts it).
* **gauges** come from the routers' views, one a second: each view adds what it sees, and one to the number of views.
  What an engine did not report adds nothing and is not counted: it is unknown then, not 0.

A model has a series of its own (replica ``""``) beside its replicas': requests that reached no replica are in it only.
A request to an engine that chose the rank itself is in that engine's series (``e0``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from lmwarden.ledger import histogram
from lmwarden.types import ReplicaState, ReplicaView, RouterView

TICK_S = 10
"""The finest step."""
WHOLE = ""
"""Stands for all replicas of a model."""
FRESH_S = 10.0
"""A scrape older than that (router's clock) says nothing of now. The router itself ignores it after half of that."""
MOST_TOKENS = 2**40
"""A row with more is not counted: no engine can mean it, and sums must stay below what SQLite can add. The same for
a gauge."""

_UP = (ReplicaState.READY, ReplicaState.DRAINING)


class Sums(msgspec.Struct, gc=False):
    """All sums of one stretch; one column each in the file, by the same name."""

    cached_tokens: int = 0
    computed_tokens: int = 0
    """Of prompts; what the engine did not report as cached counts as computed."""
    unknown_tokens: int = 0
    """Of the computed ones those of prompts of which the engine told nothing: a client left before it could."""
    completion_tokens: int = 0

    placed: int = 0
    """Requests by final decision, from here."""
    sticky: int = 0
    spilled: int = 0
    client_pinned: int = 0
    rehomed: int = 0
    balanced: int = 0
    unrouted: int = 0

    ok: int = 0
    """Requests by outcome, from here; these are all, with those that were never dispatched."""
    client_error: int = 0
    failed: int = 0
    timeout: int = 0
    cancelled: int = 0
    refused: int = 0

    first_byte_sum_s: float = 0.0
    first_byte_counts: histogram.Counts = msgspec.field(default_factory=dict)

    samples: int = 0
    """Views, from here of what we count ourselves."""
    ready_sum: int = 0
    """Replicas that take requests."""
    in_flight_sum: int = 0
    conversations_sum: int = 0
    """Live ones."""
    held_tokens_sum: int = 0
    """Context that those hold."""

    engine_samples: int = 0
    """Views in which every replica that was up had told, from here of what it told."""
    busy_sum: int = 0
    """Replicas with a running request."""
    running_sum: int = 0
    waiting_sum: int = 0
    kv_samples: int = 0
    """KV figures, one per replica and view."""
    kv_used_sum: float = 0.0

    @property
    def cached_ratio(self) -> float | None:
        """The cached part of the prompts of which the engine told it; None: there were none."""
        prompt_tokens = self.cached_tokens + self.computed_tokens - self.unknown_tokens
        return self.cached_tokens / prompt_tokens if prompt_tokens else None


class Spot(NamedTuple):
    """Whose sums of which tick."""

    model: str
    replica: str
    t: int
    """Begin, Unix seconds."""


Tallies: TypeAlias = dict[Spot, Sums]


def tick_of(unix_s: float) -> int:
    """Begin of the tick."""
    return int(unix_s // TICK_S) * TICK_S


class Views(NamedTuple):
    """All routers at one moment."""

    models: Mapping[str, RouterView]
    clock_now: float
    """On the routers' clock."""
    wall_now: float
    """Unix seconds."""


def add_views(tallies: Tallies, views: Views) -> None:
    """Count what every replica and every model was seen to be doing."""
    tick = tick_of(views.wall_now)
    for model, view in views.models.items():
        whole = tallies.setdefault(Spot(model, WHOLE, tick), Sums())
        whole.samples += 1
        whole.in_flight_sum += _gauge(view.in_flight)
        up = told = 0
        running = waiting = busy = 0
        for replica in view.replicas:
            own = tallies.setdefault(Spot(model, str(replica.replica), tick), Sums())
            own.samples += 1
            own.in_flight_sum += _gauge(replica.in_flight)
            for sums in (own, whole):
                sums.ready_sum += replica.state is ReplicaState.READY
                sums.conversations_sum += _gauge(replica.conversations)
                sums.held_tokens_sum += _gauge(replica.resident_tokens)
            if replica.state not in _UP:
                continue
            up += 1
            engine = _told(replica, views.clock_now)
            if engine is None:
                continue
            told += 1
            _add_engine(own, engine.running, engine.waiting, engine.running > 0)
            running, waiting, busy = running + engine.running, waiting + engine.waiting, busy + (engine.running > 0)
            if engine.kv_used_ratio is not None:
                for sums in (own, whole):
                    sums.kv_samples += 1
                    sums.kv_used_sum += engine.kv_used_ratio
        # The sum over some of the replicas would be a wrong figure, not an incomplete one.
        if up and told == up:
            _add_engine(whole, running, waiting, busy)


class _Told(NamedTuple):
    running: int
    waiting: int
    kv_used_ratio: float | None


def _told(replica: ReplicaView, clock_now: float) -> _Told | None:
    """What the engine says of a replica; None: it does not say, or said it too long ago."""
    sample = replica.sample
    if sample is None or sample.running is None or sample.waiting is None:
        return None
    if clock_now - sample.taken_at > FRESH_S:
        return None
    ratio = sample.kv_used_ratio
    known = ratio is not None and 0.0 <= ratio <= 1.0
    return _Told(_gauge(sample.running), _gauge(sample.waiting), ratio if known else None)


def _gauge(value: int) -> int:
    return min(max(value, 0), MOST_TOKENS)


def _add_engine(sums: Sums, running: int, waiting: int, busy: int) -> None:
    sums.engine_samples += 1
    sums.running_sum += running
    sums.waiting_sum += waiting
    sums.busy_sum += busy


def add_up(parts: Iterable[Sums]) -> Sums:
    """The sum of all parts."""
    total = Sums()
    for part in parts:
        add(total, part)
    return total


def add(into: Sums, more: Sums) -> None:
    """Add all sums of ``more``."""
    for name in NUMBERS:
        setattr(into, name, getattr(into, name) + getattr(more, name))
    histogram.merge(into.first_byte_counts, more.first_byte_counts)


COUNTS = "first_byte_counts"
NUMBERS = tuple(name for name in Sums.__struct_fields__ if name != COUNTS)
"""The columns that are added as numbers."""


def numbers(sums: Sums) -> Iterator[int | float]:
    """Their values, in that order."""
    return (getattr(sums, name) for name in NUMBERS)
