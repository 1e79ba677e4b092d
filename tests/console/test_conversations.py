"""The lists of conversations, one conversation, and what breaks prefixes."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.console.scene import MODEL, Console
from tests.ledger.samples import LIMIT_S, record
from tests.waiting import PATIENCE_S

from lmwarden.console.conversations import WHAT_TO_DO, ConversationItem, TurnItem
from lmwarden.gateway.driver import HeldRequest
from lmwarden.ledger.conversations import _CAUSE
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.reader import Reader
from lmwarden.types import Decision, Outcome, PrefixChange, RoutingRequest

KEYS = [bytes([number]) * 16 for number in range(1, 8)]
A, B, C = KEYS[:3]
LIST = f"{MODEL}/conversations"


def write(ledger: Ledger, key: bytes | None, **changes: Any) -> None:
    ledger.record(record(**{"model": "org/model", "conversation_key": key, "kind": "main"} | changes))
    assert ledger.flush(LIMIT_S)


def ids(answer: Any) -> list[bytes]:
    return [bytes.fromhex(item["id"]) for item in answer["items"]]


async def test_what_the_router_and_the_rows_know_stands_together(whole_console: Console, ledger: Ledger) -> None:
    went = whole_console.scene.turn(A)
    whole_console.scene.turn(A, finish=False)
    write(ledger, A, client="claude-code", prompt_tokens=100, cached_tokens=60)
    answer = await whole_console.get(LIST)
    (item,) = answer["items"]
    assert list(item) == list(ConversationItem.__struct_fields__)
    assert item.pop("last_used") == pytest.approx(time.time(), abs=30)
    assert item == {
        "id": A.hex(), "short": A.hex()[:8], "client": "claude-code", "derived": False, "parent": None, "kind": "main",
        "home": str(went.replica), "turns": 2, "context_tokens": 107, "cached_ratio_last": 0.6, "state": "running",
        "in_flight": 1, "model": "org/model", "waiting_since": None, "key_name": "anna",
    }  # fmt: skip
    assert (answer["next"], answer["total"]) == (None, 1)


async def test_without_a_row_what_only_rows_know_is_null(whole_console: Console) -> None:
    whole_console.scene.turn(A, finish=False)
    (item,) = (await whole_console.get(LIST))["items"]
    assert (item["client"], item["context_tokens"], item["cached_ratio_last"]) == (None, None, None)


async def test_a_turn_that_waits_for_a_place(whole_console: Console) -> None:
    whole_console.scene.turn(A)
    whole_console.scene.turn(B, finish=False)
    now = time.monotonic()
    whole_console.scene.held = [HeldRequest(key, None, False, now, None) for key in (A, B, C)]
    items = (await whole_console.get(LIST))["items"]
    # One of which a turn runs is running, whatever else of it waits.
    assert {bytes.fromhex(item["id"]): item["state"] for item in items} == {A: "waiting", B: "running", C: "waiting"}
    new = next(item for item in items if bytes.fromhex(item["id"]) == C)
    assert (new["home"], new["turns"], new["context_tokens"], new["in_flight"]) == (None, 0, None, 0)
    detail = await whole_console.get(f"/api/conversations/{C.hex()}")
    assert (detail["conversation"]["state"], detail["turns"]) == ("waiting", [])


async def test_who_waits_stands_in_a_list_the_longest_wait_first(whole_console: Console) -> None:
    """With the key's name, also of those that have no row yet; what of a conversation waits longest counts."""
    whole_console.scene.turn(A)
    whole_console.scene.turn(B, finish=False)
    whole_console.scene.turn(KEYS[3])
    now = time.monotonic()
    waits = ((C, 40, "carl"), (A, 30, "anna"), (None, 20, None), (B, 10, None), (C, 5, "carl"))
    whole_console.scene.held = [HeldRequest(key, None, False, now - ago_s, name) for key, ago_s, name in waits]
    query, found = "state=waiting&limit=2", []
    for _ in range(2):
        answer = await whole_console.get(f"{LIST}?{query}")
        assert answer["total"] == 3
        found += answer["items"]
        query = f"state=waiting&limit=2&before={answer['next']}"
    told = [(bytes.fromhex(item["id"]), item["key_name"], item["state"]) for item in found]
    assert told == [(C, "carl", "waiting"), (A, "anna", "waiting"), (B, None, "running")]
    for item, ago_s in zip(found, (40, 30, 10), strict=True):
        assert item["waiting_since"] == pytest.approx(time.time() - ago_s, abs=PATIENCE_S)
    assert [item["waiting_since"] for item in found] == sorted(item["waiting_since"] for item in found)
    live = (await whole_console.get(f"{LIST}?sort=waited"))["items"]
    assert [bytes.fromhex(item["id"]) for item in live] == [C, A, B, KEYS[3]]
    assert live[-1]["waiting_since"] is None
    detail = await whole_console.get(f"/api/conversations/{C.hex()}")
    assert detail["conversation"]["key_name"] == "carl"
    assert detail["conversation"]["waiting_since"] == pytest.approx(found[0]["waiting_since"], abs=PATIENCE_S)


