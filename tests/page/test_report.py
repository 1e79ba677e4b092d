"""The load tester's report in a browser that is offline: complete in both languages, on the screen and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.bench.test_results import row
from tests.page.conftest import DESKTOP, PHONE
from tests.page.look import expect, fits_its_window, until_seen
from tests.waiting import PATIENCE_S

from lmwarden.bench.counters import EngineCounters
from lmwarden.bench.page import write_page
from lmwarden.bench.results import BenchResult, ClientCounters, RunFacts, SessionSeconds, WaitSeconds

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARMS = ("off", "hash", "on", "on+admission")
PAPER = (718, 1000)
"""A4 at 96 dots an inch, within usual margins."""

OUTSIDE = """() => [...document.querySelectorAll('main svg')].flatMap((svg) => {
    const box = svg.getBoundingClientRect();
    if (box.width === 0) return [];
    return [...svg.querySelectorAll('text')].filter((text) => {
        const own = text.getBoundingClientRect();
        const across = own.left < box.left - 1 || own.right > box.right + 1;
        return across || own.top < box.top - 1 || own.bottom > box.bottom + 1;
    }).map((text) => `${svg.getAttribute('aria-label').slice(0, 40)}: ${text.textContent}`);
})"""
"""Texts of charts that are shown, and stand outside of their chart."""
LABELS = "() => [...document.querySelectorAll('main svg')].filter((s) => s.getBoundingClientRect().width).length"
CUT = """() => [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth + 1)
    .map((box) => `${box.getAttribute('aria-label')}: ${box.scrollWidth} in ${box.clientWidth}`)"""
"""Tables that are wider than the box that they stand in."""


def result() -> BenchResult:
    """Four arms, three levels and two seeds, with everything that makes a table wide and a legend long."""
    rows = [
        row(
            level,
            arm,
            seed=seed,
            sessions_per_hour=1380.0 + 40 * seed,
            output_tokens_per_minute=10_752.0 + 1_000 * seed,
            prefix_hit_ratio_engine=0.86,
            session_s=SessionSeconds(p50=20.0, p95=100.0 + seed),
            room_wait_s=WaitSeconds(p50=1.0, p95=20.0, max=30.0),
            requests_by_replica={f"e0/{rank}": 60 + rank for rank in range(4)},
            client=ClientCounters(requests=120, prompt_tokens=1_000_000, cached_tokens=860_000, output_tokens=99_000),
            engine=EngineCounters(requests=121, prompt_tokens=1_010_000, generation_tokens=101_000),
        )
        for seed in (1, 2)
        for level in (4, 16, 32)
        for arm in ARMS
    ]
    facts = RunFacts(command="lmwarden simulate", started="2026-11-29T23:10:00Z", machine="m", versions={}, replicas=4)
    return BenchResult(source="simulated", hardware="a4000-qwen3-4b", workload="claude-code", levels=rows, run=facts)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its address."""
    out = tmp_path_factory.mktemp("report")
    write_page(result(), [], out)
    return (out / "report.html").as_uri()


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desk", "phone"])
def page(browser: Browser, report: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The report in a browser without a network; whatever it asks for fails the test."""
    width, height = request.param
    with browser.new_context(offline=True, viewport={"width": width, "height": height}) as context:
        context.set_default_timeout(PATIENCE_S * 1000)
        page, asked, troubles = context.new_page(), list[str](), list[str]()
        page.on("request", lambda sent: asked.append(sent.url))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(report)
        yield page
        assert asked == [report]
        assert troubles == []


def comes_to_show(page: Page, language: str) -> None:
    """The report in this language alone."""
    expect(page.locator("main:visible")).to_have_attribute("id", language)


def nothing_is(page: Page, fault: str) -> None:
    """This script comes to find nothing."""
    until_seen(page, lambda: page.evaluate(fault), lambda found: found == [])


def test_both_languages_are_complete_and_no_text_of_a_chart_is_cut(page: Page, shots: Path) -> None:
    comes_to_show(page, "en")
    charts = until_seen(page, lambda: page.evaluate(LABELS), lambda count: count >= 8)
    nothing_is(page, OUTSIDE)
    expect(page.locator("#en h1")).to_have_text(" → ".join(["Load test: off", *ARMS[1:]]))
    fits_its_window(page)
    page.get_by_label("中文").click()
    comes_to_show(page, "zh")
    until_seen(page, lambda: page.evaluate(LABELS), lambda count: count == charts)
    nothing_is(page, OUTSIDE)
    fits_its_window(page)
    size = page.viewport_size
    assert size is not None
    page.screenshot(path=shots / f"report-zh-{size['width']}.png", full_page=True)


def test_on_paper_the_tables_are_whole(page: Page, shots: Path) -> None:
    page.set_viewport_size({"width": PAPER[0], "height": PAPER[1]})
    until_seen(page, lambda: page.evaluate(CUT), lambda cut: cut != [])
    page.emulate_media(media="print")
    page.screenshot(path=shots / "report-paper.png", full_page=True)
    nothing_is(page, CUT)
    fits_its_window(page)
    nothing_is(page, OUTSIDE)
