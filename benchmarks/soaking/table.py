"""What a soak saw, and its checks: one line each.

Whether something grows is judged between the middle of the day and its end, when the tables that are bounded are full.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soaking.plan import EXPECTED, ROUTED, Report
from benchmarks.soaking.watching import Metrics, Sample, Viewers, lag_quantile_ms, own_quantile_ms

from lmwarden.gateway.loop_lag import LoopLagSnapshot

MAX_ROWS = 100_000
DOWN_S = 1.0
"""How long an engine that died stays away."""
LAG_LIMIT_MS = 20.0
_SEEN_WITHIN_S = 8.0
"""Until an engine that came back is used again on a busy machine; who names it gets a 503 until then."""
LONG_ENOUGH = 500_000
"""Requests after which memory and database must be flat; a shorter run is judged by their limits alone."""
_MOST_RSS_BYTES = 400 << 20
_BYTES_PER_ROW = 800


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    seen: str
    passed: bool
    timing: bool = False
    """It depends on what else the machine does."""


@dataclass
class Soak:
    """One run: what was sampled and what the others reported."""

    options: argparse.Namespace
    folder: Path
    samples: list[Sample] = field(default_factory=list)
    restarted_at: list[float] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    engines: dict[str, int] = field(default_factory=dict)
    viewers: Viewers | None = None
    before: Metrics | None = None
    under_load: Metrics | None = None
    at_rest: Metrics | None = None
    own_lag: LoopLagSnapshot | None = None
    """Of this process, which does little: what the machine makes of any loop."""
    idle_files: int = 0
    files_at_rest: int = 0
    rows_written: int = 0
    rows_kept: int = 0
    exit_status: int | None = None
    complaints: list[str] = field(default_factory=list)


def checks(soak: Soak) -> list[Check]:
    """All of them."""
    return [*_of_traffic(soak), *_of_accounts(soak), *_of_growth(soak), *_of_the_process(soak)]


def _of_traffic(soak: Soak) -> list[Check]:
    report, options, engines = soak.report, soak.options, soak.engines
    rate = report.sent / max(0.001, report.seconds)
    asked = options.requests if options.minutes is None else 1
    # What an engine's death may cost: what was open there, and what came before anybody knew.
    allowed = [(at - 0.5, at + DOWN_S + _SEEN_WITHIN_S) for at in soak.restarted_at]
    strays = [trouble for trouble in report.troubles if not any(begin <= trouble.at <= end for begin, end in allowed)]
    broken = report.cut + report.failed
    kinds = Counter(f"{trouble.kind}: {trouble.what}" for trouble in strays)
    return [
        Check(
            "requests played",
            f"{report.sent} in {report.seconds:.0f} s, {rate:.0f}/s; {report.conversations} conversations,"
            f" {report.connections} connections, {report.left} left",
            report.sent >= asked,
        ),
        Check("answers that were wrong", f"{report.wrong}", report.wrong == 0),
        Check(
            f"cut or 5xx, only where an engine died ({len(soak.restarted_at)} times)",
            f"{broken}, elsewhere {len(strays)} {dict(kinds) if kinds else ''}".rstrip(),
            not strays and broken <= options.agents * max(1, len(soak.restarted_at)),
        ),
        Check(
            "generations run to their end twice",
            f"{engines['completed_twice']} of {engines['numbers']}; begun twice {engines['begun_twice']}, beside"
            f" {engines['asked_again']} whose engine died before it had answered a byte",
            engines["completed_twice"] == 0 == engines["begun_twice"],
        ),
    ]


def _of_accounts(soak: Soak) -> list[Check]:
    rest, report = soak.at_rest, soak.report
    assert rest is not None
    dropped = int(rest.total("lmwarden_ledger_dropped_rows_total"))
    decided = int(rest.total("lmwarden_requests_total"))
    waits, waited_s, expired, engaged = (
        rest.total(f"lmwarden_{name}")
        for name in (
            "waiting_room_seconds_count", "waiting_room_seconds_sum", "wait_expired_total", "waiting_room_engaged",
        )
    )  # fmt: skip
    own = int(rest.total("lmwarden_own_answers_total"))
    refused = sum(report.by_kind.get(kind, 0) for kind in EXPECTED if kind not in ROUTED)
    held = {
        name: int(rest.total(f"lmwarden_{name}"))
        for name in ("in_flight", "waiting_room", "client_connections", "buffered_bytes")
    }
    return [
        Check("sum of decisions = requests", f"{decided} of {report.routed}", decided == report.routed),
        Check(
            "rows written + rows dropped = requests",
            f"{soak.rows_written} + {dropped} of {report.routed}",
            soak.rows_written + dropped == report.routed,
        ),
        Check("answers of its own", f"{own} of {refused} that were refused by their head", own == refused),
        Check("nothing is held at rest", str(held), not any(held.values())),
        Check(
            "waiting room",
            f"{waits:.0f} waited, {waited_s:.0f} s in all, {expired:.0f} for too long; engaged at rest: {engaged:.0f}",
            expired == 0 and (waits > 0 or report.sent < LONG_ENOUGH),
        ),
        Check(
            "rows kept",
            f"{soak.rows_kept}, at most {MAX_ROWS} and 5 %",
            soak.rows_kept <= MAX_ROWS * 1.05 + 10_000,
        ),
    ]


def _of_growth(soak: Soak) -> list[Check]:
    """Between the middle of the day and its end."""
    long_enough = soak.report.sent >= LONG_ENOUGH

    def window(begin: float, end: float, of: Callable[[Sample], int]) -> list[int]:
        return [of(sample) for sample in soak.samples if begin <= sample.done_ratio <= end] or [0]

    def flat(name: str, of: Callable[[Sample], int], share: float, spare: int, limit: int, unit: int) -> Check:
        middle = statistics.median(window(0.5, 0.6, of))
        end = statistics.median(window(0.9, 1.0, of))
        most = max(window(0.0, 1.0, of))
        seen = f"middle {middle / unit:.0f}, end {end / unit:.0f}, most {most / unit:.0f}"
        grows = end > middle * (1 + share) + spare
        return Check(name, seen if long_enough else f"{seen} (too short to judge growth)",
                     most <= limit and not (grows and long_enough))  # fmt: skip

    files = 2 * soak.options.agents + soak.idle_files + 120
    return [
        flat("memory, MB", lambda sample: sample.rss_bytes, 0.05, 4_000_000, _MOST_RSS_BYTES, 1_000_000),
        flat("database, MB", lambda sample: sample.database_bytes, 0.02, 2_000_000,
             int(MAX_ROWS * _BYTES_PER_ROW * 1.3) + 40_000_000, 1_000_000),
        flat("write-ahead log, MB", lambda sample: sample.log_bytes, 0.5, 8_000_000, 200_000_000, 1_000_000),
        flat("open files", lambda sample: sample.files, 0.3, 100, files, 1),
        flat("threads", lambda sample: sample.threads, 0.0, 2, 40, 1),
        flat("asyncio tasks", lambda sample: sample.tasks, 0.3, 10, 40 + 2 * soak.options.agents, 1),
        Check(
            "open files at rest",
            f"{soak.files_at_rest}, before {soak.idle_files}",
            soak.files_at_rest <= soak.idle_files + (16 if long_enough else files),
        ),
    ]  # fmt: skip


def _of_the_process(soak: Soak) -> list[Check]:
    before, after, viewers = soak.before, soak.under_load, soak.viewers
    assert before is not None
    assert after is not None
    assert viewers is not None
    assert soak.own_lag is not None
    median, p99 = (lag_quantile_ms(before, after, ratio) for ratio in (0.5, 0.99))
    counts = [late - early for early, late in zip(before.lag_counts(), after.lag_counts(), strict=True)]
    mean = (
        after.total("lmwarden_event_loop_lag_seconds_sum") - before.total("lmwarden_event_loop_lag_seconds_sum")
    ) / counts[-1]
    return [
        Check(
            "lag of the event loop, p99 at most 20 ms",
            f"p50 <= {median:g} ms, p99 <= {p99:g} ms, mean {mean * 1000:.1f} ms, {counts[-1]:.0f} ticks;"
            f" this idle process beside it: p99 <= {own_quantile_ms(soak.own_lag, 0.99):g} ms",
            p99 <= LAG_LIMIT_MS,
            timing=True,
        ),
        Check(
            "console while loaded",
            f"{viewers.messages} messages, {viewers.pages} answers, {viewers.failed} failed",
            viewers.failed == 0 and viewers.messages > 0 and viewers.pages > 0,
        ),
        Check("errors in the log", f"{len(soak.complaints)} {soak.complaints[:3] if soak.complaints else ''}".rstrip(),
              not soak.complaints),
        Check("exit status after SIGTERM", str(soak.exit_status), soak.exit_status == 0),
    ]  # fmt: skip


def table(found: list[Check]) -> str:
    """For the terminal."""
    wide = max(len(check.name) for check in found)
    return "\n".join(f"{'PASS' if check.passed else 'FAIL'}  {check.name:<{wide}}  {check.seen}" for check in found)
