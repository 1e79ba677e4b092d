"""Signing in, keys, and who may change."""

from __future__ import annotations

import re

import pytest
from tests.page.conftest import OpenPage
from tests.page.look import expect, is_accessible, shows
from tests.page.mock_console import MockConsole


def test_signing_in_and_out(open_page: OpenPage, mock: MockConsole) -> None:
    mock.password = "open sesame"
    page = open_page(f"{mock.start()}/#/keys")
    password = page.get_by_label("Password")
    password.wait_for()
    expect(page.get_by_role("navigation")).to_have_count(0)
    is_accessible(page)
    password.fill("wrong")
    password.press("Enter")
    page.get_by_text("That is not the password.").wait_for()
    for _ in range(2):
        password.fill("wrong")
        password.press("Enter")
        # The field is emptied with the answer; what is typed before that would go with it.
        page.wait_for_function("() => document.querySelector('input[type=password]').value === ''")
    page.get_by_text("Too many tries. Wait 30 s.").wait_for()
    password.fill("open sesame")
    password.press("Enter")
    page.get_by_role("heading", name="Keys").wait_for()  # where one wanted to go
    page.wait_for_selector(".live.ok")
    # A change carries the token of the session.
    page.get_by_label("Name").fill("new-key")
    page.get_by_role("button", name="Create a key").click()
    page.wait_for_selector("dialog[open]")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Sign out").click()
    password.wait_for()


def test_a_session_that_ends_meanwhile_leads_to_the_sign_in(open_page: OpenPage, mock: MockConsole) -> None:
    url = mock.start()
    page = open_page(f"{url}/#/keys")
    page.wait_for_selector(".live.ok")
    mock.password = "set while it runs"
    mock.down = True  # the page asks again; or its list did before, and was refused
    page.get_by_label("Password").wait_for()


def test_a_key_is_shown_once(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/keys")
    name = page.get_by_label("Name")
    create = page.get_by_role("button", name="Create a key")
    name.fill("not a name")
    expect(create).to_be_disabled()
    name.fill("ci")
    create.click()
    page.locator(".news").get_by_text("exists already").wait_for()
    name.fill("build-bot")
    create.click()
    secret = page.get_by_label("The key", exact=True)
    expect(secret).to_have_value(re.compile(r"^lmw_[\w-]{43}$"))
    is_accessible(page)
    # It cannot be shown again, so a slip of the finger does not close it: the button is still there to be pressed.
    page.keyboard.press("Escape")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Revoke build-bot").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    page.wait_for_function("() => !document.querySelector('main').textContent.includes('build-bot')")
    assert [key["name"] for key in mock.world.keys] == ["alice-laptop", "ci"]


@pytest.mark.parametrize(
    ("keyless", "says", "chinese"),
    [
        ("nobody", "nobody is served: this warden asks for a key", "在创建密钥之前，不为任何人提供服务"),
        ("this_machine", "requests are accepted from this machine only", "只接受来自本机的请求"),
        ("everybody", "from everybody who reaches the client port", "任何能访问客户端端口的人都可以使用"),
    ],
)
def test_who_is_served_without_a_key_is_said(
    open_page: OpenPage, mock: MockConsole, keyless: str, says: str, chinese: str
) -> None:
    mock.keyless, mock.world.keys = keyless, []
    url = mock.start()
    open_page(f"{url}/#/keys", lang="zh").get_by_text(chinese).wait_for()
    page = open_page(f"{url}/#/keys")
    page.get_by_text(says).wait_for()
    page.get_by_text("No key yet.").wait_for()
    expect(page.locator(".note.warning")).to_have_count(int(keyless == "everybody"))


def test_an_open_port_is_warned_of_although_there_are_keys(open_page: OpenPage, mock: MockConsole) -> None:
    mock.keyless = "everybody"
    page = open_page(f"{mock.start()}/#/keys")
    page.locator("tbody").get_by_text("alice-laptop").wait_for()
    page.locator(".note.warning").get_by_text("Requests are accepted without a key").wait_for()


def test_a_key_may_be_for_some_models_only(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/keys")
    page.get_by_label("Name").fill("anna")
    create = page.get_by_role("button", name="Create a key")
    page.get_by_label("all models").click()
    expect(create).to_be_disabled()  # a key for no model is none
    page.get_by_role("checkbox", name="qwen3-27b").click()
    create.click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.locator("tbody tr")).to_contain_text(
        ["alice-laptop all models", "ci qwen3-4b", "anna qwen3-27b"], use_inner_text=True
    )
    assert mock.changes == [("POST", "/api/keys", {"name": "anna", "models": ["qwen3-27b"]})]
    expect(page.get_by_label("all models")).to_be_checked()  # the next one begins anew


def test_who_may_only_look_is_told_so(open_page: OpenPage, mock: MockConsole) -> None:
    mock.may_change = False
    page = open_page(f"{mock.start()}/#/models/qwen3-4b")
    page.wait_for_selector(".replicas tbody tr")
    expect(page.get_by_role("switch")).to_be_disabled()
    expect(page.get_by_role("button", name="Drain e0/0")).to_be_disabled()
    shows(page.locator(".settings-card"), "You can look")


def test_settings_say_where_they_come_from(open_page: OpenPage, mock: MockConsole) -> None:
    page = open_page(f"{mock.start()}/#/settings")
    page.get_by_label("Search").fill("port")
    rows = page.locator(".settings tbody tr:has(td)")
    expect(rows).to_have_text(["client.port 8080 default", "console.port 8081 --console-port"], use_inner_text=True)
