"""The model's page: the routing card as it was promised, and its commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.page.conftest import OpenPage
from tests.page.look import answered, expect, has_address, is_accessible, shows, until_seen
from tests.page.made_up_parts import ROOM_ENGAGED
from tests.page.mock_console import MockConsole

if TYPE_CHECKING:
    from playwright.sync_api import Locator


WHO_WAITS = "#/conversations?model=qwen3-4b&state=waiting"


def figure(card: Locator, name: str) -> Locator:
    """What stands under this name."""
    return card.locator("dt", has_text=re.compile(f"^{name}$")).locator("+ dd")


def patches(mock: MockConsole) -> list[dict[str, Any]]:
    """What was asked to be changed."""
    return [body for method, path, body in mock.changes if (method, path) == ("PATCH", "/api/models/qwen3-4b/routing")]


def test_the_card_has_its_labels_and_columns(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.wait_for_selector(".replicas tbody tr")
    card = page.locator(".routing-card")
    expect(card.locator("h2")).to_have_text("Data-parallel routing")
    for label in (r"Affinity on", r"Spill threshold 8 \(auto\)", r"Sticky \d+\.\d%", r"In flight \d+"):
        shows(card, re.compile(label))
    expected = [
        "Replica",
        "In flight",
        "Sticky",
        "Spilled in",
        "Client pinned",
        "Running / waiting",
        "KV used",
        "Cached, last hour\nof prompt tokens",
        "First byte, last hour\np50 / p95",
        "Prefix-cache hit rate\nsince the warden's start",
    ]
    heads = card.locator("thead th")
    until_seen(
        page,
        lambda: [head.strip().removesuffix(" ↑") for head in heads.all_inner_texts()],
        lambda seen: seen[: len(expected)] == expected,
    )
    expect(card.locator("tbody tr")).to_have_count(4)
    shows(card, re.compile(r"Counting since .+ \(3 h 1\d min\)"))
    shows(page.locator(".capacity-card"), "Room for about")


def test_what_a_replica_found_in_its_cache_is_of_the_last_hour(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.locator(".replicas").get_by_text("31.0%").wait_for()
    page.get_by_role("button", name="Cached, last hour").click()
    page.get_by_role("button", name="Cached, last hour").click()
    lowest = page.locator(".replicas tbody tr").first
    shows(lowest.locator("th"), "e3/0")
    expect(lowest.locator("td").nth(8)).to_have_text("72.0%")  # the engine's counter since its start still looks well


def test_the_slowest_first_bytes_of_the_last_hour_are_found_by_their_column(
    open_page: OpenPage, mock: MockConsole
) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.locator(".replicas").get_by_text("1.2 s / 14 s").wait_for()
    head = page.locator(".replicas").get_by_role("button", name="First byte, last hour")
    head.click()
    rows = page.locator(".replicas tbody tr")
    shows(rows.first.locator("th"), "e2/0")
    expect(rows.last.locator("td").nth(7)).to_have_text("– / –")  # e0/0 answered nothing, whichever way it is sorted
    head.click()
    shows(rows.nth(2).locator("th"), "e2/0")
    shows(rows.last.locator("th"), "e0/0")


def test_what_is_not_known_is_no_zero(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-27b")
    page.wait_for_selector(".replicas tbody tr")
    expect(page.locator(".replicas tbody tr").nth(1).locator("td").nth(4)).to_have_text("– / –")
    shows(page.locator(".labels"), "Spill threshold 8 (default: max_num_seqs unknown)")
    shows(page.locator(".warnings"), "An engine does not say what was cached")


def test_the_switch_and_the_settings_apply_at_once(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    switch = page.get_by_role("switch")
    switch.click()
    page.wait_for_selector("[role=switch][aria-checked=false]")
    expect(switch).to_have_text("Affinity off")
    threshold = page.get_by_label("Spill threshold")
    threshold.fill("5")
    threshold.press("Enter")
    page.get_by_text("Spill threshold 5 (set)").wait_for()
    page.get_by_role("button", name="Automatic").click()
    page.get_by_text("Spill threshold 8 (auto)").wait_for()
    page.get_by_text("By hash of the id").click()
    page.wait_for_function("() => document.querySelector('.settings-card .chosen').textContent === 'By hash of the id'")
    assert patches(mock) == [
        {"affinity": False},
        {"spill_threshold": 5},
        {"spill_threshold": None},
        {"placement": "hash"},
    ]


def test_a_refused_change_says_why_and_changes_nothing(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    threshold = page.get_by_label("Spill threshold")
    threshold.fill("999")
    threshold.press("Enter")
    page.locator(".news").get_by_text("this mock does not like 999").wait_for()
    expect(page.get_by_text("Spill threshold 8 (auto)")).to_be_visible()
    page.locator(".news").get_by_role("button", name="Close").click()
    expect(page.locator(".news .note")).to_have_count(0)


def test_a_drain_is_asked_about_and_can_be_taken_back(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.get_by_role("button", name="Drain e1/0").click()
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    assert mock.changes == []
    page.get_by_role("button", name="Drain e1/0").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    page.get_by_role("button", name="Put back e1/0").click()
    page.get_by_role("button", name="Drain e1/0").wait_for()
    assert [(path, body) for _, path, body in mock.changes] == [
        ("/api/models/qwen3-4b/replicas/e1/0/drain", {}),
        ("/api/models/qwen3-4b/replicas/e1/0/undrain", {}),
    ]


@pytest.mark.parametrize(("lang", "places"), [("en", "Places"), ("zh", "位置")])
def test_the_buttons_are_whole_whatever_the_rows_say(
    open_page: OpenPage, mock: MockConsole, lang: str, places: str
) -> None:
    mock.world.room = ROOM_ENGAGED
    mock.world.states = {
        "e0/0": {"state": "starting", "drained": True, "stalled": True},
        "e1/0": {"suspect": True, "sticky": 123_456, "placed": 12_345, "rehomed_in": 12_345},
        "e3/0": {"state": "down", "in_flight": 123, "running": 100, "waiting": 23},
    }
    page = open_page(f"{mock.start()}/#/models/qwen3-4b", lang=lang)
    expect(page.locator(".replica-name .badge")).to_have_count(4)
    page.locator(".replicas thead th").get_by_role("button", name=places, exact=True).wait_for()
    hidden = (
        "() => { const at = document.querySelector('.replicas').parentElement; return at.scrollWidth - at.clientWidth }"
    )
    until_seen(page, lambda: page.evaluate(hidden), lambda seen_px: seen_px == 0)


def test_a_rolling_restart_shows_how_far_it_is(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.restart_s = 3600.0
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.get_by_role("button", name="Rolling restart").click()
    page.get_by_role("dialog").get_by_label(re.compile("Also if no other replica")).click()
    page.get_by_role("dialog").get_by_role("button", name="Rolling restart").click()
    operation = page.locator(".operation")
    operation.get_by_text("of 4 engines done").wait_for()
    assert mock.changes[-1] == ("POST", "/api/models/qwen3-4b/rolling-restart", {"allow_outage": True})
    expect(page.get_by_role("button", name="Restart e0")).to_be_disabled()
    page.locator(".engine").get_by_text("loading weights").wait_for()
    mock.world.restart_s = 0.0
    operation.get_by_text("Rolling restart: done").wait_for()


def test_the_log_is_searched_and_downloaded(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.locator(".engine").first.get_by_role("link", name="Logs").click()
    log = page.locator(".log")
    until_seen(page, lambda: log.inner_text().splitlines(), lambda lines: len(lines) == 200)
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
    cells = page.locator(".replicas tbody td:nth-child(2)")
    until_seen(
        page,
        lambda: [int(text) for text in cells.all_inner_texts()],
        lambda counts: len(counts) == 64 and counts == sorted(counts, reverse=True),
    )


def test_an_open_waiting_room_holds_nobody_and_says_so(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    card = page.locator(".waiting-room")
    card.get_by_text("open: nobody is held").wait_for()
    shows(card, re.compile(r"Open: the conversations in use need \d+% of what the caches hold\."))
    expect(page.locator(".replicas").get_by_text("Places")).to_have_count(0)
    expect(card.get_by_text("CPU tier")).to_have_count(0)


def test_an_engaged_waiting_room_says_who_waits_why_and_what_would_help(open_page: OpenPage, mock: MockConsole) -> None:
    url = mock.start()
    page = open_page(f"{url}/#/models/qwen3-4b")
    page.wait_for_selector(".waiting-room")
    mock.world.room = ROOM_ENGAGED  # it engages while somebody looks
    card = page.locator(".waiting-room")
    card.locator(".badge", has_text="engaged").wait_for()
    expect(figure(card, "Waiting")).to_have_text("6 longest 12 s", use_inner_text=True)
    expect(figure(card, "Demand")).to_have_text("142% of what the caches hold", use_inner_text=True)
    expect(figure(card, "Places held")).to_have_text(re.compile("^22.894k of ", re.S), use_inner_text=True)
    expect(figure(card, "Went at the longest wait")).to_have_text(re.compile("^3"))
    shows(card, "Engaged: the conversations in use need 142% of what the caches hold")
    shows(card, "about 66 GiB (477k tokens) for each replica")
    expect(page.locator(".replicas thead th:nth-last-child(2)")).to_have_text("Places")
    expect(page.locator(".replicas tbody tr").first.locator("td").nth(13)).to_have_text("5")
    is_accessible(page)
    chinese = open_page(f"{url}/#/models/qwen3-4b", lang="zh")
    chinese.locator(".waiting-room").get_by_text("生效中：使用中的对话需要缓存容量的 142%").wait_for()
    overview = open_page(url)
    chip = overview.locator(".model-card").first.get_by_role("link", name="waiting room engaged, 6 waiting")
    chip.click()
    has_address(overview, WHO_WAITS)
    figure(card, "Waiting").get_by_role("link", name="6").click()
    has_address(page, WHO_WAITS)


def test_the_controls_of_the_waiting_room_apply_at_once(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.room = ROOM_ENGAGED
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    card = page.locator(".waiting-room")
    card.get_by_label("Median").click()
    page.wait_for_function("() => document.querySelector('.choices .chosen dt')?.textContent === 'Median'")
    longest = card.get_by_label("Longest wait (s)")
    apply = card.get_by_role("button", name="Apply")
    for refused in ("0", "271", "1.5"):
        longest.fill(refused)
        expect(apply).to_be_disabled()
    longest.fill("60")
    with answered(page):
        longest.press("Enter")
    expect(longest).to_have_value("60")
    card.get_by_label("Off").click()
    card.get_by_text("Off: every request goes at once").wait_for()
    expect(longest).to_be_disabled()
    expect(card.get_by_label("Tail")).to_be_disabled()
    expect(card.locator("dt", has_text="Waiting")).to_have_count(0)
    assert patches(mock) == [{"prefer": "median"}, {"max_wait_s": 60}, {"admission": "off"}]


def test_without_affinity_there_is_no_waiting_room(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.get_by_role("switch").click()
    page.locator(".waiting-room").get_by_text("Affinity is off").wait_for()
    expect(page.locator(".waiting-room .badge")).to_have_text("off")


def test_a_cache_full_of_idle_conversations_is_no_alarm(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.kv_tokens = 20_000
    mock.world.room = {"demand_ratio": 0.68}
    url = mock.start()
    page = open_page(f"{url}/#/models/qwen3-4b")
    card = page.locator(".capacity-card")
    card.get_by_text("those in use need 68%").wait_for()
    expect(card.locator(".note")).to_have_count(0)
    expect(page.locator(".meter-fill.red")).to_have_count(0)
    shows(card, re.compile(r"\d{3}%: [\d.,k]+ of 80k tokens held"))
    chinese = open_page(f"{url}/#/models/qwen3-4b", lang="zh")
    chinese.locator(".capacity-card").get_by_text("使用中的只需要 68%").wait_for()
    mock.world.room = {"demand_ratio": 1.3}
    card.locator(".note.warning").get_by_text("no longer fit the caches").wait_for()
    expect(page.locator(".replicas .meter-fill.red").first).to_be_attached()


def test_room_for_more_says_what_it_leaves_out(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.locator(".capacity-card").get_by_text("Beside those in use: idle ones give way.").wait_for()


def test_a_demand_that_is_not_known_is_no_percentage(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.room = {"demand_ratio": None, "why_code": "no_capacity"}
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    card = page.locator(".waiting-room")
    card.get_by_text("the engines do not say how much their caches hold").wait_for()
    expect(figure(card, "Demand")).to_have_text("–")


def test_the_advice_of_a_cpu_tier_has_its_size(open_page: OpenPage, mock: MockConsole) -> None:
    params = {"demand_ratio": 1.42, "residents": 3, "waiting": 2, "tier_tokens": 73_000, "tier_gib": 10.0}
    mock.world.extra_warnings = [
        {"code": "waiting_room", "level": "warning", "text": "server", "what_to_do": "server", "params": params}
    ]
    url = mock.start()
    page = open_page(url)
    page.get_by_text("of at least 73,000 tokens for each replica, which are 10 GiB, end the waiting").wait_for()
    open_page(url, lang="zh").get_by_text("每个副本至少 73,000 token，即 10 GiB").wait_for()
