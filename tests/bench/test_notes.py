"""What is said beside the figures."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bench.test_results import row

from lmwarden.bench.console import Admission
from lmwarden.bench.counters import EngineCounters
from lmwarden.bench.language import language
from lmwarden.bench.notes import lag_notes, open_room_note, result_notes
from lmwarden.bench.results import BenchResult, ClientCounters, LevelResult, TtfbSeconds


def said(*rows: LevelResult, code: str = "en") -> list[str]:
    result = BenchResult(source="simulated", hardware="a4000", workload="claude-code", levels=list(rows))
    return [language(code).say(note) for note in result_notes(result)]


def test_notes_name_failures_waiting_repeats_and_an_imitated_balancer() -> None:
    ttfb = TtfbSeconds(p95=20.0, p95_with_waiting=40.0)
    waiting = row(arm="off", failed=3, balancer="emulated", ttfb_s=ttfb)
    notes = " ".join(said(waiting, waiting))
    assert "8 sessions, off: 6 of 252 requests failed." in notes
    assert "4 of 252 requests had no first token at the end; with their wait so far, p95 is 40.00 s" in notes
    assert "mean over 2 runs" in notes
    assert "imitation" in notes


def test_how_coarse_sessions_per_hour_are_is_said() -> None:
    assert "one session more or less is 20 per hour" in " ".join(said(row(seconds=180.0)))
    # Two runs of a minute each: one session is half as much of their mean.
    assert "is 30 per hour" in " ".join(said(row(seconds=60.0), row(seconds=60.0)))


def test_waiting_that_does_not_change_the_tail_is_not_noted() -> None:
    assert len(said(row(ttfb_s=TtfbSeconds(p95=20.0, p95_with_waiting=20.5)))) == 2


@pytest.mark.parametrize(("engine", "says"), [(0.85, "agree within 2 points"), (0.70, "they do not agree"), (None, "")])
def test_whether_usage_and_engine_agree_is_said_where_both_are_known(engine: float | None, says: str) -> None:
    notes = said(row(prefix_hit_ratio=0.861, prefix_hit_ratio_engine=engine))
    assert [note for note in notes if "agree" in note] == [note for note in notes if says and says in note]
    assert bool(says) == any("agree" in note for note in notes)
    assert not any("Where they can be compared" in note for note in notes), "they can be everywhere"


def test_counters_over_other_requests_are_not_compared() -> None:
    def seen(queries: float, engine_ratio: float, sessions: int = 8) -> LevelResult:
        return row(
            sessions,
            prefix_hit_ratio=0.8,
            prefix_hit_ratio_engine=engine_ratio,
            client=ClientCounters(requests=9, prompt_tokens=1000),
            engine=EngineCounters(prefix_queries_tokens=queries),
        )

    apart = " ".join(said(seen(1300.0, 0.7)))
    assert "8 on: the engine looked up other tokens than the answers account for (at most +30 %" in apart
    assert "agree" not in apart
    mixed = " ".join(said(seen(1300.0, 0.7), seen(1040.0, 0.81, 4)))
    assert "Where they can be compared" in mixed
    assert "they do not agree" in " ".join(said(seen(1040.0, 0.7)))


@pytest.mark.parametrize(("before", "after", "grows"), [(10, 20, True), (10, 12, False), (1, 3, False), (1, 9, True)])
def test_a_backlog_is_named(before: int, after: int, grows: bool) -> None:
    notes = said(row(240, loop="open", open_at_start=before, open_at_end=after))
    says = f"240 sessions an hour, on: sessions open when the window began {before}"
    assert any(says in note for note in notes) == grows


def test_an_open_loop_that_began_empty_shows_no_backlog() -> None:
    notes = " ".join(said(row(240, loop="open", open_at_start=0, open_at_end=9)))
    assert "sessions open when the window ended 9. It began with none" in notes
    assert "more start than end" not in notes


def test_caches_that_could_not_be_emptied_and_clients_that_left_are_told() -> None:
    notes = " ".join(said(row(caches_emptied=False, left=7)))
    assert "could not empty its caches" in notes
    assert "as the workload wants: 7; their tokens" in notes


def test_a_tester_that_lags_says_so() -> None:
    def lag(*arguments: Any) -> str:
        return " ".join(language("en").say(note) for note in lag_notes(*arguments))

    assert lag(None, 1.0) == ""
    assert "too busy" not in lag(0.0199, 1.0)
    assert "too busy" in lag(0.0201, 1.0)
    assert "p99 3.0 ms of wall time, 30 ms of modelled time" in lag(0.003, 10.0)


def test_every_note_can_be_said_in_chinese() -> None:
    ttfb = TtfbSeconds(p95=20.0, p95_with_waiting=40.0)
    notes = said(row(failed=3, left=1, ttfb_s=ttfb, prefix_hit_ratio_engine=0.1), code="zh")
    assert any("8 个会话，on" in note for note in notes)


def rooms(count: int, **facts: Any) -> list[Admission]:
    usual: dict[str, Any] = {"mode": "auto", "why_code": "gaps", "gap_s": 1.44, "demand_ratio": 1.5}
    return [Admission(**usual | facts)] * count


def test_a_room_that_stayed_open_although_nothing_fitted_is_explained() -> None:
    note = open_room_note(rooms(6) + rooms(4, demand_ratio=0.3, why_code="open"), 24, "on+admission")
    assert note is not None
    english = language("en").say(note)
    assert english.startswith("24 sessions, on+admission: the waiting room stayed open")
    assert "exceeded 1.4 s" in english
    kept = open_room_note(rooms(2, why_code="kept"), 24, "on+admission")
    assert kept is not None
    assert "found their context all the same" in language("en").say(kept)


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [*rooms(5), *rooms(1, engaged=True, why_code="engaged")],
        rooms(5, demand_ratio=0.9),
        [*rooms(5), *rooms(5, demand_ratio=0.9)],
        rooms(5, why_code="open"),
        rooms(5, demand_ratio=None, why_code="off"),
    ],
)
def test_a_room_that_engaged_or_had_no_reason_to_is_not(seen: list[Admission]) -> None:
    assert open_room_note(seen, 24, "on+admission") is None
