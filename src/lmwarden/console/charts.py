"""The charts of the Stats page, drawn from a stretch of the history. Field names here are public.

Times are Unix seconds, and each point stands at the begin of its step. Rates are per second. With a simulated engine
whose clock runs faster (``--speed``) the axis shows wall time, and all rates and durations are in modelled seconds, as
everywhere else. What was not measured is ``null``: a gap, never a zero.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from lmwarden.ledger.histogram import percentiles
from lmwarden.ledger.history import Question, Step, Stretch
from lmwarden.ledger.history_sums import Sums, add_up

_RATIOS = (0.5, 0.95, 0.99)


class _Chart(msgspec.Struct, frozen=True, kw_only=True, rename={"begin": "from", "end": "to"}):
    """What all charts have."""

    begin: int
    end: int
    """After the last step, which may not be over."""
    step_s: int


class TokensPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second, of the requests that ended in a step."""

    t: int
    cached: float | None
    """Prompt tokens that the engine counted as cached."""
    computed: float | None
    """All other prompt tokens, those of which the engine did not tell included."""
    completion: float | None


class TokensTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens over the whole chart, to the token."""

    cached: int
    computed: int
    completion: int


class TokensChart(_Chart, frozen=True, kw_only=True):
    """``/api/stats/tokens``."""

    cached_ratio: float | None
    """Of the prompts of which the engine told it: not ``cached`` by the totals where it was silent on some."""
    totals: TokensTotals
    points: list[TokensPoint]


class LatencyPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the complete request to the first byte of the answer's body, off by at most 4.5 %."""

    t: int
    p50: float | None
    p95: float | None
    p99: float | None
    count: int | None
    """Requests that got a first byte."""


class LatencyTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The same over the whole chart."""

    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    count: int


class LatencyChart(_Chart, frozen=True, kw_only=True):
    """``/api/stats/latency``."""

    totals: LatencyTotals
    points: list[LatencyPoint]


class RequestsPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended, per second: by decision, and the same requests again by outcome."""

    t: int
    placed: float | None
    sticky: float | None
    spilled: float | None
    client_pinned: float | None
    rehomed: float | None
    balanced: float | None
    unrouted: float | None
    ok: float | None
    client_error: float | None
    failed: float | None
    """The engine failed or stayed silent."""
    cancelled: float | None
    refused: float | None
    """By us; these have no decision."""


class RequestsTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Requests over the whole chart."""

    placed: int
    sticky: int
    spilled: int
    client_pinned: int
    rehomed: int
    balanced: int
    unrouted: int
    ok: int
    client_error: int
    failed: int
    cancelled: int
    refused: int


class RequestsChart(_Chart, frozen=True, kw_only=True):
    """``/api/stats/requests``."""

    totals: RequestsTotals
    points: list[RequestsPoint]


class ReplicasPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What replicas were doing, on average over one look a second. Of one replica ``ready`` and ``busy`` are shares."""

    t: int
    ready: float | None
    """Replicas that took requests."""
    busy: float | None
    """Replicas in which the engine had a running request."""
    kv_used: float | None
    """0..1, mean over the replicas."""
    running: float | None
    """Requests, as the engine counts them; so is the next."""
    waiting: float | None
    in_flight: float | None
    """Requests, as we count them."""
    conversations: float | None
    """Live ones."""
    held_tokens: float | None
    """Context of those."""


class ReplicasChart(_Chart, frozen=True, kw_only=True):
    """``/api/stats/replicas``."""

    replicas: int
    """How many there are now, ready or not."""
    points: list[ReplicasPoint]


