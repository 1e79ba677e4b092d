"""A broken connection is shown, and what is old is not taken for the present."""

from __future__ import annotations

from tests.page.conftest import OpenPage
from tests.page.look import expect, shows, wait_until_live
from tests.page.mock_console import MockConsole


def test_a_broken_connection_is_shown_and_mended(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(mock.start())
    wait_until_live(page)
    mock.down = True
    page.wait_for_selector(".live.fault")
    expect(page.locator(".live")).to_have_text("Connection lost")
    # After five seconds the figures themselves are marked.
    page.wait_for_selector("body.old-data")
    shows(page.locator(".banner"), "The connection to the warden is lost")
    expect(page.locator(".model-card")).to_have_count(2)  # what was known stays
    mock.down = False
    page.wait_for_selector(".live.ok")
    page.wait_for_selector("body:not(.old-data)")
    expect(page.locator(".banner .note")).to_have_count(0)


def test_a_warden_without_news_is_old_although_it_answers(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(mock.start())
    wait_until_live(page)
    mock.world.frozen_at = mock.world.now()
    page.wait_for_selector(".live.warning")
    shows(page.locator(".banner"), "have not moved")
    mock.world.frozen_at = None
    page.wait_for_selector(".live.ok")


def test_a_warden_that_hangs_is_not_said_to_answer(open_page: OpenPage, mock: MockConsole) -> None:
    url = mock.start()
    page, chinese = open_page(url), open_page(url, lang="zh")
    for one in (page, chinese):
        wait_until_live(one)
    mock.silent = True
    page.locator(".banner .fault").get_by_text("Nothing has come from the warden for").wait_for()
    chinese.locator(".banner .fault").get_by_text("没有收到 Warden 的任何消息").wait_for()
    expect(page.get_by_text("The warden answers")).to_have_count(0)


def test_a_connection_that_died_without_a_word_is_opened_anew(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(mock.start())
    page.clock.install()
    page.reload()
    wait_until_live(page)
    mock.silent = True
    with page.expect_request("**/api/events"):
        page.clock.fast_forward("00:11")
        page.locator(".live.fault").get_by_text("Connection lost").wait_for()
        page.locator(".banner .fault").get_by_text("Nothing has come from the warden for").wait_for()
    # The new one was never answered: it is given up like the old one.
    mock.silent = False
    page.clock.fast_forward("00:11")
    page.wait_for_selector(".live.ok")
    expect(page.locator(".banner .note")).to_have_count(0)


def test_a_wrong_clock_of_the_viewer_makes_nothing_old(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(mock.start())
    page.add_init_script("Date.now = () => 0")
    page.reload()
    wait_until_live(page)
    page.wait_for_timeout(2500)
    expect(page.locator(".live.ok")).to_have_count(1)


def test_an_updated_warden_asks_for_a_new_page(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(mock.start())
    wait_until_live(page)
    mock.version = "0.2.0"
    mock.down = True
    page.wait_for_selector(".live.fault")
    mock.down = False
    page.wait_for_selector(".banner .info")
    shows(page.locator(".banner"), "0.2.0")
    page.get_by_role("button", name="Reload the page").click()
    page.wait_for_selector(".live.ok")
    expect(page.locator(".banner .note")).to_have_count(0)
