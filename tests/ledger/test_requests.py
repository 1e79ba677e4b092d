"""Rows as somebody looks through them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.ledger.samples import LIMIT_S, record

from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.requests import LEFT, NEWEST, REFUSED, Mark, RequestFilter, latest
from lmwarden.types import Decision, Outcome


def statuses(ledger: Ledger, limit: int = 100, before: int | None = None, **wanted: Any) -> list[int]:
    assert ledger.flush(LIMIT_S)
    mark = None if before is None else Mark(before, before)
    found = ledger.reader.ask(latest(RequestFilter(**wanted), limit, mark))
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
        ({}, [6, 5, 4, 3, 2, 1]),
        ({"model": "other"}, [2]),
        ({"key_name": "ben"}, [3]),
        ({"outcome": "failed"}, [4]),
        ({"decision": "sticky"}, [4, 3, 2, 1]),
        ({"decision": REFUSED}, [5]),
        ({"decision": LEFT}, [6]),
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
    ledger.record(record(status=6, decision=None, replica=None, outcome=Outcome.CANCELLED))
    assert statuses(ledger, **wanted) == expected


def test_only_the_latest_are_looked_through(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmwarden.ledger.requests.LOOKED_THROUGH", 2)
    for status in (1, 2, 3):
        ledger.record(record(status=status))
    assert statuses(ledger) == [3, 2]


def test_an_empty_file_has_none(ledger: Ledger) -> None:
    assert statuses(ledger) == []


def in_order(ledger: Ledger, order: str, limit: int, before: Mark | None = None) -> list[tuple[int, Mark]]:
    found = ledger.reader.ask(latest(RequestFilter(), limit, before, order))
    return [(row.record.status, row.mark) for row in found]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (NEWEST, [5, 4, 3, 2, 1]),
        # Among equals the newest.
        ("duration", [2, 5, 4, 3, 1]),
        ("waited", [3, 5, 4, 2, 1]),
        # Not those that were not streamed, or had none.
        ("first_byte", [5, 1]),
        # Not those of which the cached part is not known.
        ("computed", [4, 5, 1]),
    ],
)
def test_the_largest_come_first_page_by_page(ledger: Ledger, order: str, expected: list[int]) -> None:
    ledger.record(record(status=1, duration_s=1.0, first_byte_s=0.1, prompt_tokens=10, cached_tokens=9))
    ledger.record(record(status=2, duration_s=9.5, first_byte_s=9.0, streamed=False, cached_tokens=None))
    ledger.record(record(status=3, duration_s=2.0, first_byte_s=None, waited_s=2.0, prompt_tokens=None))
    ledger.record(record(status=4, duration_s=4.0, first_byte_s=None, prompt_tokens=900, cached_tokens=0))
    ledger.record(record(status=5, duration_s=4.0, first_byte_s=0.7, waited_s=0.5, prompt_tokens=90, cached_tokens=0))
    assert ledger.flush(LIMIT_S)
    assert [status for status, _ in in_order(ledger, order, 100)] == expected
    paged: list[int] = []
    mark = None
    while page := in_order(ledger, order, 2, mark):
        paged += [status for status, _ in page]
        mark = page[-1][1]
    assert paged == expected
