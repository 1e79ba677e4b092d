"""Rows as somebody looks through them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.samples import LIMIT_S, record, settings

from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.requests import REFUSED, RequestFilter, latest
from lmwarden.types import Decision, Outcome


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path, settings())
    made.start()
    yield made
    made.stop()


def statuses(ledger: Ledger, limit: int = 100, before: int | None = None, **wanted: Any) -> list[int]:
    assert ledger.flush(LIMIT_S)
    found = ledger.reader.ask(latest(RequestFilter(**wanted), limit, before))
    return [row.record.status for row in found]


def test_the_newest_come_first_page_by_page(ledger: Ledger) -> None:
    for status in range(1, 8):
        ledger.record(record(status=status))
    assert statuses(ledger, 3) == [7, 6, 5]
    assert statuses(ledger, 3, before=5) == [4, 3, 2]
    assert statuses(ledger, 3, before=2) == [1]
    assert statuses(ledger, 3, before=1) == []


def test_a_row_comes_back_whole_with_its_number(ledger: Ledger) -> None:
    full = record(conversation_key=b"k" * 16)
    ledger.record(full)
    assert ledger.flush(LIMIT_S)
    (found,) = ledger.reader.ask(latest(RequestFilter(), 10))
    assert (found.number, found.record) == (1, full)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"model": "other"}, [2]),
        ({"key_name": "ben"}, [3]),
        ({"outcome": "failed"}, [4]),
        ({"decision": "sticky"}, [4, 3, 2, 1]),
        ({"decision": REFUSED}, [5]),
        ({"replica": "e0/7"}, [2]),
        ({"model": "m", "outcome": "ok"}, [3, 1]),
        ({"model": "'; DROP TABLE requests; --"}, []),
    ],
)
def test_filters(ledger: Ledger, wanted: dict[str, Any], expected: list[int]) -> None:
    ledger.record(record(status=1))
    ledger.record(record(status=2, model="other", replica="e0/7", decision=Decision.STICKY))
    ledger.record(record(status=3, key_name="ben"))
    ledger.record(record(status=4, outcome=Outcome.FAILED))
    ledger.record(record(status=5, decision=None, replica=None, outcome=Outcome.REFUSED))
    assert statuses(ledger, **wanted) == expected


def test_only_the_latest_are_looked_through(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmwarden.ledger.requests.LOOKED_THROUGH", 2)
    for status in (1, 2, 3):
        ledger.record(record(status=status))
    assert statuses(ledger) == [3, 2]


def test_an_empty_file_has_none(ledger: Ledger) -> None:
    assert statuses(ledger) == []