class CachedShare(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's prompts, and how soon their answers began."""

    replica: str
    cached_ratio: float | None
    """Of the prompts of which the engine told it; null: there was none in that time."""
    prompt_tokens: int
    """Of all of its prompts."""
    first_byte_p50_s: float | None
    """As in the chart of that replica's latency; null: no answer began."""
    first_byte_p95_s: float | None


class CachedShares(msgspec.Struct, frozen=True, kw_only=True, rename={"begin": "from", "end": "to"}):
    """``/api/stats/cached``: the cached share of the prompts of the requests that ended, replica by replica."""

    begin: float
    end: float
    cached_ratio: float | None
    """Over all of them."""
    replicas: list[CachedShare]
    """All that the model has now."""


Chart: TypeAlias = TokensChart | LatencyChart | RequestsChart | ReplicasChart


def tokens_chart(stretch: Stretch, speed: float) -> TokensChart:
    """Prompt tokens, cached and computed, and completion tokens."""
    totals = stretch.totals
    return TokensChart(
        **_axis(stretch),
        cached_ratio=totals.cached_ratio,
        totals=TokensTotals(
            cached=totals.cached_tokens, computed=totals.computed_tokens, completion=totals.completion_tokens
        ),
        points=[
            TokensPoint(
                t=step.t,
                cached=_rate(step, "cached_tokens", speed),
                computed=_rate(step, "computed_tokens", speed),
                completion=_rate(step, "completion_tokens", speed),
            )
            for step in stretch.steps
        ],
    )


def latency_chart(stretch: Stretch) -> LatencyChart:
    """Time to first byte."""
    totals = stretch.totals
    p50, p95, p99 = percentiles(totals.first_byte_counts, _RATIOS)
    count = sum(totals.first_byte_counts.values())
    mean = totals.first_byte_sum_s / count if count else None
    return LatencyChart(
        **_axis(stretch),
        totals=LatencyTotals(p50=p50, p95=p95, p99=p99, mean=mean, count=count),
        points=[_latency_point(step) for step in stretch.steps],
    )


def requests_chart(stretch: Stretch, speed: float) -> RequestsChart:
    """Decisions and outcomes."""
    names = RequestsTotals.__struct_fields__
    totals = stretch.totals
    return RequestsChart(
        **_axis(stretch),
        totals=RequestsTotals(**{name: _requests(totals, name) for name in names}),
        points=[
            RequestsPoint(
                t=step.t,
                **{
                    name: None if step.sums is None else _requests(step.sums, name) / (step.seconds * speed)
                    for name in names
                },
            )
            for step in stretch.steps
        ],
    )


def replicas_chart(stretch: Stretch, replicas: int) -> ReplicasChart:
    """Busy, running, waiting, in flight, KV used. ``replicas``: how many there are."""
    return ReplicasChart(
        **_axis(stretch),
        replicas=replicas,
        points=[
            ReplicasPoint(
                t=step.t,
                ready=step.means.ready,
                busy=step.means.busy,
                kv_used=step.means.kv_used_ratio,
                running=step.means.running,
                waiting=step.means.waiting,
                in_flight=step.means.in_flight,
                conversations=step.means.conversations,
                held_tokens=step.means.held_tokens,
            )
            for step in stretch.steps
        ],
    )


def cached_shares(question: Question, replicas: Sequence[str], found: Mapping[str, Sums]) -> CachedShares:
    """The shares of a model's replicas, and over everything that it served in that time."""
    return CachedShares(
        begin=question.begin_s,
        end=question.end_s,
        cached_ratio=add_up(found.values()).cached_ratio,
        replicas=[_cached_share(name, found.get(name, Sums())) for name in replicas],
    )


def _cached_share(replica: str, sums: Sums) -> CachedShare:
    p50, p95, _ = percentiles(sums.first_byte_counts, _RATIOS)
    return CachedShare(
        replica=replica,
        cached_ratio=sums.cached_ratio,
        prompt_tokens=sums.cached_tokens + sums.computed_tokens,
        first_byte_p50_s=p50,
        first_byte_p95_s=p95,
    )


def as_csv(points: Sequence[msgspec.Struct]) -> str:
    """The points of a chart, one per line, oldest first, with the time in UTC before them; a gap is empty."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    names = points[0].__struct_fields__ if points else ()
    writer.writerow(("time", *names))
    for point in points:
        values = msgspec.structs.astuple(point)
        writer.writerow((datetime.fromtimestamp(values[0], UTC).isoformat(), *values))
    return lines.getvalue()


def _axis(stretch: Stretch) -> dict[str, Any]:
    return {"begin": stretch.begin, "end": stretch.end, "step_s": stretch.step_s}


def _rate(step: Step, name: str, speed: float) -> float | None:
    return None if step.sums is None else getattr(step.sums, name) / (step.seconds * speed)


def _requests(sums: Sums, name: str) -> int:
    count: int = getattr(sums, name)
    return count + sums.timeout if name == "failed" else count


def _latency_point(step: Step) -> LatencyPoint:
    counts = step.sums.first_byte_counts if step.sums is not None else {}
    p50, p95, p99 = percentiles(counts, _RATIOS)
    count = sum(counts.values()) if step.sums is not None else None
    return LatencyPoint(t=step.t, p50=p50, p95=p95, p99=p99, count=count)
