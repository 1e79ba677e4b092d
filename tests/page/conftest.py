"""A real browser on the built page.

``./run test-page`` runs these tests: against made-up data (``mock_console``). Where ``LMWARDEN_CONSOLE_URL`` holds the
address of a running warden's console, the tests that need nothing made up look at that one. Where
``LMWARDEN_PAGE_LATE_MS`` is a number, every answer and every frame comes that much later: a test that looks before its
page can have answered fails then each time, not once in a hundred runs. Screenshots are left in ``results/page``.

Every page that a test opened is watched: an error in its script, a violation of its content security policy, or a
request to another host fails the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from tests.page.made_up import World
from tests.page.made_up_parts import ROOM_ENGAGED
from tests.page.mock_console import MockConsole
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parent.parent.parent
SHOTS = ROOT / "results" / "page"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LATE = """
    const fetched = window.fetch;
    const late = (answer) => new Promise((go) => setTimeout(go, LATE_MS, answer));
    window.fetch = (...asked) => fetched(...asked).then(late);
    window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), LATE_MS);
    window.cancelAnimationFrame = clearTimeout;
    const listen = HTMLDetailsElement.prototype.addEventListener;
    HTMLDetailsElement.prototype.addEventListener = function (type, handler, options) {
        const later = (event) => {
            Object.defineProperty(event, 'currentTarget', { value: this });  // which is null afterwards
            setTimeout(() => handler.call(this, event), LATE_MS);
        };
        listen.call(this, type, type === 'toggle' ? later : handler, options);
    };
"""
DESKTOP, PHONE = (1440, 900), (390, 844)

Theme = Literal["light", "dark"]
OpenPage = Callable[..., "Page"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever stands in this folder needs a browser."""
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium."""
    executable = os.environ.get("LMWARDEN_CHROMIUM")
    if not executable:
        pytest.skip("needs a browser: ./run test-page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS, timeout=PATIENCE_S * 1000)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shown_mock() -> Iterator[tuple[MockConsole, str]]:
    """A mock that tests only look at."""
    mock = MockConsole()
    mock.world.room = ROOM_ENGAGED
    mock.world.own_answers = [{"status": 404, "code": "model_not_found", "count": 12}]
    yield mock, mock.start()
    mock.stop()


@pytest.fixture
def console_url(request: pytest.FixtureRequest) -> str:
    """A console to look at: a running warden's, or the mock."""
    live = os.environ.get("LMWARDEN_CONSOLE_URL")
    if live:
        return live.rstrip("/")
    url: str = request.getfixturevalue("shown_mock")[1]
    return url


@pytest.fixture
def mock() -> Iterator[MockConsole]:
    """A mock of the test's own, not yet started."""
    mock = MockConsole(World())
    yield mock
    mock.stop()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """``open_page(url, lang="en", theme="light", size=DESKTOP)`` opens a page in a fresh browser profile."""
    contexts: list[BrowserContext] = []
    troubles: list[str] = []

    def open_one(url: str, *, lang: str = "en", theme: Theme = "light", size: tuple[int, int] = DESKTOP) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            locale="zh-CN" if lang == "zh" else "en-GB",
            color_scheme=theme,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        if late_ms := os.environ.get("LMWARDEN_PAGE_LATE_MS"):
            page.add_init_script(LATE.replace("LATE_MS", str(int(late_ms))))
        host = url.split("/#")[0].rstrip("/")

        def on_console(message: Any) -> None:
            # A status that a test provokes (401, 502) is told there too, and is no fault of the page.
            if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
                troubles.append(message.text)

        def on_request(request: Any) -> None:
            if not request.url.startswith((host, "blob:")):
                troubles.append(f"a request to {request.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", on_request)
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture
def shots() -> Path:
    """Where screenshots go."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS
