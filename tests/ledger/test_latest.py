"""The queue in which only the latest value of each key waits."""

from __future__ import annotations

from lmwarden.ledger.latest import Latest


def test_the_latest_value_of_each_key_is_taken_once() -> None:
    queue: Latest[str, int] = Latest(10)
    queue.put([("a", 1), ("b", 2)])
    queue.put([("a", 3)])
    assert dict(queue.take()) == {"a": 3, "b": 2}
    queue.written()
    assert not queue.take()
    assert len(queue) == 0
    assert (queue.accepted, queue.settled) == (2, 2)


def test_what_could_not_be_written_waits_with_what_came_since() -> None:
    queue: Latest[str, int] = Latest(10)
    queue.put([("a", 1), ("b", 1)])
    queue.take()
    queue.put([("b", 2), ("c", 2)])
    assert queue.settled == 0
    assert dict(queue.take()) == {"a": 1, "b": 2, "c": 2}
    queue.written()
    assert queue.settled == 2


def test_what_came_while_it_was_written_is_not_settled() -> None:
    queue: Latest[str, int] = Latest(10)
    queue.put([("a", 1)])
    queue.take()
    queue.put([("a", 2)])
    queue.written()
    assert queue.settled == 1
    assert dict(queue.take()) == {"a": 2}


def test_beyond_the_bound_new_keys_are_dropped_and_known_ones_are_not() -> None:
    queue: Latest[str, int] = Latest(2)
    queue.put([("a", 1), ("b", 1), ("c", 1), ("a", 2)])
    assert queue.dropped == 1
    queue.take()
    queue.put([("b", 3), ("d", 3)])
    assert dict(queue.take()) == {"a": 2, "b": 3}
    assert queue.dropped == 2
