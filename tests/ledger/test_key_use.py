"""How much each key is used, and when a model's first request came."""

from __future__ import annotations

import sqlite3
import time

from tests.ledger.samples import LIMIT_S, record

from lmwarden.ledger import key_use as module
from lmwarden.ledger.key_use import KeyUse, first_request_after, key_use
from lmwarden.ledger.ledger import Ledger


def test_the_sums_of_each_key(ledger: Ledger) -> None:
    now = time.time()
    ledger.record(record(key_name="anna", finished_at=now - 7200))
    ledger.record(record(key_name="anna", finished_at=now - 60, prompt_tokens=None, completion_tokens=None))
    ledger.record(record(key_name="anna", finished_at=now - 30))
    ledger.record(record(key_name="ben", finished_at=now - 7200))
    ledger.record(record(key_name=None, finished_at=now))
    assert ledger.flush(LIMIT_S)
    use = ledger.reader.ask(key_use(["anna", "ben", "cleo"], now - 3600))
    assert use == {
        "anna": KeyUse(requests=2, prompt_tokens=1000, completion_tokens=50, last_used_at=now - 30),
        # Not within the hour; when it was used last is known all the same.
        "ben": KeyUse(last_used_at=now - 7200),
        "cleo": KeyUse(),
    }


def test_both_questions_are_answered_from_an_index(ledger: Ledger) -> None:
    def plans(connection: sqlite3.Connection) -> list[str]:
        questions = ((module._SUMS, (0,)), (module._LAST, ("a",)), (module._FIRST_REQUEST, ("m", 0)))
        return [
            " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values))
            for text, values in questions
        ]

    for plan in ledger.reader.ask(plans):
        assert "USING INDEX" in plan or "USING COVERING INDEX" in plan, plan


def test_the_first_request_after_a_moment(ledger: Ledger) -> None:
    now = time.time()
    for age_s in (100, 50, 20):
        ledger.record(record(model="m", finished_at=now - age_s))
    ledger.record(record(model="other", finished_at=now - 70))
    assert ledger.flush(LIMIT_S)

    def first(model: str, since: float) -> float | None:
        return ledger.reader.ask(first_request_after(model, since))

    assert first("m", now - 1000) == now - 100
    assert first("m", now - 60) == now - 50
    assert first("m", now - 10) is None
    assert first("nobody", 0) is None