@pytest.mark.parametrize("sort", ["last_used", "context", "turns"])
async def test_pages_have_everything_once_in_order(whole_console: Console, sort: str) -> None:
    for turns, key in enumerate(KEYS, start=1):
        for _ in range(turns):
            whole_console.scene.turn(key)
    found, query = [], f"sort={sort}&limit=3"
    while True:
        page = await whole_console.get(f"{LIST}?{query}")
        found += ids(page)
        if page["next"] is None:
            break
        query = f"sort={sort}&limit=3&before={page['next']}"
    assert sorted(found) == sorted(KEYS)
    if sort != "context":  # of which all have the same
        assert found == KEYS[::-1]


async def test_only_live_ones_unless_all_are_asked_for(whole_console: Console) -> None:
    scene = whole_console.scene
    for turn in range(2):
        request = RoutingRequest(conversation=A)
        ticket, _ = scene.router.offer(request, time.monotonic() - 4000 + turn)
        scene.router.finished(ticket, Outcome.OK, None, time.monotonic() - 4000 + turn)
    scene.turn(B)
    assert ids(await whole_console.get(LIST)) == [B]
    everything = await whole_console.get(f"{LIST}?state=all")
    assert ids(everything) == [B, A]
    assert [item["state"] for item in everything["items"]] == ["idle", "dormant"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("state=dead", "state: must be one of live, all, waiting, not 'dead'"),
        ("sort=size", "sort: must be one of last_used, context, turns, waited, not 'size'"),
        ("limit=501", "limit"),
        ("before=x", "before: must be the next of an earlier page"),
        ("before=1.0:zz", "before"),
        ("before=nan:" + "zz" * 16, "before"),
    ],
)
async def test_a_wrong_question_is_told_what_is_allowed(whole_console: Console, query: str, says: str) -> None:
    assert says in (await whole_console.get(f"{LIST}?{query}", 400))["error"]


async def test_a_model_that_is_not_served_has_none(whole_console: Console) -> None:
    await whole_console.get("/api/models/nope/conversations", 404)


async def test_one_conversation_with_its_turns_children_and_costs(whole_console: Console, ledger: Ledger) -> None:
    scene = whole_console.scene
    scene.turn(A)
    ticket, _ = scene.router.offer(RoutingRequest(conversation=C, parent=A), time.monotonic())
    write(ledger, A, finished_at=1000.0, why="least_loaded", decision=Decision.PLACED, cached_tokens=None)
    write(ledger, B, parent=A, kind="subagent", finished_at=1001.0)
    write(
        ledger, A, finished_at=1002.0, why="above", decision=Decision.SPILLED, home="e0/1", home_in_flight=9,
        spill_threshold=8, prefix_change=PrefixChange.MOVED, prefix_shared_ratio=1.0, recomputed_tokens=900,
    )  # fmt: skip
    write(ledger, A, finished_at=1003.0, kind="auxiliary")
    answer = await whole_console.get(f"/api/conversations/{A.hex()}")
    assert (answer["conversation"]["id"], answer["conversation"]["turns"]) == (A.hex(), 2)
    assert [child["id"] for child in answer["children"]] == [C.hex(), B.hex()]
    assert [child["kind"] for child in answer["children"]] == ["subagent", "subagent"]
    assert {child["parent"] for child in answer["children"]} == {A.hex()}
    assert [turn["kind"] for turn in answer["turns"]] == ["auxiliary", "main", "main"]
    spilled, placed = answer["turns"][1:]
    assert list(spilled) == list(TurnItem.__struct_fields__)
    assert (spilled["why"], spilled["home_in_flight"], spilled["recomputed_tokens"]) == ("above", 9, 900)
    assert (spilled["computed_tokens"], placed["computed_tokens"]) == (100, None)
    assert answer["recomputed_by_cause"] == {"spilled": 900}
    scene.router.cancelled(ticket, time.monotonic())


