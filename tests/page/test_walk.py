"""Through every page, in both languages and both themes, on a desk and on a phone; axe looks at each."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.page.conftest import DESKTOP, PHONE, OpenPage, Theme
from tests.page.look import expect, fits_its_window, go, is_accessible, shows, until_seen, wait_until_live
from tests.page.mock_console import MockConsole

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Address, and what is there when it has loaded.
PAGES = [
    ("overview", "#/", ".model-card"),
    ("stats", "#/stats", ".canvas canvas"),
    ("conversations", "#/conversations", ".virtual tbody a, .empty"),
    ("breakers", "#/breakers", ".breakers, .all-well"),
    ("requests", "#/requests", ".virtual tbody tr, .empty"),
    ("connect", "#/connect", ".connect-text pre"),
    ("keys", "#/keys", ".create-key, .empty, table"),
    ("settings", "#/settings", ".settings"),
    ("checks", "#/checks", ".checks"),
]
HEADINGS = {
    "en": [
        "Overview",
        "Stats",
        "Conversations",
        "Prefix breakers",
        "Requests",
        "Connect clients",
        "Keys",
        "Settings",
        "Checks",
    ],
    "zh": ["总览", "统计", "对话", "前缀破坏", "请求", "连接客户端", "密钥", "设置", "检查"],
}
HTML_LANG = {"en": "en", "zh": "zh-Hans"}
PASSWORD = {"en": "Password", "zh": "密码"}


class Look(NamedTuple):
    """How a page is shown."""

    lang: str
    theme: Theme


LOOKS = (Look("en", "light"), Look("zh", "dark"), Look("en", "dark"), Look("zh", "light"))


def put_on(page: Page, look: Look, *, in_a_menu: bool) -> None:
    """Another language and theme, on the page that is open."""
    page.emulate_media(color_scheme=look.theme)
    menu = page.locator(".menu-button")
    if in_a_menu:
        menu.click()
    page.locator(".prefs select").first.select_option(look.lang)
    if in_a_menu:
        menu.click()


def look_at(page: Page, picture: Path) -> None:
    """Axe, and a picture of the whole page."""
    is_accessible(page)
    page.screenshot(path=picture, full_page=True)
    fits_its_window(page)


def places(page: Page) -> Iterator[tuple[str, str]]:
    """Goes to every page of a console that serves at least one model and has seen some conversations: the page's name,
    and what is there when it has loaded."""
    page.wait_for_selector(".live.ok")
    for name, address, loaded in PAGES:
        go(page, address)
        yield name, loaded
    go(page, "#/")
    page.locator(".model-card h2 a").first.click()
    yield "model", ".replicas tbody tr"
    engine = until_seen(page, lambda: page.locator(".engine h3").first.inner_text().strip(), bool)
    go(page, "#/conversations?sort=turns&state=all")
    page.wait_for_selector(".virtual tbody a")
    page.locator(".virtual tbody a").nth(4).click()
    yield "conversation", ".timeline .turn"
    go(page, f"#/engines/{engine}/logs")
    yield "log", ".log, .empty"


def walk(page: Page, looks: Sequence[Look], shots: Path, suffix: str) -> None:
    """Every page in these looks; the first one is how the page was opened."""
    names = [name for name, _, _ in PAGES]
    for name, loaded in places(page):
        for look in looks:
            if len(looks) > 1:
                put_on(page, look, in_a_menu=page.viewport_size == {"width": PHONE[0], "height": PHONE[1]})
            page.wait_for_selector(loaded)
            expect(page.locator("html")).to_have_attribute("lang", HTML_LANG[look.lang])
            if name in names:
                expect(page.locator("h1")).to_have_text(HEADINGS[look.lang][names.index(name)])
            look_at(page, shots / f"{name}-{suffix.format(*look)}.png")


def walk_to_the_sign_in(page: Page, shots: Path, suffix: str, password: str) -> None:
    """The page that asks for a password in all looks, and in with it."""
    for look in LOOKS:
        put_on(page, look, in_a_menu=False)
        page.get_by_label(PASSWORD[look.lang], exact=True).wait_for()
        look_at(page, shots / f"sign-in-{suffix.format(*look)}.png")
    page.locator("input[type=password]").fill(password)
    page.locator("input[type=password]").press("Enter")
    page.wait_for_selector(".live.ok")
    expect(page.locator("h1")).to_have_text(HEADINGS[look.lang][0])


# Names of products, settings and protocols stay, as does what a server that speaks English says.
NAMES = re.compile(
    r"LM Warden|Warden|English|token|vLLM|Claude Code|Codex|OpenCode|OpenAI SDK|Anthropic SDK|curl|rank"
    r"|qwen3-[0-9]+b|alice-laptop|claude-\*|=false|nvidia-smi|doctor|X-data-parallel-rank|--[a-z-]+"
    r"|\[models\.engine\]|[a-zA-Z]+(_[a-zA-Z]+)+|[a-z]+(\.[a-z_]+)+|/[a-z0-9_/]+|lmwarden"
)
# Every text of a page that is no name, no text to copy and not marked as English.
WRITTEN = """() => {
    const skipped = '[lang=en], .mono, pre, option[value=en], .model-card h2, .nav-model, .version, .settings tbody';
    const walker = document.createTreeWalker(document.querySelector('.frame'), NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (node.textContent.trim() && !node.parentElement.closest(skipped)) found.push(node.textContent);
    }
    return found;
}"""

# Each pair of language, theme and size is there once.
VARIANTS = [("en", "light", DESKTOP), ("zh", "dark", DESKTOP), ("en", "dark", PHONE), ("zh", "light", PHONE)]


@pytest.mark.parametrize(
    ("lang", "theme", "size"), VARIANTS, ids=["en-light-desk", "zh-dark-desk", "en-dark-phone", "zh-light-phone"]
)
def test_every_page(
    open_page: OpenPage, console_url: str, shots: Path, lang: str, theme: Theme, size: tuple[int, int]
) -> None:
    page = open_page(console_url, lang=lang, theme=theme, size=size)
    walk(page, [Look(lang, theme)], shots, f"{{}}-{{}}-{'desk' if size == DESKTOP else 'phone'}")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_the_sign_in(open_page: OpenPage, mock: MockConsole, shots: Path, size: tuple[int, int]) -> None:
    mock.password = "open sesame"
    page = open_page(mock.start(), size=size)
    walk_to_the_sign_in(page, shots, f"{{}}-{{}}-{'desk' if size == DESKTOP else 'phone'}", mock.password)


def test_nothing_of_one_language_is_left_in_the_other(open_page: OpenPage, console_url: str) -> None:
    page = open_page(console_url, lang="zh")
    page.wait_for_selector(".live.ok")
    model = until_seen(page, lambda: page.locator(".model-card h2").first.inner_text().strip(), bool)
    with urllib.request.urlopen(f"{console_url}/api/models/{model}/conversations?state=all&sort=turns") as answer:
        conversation = json.load(answer)["items"][0]["id"]
    more = [
        ("model", f"#/models/{model}", ".replicas tbody tr"),
        ("conversation", f"#/conversations/{conversation}", ".timeline .turn"),
        ("log", "#/engines/e0/logs", ".log, .empty"),
        ("nowhere", "#/nowhere", ".model-card"),
    ]
    left: dict[str, list[str]] = {}
    for _, address, loaded in [*PAGES, *more]:
        go(page, address)
        page.wait_for_selector(loaded)
        texts: list[str] = until_seen(page, lambda: page.evaluate(WRITTEN), bool)
        english = [text for text in texts if re.search(r"[A-Za-z]{4,}", NAMES.sub("", text))]
        if english:
            left[address] = english
    assert left == {}


def test_the_texts_to_copy_have_their_comments_in_chinese(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/connect?model=qwen3-4b", lang="zh")
    tabs, text = page.get_by_role("tab"), page.locator(".connect-text pre")
    seen: set[str] = set()
    for number in range(until_seen(page, lambda: tabs.count(), lambda count: count > 1)):
        tabs.nth(number).click()
        shown = until_seen(page, lambda: text.inner_text(), lambda new: new not in seen)
        seen.add(shown)
        comments = [line for line in shown.splitlines() if line.startswith(("#", "//"))]
        assert comments
        for line in comments:
            assert re.search("[\u4e00-\u9fff]", line), line
            assert not re.search(r"[a-z]+ [a-z]+ [a-z]+ [a-z]+", line.replace("lmwarden keys create NAME", "")), line


def test_the_switches_of_language_and_theme_are_kept(open_page: OpenPage, console_url: str) -> None:
    page = open_page(console_url)
    page.wait_for_selector(".live.ok")
    page.get_by_label("Theme").select_option("dark")
    page.get_by_label("Language").select_option("zh")
    expect(page.locator("h1")).to_have_text("总览")
    page.reload()
    page.wait_for_selector(".live.ok")
    expect(page.locator("h1")).to_have_text("总览")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("body")).to_have_css("background-color", "rgb(17, 20, 24)")
    page.get_by_label("主题").select_option("light")
    expect(page.locator("body")).to_have_css("background-color", "rgb(245, 246, 248)")


def test_by_keyboard_alone(open_page: OpenPage, console_url: str) -> None:
    page = open_page(console_url)
    wait_until_live(page)
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    expect(focused).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(focused).to_have_id("main")
    page.keyboard.press("Tab")  # the first model's name
    expect(page.locator("a:focus")).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_selector(".replicas")
    # A new page is read from its heading.
    expect(focused).to_have_id("page-heading")
    page.locator(".replicas .sort").nth(1).focus()
    page.keyboard.press("Enter")
    shows(page.locator(".replicas th[aria-sort=descending]"), re.compile("^In flight"))
    page.locator(".segmented input:checked").first.focus()
    expect(page.locator(":has(> :focus)")).to_have_css("outline-style", "solid")


def test_the_menu_of_a_phone(open_page: OpenPage, console_url: str) -> None:
    page = open_page(console_url, size=PHONE)
    page.wait_for_selector(".live.ok")
    menu = page.get_by_role("button", name="Menu")
    expect(page.get_by_role("link", name="Stats")).not_to_be_visible()
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.get_by_role("link", name="Stats").click()
    page.wait_for_selector(".canvas canvas")
    expect(menu).to_have_attribute("aria-expanded", "false")
