"""The model's page: the routing card as it was promised, and its commands."""

from __future__ import annotations

import re
from typing import Any

from tests.page.conftest import OpenPage
from tests.page.look import accessibility_findings
from tests.page.made_up_parts import ROOM_ENGAGED
from tests.page.mock_console import MockConsole


def patches(mock: MockConsole) -> list[dict[str, Any]]:
    """What was asked to be changed."""
    return [body for method, path, body in mock.changes if (method, path) == ("PATCH", "/api/models/qwen3-4b/routing")]


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
        "Cached, last hour\nof prompt tokens",
        "Prefix-cache hit rate\nsince the warden's start",
    ]
    assert [head.removesuffix(" ↑") for head in heads[: len(expected)]] == expected
    assert card.locator("tbody tr").count() == 4
    assert re.search(r"Counting since .+ \(3 h 1\d min\)", text)
    assert "Room for about" in page.locator(".capacity-card").inner_text()


def test_what_a_replica_found_in_its_cache_is_of_the_last_hour(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.locator(".replicas").get_by_text("31.0%").wait_for()
    page.get_by_role("button", name="Cached, last hour").click()
    page.get_by_role("button", name="Cached, last hour").click()
    lowest = page.locator(".replicas tbody tr").first
    assert lowest.locator("th").inner_text().strip().startswith("e3/0")
    assert lowest.locator("td").nth(7).inner_text() == "72.0%", "the engine's counter since its start still looks well"


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
    operation.get_by_text("Rolling restart: done").wait_for()


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


def test_an_open_waiting_room_holds_nobody_and_says_so(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    card = page.locator(".waiting-room")
    card.get_by_text("open: nobody is held").wait_for()
    assert re.search(r"Open: the conversations in use need \d+% of what the caches hold\.", card.inner_text())
    assert page.locator(".replicas").get_by_text("Places").count() == 0
    assert card.get_by_text("CPU tier").count() == 0


def test_an_engaged_waiting_room_says_who_waits_why_and_what_would_help(open_page: OpenPage, mock: MockConsole) -> None:
    url = mock.start()
    page = open_page(f"{url}/#/models/qwen3-4b")
    page.wait_for_selector(".waiting-room")
    mock.world.room = ROOM_ENGAGED  # it engages while somebody looks
    card = page.locator(".waiting-room")
    card.locator(".badge", has_text="engaged").wait_for()
    figures = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert figures["Waiting"] == "6\nlongest 12 s"
    assert figures["Demand"] == "142%\nof what the caches hold"
    assert figures["Places held"].startswith("22\n894k of ")
    assert figures["Went at the longest wait"].startswith("3")
    assert "Engaged: the conversations in use need 142% of what the caches hold" in card.inner_text()
    assert "about 66 GiB (477k tokens) for each replica" in card.inner_text()
    assert page.locator(".replicas thead th").last.evaluate("(e) => e.previousElementSibling.innerText") == "Places"
    assert page.locator(".replicas tbody tr").first.locator("td").nth(12).inner_text().strip() == "5"
    assert accessibility_findings(page) == []
    chinese = open_page(f"{url}/#/models/qwen3-4b", lang="zh")
    chinese.locator(".waiting-room").get_by_text("生效中：使用中的对话需要缓存容量的 142%").wait_for()
    overview = open_page(url)
    chip = overview.locator(".model-card").first.get_by_role("link", name="waiting room engaged, 6 waiting")
    chip.click()
    overview.wait_for_selector(".waiting-room")
    waiting = open_page(f"{url}/#/conversations?model=qwen3-4b")
    waiting.locator(".state-cell", has_text="waiting").first.wait_for()


def test_the_controls_of_the_waiting_room_apply_at_once(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.room = ROOM_ENGAGED
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    card = page.locator(".waiting-room")
    card.get_by_label("Median").check()
    page.wait_for_function("() => document.querySelector('.choices .chosen dt')?.textContent === 'Median'")
    longest = card.get_by_label("Longest wait (s)")
    apply = card.get_by_role("button", name="Apply")
    for refused in ("0", "271", "1.5"):
        longest.fill(refused)
        assert apply.is_disabled(), refused
    longest.fill("60")
    longest.press("Enter")
    page.wait_for_function("() => document.querySelector('.waiting-room input[type=number]').value === '60'")
    card.get_by_label("Off").check()
    card.get_by_text("Off: every request goes at once").wait_for()
    assert longest.is_disabled() and card.get_by_label("Tail").is_disabled()
    assert card.locator("dt", has_text="Waiting").count() == 0
    assert patches(mock) == [{"prefer": "median"}, {"max_wait_s": 60}, {"admission": "off"}]


def test_without_affinity_there_is_no_waiting_room(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.get_by_role("switch").click()
    page.locator(".waiting-room").get_by_text("Affinity is off").wait_for()
    assert page.locator(".waiting-room .badge").inner_text() == "off"


def test_a_cache_full_of_idle_conversations_is_no_alarm(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.kv_tokens = 20_000
    mock.world.room = {"demand_ratio": 0.68}
    url = mock.start()
    page = open_page(f"{url}/#/models/qwen3-4b")
    card = page.locator(".capacity-card")
    card.get_by_text("those in use need 68%").wait_for()
    assert card.locator(".note").count() == 0
    assert page.locator(".meter-fill.red").count() == 0
    assert re.search(r"\d{3}%: [\d.,k]+ of 80k tokens held", card.inner_text())
    chinese = open_page(f"{url}/#/models/qwen3-4b", lang="zh")
    chinese.locator(".capacity-card").get_by_text("使用中的只需要 68%").wait_for()
    mock.world.room = {"demand_ratio": 1.3}
    card.locator(".note.warning").get_by_text("no longer fit the caches").wait_for()
    assert page.locator(".replicas .meter-fill.red").count() > 0


def test_room_for_more_says_what_it_leaves_out(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.locator(".capacity-card").get_by_text("Beside those in use: idle ones give way.").wait_for()


def test_a_demand_that_is_not_known_is_no_percentage(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.room = {"demand_ratio": None, "why_code": "no_capacity"}
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    card = page.locator(".waiting-room")
    card.get_by_text("the engines do not say how much their caches hold").wait_for()
    figures = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert figures["Demand"] == "–"


def test_the_advice_of_a_cpu_tier_has_its_size(open_page: OpenPage, mock: MockConsole) -> None:
    params = {"demand_ratio": 1.42, "residents": 3, "waiting": 2, "tier_tokens": 73_000, "tier_gib": 10.0}
    mock.world.extra_warnings = [
        {"code": "waiting_room", "level": "warning", "text": "server", "what_to_do": "server", "params": params}
    ]
    url = mock.start()
    page = open_page(url)
    page.get_by_text("of at least 73,000 tokens for each replica, which are 10 GiB, end the waiting").wait_for()
    open_page(url, lang="zh").get_by_text("每个副本至少 73,000 token，即 10 GiB").wait_for()
