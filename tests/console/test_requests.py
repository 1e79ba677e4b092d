"""/api/requests: pages, filters, and no more in a row than is shown."""

from __future__ import annotations

import pytest
from tests.console.scene import Console
from tests.ledger.samples import LIMIT_S, record

from lmwarden.console.requests import RequestItem
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.schema import LedgerError
from lmwarden.types import CandidateScore, Outcome, PrefixChange, ReplicaId, RequestRecord

KEY, PARENT = b"\x0a\x1b\x2c\x3d" + b"k" * 12, b"p" * 16


async def test_a_row_has_everything_but_text(whole_console: Console, ledger: Ledger) -> None:
    score = CandidateScore(
        replica=ReplicaId("e0", 1), score=1.5, in_flight=2, warm=0.5, conversations=3, live_share=1.0,
        kv_used_ratio=None, held_ratio=0.25, other=0.0,
    )  # fmt: skip
    ledger.record(
        record(
            conversation_key=KEY, parent=PARENT, client="claude-code", kind="subagent", body_bytes=5, why="above",
            home="e0/0", home_in_flight=9, spill_threshold=8, candidates=(score,),
            prefix_change=PrefixChange.EXTENDS, prefix_shared_ratio=1.0, recomputed_tokens=0,
        )
    )  # fmt: skip
    assert ledger.flush(LIMIT_S)
    answer = await whole_console.get("/api/requests")
    (item,) = answer["items"]
    assert answer["next"] is None
    assert list(item) == list(RequestItem.__struct_fields__)
    assert (item["id"], item["conversation"]) == (1, "0a1b2c3d")
    assert (item["conversation_id"], item["parent_id"]) == (KEY.hex(), PARENT.hex())
    assert (item["client"], item["kind"], item["why"], item["prefix_change"]) == (
        "claude-code", "subagent", "above", "extends",
    )  # fmt: skip
    assert item["candidates"][0]["held_ratio"] == 0.25
    assert (item["decision"], item["outcome"], item["cached_tokens"]) == ("sticky", "ok", 900)


async def test_what_is_not_known_is_null(whole_console: Console, ledger: Ledger) -> None:
    ledger.record(record(conversation=None, decision=None, replica=None, outcome=Outcome.REFUSED, prompt_tokens=None))
    assert ledger.flush(LIMIT_S)
    (item,) = (await whole_console.get("/api/requests?decision=refused"))["items"]
    unknown = ("conversation", "conversation_id", "decision", "replica", "prompt_tokens", "candidates", "why")
    assert {item[name] for name in unknown} == {None}


async def test_pages(whole_console: Console, ledger: Ledger) -> None:
    for status in range(1, 6):
        ledger.record(record(status=status))
    assert ledger.flush(LIMIT_S)
    found, query = [], "limit=2"
    while True:
        page = await whole_console.get(f"/api/requests?{query}")
        found.append([item["status"] for item in page["items"]])
        if page["next"] is None:
            break
        query = f"limit=2&before={page['next']}"
    assert found == [[5, 4], [3, 2], [1]]


async def test_pages_in_an_order(whole_console: Console, ledger: Ledger) -> None:
    for status, duration_s in enumerate((0.1 + 0.2, 5.0, 0.3, 5.0, 1.0), 1):
        ledger.record(record(status=status, duration_s=duration_s))
    assert ledger.flush(LIMIT_S)
    found, query = [], "sort=duration&limit=2"
    while True:
        page = await whole_console.get(f"/api/requests?{query}")
        found.append([item["status"] for item in page["items"]])
        if page["next"] is None:
            break
        query = f"sort=duration&limit=2&before={page['next']}"
    assert found == [[4, 2], [5, 1], [3]]


async def test_a_place_with_an_exponent_goes_on(whole_console: Console, ledger: Ledger) -> None:
    for status, duration_s in enumerate((1e-05, 2e-05, 3e-07), 1):
        ledger.record(record(status=status, duration_s=duration_s))
    assert ledger.flush(LIMIT_S)
    page = await whole_console.get("/api/requests?sort=duration&limit=1")
    assert page["next"] == "2e-05:2"
    page = await whole_console.get(f"/api/requests?sort=duration&limit=2&before={page['next']}")
    assert [item["status"] for item in page["items"]] == [1, 3]


async def test_who_was_refused_and_who_left_are_two_things(whole_console: Console, ledger: Ledger) -> None:
    for outcome in (Outcome.REFUSED, Outcome.CANCELLED):
        ledger.record(record(decision=None, replica=None, outcome=outcome))
    ledger.record(record(outcome=Outcome.CANCELLED))
    assert ledger.flush(LIMIT_S)
    for decision, ended in (("refused", "refused"), ("left", "cancelled")):
        items = (await whole_console.get(f"/api/requests?decision={decision}"))["items"]
        assert [(item["decision"], item["outcome"]) for item in items] == [(None, ended)]


async def test_filters(whole_console: Console, ledger: Ledger) -> None:
    ledger.record(record(status=1))
    ledger.record(
        record(
            status=2,
            model="other",
            key_name="ben",
            outcome=Outcome.FAILED,
            replica="e1/0",
            client="curl",
            endpoint="/v1/responses",
        )
    )
    assert ledger.flush(LIMIT_S)
    for query in (
        "model=other",
        "key=ben",
        "outcome=failed",
        "replica=e1/0",
        "client=curl",
        "endpoint=/v1/responses",
        "key=ben&decision=sticky",
    ):
        items = (await whole_console.get(f"/api/requests?{query}"))["items"]
        assert [item["status"] for item in items] == [2], query
    assert (await whole_console.get("/api/requests?model=none"))["items"] == []


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=0", "limit: must be an integer from 1 to 500, not '0'"),
        ("limit=501", "limit: must be"),
        ("before=x", "before: must be"),
        ("before=1:x", "before: must be the next of an earlier page"),
        ("before=x:1", "before: must be the next of an earlier page"),
        (f"before={'9' * 19}", "before: must be"),
        *(
            (f"before={mark}", "before: must be")
            for mark in ("nan:5", "inf:5", ":5", "1_0:3", "1e999:5", "1:5%0A", "%C2%B2:5")
        ),
        ("sort=size", "sort: must be one of newest, first_byte, duration, waited, computed, not 'size'"),
        ("outcome=fine", "outcome: must be one of ok, client_error, failed, timeout, cancelled, refused, not 'fine'"),
        ("decision=none", "decision: must be one of placed, sticky, "),
    ],
)
async def test_what_is_no_question(whole_console: Console, query: str, sentence: str) -> None:
    answer = await whole_console.get(f"/api/requests?{query}", 400)
    assert answer["error"].startswith(sentence)


async def test_rows_that_cannot_be_read_are_said(
    whole_console: Console, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(question: object) -> None:
        raise LedgerError("the disk is gone")

    monkeypatch.setattr(ledger.reader, "ask", broken)
    assert await whole_console.get("/api/requests", 503) == {"error": "the requests cannot be read: the disk is gone"}


def test_every_field_of_a_record_is_shown() -> None:
    shown = {"conversation_id": "conversation_key", "parent_id": "parent"}
    assert {shown.get(name, name) for name in RequestItem.__struct_fields__} == {
        "id", *RequestRecord.__struct_fields__,
    }  # fmt: skip
