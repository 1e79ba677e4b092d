"""The Stats page: the same figures as the API's, gaps as gaps, and exports."""

from __future__ import annotations

import csv
import json
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.page.conftest import OpenPage
from tests.page.look import expect, has_address, shows, until_seen
from tests.page.mock_console import MockConsole

if TYPE_CHECKING:
    from playwright.sync_api import Page


def ask(url: str) -> Any:
    with urllib.request.urlopen(url) as response:
        return json.load(response)


BLUE, PURPLE, GREEN = (47, 111, 224), (141, 91, 214), (27, 145, 96)


def colours_along(page: Page, first: float, last: float, strips: int) -> list[set[tuple[int, ...]]]:
    """The opaque colours of the first chart between two shares of its width, strip by strip."""
    found: list[list[list[int]]] = page.evaluate(
        """([first, last, strips]) => {
            const canvas = document.querySelector('.canvas canvas');
            // Of a canvas that is read twice, and was not made for it, the browser warns.
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d');
            copy.drawImage(canvas, 0, 0);
            const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
            const result = Array.from({ length: strips }, () => new Map());
            for (let x = Math.ceil(canvas.width * first); x < canvas.width * last; x++) {
                const strip = result[Math.floor((x / canvas.width - first) / (last - first) * strips)];
                for (let y = 0; y < canvas.height; y++) {
                    const i = 4 * (y * canvas.width + x);
                    const colour = [...data.slice(i, i + 3)];
                    if (data[i + 3] === 255) strip?.set(colour.join(), colour);
                }
            }
            return result.map((colours) => [...colours.values()]);
        }""",
        [first, last, strips],
    )
    return [{tuple(colour) for colour in strip} for strip in found]


def test_tokens_per_second_are_drawn_as_promised(open_page: OpenPage, console_url: str) -> None:
    page = open_page(f"{console_url}/#/stats")
    page.wait_for_selector(".canvas canvas")
    card = page.locator(".chart-card").first
    expect(card.locator("h2")).to_have_text("Tokens per second")
    expect(card.locator(".chart-note")).to_have_text(re.compile("^cached .*% over the last hour$"))
    shows(card.locator(".legend"), "Cached", "Computed", "Completion")


def test_a_gap_is_a_gap(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/stats")
    page.wait_for_selector(".canvas canvas")
    # The plotted hour lies between the axes; where the made-up warden was down, no bar stands.
    series = {BLUE, PURPLE, GREEN}
    seen = until_seen(
        page,
        lambda: [colours & series for colours in colours_along(page, 0.07, 0.93, 60)],
        lambda drawn: series in drawn,
    )
    empty = [not colours for colours in seen]
    assert 4 <= sum(empty) <= 8  # six minutes of sixty
    first = empty.index(True)
    assert all(empty[first : first + sum(empty)]), "one gap"


def test_the_table_has_the_figures_of_the_api(open_page: OpenPage, mock: MockConsole) -> None:
    url = mock.start()
    mock.world.frozen_at = mock.world.now()
    points = ask(f"{url}/api/stats/tokens?window=6h")["points"]
    page = open_page(f"{url}/#/stats?window=6h")
    page.wait_for_selector(".canvas canvas")
    page.locator(".figures summary").first.click()
    rows = page.locator(".figures").first.locator("tbody tr")
    texts = until_seen(page, lambda: rows.all_inner_texts(), lambda seen: len(seen) == 200)
    shown = [[cell.strip().replace(",", "") for cell in text.split("\t")[1:]] for text in texts]
    newest = list(reversed(points))[: len(texts)]
    for cells, point in zip(shown, newest, strict=True):
        # Computed is on top of the stack, the page's first series.
        for cell, name in zip(cells, ("computed", "cached", "completion"), strict=True):
            assert cell == "–" if point[name] is None else abs(float(cell) - point[name]) <= 0.5


def test_ranges_models_and_the_address(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/stats")
    page.wait_for_selector(".canvas canvas")
    page.get_by_text("7 d", exact=True).click()
    page.get_by_text("over the last 7 days").wait_for()
    page.get_by_role("combobox", name="Model").select_option("qwen3-4b")
    page.get_by_role("combobox", name="Replica").select_option("e2/0")
    has_address(page, "#/stats?window=7d&model=qwen3-4b&replica=e2%2F0")
    page.get_by_text("Custom", exact=True).click()
    page.get_by_label("From").fill("2026-11-29T10:00")
    page.get_by_label("To", exact=True).fill("2026-11-29T09:00")
    page.get_by_text("The beginning must lie before the end.").wait_for()
    page.get_by_label("To", exact=True).fill("2026-11-29T12:00")
    page.get_by_role("button", name="Apply").click()
    page.get_by_text("over this range").wait_for()


def test_one_model_has_its_replicas_to_choose_from(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.served = ["qwen3-4b"]
    page = open_page(f"{mock.start()}/#/stats")
    with page.expect_response(lambda response: "tokens" in response.url and "replica=e1%2F0" in response.url):
        page.get_by_role("combobox", name="Replica").select_option("e1/0")
    expect(page.get_by_role("combobox", name="Model")).to_have_count(0)


def test_a_drag_over_a_chart_is_a_range(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/stats")
    page.wait_for_selector(".canvas canvas")
    chart = page.locator(".canvas").first
    chart.hover(position={"x": 300, "y": 80})
    page.mouse.down()
    chart.hover(position={"x": 450, "y": 80})
    chart.hover(position={"x": 600, "y": 80})
    page.mouse.up()
    page.get_by_text("over this range").wait_for()


def test_exports(open_page: OpenPage, mock: MockConsole, shots: Path) -> None:
    page = open_page(f"{mock.start()}/#/stats")
    page.wait_for_selector(".canvas canvas")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export “Tokens per second” as CSV").click()
    rows = list(csv.reader(Path(download.value.path()).read_text().splitlines()))
    assert rows[0] == ["t", "cached", "computed", "completion"]
    assert len(rows) == 361
    with page.expect_download() as download:
        page.get_by_role("button", name="Export “Tokens per second” as PNG").click()
    assert download.value.suggested_filename == "tokens-1h.png"
    download.value.save_as(shots / "exported-tokens.png")
    assert (shots / "exported-tokens.png").read_bytes().startswith(b"\x89PNG")
