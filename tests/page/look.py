"""What several tests look for on a page.

A page answers in its own time: what is read from it the moment after something was done may be what was there before.
So tests wait for what they expect: by ``expect``, ``shows`` or ``until_seen``, never by a single look
(``test_looks`` holds them to it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from re import Pattern
from typing import TYPE_CHECKING, TypeVar

from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page
    from playwright.sync_api._generated import LocatorAssertions  # which it exports under no other name

T = TypeVar("T")
AXE = Path(__file__).parent.parent.parent / "console-ui" / "node_modules" / "axe-core" / "axe.min.js"


def go(page: Page, address: str) -> None:
    """To another part of the console, as a link does."""
    page.evaluate("(hash) => { location.hash = hash }", address)


def wait_until_live(page: Page) -> None:
    """The stream is open, and the first figures have come: a page without any has nothing to show, nor to call old."""
    page.wait_for_selector(".live.ok")
    page.wait_for_selector(".model-card")


def has_address(page: Page, address: str) -> None:
    """What stands behind the path comes to be this."""
    page.wait_for_function("(hash) => location.hash === hash", arg=address)


@contextmanager
def answered(page: Page) -> Iterator[None]:
    """Changes of what is set, which the block asks for, have come about when it ends. One to a block."""
    with page.expect_response(lambda response: response.request.method == "PATCH"):
        yield


def until_told_anew(page: Page) -> None:
    """The stream tells of the last change: a message that was made before it may come after its answer."""
    third = """() => new Promise((told) => {
        const stream = new EventSource('api/events');
        let messages = 0;
        stream.addEventListener('snapshot', () => ++messages === 3 && (stream.close(), told(true)));
    })"""
    page.wait_for_function(third)


def expect(found: Locator) -> LocatorAssertions:
    """Playwright's assertions, which look again and again, with the patience of all tests."""
    from playwright import sync_api

    sync_api.expect.set_options(timeout=PATIENCE_S * 1000)
    return sync_api.expect(found)


def shows(found: Locator, *texts: str | Pattern[str]) -> None:
    """Each of these texts comes to stand in it; blanks and ends of lines count as one blank."""
    for text in texts:
        expect(found).to_contain_text(text, use_inner_text=True)


def until_seen(page: Page, read: Callable[[], T], holds: Callable[[T], object]) -> T:
    """What ``read()`` gives when it holds at last; for what ``expect`` has no word for."""
    waited_s, pause_s = 0.0, 0.05
    while not holds(seen := read()):
        assert waited_s < PATIENCE_S, f"last seen: {seen!r}"
        page.wait_for_timeout(pause_s * 1000)
        waited_s += pause_s
    return seen


def is_accessible(page: Page) -> None:
    """Axe comes to find nothing."""
    until_seen(page, lambda: _accessibility_findings(page), lambda found: found == [])


def fits_its_window(page: Page) -> None:
    """Nobody must scroll the whole page sideways."""
    wider = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
    until_seen(page, lambda: page.evaluate(wider), lambda seen: seen is False)


def _accessibility_findings(page: Page) -> list[str]:
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text())
    result = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{found['id']}: {node['html'][:160]} {node['any'][:1] and node['any'][0]['message']}"
        for found in result["violations"]
        for node in found["nodes"][:3]
    ]
