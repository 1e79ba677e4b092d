"""The budget of request bodies."""

from __future__ import annotations

from lmwarden.gateway.buffers import BufferBudget


class Connection:
    def __init__(self, name: str, log: list[str], budget: BufferBudget, takes: int = 0) -> None:
        self.name, self.log, self.budget, self.takes = name, log, budget, takes

    def resume_body(self) -> None:
        self.log.append(self.name)
        self.budget.take(self.takes)


def test_connections_go_on_in_the_order_in_which_they_stopped() -> None:
    log: list[str] = []
    budget = BufferBudget(100)
    assert budget.take(100)
    assert not budget.take(50)
    first, second, third = (Connection(name, log, budget) for name in "abc")
    for connection in (first, second, third):
        budget.wait(connection)
    budget.forget(second)
    budget.give_back(10)
    assert log == []
    budget.give_back(40)
    assert log == ["a", "c"]
    assert budget.held_bytes == 100


def test_one_that_fills_the_room_again_stops_the_rest() -> None:
    log: list[str] = []
    budget = BufferBudget(100)
    budget.take(150)
    budget.wait(Connection("a", log, budget, takes=60))
    budget.wait(Connection("b", log, budget))
    budget.give_back(60)
    assert log == ["a"]
    budget.give_back(90)
    assert log == ["a", "b"]
