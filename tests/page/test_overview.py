"""The overview: what is said of a model at a glance."""

from __future__ import annotations

from tests.page.conftest import OpenPage
from tests.page.look import expect, shows
from tests.page.made_up import World
from tests.page.mock_console import MockConsole

NOBODY = "No agent has asked anything yet."


def test_a_warden_that_served_all_day_is_not_said_to_be_new(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world = World(conversations=0)  # none is live any more
    page = open_page(mock.start())
    page.wait_for_selector(".live.ok")
    shows(page.locator(".model-card").first, "Live conversations 0")
    expect(page.get_by_text(NOBODY)).to_have_count(0)
    mock.world.fresh = True
    page.locator(".model-card").first.get_by_text(NOBODY).wait_for()


def test_an_address_without_a_page_is_said_to_be_one(open_page: OpenPage, console_url: str) -> None:
    page = open_page(f"{console_url}/#/engines/e0")
    page.get_by_text("There is no page at this address; this is the overview.").wait_for()
    page.wait_for_selector(".model-card")
    page.get_by_role("link", name="Overview").click()
    page.get_by_text("There is no page at this address").wait_for(state="detached")
