"""The history as it is asked for: exact to the row, and a gap where nothing was seen."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.samples import LIMIT_S, record, settings
from tests.ledger.views import replica, sample, view

from lmwarden.ledger import schema
from lmwarden.ledger.history import MOST_STEPS, Question, Step, Stretch
from lmwarden.ledger.history_sums import Sums
from lmwarden.ledger.history_writer import HistoryWriter
from lmwarden.ledger.ledger import FILE, Ledger
from lmwarden.ledger.schema import LedgerError
from lmwarden.types import RouterView

NOW = time.time() // 3600 * 3600 + 1234.5
"""Near the true time, because what is old is not kept; 4.5 s into a tick, 34.5 s into a minute."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path, settings(history_days=8.0))
    made.start()
    yield made
    made.stop()


def again(ledger: Ledger) -> Ledger:
    """A warden that starts anew on the same folder; everything that waited is written before."""
    ledger.stop()
    made = Ledger(ledger.path.parent, settings(history_days=8.0))
    made.start()
    return made


def ask(ledger: Ledger, seconds: float = 3600.0, now: float = NOW, **changes: Any) -> Stretch:
    assert ledger.flush(LIMIT_S)
    return ledger.history.stretch(Question(**{"begin_s": now - seconds, "end_s": now} | changes), now)


