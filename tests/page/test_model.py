"""The model's page: the routing card as it was promised, and its commands."""

from __future__ import annotations

import re

from tests.page.conftest import OpenPage
from tests.page.mock_console import MockConsole


def test_the_card_has_its_labels_and_columns(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.wait_for_selector(".replicas tbody tr")
    card = page.locator(".routing-card")
    text = card.inner_text()
    assert card.locator("h2").inner_text() == "Data-parallel routing"
    for label in (r"Affinity on", r"Spill threshold 8 \(auto\)", r"Sticky \d+\.\d%", r"In flight \d+"):
        assert re.search(label, text), label
    heads = [head.strip() for head in card.locator("thead th").all_inner_texts()]
    expected = [
        "Replica",
        "In flight",
        "Sticky",
        "Spilled in",
        "Client pinned",
        "Running / waiting",
        "KV used",
        "Prefix-cache hit rate",
    ]
    assert [head.removesuffix(" ↑") for head in heads[: len(expected)]] == expected
    assert card.locator("tbody tr").count() == 4
    assert re.search(r"Counting since .+ \(3 h 1\d min\)", text)
    assert "Room for about" in page.locator(".capacity-card").inner_text()


def test_what_is_not_known_is_no_zero(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-27b")
    page.wait_for_selector(".replicas tbody tr")
    cells = page.locator(".replicas tbody tr").nth(1).locator("td").all_inner_texts()
    assert cells[4].strip() == "– / –"
    assert "Spill threshold 8 (default: max_num_seqs unknown)" in page.locator(".labels").inner_text()
    assert "An engine does not say what was cached" in page.locator(".warnings").inner_text()


def test_the_switch_and_the_settings_apply_at_once(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    switch = page.get_by_role("switch")
    switch.click()
    page.wait_for_selector("[role=switch][aria-checked=false]")
    assert switch.inner_text().strip() == "Affinity off"
    threshold = page.get_by_label("Spill threshold")
    threshold.fill("5")
    threshold.press("Enter")
    page.get_by_text("Spill threshold 5 (set)").wait_for()
    page.get_by_role("button", name="Automatic").click()
    page.get_by_text("Spill threshold 8 (auto)").wait_for()
    page.get_by_text("By hash of the id").click()
    page.wait_for_function("() => document.querySelector('.settings-card .chosen').textContent === 'By hash of the id'")
    bodies = [
        body for method, path, body in mock.changes if (method, path) == ("PATCH", "/api/models/qwen3-4b/routing")
    ]
    assert bodies == [{"affinity": False}, {"spill_threshold": 5}, {"spill_threshold": None}, {"placement": "hash"}]


def test_a_refused_change_says_why_and_changes_nothing(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    threshold = page.get_by_label("Spill threshold")
    threshold.fill("999")
    threshold.press("Enter")
    page.locator(".news").get_by_text("this mock does not like 999").wait_for()
    assert page.get_by_text("Spill threshold 8 (auto)").is_visible()
    page.locator(".news").get_by_role("button", name="Close").click()
    assert page.locator(".news .note").count() == 0


def test_a_drain_is_asked_about_and_can_be_taken_back(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.get_by_role("button", name="Drain e1/0").click()
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    assert page.locator("dialog").count() == 0
    assert mock.changes == []
    page.get_by_role("button", name="Drain e1/0").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    page.get_by_role("button", name="Put back e1/0").click()
    page.get_by_role("button", name="Drain e1/0").wait_for()
    assert [(path, body) for _, path, body in mock.changes] == [
        ("/api/models/qwen3-4b/replicas/e1/0/drain", {}),
        ("/api/models/qwen3-4b/replicas/e1/0/undrain", {}),
    ]


def test_a_rolling_restart_shows_how_far_it_is(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.get_by_role("button", name="Rolling restart").click()
    page.get_by_role("dialog").get_by_label(re.compile("Also if no other replica")).check()
    page.get_by_role("dialog").get_by_role("button", name="Rolling restart").click()
    operation = page.locator(".operation")
    operation.get_by_text("of 4 engines done").wait_for()
    assert mock.changes[-1] == ("POST", "/api/models/qwen3-4b/rolling-restart", {"allow_outage": True})
    assert page.get_by_role("button", name="Restart e0").is_disabled()
    page.locator(".engine").get_by_text("loading weights").wait_for()
    operation.get_by_text("Rolling restart: done").wait_for(timeout=15_000)


def test_the_log_is_searched_and_downloaded(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.locator(".engine").first.get_by_role("link", name="Logs").click()
    page.wait_for_selector(".log")
    assert len(page.locator(".log").inner_text().splitlines()) == 200
    page.get_by_label("Search").fill("00:09:59")
    page.wait_for_function("() => document.querySelector('.log').innerText.split('\\n').length === 1")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "e0.log"


def test_64_replicas(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.replicas = 64
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.wait_for_selector(".replicas tbody tr:nth-child(64)")
    page.get_by_role("button", name="In flight").click()
    counts = [int(text) for text in page.locator(".replicas tbody td:nth-child(2)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
