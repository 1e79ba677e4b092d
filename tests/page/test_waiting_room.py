"""The page on a real warden whose waiting room is engaged: what it says of those who wait, and of those who left."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.own_loop import on_its_own_loop
from tests.page.conftest import OpenPage
from tests.page.look import expect, has_address, shows
from tests.waiting import PATIENCE_S
from tests.whole.test_waiting_room import ENGINE, MODEL, Crowd, crowded

from lmwarden.simulation.server import serving

FIGURE_IS_MORE_THAN = """([name, least]) => [...document.querySelectorAll('.waiting-room dt')].some(
    (head) => head.innerText === name && parseInt(head.nextElementSibling.innerText) > least
)"""


@asynccontextmanager
async def busy_warden(folder: Path) -> AsyncIterator[Crowd]:
    """A crowd of agents at work on a warden."""
    async with serving(ENGINE) as engine, crowded(folder, [engine]) as crowd:
        yield crowd


@dataclass
class Busy:
    """Its room is engaged, and some wait."""

    crowd: Crowd
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        """The console's."""
        return self.crowd.warden.console_url

    def everybody_leaves(self) -> None:
        """All clients close their connections, some of them while they wait; and it is written down."""

        async def leave() -> None:
            await self.crowd.some_leave_the_room()
            await self.crowd.leave()
            await self.crowd.at_rest()

        asyncio.run_coroutine_threadsafe(leave(), self.loop).result(PATIENCE_S)

    def ask(self, path: str) -> Any:
        """The console's answer, as JSON."""
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as response:
            return json.load(response)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    """The browser has this thread, so it runs in another one."""
    with on_its_own_loop(busy_warden(tmp_path)) as (crowd, loop):
        yield Busy(crowd, loop)


def test_an_engaged_room_is_shown_and_obeys_while_agents_wait(open_page: OpenPage, busy: Busy) -> None:
    page = open_page(f"{busy.url}/#/models/{MODEL}")
    card = page.locator(".waiting-room")
    card.locator(".badge", has_text="engaged").wait_for()
    for figure, more_than in (("Waiting", 0), ("Demand", 100)):  # which move all the time
        page.wait_for_function(FIGURE_IS_MORE_THAN, arg=[figure, more_than])
    shows(card, "Engaged: the conversations in use need")
    waiting = open_page(f"{busy.url}/#/conversations?model={MODEL}&state=waiting")
    shows(waiting.locator(".virtual tbody tr").first, "waiting", re.compile(r"since \d\d:\d\d:\d\d \([\d.]+ m?s\)"))
    card.get_by_label("Tail").click()
    page.wait_for_function("() => document.querySelector('.choices .chosen dt')?.textContent === 'Tail'")
    card.get_by_label("Off", exact=True).click()
    card.get_by_text("Off: every request goes at once").wait_for()
    admission = busy.ask(f"/api/models/{MODEL}/routing")["admission"]
    assert (admission["mode"], admission["prefer"], admission["waiting"]) == ("off", "tail", 0)


def test_who_left_while_he_waited_is_found_by_the_filter(open_page: OpenPage, busy: Busy) -> None:
    page = open_page(f"{busy.url}/#/requests", size=(1440, 2400))  # every row is drawn
    page.wait_for_selector(".virtual tbody tr")
    page.get_by_label("Decision").select_option("left")
    page.get_by_text("No request matches.").wait_for()
    has_address(page, "#/requests?decision=left")
    busy.everybody_leaves()
    page.wait_for_selector(".virtual tbody tr")
    left = busy.ask("/api/requests?decision=left&limit=500")["items"]
    assert left
    assert {row["outcome"] for row in left} == {"cancelled"}
    rows, decisions = page.locator(".virtual tbody tr"), page.locator(".virtual tbody .badge-button")
    expect(decisions).to_have_text(["Left"] * len(left))
    decisions.first.click()
    shows(page.locator(".why-line"), "the client left before, while it waited")
    page.get_by_label("Outcome").select_option("ok")
    page.get_by_text("No request matches.").wait_for()
    page.get_by_label("Outcome").select_option("cancelled")
    expect(rows).to_have_count(len(left))
    page.get_by_label("Decision").select_option("")
    page.get_by_label("Outcome").select_option("")
    page.wait_for_selector(".virtual tbody .badge-button:not(:text('Left'))")