def count_in_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come from here on are in the file and not in its history: a tick that does not end."""
    monkeypatch.setattr(HistoryWriter, "due", lambda self, wall_now: False)


def at(stretch: Stretch, ago_s: float) -> Step:
    """The step in which a moment lies."""
    return next(step for step in stretch.steps if step.t <= NOW - ago_s < step.t + stretch.step_s)


def observe(ledger: Ledger, ago_s: float, *views: RouterView, model: str = "m") -> None:
    for one in views or (view(),):
        ledger.observe({model: one}, 100.0, NOW - ago_s)


class TestSums:
    @pytest.mark.parametrize("window_s", [3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0])
    def test_they_are_the_sums_of_the_rows_to_the_token(
        self, ledger: Ledger, window_s: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chance = random.Random(window_s)
        records = [
            record(
                finished_at=NOW - chance.uniform(0, window_s - 1),
                prompt_tokens=(prompt := chance.randrange(100_000)),
                cached_tokens=chance.randrange(prompt + 1),
                completion_tokens=chance.randrange(1000),
            )
            for _ in range(500)
        ]
        for one in records[:400]:
            ledger.record(one)
        ledger = again(ledger)
        count_in_no_more(monkeypatch)
        for one in records[400:]:
            ledger.record(one)
        totals = ask(ledger, window_s).totals
        ledger.stop()
        assert totals.ok == totals.sticky == 500
        assert totals.cached_tokens == sum(one.cached_tokens or 0 for one in records)
        assert totals.cached_tokens + totals.computed_tokens == sum(one.prompt_tokens or 0 for one in records)
        assert totals.completion_tokens == sum(one.completion_tokens or 0 for one in records)

    def test_of_a_replica_and_of_a_model(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        count_in_no_more(monkeypatch)
        for replica_name, model in (("e0/0", "m"), ("e0/1", "m"), ("e1/0", "other"), (None, "m")):
            ledger.record(record(finished_at=NOW - 100, replica=replica_name, model=model))
        for counted_in in (False, True):
            if counted_in:
                monkeypatch.undo()
            made = again(ledger) if counted_in else ledger
            assert ask(made).totals.ok == 4
            assert ask(made, model="m").totals.ok == 3
            assert ask(made, model="m", replica="e0/1").totals.ok == 1
            assert ask(made, replica="e1/0").totals.ok == 1
            assert ask(made, model="m", replica="e1/0").totals.ok == 0
            assert ask(made, model="unknown").totals == Sums()
        made.stop()

    def test_durations_only_where_they_are_wanted(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        for seconds in (0.25, 0.25, 4.0):
            ledger.record(record(finished_at=NOW - 100, first_byte_s=seconds))
        ledger = again(ledger)
        assert ask(ledger).totals.first_byte_counts == {}
        count_in_no_more(monkeypatch)
        ledger.record(record(finished_at=NOW - 100, first_byte_s=4.0))
        assert ask(ledger).totals.ok == 4
        assert sorted(ask(ledger, durations=True).totals.first_byte_counts.values()) == [2, 2]
        assert ask(ledger, durations=True).totals.first_byte_sum_s == 8.5
        ledger.stop()

    def test_the_cached_ratio_is_the_charts(self, ledger: Ledger) -> None:
        ledger.record(record(finished_at=NOW - 100))
        ledger.record(record(finished_at=NOW - 7200, cached_tokens=0))
        assert ledger.flush(LIMIT_S)
        assert ledger.history.cached_ratio("m", NOW - 3600, NOW) == 0.9
        assert ledger.history.cached_ratio("other", NOW - 3600, NOW) is None

    @pytest.mark.parametrize("counted_in", [False, True])
    def test_prompts_of_which_the_engine_did_not_tell_are_in_no_ratio(self, ledger: Ledger, counted_in: bool) -> None:
        """Clients that left: 900 of 1,000 told tokens are cached, whoever else was asked for."""
        for cached in (900, None, None):
            ledger.record(record(finished_at=NOW - 100, replica="e0/1", prompt_tokens=1000, cached_tokens=cached))
        assert ledger.flush(LIMIT_S)
        if counted_in:
            ledger = again(ledger)
        assert ledger.history.cached_ratio("m", NOW - 3600, NOW) == 0.9
        question = Question(begin_s=NOW - 3600, end_s=NOW, model="m")
        (sums,) = ledger.history.by_replica(question, NOW).values()
        assert (sums.cached_ratio, sums.cached_tokens + sums.computed_tokens, sums.unknown_tokens) == (0.9, 3000, 2000)
        durations = ask(ledger, replica="e0/1", durations=True).totals.first_byte_counts
        assert sums.first_byte_counts == durations
        assert sum(durations.values()) == 3
        totals = ask(ledger).totals
        assert (totals.cached_tokens, totals.computed_tokens) == (900, 2100), "the chart has them as computed"
        ledger.stop()


class TestGaps:
    def test_a_step_in_which_nothing_was_seen_is_a_gap_and_not_a_zero(self, ledger: Ledger) -> None:
        observe(ledger, 600)
        ledger.record(record(finished_at=NOW - 300))
        stretch = ask(again(ledger))
        quiet, busy, gap = at(stretch, 600), at(stretch, 300), at(stretch, 450)
        assert quiet.sums is not None
        assert (quiet.sums.ok, quiet.means.in_flight) == (0, 3.0)
        assert busy.sums is not None
        assert (busy.sums.ok, busy.means.in_flight) == (1, None)
        assert gap.sums is None
        assert set(gap.means.__struct_fields__) == {
            name for name in gap.means.__struct_fields__ if getattr(gap.means, name) is None
        }

    def test_a_restart_of_the_warden_neither_jumps_nor_counts_twice(self, ledger: Ledger) -> None:
        for ago_s in (1000, 500, 10):
            ledger.record(record(finished_at=NOW - ago_s))
            observe(ledger, ago_s)
            ledger = again(ledger)
        stretch = ask(ledger)
        assert [step.sums.ok for step in stretch.steps if step.sums is not None] == [1, 1, 1]
        assert len(stretch.steps) == 361
        ledger.stop()

    def test_an_engine_that_does_not_tell_is_a_gap_in_its_figures_only(self, ledger: Ledger) -> None:
        observe(ledger, 600, view(replica(sample=None)))
        means = at(ask(again(ledger)), 600).means
        assert (means.in_flight, means.conversations, means.ready) == (3.0, 2.0, 1.0)
        assert (means.busy, means.running, means.waiting, means.kv_used_ratio) == (None, None, None, None)


class TestMeans:
    def test_over_the_looks_in_a_step(self, ledger: Ledger) -> None:
        observe(ledger, 600, view(replica(), replica(1)), view(replica(sample=sample(running=0)), replica(1)))
        made = again(ledger)
        means = at(ask(made, model="m"), 600).means
        assert (means.ready, means.busy, means.running, means.kv_used_ratio) == (2.0, 1.5, 1.5, 0.5)
        assert (means.in_flight, means.conversations, means.held_tokens, means.waiting) == (6.0, 4.0, 2000.0, 4.0)
        assert at(ask(made, model="m", replica="e0/0"), 600).means.busy == 0.5
        made.stop()

    def test_of_several_models_is_their_sum(self, ledger: Ledger) -> None:
        observe(ledger, 600)
        observe(ledger, 599, view(replica(sample=sample(kv_used_ratio=0.25))), model="other")
        means = at(ask(again(ledger), step_s := 3600.0), 600).means
        assert step_s
        assert (means.in_flight, means.busy, means.kv_used_ratio) == (6.0, 2.0, 0.375)

    def test_of_several_models_needs_all(self, ledger: Ledger) -> None:
        observe(ledger, 600)
        observe(ledger, 600, view(replica(sample=None)), model="other")
        means = at(ask(again(ledger)), 600).means
        assert (means.in_flight, means.busy) == (6.0, None)

    def test_of_coarse_steps_too(self, ledger: Ledger) -> None:
        for ago_s in (4000, 4100, 90_000):
            observe(ledger, ago_s)
        stretch = ask(again(ledger), 7 * 86_400.0)
        assert [step.means.in_flight for step in stretch.steps if step.sums is not None] == [3.0, 3.0]


class TestSteps:
    @pytest.mark.parametrize(
        ("window_s", "step_s"),
        [
            (60, 10),
            (3600, 10),
            (4990, 10),
            (4991, 30),
            (6 * 3600, 60),
            (86_400, 300),
            (7 * 86_400, 1800),
            (366 * 86_400, 86_400),
        ],
    )
    def test_no_more_than_a_screen_shows(self, ledger: Ledger, window_s: float, step_s: int) -> None:
        stretch = ask(ledger, window_s)
        assert stretch.step_s == step_s
        assert len(stretch.steps) <= MOST_STEPS
        assert [step.t for step in stretch.steps] == list(range(stretch.begin, stretch.end, step_s))
        assert stretch.begin <= NOW - window_s < stretch.begin + step_s
        assert stretch.end - step_s < NOW <= stretch.end

    def test_an_hour_of_last_week_has_minutes(self, ledger: Ledger) -> None:
        then = NOW - 3 * 86_400
        ledger.record(record(finished_at=then - 60))
        stretch = ask(again(ledger), begin_s=then - 3600, end_s=then)
        assert stretch.step_s == 60
        assert stretch.totals.ok == 1
        assert {step.seconds for step in stretch.steps} == {60.0}

    def test_where_fine_points_are_given_up_steps_are_coarser(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path, settings(history_max_bytes=1000))
        ledger.start()
        assert ask(ledger).step_s == 600
        ledger.stop()

    def test_the_step_in_which_we_are_is_as_long_as_what_is_over_of_it(self, ledger: Ledger) -> None:
        assert ask(ledger, 6 * 3600.0).steps[-1].seconds == 34.5
        assert ask(ledger, 3600.0).steps[-1].seconds == 10.0
        assert ask(ledger, 3600.0).steps[-2].seconds == 10.0

    def test_what_lies_ahead_is_left_out(self, ledger: Ledger) -> None:
        assert ask(ledger, end_s=NOW + 86_400).end == ask(ledger).end
        assert len(ask(ledger, begin_s=NOW + 100, end_s=NOW + 86_400).steps) == 2

    def test_an_end_on_a_step_begins_no_new_one(self, ledger: Ledger) -> None:
        end = NOW - 4.5
        assert ask(ledger, end_s=end).end == end


def test_a_full_disk_delays_the_history_and_loses_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 1  # less than the file has: not one page more
    connect = schema.connect

    def connect_with_little_room(path: str, *, timeout_s: float) -> sqlite3.Connection:
        connection = connect(path, timeout_s=timeout_s)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(schema, "connect", connect_with_little_room)
    ledger = Ledger(tmp_path, settings())
    ledger.start()

    def trouble() -> str | None:
        return ledger.trouble

    written = 0
    while trouble() is None:
        for ago_s in range(100):
            observe(ledger, 10 * ago_s)
            ledger.record(record(finished_at=NOW - 10 * ago_s))
        written += 100
        patient_until = time.monotonic() + LIMIT_S
        while not ledger.flush(0.05) and trouble() is None:  # looks that nobody takes would give way to new ones
            assert time.monotonic() < patient_until
        assert written < 100_000
    assert "the disk is full" in str(trouble())
    observe(ledger, 5)
    ledger.record(record(finished_at=NOW - 5))
    pages = 1_000_000
    totals = ask(ledger).totals
    assert totals.ok == written + 1 == ledger.written_rows
    assert ask(again(ledger)).totals.samples == written + 1
    assert trouble() is None


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, settings())
    with pytest.raises(LedgerError, match="No such file"):
        ledger.history.stretch(Question(begin_s=NOW - 60, end_s=NOW), NOW)
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(LedgerError, match="not a database"):
        ledger.history.stretch(Question(begin_s=NOW - 60, end_s=NOW), NOW)
