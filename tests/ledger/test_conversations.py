"""What rows tell of conversations: summaries, turns, children, and what prefixes cost."""

from __future__ import annotations

from typing import Any

from tests.ledger.samples import LIMIT_S, record

from lmwarden.ledger import conversations
from lmwarden.ledger.conversations import Breaker, breakers, children, cost, summaries, turns
from lmwarden.ledger.ledger import Ledger
from lmwarden.types import Decision, PrefixChange

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def write(ledger: Ledger, *rows: dict[str, Any]) -> None:
    for number, row in enumerate(rows):
        ledger.record(record(**{"finished_at": 1000.0 + number, "kind": "main", "recomputed_tokens": 0} | row))
    assert ledger.flush(LIMIT_S)


def lost(change: str | None, tokens: int, decision: Decision = Decision.STICKY, **more: Any) -> dict[str, Any]:
    found = None if change is None else PrefixChange(change)
    return {"prefix_change": found, "recomputed_tokens": tokens, "decision": decision, "conversation_key": A} | more


def test_a_summary_is_of_the_last_turn_and_counts_turns(ledger: Ledger) -> None:
    write(
        ledger,
        {"conversation_key": A, "client": "curl", "cached_tokens": 1},
        {"conversation_key": A, "client": "claude-code", "cached_tokens": 2},
        {"conversation_key": A, "kind": "auxiliary", "cached_tokens": 3},
        {"conversation_key": B, "kind": None, "parent": A, "derived": True},
        {"conversation_key": None},
    )
    found = ledger.reader.ask(summaries([A, B, C]))
    assert set(found) == {A, B}
    assert (found[A].client, found[A].cached_tokens, found[A].turns, found[A].finished_at) == (
        "claude-code", 2, 2, 1001.0,
    )  # fmt: skip
    assert (found[B].parent, found[B].derived, found[B].kind) == (A, True, None)


def test_the_turns_of_a_conversation_come_newest_first_with_all_calls_beside(ledger: Ledger) -> None:
    write(ledger, *({"conversation_key": A, "status": status} for status in range(1, 6)), {"conversation_key": B})
    assert [row.status for row in ledger.reader.ask(turns(A, 3))] == [5, 4, 3]
    assert ledger.reader.ask(turns(C, 3)) == []


def test_children_are_those_that_name_it(ledger: Ledger) -> None:
    write(ledger, *({"conversation_key": key, "parent": A} for key in (B, B, C)), {"conversation_key": A})
    assert sorted(ledger.reader.ask(children(A))) == [B, C]
    assert ledger.reader.ask(children(B)) == []


def test_what_a_conversation_lost_is_summed_by_cause(ledger: Ledger) -> None:
    write(
        ledger,
        lost("moved", 100, Decision.SPILLED),
        lost("moved", 10, Decision.REHOMED),
        lost("moved", 1),
        lost("evicted", 1000),
        lost("evicted", 2000),
        lost("tools_changed", 5),
        lost("extends", 60),
        lost("compaction", 0),
        lost(None, 64),
        lost(None, 500),
        lost(None, 700, Decision.UNROUTED),
        lost("evicted", 7, conversation_key=B),
    )
    assert ledger.reader.ask(cost(A)) == {
        "spilled": 100, "rehomed": 10, "moved": 1, "evicted": 3000, "tools_changed": 5, "other": 500, "unrouted": 700,
    }  # fmt: skip


def test_what_all_lost_comes_costliest_first_with_an_example(ledger: Ledger) -> None:
    write(
        ledger,
        lost("evicted", 9999, finished_at=10.0),
        lost("evicted", 9999, model="other"),
        lost("evicted", 300, client="codex"),
        lost("evicted", 500, client="claude-code", conversation_key=B),
        lost("evicted", 200, client="claude-code"),
        lost("timestamp", 900),
        {"prompt_tokens": None},
    )
    found = ledger.reader.ask(breakers(100.0, "m"))
    assert found.items == [
        Breaker("timestamp", 1, 900, A, None),
        Breaker("evicted", 2, 700, B, "claude-code"),
        Breaker("evicted", 1, 300, A, "codex"),
    ]
    assert found.prompt_tokens == 4 * 1000
    assert len(ledger.reader.ask(breakers(0.0, None)).items) == 4
    assert ledger.reader.ask(breakers(1e12, None)).items == []


def test_they_are_found_by_an_index(ledger: Ledger) -> None:
    def plans(connection: Any) -> list[str]:
        queries = (conversations._COUNT, conversations._COST)
        found = [connection.execute(f"EXPLAIN QUERY PLAN {query}", (A,)).fetchall() for query in queries]
        found.append(connection.execute(f"EXPLAIN QUERY PLAN {conversations._TURNS}", (A, 1)).fetchall())
        found.append(connection.execute(f"EXPLAIN QUERY PLAN {conversations._CHILDREN}", (A, 1)).fetchall())
        summary = connection.execute(f"EXPLAIN QUERY PLAN {conversations._SUMMARY}", (A,)).fetchall()
        assert [row[-1].split(" ")[0] for row in summary] == ["SEARCH", "SCALAR", "SEARCH"]
        return [plan[0][-1] for plan in found]

    write(ledger, {"conversation_key": A})
    assert all("USING" in plan and "INDEX requests_by_" in plan for plan in ledger.reader.ask(plans))
