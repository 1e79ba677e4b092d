"""The history as it is asked for: a stretch of time, cut into steps, each with its sums and means.

What is in the file and what is not yet counted in (``history_upto``) is read in one transaction, so an answer is exact
to the last row that is written, whenever it is asked: the sums over a stretch are the sums over its rows. Gauges are
there up to the last tick that ended.

A step in which nothing was seen, neither a request that ended nor a look at the routers, is a gap and not a zero: the
warden was down, or its disk refused. What an engine did not tell is a gap in its own figures only.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from lmwarden.config import StorageConfig
from lmwarden.ledger import histogram
from lmwarden.ledger import history_tables as tables
from lmwarden.ledger.history_rows import uncounted
from lmwarden.ledger.history_sums import COUNTS, NUMBERS, TICK_S, WHOLE, Sums, add, add_up
from lmwarden.ledger.reader import Reader

MOST_STEPS = 500
"""Of one answer: as many bars as a screen can show apart, and the bound of every list."""
COARSE_STEPS = 61
"""Where all steps are added up: an hour in minutes. The histograms of each of them are added in Python."""
LONGEST_S = 366 * 86_400.0
_STEPS_S = (10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400)
"""Those that a person can read off an axis. Each is a multiple of one that is stored."""


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen in a step, on average. None: not seen, or not told by the engine."""

    ready: float | None
    """Replicas that take requests."""
    in_flight: float | None
    conversations: float | None
    """Live ones."""
    held_tokens: float | None
    """Context that those hold."""
    busy: float | None
    """Replicas with a running request."""
    running: float | None
    waiting: float | None
    kv_used_ratio: float | None
    """0..1, over all replicas."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of time."""

    t: int
    """Begin, Unix seconds."""
    seconds: float
    """Its length; of the step in which we are, what is over of it, but at least a tick."""
    sums: Sums | None
    """None: a gap."""
    means: Means


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time."""

    begin: int
    """Unix seconds, on a step."""
    end: int
    """After the last step."""
    step_s: int
    steps: list[Step]
    """All of them, oldest first, gaps included."""

    @property
    def totals(self) -> Sums:
        """The sums over all steps."""
        return add_up(step.sums for step in self.steps if step.sums is not None)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Which stretch, and of what."""

    begin_s: float
    """Unix seconds."""
    end_s: float
    model: str | None = None
    """None: all."""
    replica: str | None = None
    """As rows have it (``e0/1``, or ``e0`` for what it placed itself); None: the whole model."""
    durations: bool = False
    """Whether histograms are wanted; they cost the most."""


class History:
    """Answers questions. Any thread but the data loop's."""

    def __init__(self, reader: Reader, settings: StorageConfig) -> None:
        """Args:
        reader: of the ledger's file.
        settings: ``[storage]``: for how long what is kept.
        """
        self._reader = reader
        self._settings = settings

    def stretch(self, question: Question, now: float) -> Stretch:
        """The figures of a stretch of time. What lies ahead of ``now`` is left out.

        Args:
            question: ``begin_s`` below ``end_s``.
            now: Unix seconds.

        Raises:
            LedgerError: the file cannot be read.
        """
        return self._reader.ask(lambda connection: self._stretch(connection, question, now))

    def cached_ratio(self, model: str, begin_s: float, end_s: float) -> float | None:
        """The cached part of a model's prompts of which the engine told it, from a moment until now.

        Raises:
            LedgerError: the file cannot be read.
        """
        return self.stretch(Question(begin_s=begin_s, end_s=end_s, model=model), end_s).totals.cached_ratio

    def by_replica(self, question: Question, now: float) -> dict[str, Sums]:
        """What a stretch of time adds up to for each replica of a model. Those of which nothing is known are absent.

        Args:
            question: its model is named; ``replica`` and ``durations`` say nothing here.
            now: Unix seconds.

        Raises:
            LedgerError: the file cannot be read.
        """
        return self._reader.ask(lambda connection: self._by_replica(connection, question, now))

    def _by_replica(self, connection: sqlite3.Connection, question: Question, now: float) -> dict[str, Sums]:
        begin, end, step_s = self._cut(connection, question, now, COARSE_STEPS)
        added = ", ".join(f"sum({name})" for name in NUMBERS)
        source = (
            "FROM history_series CROSS JOIN history ON series = id"
            " WHERE model = ? AND replica != ? AND step_s = ? AND t >= ? AND t < ?"
        )
        values = (question.model, WHOLE, _level(step_s), begin, end)
        rows = connection.execute(f"SELECT replica, {added} {source} GROUP BY replica", values)
        found = {replica: Sums(**dict(zip(NUMBERS, sums, strict=True))) for replica, *sums in rows}
        for replica, stored in connection.execute(
            f"SELECT replica, {COUNTS} {source} AND {COUNTS} IS NOT NULL", values
        ):
            histogram.merge(found[replica].first_byte_counts, histogram.decoded(stored))
        for spot, sums in uncounted(connection).items():
            if spot.model == question.model and spot.replica != WHOLE and begin <= spot.t < end:
                add(found.setdefault(spot.replica, Sums()), sums)
        return found

    def _cut(
        self, connection: sqlite3.Connection, question: Question, now: float, most_steps: int
    ) -> tuple[int, int, int]:
        """Begin, end and length of the steps that a question is answered in."""
        end_s = min(question.end_s, now)
        begin_s = min(question.begin_s, end_s - TICK_S)
        step_s = self._step(connection, begin_s, end_s, now, most_steps)
        return _floor(begin_s, step_s), math.ceil(end_s / step_s) * step_s, step_s

    def _stretch(self, connection: sqlite3.Connection, question: Question, now: float) -> Stretch:
        series = _series_of(connection, question)
        begin, end, step_s = self._cut(connection, question, now, MOST_STEPS)
        found: dict[int, list[Sums]] = {}
        for t, sums in _stored(connection, question, series, (begin, end, step_s)):
            found.setdefault(t, []).append(sums)
        for t, sums in _uncounted(connection, question, (begin, end, step_s)):
            found.setdefault(t, []).append(sums)
        steps = [
            Step(
                t=t,
                seconds=float(min(step_s, max(TICK_S, now - t))),
                sums=add_up(found[t]) if t in found else None,
                means=_means(found.get(t, ())),
            )
            for t in range(begin, end, step_s)
        ]
        return Stretch(begin=begin, end=end, step_s=step_s, steps=steps)

    def _step(self, connection: sqlite3.Connection, begin_s: float, end_s: float, now: float, most_steps: int) -> int:
        """The finest step that is still kept for the whole stretch and gives no more steps than ``most_steps``."""
        (number,) = connection.execute("SELECT count(*) FROM history_series").fetchone()
        kept = tables.kept(self._settings, number)
        finest = next((level.step_s for level in kept if level.kept_s >= now - begin_s), kept[-1].step_s)
        needed = max(finest, math.ceil((end_s - begin_s) / (most_steps - 1)))
        return next((step for step in _STEPS_S if step >= needed), _STEPS_S[-1])