async def test_a_conversation_that_only_rows_know_is_shown(whole_console: Console, ledger: Ledger) -> None:
    write(ledger, A, model="gone", finished_at=1000.0)
    conversation = (await whole_console.get(f"/api/conversations/{A.hex()}"))["conversation"]
    assert (conversation["state"], conversation["home"], conversation["model"]) == ("dormant", None, "gone")
    assert (conversation["last_used"], conversation["context_tokens"]) == (1000.0, 1050)


@pytest.mark.parametrize("wrong", ["ab", "zz" * 16, "ab" * 16])
async def test_an_unknown_conversation_is_not_found(whole_console: Console, wrong: str) -> None:
    assert "no conversation" in (await whole_console.get(f"/api/conversations/{wrong}", 404))["error"]


async def test_what_breaks_prefixes(whole_console: Console, ledger: Ledger) -> None:
    write(ledger, A, prefix_change=PrefixChange.TOOLS_CHANGED, recomputed_tokens=250, client="claude-code")
    write(ledger, B, prefix_change=PrefixChange.EVICTED, recomputed_tokens=500, finished_at=time.time() - 7200)
    answer = await whole_console.get("/api/prefix-breakers?window=1h&model=org/model")
    assert answer == {
        "items": [
            {
                "cause": "tools_changed", "turns": 1, "recomputed_tokens": 250, "share_of_prompt": 0.25,
                "example": A.hex(), "client": "claude-code", "what_to_do": WHAT_TO_DO["tools_changed"],
            }
        ]
    }  # fmt: skip
    assert len((await whole_console.get("/api/prefix-breakers"))["items"]) == 2
    await whole_console.get("/api/prefix-breakers?model=nope", 404)
    await whole_console.get("/api/prefix-breakers?window=x", 400)


@contextmanager
def busy(reader: Reader) -> Iterator[None]:
    """Somebody asks it something that takes long."""
    begun, over = threading.Event(), threading.Event()

    def question(connection: sqlite3.Connection) -> None:
        begun.set()
        over.wait(PATIENCE_S)

    asking = threading.Thread(target=reader.ask, args=(question,))
    asking.start()
    try:
        assert begun.wait(PATIENCE_S)
        yield
    finally:
        over.set()
        asking.join()


async def test_nobody_waits_for_what_looks_at_all_rows(whole_console: Console, ledger: Ledger) -> None:
    write(ledger, A, prefix_change=PrefixChange.TOOLS_CHANGED, recomputed_tokens=250, client="claude-code")
    slow, quick = ("/api/prefix-breakers", "/api/keys"), (LIST, "/api/requests", "/api/overview", "/api/stats/latency")
    async with asyncio.timeout(PATIENCE_S / 2):
        with busy(ledger.slow_reader):
            # More of them than threads.
            waiting = [asyncio.ensure_future(whole_console.get(f"{slow[0]}?window={n}h")) for n in range(1, 41)]
            for path in quick:
                await whole_console.get(path)
            assert not any(answer.done() for answer in waiting)
        await asyncio.gather(*waiting)
        with busy(ledger.reader):
            for path in slow:
                await whole_console.get(path)


def test_every_cause_has_something_to_do() -> None:
    words = {*PrefixChange, "spilled", "rehomed", "unrouted", "other"} - {"first", "extends"}
    assert set(WHAT_TO_DO) == words
    assert all(f"'{word}'" in _CAUSE for word in ("spilled", "rehomed", "unrouted", "other"))


async def test_without_a_file_that_can_be_read_it_says_so(whole_console: Console, ledger: Ledger) -> None:
    ledger.path.unlink()
    assert "cannot be read" in (await whole_console.get(f"/api/conversations/{A.hex()}", 503))["error"]
