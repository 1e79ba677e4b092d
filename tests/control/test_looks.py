"""Conversations are looked at only when somebody asks, and once a second for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.console.scene import Scene
from tests.waiting import PATIENCE_S

from lmwarden.control import UnknownModelError, looks
from lmwarden.control.looks import ConversationList, Looks
from lmwarden.gateway.driver import HeldRequest

NAME = "org/model"


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with aiohttp.ClientSession() as session:
        yield Scene(session)


async def test_the_list_shows_who_was_used_last(scene: Scene) -> None:
    for letter in (b"a", b"b", b"a"):
        scene.turn(letter * 16)
    seen = await asyncio.wrap_future(scene.control.conversations(NAME))
    assert [view.key for view in seen.conversations] == [b"a" * 16, b"b" * 16]
    assert [view.turns for view in seen.conversations] == [2, 1]
    assert seen.total == 2
    # On the wall's clock: just now, and in this order.
    first, second = (seen.wall(view.last_used) for view in seen.conversations)
    assert seen.taken_at - PATIENCE_S < second < first <= seen.taken_at


async def test_who_waits_for_a_first_turn_is_listed_although_the_router_does_not_know_it(scene: Scene) -> None:
    scene.turn(b"a" * 16)
    now = time.monotonic()
    scene.held = [
        HeldRequest(b"a" * 16, None, False, now, "anna"),
        HeldRequest(None, None, False, now, None),
        HeldRequest(b"n" * 16, b"a" * 16, True, now + 1, None),
        HeldRequest(b"a" * 16, None, False, now + 2, "anna"),
    ]
    seen = await asyncio.wrap_future(scene.control.conversations(NAME))
    assert {key: held.since for key, held in seen.waiting.items()} == {b"a" * 16: now, b"n" * 16: now + 1}
    assert seen.total == 2
    new, known = seen.conversations
    assert (new.key, new.parent, new.derived, new.home, new.turns, new.live) == (
        b"n" * 16,
        b"a" * 16,
        True,
        None,
        0,
        True,
    )
    assert known.key == b"a" * 16


async def test_times_at_speed_are_the_walls(scene: Scene) -> None:
    scene.turn(b"a" * 16)
    seen = await asyncio.wrap_future(scene.control.conversations(NAME))
    (view,) = seen.conversations
    fast = ConversationList(taken_at=1000.0, now=view.last_used + 50, clock_rate=10.0, total=1, conversations=(view,))
    assert fast.wall(view.last_used) == pytest.approx(995.0)


async def test_all_who_ask_within_a_second_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def look(model: str) -> ConversationList:
        looked.append(model)
        return ConversationList(taken_at=0.0, now=0.0, clock_rate=1.0, total=0, conversations=())

    monkeypatch.setattr(looks, "SHARED_S", PATIENCE_S)  # a second may pass between two lines
    shared = Looks(asyncio.get_running_loop(), look)
    asked = [shared.ask(name) for name in (NAME, "other") for _ in range(20)]
    # Who gives up takes nothing from the others.
    assert not asked[0].cancel()
    await asyncio.gather(*map(asyncio.wrap_future, asked))
    assert looked == [NAME, "other"]
    monkeypatch.setattr(looks, "SHARED_S", 0.0)
    await asyncio.wrap_future(shared.ask(NAME))
    assert looked == [NAME, "other", NAME]


async def test_a_look_that_fails_says_so() -> None:
    def look(model: str) -> ConversationList:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await asyncio.wrap_future(Looks(asyncio.get_running_loop(), look).ask(NAME))


async def test_a_model_that_is_not_served(scene: Scene) -> None:
    with pytest.raises(UnknownModelError):
        scene.control.conversations("nobody")
