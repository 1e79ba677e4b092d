"""The history's tables, and how long what is kept."""

from __future__ import annotations

import sqlite3
from itertools import pairwise

import pytest
from tests.ledger.samples import settings

from lmwarden.ledger import schema
from lmwarden.ledger.history_sums import COUNTS, NUMBERS
from lmwarden.ledger.history_tables import FINEST_KEPT_S, POINT_BYTES, STEPS_S, kept

DAY_S = 86_400.0


def test_every_sum_has_a_column() -> None:
    connection = sqlite3.connect(":memory:")
    for statement in schema.CREATE:
        connection.execute(statement)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(history)")]
    connection.close()
    assert sorted(columns) == sorted(["step_s", "series", "t", *NUMBERS, COUNTS])


def test_each_resolution_divides_the_next() -> None:
    assert all(coarser % finer == 0 for finer, coarser in pairwise(STEPS_S))


def test_a_day_of_ticks_and_the_rest_of_minutes() -> None:
    assert kept(settings(), 65) == [(10, FINEST_KEPT_S), (60, 7 * DAY_S), (600, 7 * DAY_S)]
    assert kept(settings(history_days=0.5), 65) == [(10, DAY_S / 2), (60, DAY_S / 2), (600, DAY_S / 2)]


@pytest.mark.parametrize("room_bytes", [50_000_000, 5_000_000, 100_000])
def test_where_there_is_no_room_the_finest_goes_first(room_bytes: int) -> None:
    found = kept(settings(history_max_bytes=room_bytes), 65)
    used = sum(65 * POINT_BYTES * level.kept_s / level.step_s for level in found)
    assert used == pytest.approx(room_bytes)
    assert [level.kept_s for level in found] == sorted(level.kept_s for level in found)


def test_without_series_there_is_room_for_all() -> None:
    assert kept(settings(), 0)[-1].kept_s == 7 * DAY_S
