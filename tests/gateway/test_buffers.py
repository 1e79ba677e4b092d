"""The budget of request bodies."""

from __future__ import annotations

from lmwarden.gateway.buffers import STEP_BYTES, BufferBudget


class Connection:
    def __init__(self, name: str, log: list[str], budget: BufferBudget, takes: int = 0) -> None:
        self.name, self.log, self.budget, self.takes = name, log, budget, takes

    def resume_body(self) -> None:
        self.log.append(self.name)
        self.budget.take(self.takes)


def waiting(budget: BufferBudget, log: list[str], names: str, takes: int = 0) -> list[Connection]:
    connections = [Connection(name, log, budget, takes) for name in names]
    for connection in connections:
        budget.wait(connection, again=False)
    return connections


def test_as_many_go_on_as_there_is_room_for_in_the_order_in_which_they_stopped() -> None:
    log: list[str] = []
    budget = BufferBudget(10 * STEP_BYTES)
    assert not budget.take(11 * STEP_BYTES)
    _, second, *_ = waiting(budget, log, "abcde", takes=STEP_BYTES)
    budget.forget(second)
    assert log == []
    budget.give_back(2 * STEP_BYTES)
    assert log == ["a", "c"]
    budget.give_back(4 * STEP_BYTES)
    assert log == ["a", "c", "d", "e"]


def test_one_that_went_on_and_stops_again_is_the_next() -> None:
    log: list[str] = []
    budget = BufferBudget(STEP_BYTES)
    budget.take(2 * STEP_BYTES)
    first, _ = waiting(budget, log, "ab", takes=STEP_BYTES)
    budget.give_back(STEP_BYTES)
    assert log == ["a"]
    budget.wait(first, again=True)
    budget.give_back(STEP_BYTES)
    assert log == ["a", "a"]
    budget.give_back(STEP_BYTES)
    assert log == ["a", "a", "b"]
