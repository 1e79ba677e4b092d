"""Through every page, in both languages and both themes, on a desk and on a phone; axe looks at each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.page.conftest import DESKTOP, PHONE, OpenPage, Theme
from tests.page.look import accessibility_findings, go, is_wider_than_its_window

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
    "zh": ["总览", "统计", "会话", "前缀破坏", "请求", "连接客户端", "密钥", "设置", "检查"],
}


def look_at(page: Page, picture: Path) -> None:
    """Axe, and a picture of the whole page."""
    assert accessibility_findings(page) == []
    page.screenshot(path=picture, full_page=True)
    assert not is_wider_than_its_window(page)


def walk(page: Page, lang: str, shots: Path, suffix: str) -> None:
    """Every page of a console that serves at least one model and has seen some conversations."""
    page.wait_for_selector(".live.ok")
    assert page.locator("html").get_attribute("lang") == {"en": "en", "zh": "zh-Hans"}[lang]
    for (name, address, loaded), heading in zip(PAGES, HEADINGS[lang], strict=True):
        go(page, address)
        page.wait_for_selector(loaded)
        assert page.locator("h1").inner_text() == heading
        look_at(page, shots / f"{name}-{suffix}.png")
    go(page, "#/")
    page.locator(".model-card h2 a").first.click()
    page.wait_for_selector(".replicas tbody tr")
    look_at(page, shots / f"model-{suffix}.png")
    go(page, "#/conversations?sort=turns&state=all")
    page.wait_for_selector(".virtual tbody a")
    page.locator(".virtual tbody a").nth(4).click()
    page.wait_for_selector(".timeline .turn")
    look_at(page, shots / f"conversation-{suffix}.png")


# Each pair of language, theme and size is there once.
VARIANTS = [("en", "light", DESKTOP), ("zh", "dark", DESKTOP), ("en", "dark", PHONE), ("zh", "light", PHONE)]


@pytest.mark.parametrize(
    ("lang", "theme", "size"), VARIANTS, ids=["en-light-desk", "zh-dark-desk", "en-dark-phone", "zh-light-phone"]
)
def test_every_page(
    open_page: OpenPage, console_url: str, shots: Path, lang: str, theme: Theme, size: tuple[int, int]
) -> None:
    page = open_page(console_url, lang=lang, theme=theme, size=size)
    walk(page, lang, shots, f"{lang}-{theme}-{'desk' if size == DESKTOP else 'phone'}")


def test_nothing_of_one_language_is_left_in_the_other(open_page: OpenPage, console_url: str) -> None:
    page = open_page(console_url, lang="zh")
    page.wait_for_selector(".live.ok")
    # Names of products and settings, and what a server that speaks English says, stay.
    known = re.compile(
        r"LM Warden|English|token|CSV|PNG|vLLM|Claude Code|Codex|OpenCode|OpenAI SDK|curl|KV|rank|max_num_seqs|Warden"
    )
    for _, address, loaded in [*PAGES[:3], PAGES[4], PAGES[6]]:
        go(page, address)
        page.wait_for_selector(loaded)
        words: list[str] = page.evaluate(
            """() => [...document.querySelectorAll(
                    'h1,h2,h3,th[scope=col],dt,.field-label,.segmented label,button,summary,.hint,.intro'
                )]
                .filter((e) => !e.closest('[lang=en],.mono,pre,.model-card h2,.nav-model')).map((e) => e.innerText)"""
        )
        english = [text for text in words if re.search(r"[A-Za-z]{4,}", known.sub("", text))]
        assert english == [], address


def test_the_switches_of_language_and_theme_are_kept(open_page: OpenPage, console_url: str) -> None:
    page = open_page(console_url)
    page.wait_for_selector(".live.ok")
    page.get_by_label("Theme").select_option("dark")
    page.get_by_label("Language").select_option("zh")
    assert page.locator("h1").inner_text() == "总览"
    page.reload()
    page.wait_for_selector(".live.ok")
    assert page.locator("h1").inner_text() == "总览"
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 24)"
    page.get_by_label("主题").select_option("light")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(245, 246, 248)"


def test_by_keyboard_alone(open_page: OpenPage, console_url: str) -> None:
    page = open_page(console_url)
    page.wait_for_selector(".live.ok")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"
    page.keyboard.press("Tab")  # the first model's name
    assert page.evaluate("() => document.activeElement.tagName") == "A"
    page.keyboard.press("Enter")
    page.wait_for_selector(".replicas")
    # A new page is read from its heading.
    page.wait_for_function("() => document.activeElement.id === 'page-heading'")
    page.locator(".replicas .sort").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator(".replicas th[aria-sort=descending]").inner_text().replace("\n", " ").startswith("In flight")
    page.locator(".segmented input:checked").first.focus()
    assert page.evaluate("() => getComputedStyle(document.activeElement.parentElement).outlineStyle") == "solid"


def test_the_menu_of_a_phone(open_page: OpenPage, console_url: str) -> None:
    page = open_page(console_url, size=PHONE)
    page.wait_for_selector(".live.ok")
    menu = page.get_by_role("button", name="Menu")
    assert not page.get_by_role("link", name="Stats").is_visible()
    menu.click()
    assert menu.get_attribute("aria-expanded") == "true"
    page.get_by_role("link", name="Stats").click()
    page.wait_for_selector(".canvas canvas")
    assert menu.get_attribute("aria-expanded") == "false"
