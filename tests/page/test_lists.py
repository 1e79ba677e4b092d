"""Conversations, requests, prefix breakers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.page.conftest import PHONE, OpenPage
from tests.page.look import expect, fits_its_window, go, has_address, is_accessible, shows, until_seen
from tests.page.made_up import World, key_of
from tests.page.made_up_parts import ROOM_ENGAGED
from tests.page.mock_console import MockConsole

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def test_5000_conversations_are_a_few_rows(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world = World(replicas=8, conversations=5000)
    page = open_page(f"{mock.start()}/#/conversations?state=all")
    page.wait_for_selector(".virtual tbody a")
    shows(page.locator(".list-count"), "of 5,000")
    for shown in range(200, 600, 100):  # each time the end comes into view the next page is asked for
        page.evaluate("() => { const box = document.querySelector('.virtual'); box.scrollTop = box.scrollHeight; }")
        page.wait_for_function(
            "(shown) => parseInt(document.querySelector('.list-count').textContent) >= shown", arg=shown
        )
    rows = page.locator(".virtual tbody tr")
    until_seen(page, lambda: rows.count(), lambda count: 0 < count < 80)


def test_the_order_is_held_under_the_pointer(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/conversations")
    page.add_init_script("performance.now = () => 0")  # a pointer that has parked for ten seconds holds nothing
    page.reload()
    page.wait_for_selector(".virtual tbody a")
    names = page.locator(".virtual tbody a")
    page.locator(".virtual").hover()
    before = until_seen(page, lambda: names.all_inner_texts()[:15], lambda seen: len(seen) == 15)
    last = mock.world.conversations[-1]
    last["age_s"] = -1e6  # it was used later than all others, and would be the first
    for _ in range(2):
        page.wait_for_event("response", lambda response: "/conversations?" in response.url)
    assert until_seen(page, lambda: names.all_inner_texts()[:15], lambda seen: len(seen) == 15) == before
    page.mouse.move(5, 5)
    page.wait_for_function(
        "(name) => document.querySelector('.virtual tbody a').textContent === name", arg=last["short"]
    )


@pytest.mark.parametrize(
    ("lang", "chosen", "empty", "since"),
    [("en", "Waiting", "No conversation waits", r"since .+ \(.+s\)"), ("zh", "等候中", "没有对话在等候", "自 .+ 起")],
)
def test_who_waits_is_listed_with_key_and_time_the_longest_wait_first(
    open_page: OpenPage, mock: MockConsole, lang: str, chosen: str, empty: str, since: str
) -> None:
    page = open_page(f"{mock.start()}/#/conversations", lang=lang, size=PHONE)
    page.get_by_label(chosen, exact=True).click()
    has_address(page, "#/conversations?state=waiting")
    page.get_by_text(empty).wait_for()
    mock.world.room = ROOM_ENGAGED
    waits = [row for row in mock.world.conversations if row["holds"]]
    waits.sort(key=lambda row: (-row["turns"], row["id"]))
    expect(page.locator(".virtual tbody a")).to_have_text([row["short"] for row in waits])
    keys = [row["key_name"] or "–" for row in waits]
    expect(page.locator(".virtual tbody td:nth-child(2)")).to_have_text(keys)
    assert "alice-laptop" in keys
    shows(page.locator(".virtual tbody tr").first, re.compile(since))
    is_accessible(page)
    fits_its_window(page)
    page.locator(".virtual tbody a").first.click()
    shows(page.locator(".figures-row"), re.compile(since))


def test_a_turn_that_runs_is_not_taken_for_one_that_is_gone(open_page: OpenPage, mock: MockConsole) -> None:
    row = next(row for row in mock.world.conversations if row["in_flight"] and 1 < row["turns"] < 60)
    page = open_page(f"{mock.start()}/#/conversations/{row['id']}")
    page.wait_for_selector(".turn")
    expect(page.locator(".turn")).to_have_count(row["turns"])
    gone = page.get_by_text("Older turns are not kept here.")
    expect(gone).to_have_count(0)
    row["turns"] += 2
    mock.world.kept_turns = row["turns"] - 2
    gone.wait_for()


def test_a_conversation_says_why_in_words_with_the_numbers(open_page: OpenPage, mock: MockConsole) -> None:
    row = next(row for row in mock.world.conversations if row["turns"] > 13 and row["kind"] == "main")
    page = open_page(f"{mock.start()}/#/conversations/{row['id']}")
    page.wait_for_selector(".turn")
    home = row["home"]
    away = "e1/0" if home != "e1/0" else "e3/0"
    shows(
        page.locator(".timeline"),
        f"Its home {home} had 11 in flight, above the spill threshold 8; {away} took this turn.",
        "not above the spill threshold 8.",
        f"New conversation: {home} was the least loaded of 4 (score 0.40; next e",
        "The tools changed: 31% of the previous request's beginning came again",
        re.compile(r"Spilled to another replica: [\d,]+ tokens read again"),  # a turn names it as its sum
        "Failed 502",
        "It waited 7.5 s in the waiting room.",
        "waiting room 7.5 s · queue and prefill",
    )
    detail = mock.world.conversation(row["id"])
    assert detail is not None
    for cause, words in (
        ("evicted", "Pushed out of the cache"),
        ("spilled", "Spilled to another replica"),
        ("tools_changed", "The tools changed"),
    ):
        shows(page.locator(".costs"), words, f"{detail['recomputed_by_cause'][cause]:,} tokens")
    expect(page.locator(".turn")).to_have_count(row["turns"])


def turn(page: Page, words: str) -> Locator:
    """The turn of the timeline in which these words stand."""
    return page.locator(".turn", has_text=words).first


def conversation_of(mock: MockConsole, client: str) -> str:
    rows = mock.world.conversations
    return str(next(row["id"] for row in rows if row["client"] == client and row["turns"] > 12))


def test_what_is_not_known_of_a_turn_is_not_made_up(open_page: OpenPage, mock: MockConsole) -> None:
    url = mock.start()
    page = open_page(f"{url}/#/conversations/{conversation_of(mock, 'claude-code')}")
    page.wait_for_selector(".turn")
    left = turn(page, "Cancelled")
    shows(left, "cached part not known · generated not known")
    expect(left.locator(".bar .unmeasured")).to_have_count(1)
    expect(left.locator(".bar .computed")).to_have_count(0)
    page = open_page(f"{url}/#/conversations/{conversation_of(mock, 'curl')}")
    page.wait_for_selector(".turn")
    whole = turn(page, "answer in one piece")
    expect(whole).not_to_contain_text(re.compile("decode|prefill"))
    expect(whole.locator(".bar .first, .bar .decode")).to_have_count(0)


def test_bars_have_one_scale(open_page: OpenPage, mock: MockConsole) -> None:
    key = conversation_of(mock, "claude-code")
    page = open_page(f"{mock.start()}/#/conversations/{key}")
    page.wait_for_selector(".turn")
    detail = mock.world.conversation(key)
    assert detail is not None
    longest = max(turn["duration_s"] for turn in detail["turns"])
    bars = page.locator(".turn .turn-line:last-child .bar")
    widths = """(bars) => bars.map((bar) => {
        const widths = [bar, ...bar.children].map((box) => box.getBoundingClientRect().width);
        return widths.slice(1).reduce((sum, width) => sum + width, 0) / widths[0];
    })"""
    wanted = pytest.approx([turn["duration_s"] / longest for turn in detail["turns"]], abs=0.03)
    until_seen(page, lambda: bars.evaluate_all(widths), lambda seen: seen == wanted)


def test_subagents_hang_below_their_parent(open_page: OpenPage, mock: MockConsole) -> None:
    parent = key_of("conversation", 10)
    page = open_page(f"{mock.start()}/#/conversations/{parent}")
    page.wait_for_selector(".tree li")
    expect(page.locator(".tree li")).to_have_count(2)
    page.locator(".tree a").first.click()
    page.locator("a", has_text=parent[:8]).click()
    page.wait_for_selector(".tree li")


def test_a_conversation_that_is_not_there(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/conversations/{'0' * 32}")
    page.get_by_text("No conversation of that id is known.").wait_for()
    expect(page.locator(".note.warning")).to_have_count(0)


def test_requests_are_filtered_and_say_why(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/requests")
    page.wait_for_selector(".virtual tbody tr")
    page.get_by_label("Decision").select_option("spilled")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.virtual tbody .badge-button')].every((b) => b.textContent === 'Spilled')"
    )
    page.locator(".badge-button").first.click()
    shows(page.locator(".why-line"), "above the spill threshold 8")
    page.get_by_label("Key").select_option("alice-laptop")
    page.get_by_role("combobox", name="Replica", exact=True).select_option("e1/0")
    page.get_by_role("combobox", name="Client", exact=True).select_option("claude-code")
    page.get_by_label("Outcome").select_option("failed")
    page.get_by_text("No request matches.").wait_for()
    page.get_by_role("button", name="Clear the filters").click()
    page.wait_for_selector(".virtual tbody tr")
    has_address(page, "#/requests")


def test_the_slowest_requests_stand_first_on_every_page(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/requests")
    page.wait_for_selector(".virtual tbody tr")
    page.get_by_label("Order").select_option("duration")
    times = sorted((row["duration_s"] for row in mock.world.list_requests({})), reverse=True)
    page.wait_for_function(
        "(first) => document.querySelector('.duration')?.textContent.trim() === first", arg=in_words(times[0])
    )
    page.evaluate("() => { const box = document.querySelector('.virtual'); box.scrollTop = box.scrollHeight; }")
    page.wait_for_function("() => document.querySelector('.virtual').scrollHeight > 34 * 150")  # the second page
    page.evaluate("() => { document.querySelector('.virtual').scrollTop = 34 * 125; }")
    # Rows are numbered from the head, which is 1.
    expect(page.locator(".virtual tbody tr[aria-rowindex='130'] .duration")).to_have_text(in_words(times[128]))
    has_address(page, "#/requests?sort=duration")


def in_words(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def test_what_the_warden_answered_itself_is_counted(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/requests")
    page.wait_for_selector(".virtual tbody tr")
    expect(page.locator(".own-answers")).to_have_count(0)
    mock.world.own_answers = [
        {"status": 401, "code": "invalid_api_key", "count": 3},
        {"status": 404, "code": "model_not_found", "count": 1200},
        {"status": 418, "code": "of_a_later_version", "count": 1},
    ]
    expect(page.locator(".own-answers .badge")).to_have_text(
        ["404 unknown model 1,200", "401 key missing or wrong 3", "418 of a later version 1"]
    )


def test_a_new_home_is_not_called_a_lost_one(open_page: OpenPage, mock: MockConsole) -> None:
    url = mock.start()
    page = open_page(f"{url}/#/breakers")
    row = page.locator(".breakers tbody", has_text="Moved to another home")
    row.get_by_text("or had dropped its context while it waited for a place").wait_for()
    shows(row, "If the waiting room is engaged: see its card")
    chinese = open_page(f"{url}/#/breakers", lang="zh").locator(".breakers tbody", has_text="换了归属")
    chinese.get_by_text("等候室生效时：见其卡片").wait_for()
    expect(page.locator(".intro")).not_to_contain_text("home")  # turns that went elsewhere are in the table too


def test_prefix_breakers_say_what_to_set(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/breakers")
    first = page.locator(".breakers tbody tr").first
    shows(first, "Pushed out of the cache", "kv_offload_gib", "2,314,400")  # the costliest comes first
    clients = page.locator(".breakers tbody").first.locator("tr td:first-of-type")
    expect(clients).to_have_text(["Claude Code", "Codex"])  # each client that lost something to this cause
    page.get_by_text("1 hour").click()
    page.get_by_text("210,400").wait_for()
    page.locator(".breakers tbody a").first.click()
    page.wait_for_selector(".turn")


def test_a_tick_when_the_first_request_arrives(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/connect?model=qwen3-4b")
    page.wait_for_selector(".tick.info")
    page.get_by_role("tab", name="Claude Code").focus()
    page.keyboard.press("ArrowRight")
    shows(page.locator(".connect-text pre"), "# Codex: put this into")
    for _ in range(2):  # by the second answer the page has seen what was there before
        page.wait_for_event("response", lambda response: "/api/requests?" in response.url)
    mock.request_arrives()
    page.wait_for_selector(".tick.ok")
    shows(page.locator(".tick"), "First request: Claude Code → e2/0 (Placed)")


def test_the_address_of_a_filtered_list_can_be_sent(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/requests?decision=placed")
    page.wait_for_selector(".virtual tbody tr")
    expect(page.get_by_label("Decision")).to_have_value("placed")
    go(page, "#/requests?decision=sticky")
    page.wait_for_function("() => document.querySelector('.virtual tbody .badge-button')?.textContent === 'Sticky'")
