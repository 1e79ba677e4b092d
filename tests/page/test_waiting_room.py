"""The page on a real warden whose waiting room is engaged: what it says of those who wait, and of those who left."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.page.conftest import OpenPage
from tests.waiting import PATIENCE_S
from tests.whole.test_waiting_room import ENGINE, MODEL, Crowd, crowded

from lmwarden.simulation.server import serving

if TYPE_CHECKING:
    from playwright.sync_api import Page


class Busy:
    """A crowd of agents at work on a warden, on a loop of its own: the browser has this thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = asyncio.Event()
        self._here: Future[tuple[Crowd, asyncio.AbstractEventLoop]] = Future()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.crowd, self._loop = self._here.result(PATIENCE_S)
        self.url = self.crowd.warden.console_url

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except Exception as error:  # whoever waits for it is told
            if not self._here.done():
                self._here.set_exception(error)
            raise

    async def _live(self) -> None:
        async with serving(ENGINE) as engine, crowded(self._folder, [engine]) as crowd:
            self._here.set_result((crowd, asyncio.get_running_loop()))
            await self._stop.wait()

    def everybody_leaves(self) -> None:
        """All clients close their connections, those who wait too."""
        asyncio.run_coroutine_threadsafe(self.crowd.leave(), self._loop).result(PATIENCE_S)

    def ask(self, path: str) -> Any:
        """The console's answer, as JSON."""
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as response:
            return json.load(response)

    def end(self) -> None:
        """Stop everything."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    """Its room is engaged, and some wait."""
    made = Busy(tmp_path)
    yield made
    made.end()


def test_an_engaged_room_is_shown_and_obeys_while_agents_wait(open_page: OpenPage, busy: Busy) -> None:
    page = open_page(f"{busy.url}/#/models/{MODEL}")
    card = page.locator(".waiting-room")
    card.locator(".badge", has_text="engaged").wait_for()
    figures = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert int(figures["Waiting"].split()[0]) > 0
    assert int(figures["Demand"].split("%")[0]) > 100
    assert "Engaged: the conversations in use need" in card.inner_text()
    waiting = open_page(f"{busy.url}/#/conversations?model={MODEL}")
    waiting.locator(".state-cell", has_text="waiting").first.wait_for()
    card.get_by_label("Tail").check()
    page.wait_for_function("() => document.querySelector('.choices .chosen dt')?.textContent === 'Tail'")
    card.get_by_label("Off", exact=True).check()
    card.get_by_text("Off: every request goes at once").wait_for()
    admission = busy.ask(f"/api/models/{MODEL}/routing")["admission"]
    assert (admission["mode"], admission["prefer"], admission["waiting"]) == ("off", "tail", 0)


def test_who_left_while_he_waited_is_found_by_the_filter(open_page: OpenPage, busy: Busy) -> None:
    page = open_page(f"{busy.url}/#/requests")
    page.wait_for_selector(".virtual tbody tr")
    page.get_by_label("Decision").select_option("left")
    page.get_by_text("No request matches.").wait_for()
    assert page.evaluate("() => location.hash") == "#/requests?decision=left"
    busy.everybody_leaves()
    page.wait_for_selector(".virtual tbody tr")
    left = rows_left(busy)
    assert len(left) > 2
    assert {row["outcome"] for row in left} == {"cancelled"}
    page.wait_for_function(f"() => document.querySelectorAll('.virtual tbody tr').length === {len(left)}")
    assert decisions(page) == ["Left"] * len(left)
    page.locator(".badge-button").first.click()
    assert "the client left before, while it waited" in page.locator(".why-line").inner_text()
    page.get_by_label("Outcome").select_option("ok")
    page.get_by_text("No request matches.").wait_for()
    page.get_by_label("Outcome").select_option("cancelled")
    page.wait_for_function(f"() => document.querySelectorAll('.virtual tbody tr').length === {len(left)}")
    page.get_by_label("Decision").select_option("")
    page.get_by_label("Outcome").select_option("")
    page.wait_for_selector(".virtual tbody .badge-button:not(:text('Left'))")


def rows_left(busy: Busy) -> list[dict[str, Any]]:
    """As the API has them, when all that ended is written down."""
    assert busy.crowd.warden.ledger.flush(PATIENCE_S)
    items: list[dict[str, Any]] = busy.ask("/api/requests?decision=left&limit=500")["items"]
    return items


def decisions(page: Page) -> list[str]:
    """Of the rows that are shown."""
    return [text.strip() for text in page.locator(".virtual tbody .badge-button").all_inner_texts()]
