"""What checks the router in all other tests finds each thing that may go wrong: a check that cannot fail is none."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.routing.driver import Driver
from tests.routing.test_door import Crowd

from lmwarden.routing import invariants
from lmwarden.routing.admission import Waiter, WaitingRoom
from lmwarden.routing.admission_places import Floor, Place
from lmwarden.routing.conversations import Conversation
from lmwarden.routing.open_turn import OpenTurn
from lmwarden.routing.replicas import Fleet, Replica
from lmwarden.routing.router import Router
from lmwarden.types import Decision


class Books:
    """A router in the middle of its work, with turns, guests and waiters; and what is spoiled."""

    def __init__(self) -> None:
        crowd = Crowd()
        crowd.everybody()
        crowd.driver.hold("e0/0", 1)
        self.driver: Driver = crowd.driver
        self.router: Router = crowd.driver.router
        door = self.router._door
        assert door is not None
        self.fleet: Fleet = self.router._fleet
        self.room: WaitingRoom = door.room
        self.waiter: Waiter = next(iter(door.room))
        self.place: Place = next(place for place in door.room.places.by_key.values() if place.in_flight)
        self.replica: Replica = self.place.replica
        self.floor: Floor = door.room.places.floors[self.replica]
        self.ticket = next(ticket for ticket, turn in self.router._open.items() if turn.key == self.place.key)
        self.turn: OpenTurn = self.router._open[self.ticket]
        assert self.turn.conversation is not None
        self.conversation: Conversation = self.turn.conversation

    def check(self) -> None:
        invariants.check(self.router, self.driver.now)


def add(thing: str, name: str, amount: float) -> Callable[[Books], None]:
    """Counts one of the books' figures wrong."""

    def spoil(books: Books) -> None:
        counted = getattr(books, thing)
        setattr(counted, name, getattr(counted, name) + amount)

    return spoil


def unrouted(books: Books) -> None:
    books.fleet.engines["e0"].unrouted_in_flight += 1


def counted_decision(books: Books) -> None:
    books.replica.decisions[Decision.STICKY] += 1


def other_engine(books: Books) -> None:
    books.turn.request = msgspec.structs.replace(books.turn.request, engine="elsewhere")


def waits_and_runs(books: Books) -> None:
    books.waiter.ticket = books.ticket


def waits_without_a_room(books: Books) -> None:
    books.room.thrash.engaged = False


def lost_place(books: Books) -> None:
    del books.room.places.by_key[books.place.key]


def moved_place(books: Books) -> None:
    books.place.replica = next(replica for replica in books.fleet if replica is not books.replica)


def empty_place(books: Books) -> None:
    books.floor.tokens -= books.place.tokens
    books.place.tokens = 0


def unknown_guest(books: Books) -> None:
    books.room.places._guests[10**9] = (books.floor, 0)


SPOILED: dict[str, tuple[Callable[[Books], None], str]] = {
    "unrouted": (unrouted, "e0: unrouted in flight is not what is open"),
    "in flight": (add("replica", "in_flight", 1), ": in flight "),
    "in flight below": (add("replica", "in_flight", -1), ": in flight "),
    "conversations": (add("replica", "conversations", 1), ": conversations"),
    "resident tokens": (add("replica", "resident_tokens", 1), ": resident tokens"),
    "open tokens": (add("replica", "open_tokens", 1), ": open tokens"),
    "warm": (add("replica", "warm_scaled", 1e9), ": warm"),
    "warm tokens": (add("replica", "warm_tokens_scaled", 1e9), ": warm tokens"),
    "live conversations": (add("fleet", "live_conversations", 1), "live conversations"),
    "turns of a conversation": (add("conversation", "in_flight", 1), "conversation .*: in flight"),
    "a decision": (counted_decision, "sticky: replicas' counts and the sum differ"),
    "a wrong engine": (other_engine, "is not at the engine that it must go to"),
    "a request": (add("router", "_refused", 1), "decisions and requests differ"),
    "waits and runs": (waits_and_runs, "waits and is open"),
    "waits too long": (add("waiter", "since", -1e6), "waits for longer than max_wait_s"),
    "waits for nothing": (waits_without_a_room, "while the room is not engaged"),
    "a lost place": (lost_place, "residents"),
    "a moved place": (moved_place, "e0/"),
    "reserved tokens": (add("floor", "tokens", 1), "reserved tokens"),
    "a place of nothing": (empty_place, "a place of nothing"),
    "guest tokens": (add("floor", "guest_tokens", 1), "guest tokens"),
    "reading tokens": (add("floor", "reading_tokens", 1), "reading tokens"),
    "turns of a resident": (add("place", "in_flight", 1), "turns of residents"),
    "a guest that has gone": (unknown_guest, "a closed ticket has a place"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_each_account_that_is_wrong_is_found(what: str) -> None:
    books = Books()
    books.check()
    spoil, says = SPOILED[what]
    spoil(books)
    with pytest.raises(AssertionError, match=says):
        books.check()
