"""The engines on the model's page: what a crash leaves, what a restart asks, what is no news any more."""

from __future__ import annotations

import re
import time

from tests.page.conftest import OpenPage
from tests.page.look import expect, shows
from tests.page.mock_console import MockConsole

CRASH = {"at": time.time() - 300, "exit_status": -9, "was_ready": True, "pause_s": 0.0, "over_at": None}


def test_a_crash_that_healed_leaves_its_trace(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.crashes["e1"] = {"last_crash": CRASH | {"over_at": time.time() - 280}}
    url = mock.start()
    page = open_page(f"{url}/#/models/qwen3-4b")
    page.get_by_role("article", name="e1").get_by_text("signal 9 at").wait_for()
    shows(page.get_by_role("article", name="e1"), "; started again by itself")
    expect(page.get_by_text("Last crash")).to_have_count(1)  # of the one that crashed alone
    expect(page.locator(".warnings")).to_have_count(0)  # a line, not an alarm
    chinese = open_page(f"{url}/#/models/qwen3-4b", lang="zh").get_by_role("article", name="e1")
    chinese.get_by_text("，信号 9；已自动重新启动").wait_for()


def test_a_start_after_a_crash_is_said_in_the_language_of_the_page(open_page: OpenPage, mock: MockConsole) -> None:
    starting = {"phase": "starting", "detail": "starting", "step": "loading weights", "since": time.time() - 3}
    mock.world.crashes["e1"] = {**starting, "last_crash": CRASH}
    params = {"engine": "e1", "detail": "in English", "when": "running", "signal": 9, "step": "loading weights"}
    text = "e1: it ended by signal 9 and is started again (loading weights)"
    mock.world.extra_warnings = [
        {"code": "engine_crashed", "level": "fault", "text": text, "what_to_do": "look", "params": params}
    ]
    url = mock.start()
    page = open_page(f"{url}/#/models/qwen3-4b")
    page.locator(".warnings").get_by_text(text).wait_for()
    start = page.get_by_role("article", name="e1").locator(".start")
    expect(start).to_have_text(re.compile(r"^loading weights \("))
    chinese = open_page(f"{url}/#/models/qwen3-4b", lang="zh")
    said = "e1 崩溃了：在运行中被信号 9 终止；正在重新启动（正在加载权重）"
    chinese.locator(".warnings").get_by_text(said).wait_for()
    expect(chinese.get_by_role("article", name="e1").locator(".start")).to_have_text(re.compile("^正在加载权重…"))
    expect(chinese.locator("main [lang=en]")).to_have_count(0)


def test_the_last_ready_replica_is_not_taken_by_a_slip(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.drained = {"e0/0", "e2/0", "e3/0"}
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    for button in ("Drain e1/0", "Restart e1"):
        page.get_by_role("button", name=button).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("without it every request is refused").wait_for()
        go_on = dialog.locator(".button.danger")
        expect(go_on).to_be_disabled()
        dialog.get_by_label("Also if no other replica is ready").click()
        expect(go_on).to_be_enabled()
        dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Restart e0").click()
    expect(page.get_by_role("dialog").locator(".button.danger")).to_be_enabled()  # e1 serves meanwhile
    expect(page.get_by_role("dialog").get_by_text("every request is refused")).to_have_count(0)
    assert mock.changes == []


def test_a_restart_of_an_engine_that_is_down_says_that_it_waits_for_nothing(
    open_page: OpenPage, mock: MockConsole
) -> None:
    mock.world.states = {"e1/0": {"state": "down"}}
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    for engine, text in (("e1", "What is open there is cut"), ("e0", "Its open requests finish first")):
        page.get_by_role("button", name=f"Restart {engine}").click()
        dialog = page.get_by_role("dialog")
        shows(dialog, text)
        dialog.get_by_role("button", name="Cancel").click()


def test_a_restart_that_ended_well_long_ago_is_no_news(open_page: OpenPage, mock: MockConsole) -> None:
    mock.world.begin_rolling_restart()
    mock.world.operation_began = time.time() - 300
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.locator(".operation").get_by_text("Rolling restart: done").wait_for()
    mock.world.operation_began = time.time() - 3600
    page.locator(".operation").wait_for(state="detached")
