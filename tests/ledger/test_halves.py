"""A search by halves: it finds what is wrong, and nothing else, in few steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmwarden.ledger.halves import Halves

MOST = 64


def play(rows: list[bool], rest_is_wrong: bool, come: int) -> tuple[list[int], bool, int]:
    """Write ``rows`` (False: no disk would take it) and what else waits, while ``come`` good rows more arrive.

    Returns:
        Rows that were lost, whether the rest was, and the number of transactions.
    """
    halves, lost, rest_lost, transactions = Halves(MOST), list[int](), False, 0
    queue, rest_waits = list(enumerate(rows)), True
    while queue or rest_waits:
        transactions += 1
        assert transactions < 10_000
        if come:
            come -= 1
            queue.append((-1, True))
        batch = queue[: halves.rows]
        with_rest = rest_waits and not halves.rows_only
        if all(good for _, good in batch) and not (with_rest and rest_is_wrong):
            rest_waits = rest_waits and not with_rest
            del queue[: len(batch)]
            halves.written()
        elif halves.refused(len(batch)):
            if batch:
                assert len(batch) == 1
                lost.append(batch[0][0])
                del queue[:1]
            else:
                rest_waits, rest_lost = False, True
    return lost, rest_lost, transactions


@given(st.lists(st.sampled_from([True] * 20 + [False]), max_size=300), st.booleans(), st.integers(0, 50))
def test_exactly_what_is_wrong_is_lost(rows: list[bool], rest_is_wrong: bool, come: int) -> None:
    lost, rest_lost, _ = play(rows, rest_is_wrong, come)
    assert lost == [number for number, good in enumerate(rows) if not good]
    assert rest_lost == rest_is_wrong


@given(st.integers(0, MOST - 1))
def test_one_of_many_takes_a_few_dozen_steps(wrong: int) -> None:
    _, _, transactions = play([number != wrong for number in range(MOST)], rest_is_wrong=False, come=0)
    assert transactions <= 40


def test_where_nothing_is_wrong_all_go_at_once() -> None:
    assert play([True] * MOST, rest_is_wrong=False, come=0) == ([], False, 1)


def test_after_a_search_batches_grow_to_the_most_and_no_further() -> None:
    halves = Halves(MOST)
    assert not halves.refused(MOST)
    seen = []
    for _ in range(4):
        seen.append(halves.rows)
        halves.written()
    assert seen == [MOST // 2, 0, MOST, MOST]
