"""What request rows add up to: the ledger's SQL against the plainest way of counting."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.counting import by_hand, counted
from tests.ledger.samples import record

from lmwarden.ledger import schema
from lmwarden.ledger.histogram import bucket_of
from lmwarden.ledger.history_rows import uncounted
from lmwarden.ledger.history_sums import MOST_TOKENS, WHOLE, Spot, Sums, Tallies
from lmwarden.ledger.history_tables import ALL_COUNTED
from lmwarden.types import Decision, Outcome, RequestRecord

TOKENS = st.none() | st.integers(0, 5000) | st.sampled_from([MOST_TOKENS, MOST_TOKENS + 1, 2**53])
RECORDS = st.builds(
    record,
    model=st.sampled_from(["m", "other"]),
    finished_at=st.floats(1_700_000_000.0, 1_700_000_040.0) | st.sampled_from([1_700_000_009.9999998, 1_700_000_010.0]),
    decision=st.none() | st.sampled_from(Decision),
    outcome=st.sampled_from(Outcome),
    replica=st.sampled_from([None, "e0", "e0/0", "e0/1"]),
    first_byte_s=st.none() | st.integers(0, 1 << 20).map(lambda parts: parts / 128),  # sums of these are exact
    prompt_tokens=TOKENS,
    cached_tokens=TOKENS,
    completion_tokens=TOKENS,
)


def of_row(**changes: Any) -> Tallies:
    return counted([record(**{"finished_at": 1007.0} | changes)])


def whole(tallies: Tallies) -> Sums:
    return tallies[Spot("m", WHOLE, 1000)]


@given(st.lists(RECORDS, max_size=40))
def test_whatever_was_recorded_it_adds_up(records: list[RequestRecord]) -> None:
    assert counted(records) == by_hand(records)


def test_a_row_counts_for_its_model_and_its_replica_in_the_tick_of_its_end() -> None:
    tallies = of_row()
    assert set(tallies) == {Spot("m", WHOLE, 1000), Spot("m", "e0/1", 1000)}
    for sums in tallies.values():
        assert sums == Sums(
            cached_tokens=900, computed_tokens=100, completion_tokens=50, sticky=1, ok=1,
            first_byte_sum_s=0.25, first_byte_counts={bucket_of(0.25): 1},
        )  # fmt: skip


def test_a_row_that_reached_no_replica_counts_for_the_model_alone() -> None:
    tallies = of_row(decision=None, replica=None, outcome=Outcome.REFUSED, first_byte_s=None, prompt_tokens=None,
                     cached_tokens=None, completion_tokens=None)  # fmt: skip
    assert tallies == {Spot("m", WHOLE, 1000): Sums(refused=1)}


@pytest.mark.parametrize("decision", Decision)
def test_every_decision_has_its_sum(decision: Decision) -> None:
    assert getattr(whole(of_row(decision=decision)), decision) == 1


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_its_sum(outcome: Outcome) -> None:
    assert getattr(whole(of_row(outcome=outcome)), outcome) == 1


@pytest.mark.parametrize(
    ("prompt", "cached", "expected"),
    [
        (1000, None, (0, 1000, 1000)),  # not reported is computed, and known to be so
        (1000, 0, (0, 1000, 0)),
        (None, 900, (0, 0, 0)),
        (1000, 1200, (1000, 0, 0)),
        (MOST_TOKENS + 1, 5, (0, 0, 0)),
    ],
)
def test_cached_and_computed(prompt: int | None, cached: int | None, expected: tuple[int, int, int]) -> None:
    sums = whole(of_row(prompt_tokens=prompt, cached_tokens=cached))
    assert (sums.cached_tokens, sums.computed_tokens, sums.unknown_tokens) == expected


def test_completion_tokens_that_no_engine_can_mean() -> None:
    assert whole(of_row(completion_tokens=MOST_TOKENS + 1)).completion_tokens == 0


def test_only_what_is_not_counted_yet(tmp_path: Path) -> None:
    connection = schema.connect(str(tmp_path / "ledger"), timeout_s=1.0)
    try:
        schema.write_all(connection, schema.INSERT, [schema.to_row(record(finished_at=1007.0))] * 3)
        connection.execute(ALL_COUNTED)
        assert uncounted(connection) == {}
        schema.write_all(connection, schema.INSERT, [schema.to_row(record(finished_at=1007.0))] * 2)
        assert whole(uncounted(connection)).ok == 2
    finally:
        connection.close()


def test_no_row_is_lifted_out_of_the_database() -> None:
    """However many rows there are: each that comes out takes the interpreter's lock away from the data loop."""
    connection = sqlite3.connect(":memory:")
    for statement in schema.CREATE:
        connection.execute(statement)
    rows = [schema.to_row(record(finished_at=1000.0 + number / 100, status=number)) for number in range(900)]
    schema.write_all(connection, schema.INSERT, rows)
    lifted = 0

    def count(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal lifted
        lifted += 1
        return row

    connection.row_factory = count
    assert whole(uncounted(connection)).ok == 900
    assert lifted == 1
    connection.close()