def _floor(unix_s: float, step_s: int) -> int:
    return int(unix_s // step_s) * step_s


def _level(step_s: int) -> int:
    """The coarsest resolution in the file that a step is made of."""
    return max(level_s for level_s in tables.STEPS_S if step_s % level_s == 0)


def _series_of(connection: sqlite3.Connection, question: Question) -> list[int]:
    """Numbers of the series that a question is about."""
    replica = WHOLE if question.replica is None else question.replica
    return [
        number
        for number, model, of in connection.execute(tables.SERIES)
        if of == replica and question.model in (None, model)
    ]


def _stored(
    connection: sqlite3.Connection, question: Question, series: Sequence[int], cut: tuple[int, int, int]
) -> Iterable[tuple[int, Sums]]:
    """(begin of a step, sums of one series in it) from the file."""
    begin, end, step_s = cut
    where = f"WHERE step_s = {_level(step_s)} AND series = ? AND t >= ? AND t < ?"
    added = ", ".join(f"sum({name})" for name in NUMBERS)
    for number in series:
        at: dict[int, Sums] = {}
        rows = connection.execute(
            f"SELECT t - t % {step_s} AS at, {added} FROM history {where} GROUP BY at", (number, begin, end)
        )
        for t, *values in rows:
            at[t] = Sums(**dict(zip(NUMBERS, values, strict=True)))
        if question.durations:
            rows = connection.execute(
                f"SELECT t, {COUNTS} FROM history {where} AND {COUNTS} IS NOT NULL", (number, begin, end)
            )
            for t, stored in rows:
                histogram.merge(at[t - t % step_s].first_byte_counts, histogram.decoded(stored))
        yield from at.items()


def _uncounted(
    connection: sqlite3.Connection, question: Question, cut: tuple[int, int, int]
) -> Iterable[tuple[int, Sums]]:
    """The same from rows that are not counted in yet."""
    begin, end, step_s = cut
    replica = WHOLE if question.replica is None else question.replica
    for spot, sums in uncounted(connection).items():
        if spot.replica == replica and question.model in (None, spot.model) and begin <= spot.t < end:
            yield _floor(spot.t, step_s), sums


def _means(parts: Sequence[Sums]) -> Means:
    """Means of one step; ``parts`` are one per series, or have no gauges."""
    seen = [part for part in parts if part.samples]
    told = [part for part in seen if part.engine_samples]
    # Of several models each has its own mean, and the whole is their sum; if one is silent, so is the whole.
    all_told = bool(seen) and len(told) == len(seen)
    kv_samples = sum(part.kv_samples for part in seen)
    return Means(
        ready=sum(part.ready_sum / part.samples for part in seen) if seen else None,
        in_flight=sum(part.in_flight_sum / part.samples for part in seen) if seen else None,
        conversations=sum(part.conversations_sum / part.samples for part in seen) if seen else None,
        held_tokens=sum(part.held_tokens_sum / part.samples for part in seen) if seen else None,
        busy=sum(part.busy_sum / part.engine_samples for part in told) if all_told else None,
        running=sum(part.running_sum / part.engine_samples for part in told) if all_told else None,
        waiting=sum(part.waiting_sum / part.engine_samples for part in told) if all_told else None,
        kv_used_ratio=sum(part.kv_used_sum for part in seen) / kv_samples if kv_samples else None,
    )
