"""The driver carries out actions and keeps one timer."""

from __future__ import annotations

import asyncio

from tests.gateway.conftest import ScriptedRouter
from tests.waiting import PATIENCE_S

from lmwarden.gateway.driver import HeldRequest, RouterDriver
from lmwarden.types import Dispatch, Outcome, Refuse, RefuseReason, ReplicaId, RoutingRequest

HERE = ReplicaId("e0", 0)


class Request:
    def __init__(self) -> None:
        self.dispatches: list[Dispatch] = []
        self.refusals: list[Refuse] = []
        self.told = asyncio.Event()

    def dispatched(self, action: Dispatch) -> None:
        self.dispatches.append(action)
        self.told.set()

    def refused(self, action: Refuse) -> None:
        self.refusals.append(action)
        self.told.set()

    def held(self) -> HeldRequest:
        return HeldRequest(None, None, False, 100.0, None)


def new_driver(router: ScriptedRouter, rate: float = 1.0) -> tuple[RouterDriver, list[float]]:
    now = [100.0]
    return RouterDriver(router, lambda: now[0], rate, asyncio.get_running_loop()), now


async def test_an_offer_is_dispatched_before_it_returns() -> None:
    router = ScriptedRouter({"e0": 1})
    driver, _ = new_driver(router)
    request = Request()
    ticket = driver.offer(request, RoutingRequest(), 100.0)
    assert [action.ticket for action in request.dispatches] == [ticket]
    assert driver.open_tickets == 1
    driver.finished(ticket, Outcome.OK, None, 100.0)
    assert driver.open_tickets == 0
    driver.close()


async def test_a_refused_offer_is_closed() -> None:
    router = ScriptedRouter({"e0": 1})
    router.choose = lambda request: RefuseReason.NO_REPLICA
    driver, _ = new_driver(router)
    request = Request()
    driver.offer(request, RoutingRequest(), 100.0)
    assert [action.reason for action in request.refusals] == [RefuseReason.NO_REPLICA]
    assert driver.open_tickets == 0


async def test_a_waiting_request_is_served_by_the_tick_at_the_deadline() -> None:
    router = ScriptedRouter({"e0": 1})
    router.choose = lambda request: None
    router.deadline = 101.0
    driver, now = new_driver(router, rate=100.0)  # 1 s of the clock is 10 ms
    request = Request()
    ticket = driver.offer(request, RoutingRequest(), 100.0)
    assert request.dispatches == []
    router.at_tick = [router.dispatch(ticket, HERE)]
    now[0] = 101.0
    await asyncio.wait_for(request.told.wait(), PATIENCE_S)
    assert request.dispatches[0].replica == HERE
    driver.cancelled(ticket)
    assert router.open == {}
    driver.close()


async def test_an_earlier_deadline_moves_the_timer_forward() -> None:
    router = ScriptedRouter({"e0": 1})
    router.choose = lambda request: None
    router.deadline = 1e6
    driver, _ = new_driver(router)
    request = Request()
    ticket = driver.offer(request, RoutingRequest(), 100.0)
    router.deadline = 100.0
    router.at_tick = [router.dispatch(ticket, HERE)]
    driver.perform(())
    await asyncio.wait_for(request.told.wait(), PATIENCE_S)
    driver.cancelled(ticket)
    driver.close()


async def test_actions_for_others_and_for_closed_tickets() -> None:
    router = ScriptedRouter({"e0": 1})
    router.choose = lambda request: None
    driver, _ = new_driver(router)
    first, second = Request(), Request()
    tickets = [driver.offer(request, RoutingRequest(), 100.0) for request in (first, second)]
    driver.cancelled(tickets[0])
    driver.perform((Dispatch(tickets[0], HERE, "e0", None), Refuse(tickets[1], RefuseReason.ROOM_FULL, 1)))  # type: ignore[arg-type]
    assert (first.dispatches, first.refusals) == ([], [])
    assert len(second.refusals) == 1
    assert driver.open_tickets == 0


async def test_an_offer_that_waits_can_send_others_and_is_waited_for() -> None:
    """Who comes can make room for somebody else: that one goes, and the one who came has the timer armed."""
    router = ScriptedRouter({"e0": 1})
    router.choose = lambda request: None
    driver, _ = new_driver(router)
    first, second = Request(), Request()
    waits = driver.offer(first, RoutingRequest(), 100.0)
    router.also = [router.dispatch(waits, HERE)]
    router.deadline = 100.0
    ticket = driver.offer(second, RoutingRequest(), 100.0)
    assert [action.ticket for action in first.dispatches] == [waits]
    assert second.dispatches == []
    assert driver.waiting == [second]
    router.at_tick = [router.dispatch(ticket, HERE)]
    await asyncio.wait_for(second.told.wait(), PATIENCE_S)
    assert driver.waiting == []
    for one in (waits, ticket):
        driver.finished(one, Outcome.OK, None, 100.0)
    driver.close()
