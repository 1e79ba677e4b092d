"""The page on a real warden with a simulated engine: it walks through, and its figures are the engine's own."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.page.conftest import DESKTOP, PHONE, OpenPage
from tests.page.look import answered, expect, shows, until_seen, until_told_anew
from tests.page.test_walk import Look, walk, walk_to_the_sign_in
from tests.real.warden_process import TokenSums, WardenProcess, engine_counted, start_configured_warden
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Page

CONVERSATIONS, TURNS = 5, 4
MODEL = "qwen3-4b"
CONFIGURATION = f"""
[[models]]
name = "{MODEL}"
[models.engine]
launch = "simulated"
model = "{MODEL}"
replicas = 4
layout = "shared"
max_num_seqs = 32
args = ["--speed", "20"]
"""


class House(NamedTuple):
    """A warden after a run of a few conversations."""

    warden: WardenProcess
    engine_url: str
    counted: TokenSums
    """What the engine itself counted for that run."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A warden that launched an engine, and a run."""
    folder = tmp_path_factory.mktemp("warden")
    file = folder / "lmwarden.toml"
    file.write_text(CONFIGURATION)
    warden = start_configured_warden(["--config", str(file)], MODEL, folder)
    try:
        warden.wait_for_pins()
        engine_url = ask(f"{warden.console_url}/api/engines")["engines"][0]["url"]
        before = sum(engine_counted(engine_url).values(), TokenSums())
        for turn in range(TURNS):
            for conversation in range(CONVERSATIONS):
                chat(warden, f"session-{conversation}", turn)
        counted = sum(engine_counted(engine_url).values(), TokenSums()) - before
        yield House(warden, engine_url, counted)
    finally:
        warden.stop()


def chat(warden: WardenProcess, session: str, turn: int) -> None:
    """One turn: everything that was said before, and a little more."""
    words = [f"{session} word{number} of a history that grows" for number in range(150 + 40 * turn)]
    body = {"model": MODEL, "max_tokens": 24, "messages": [{"role": "user", "content": "\n".join(words)}]}
    headers = {"Content-Type": "application/json", "X-Session-Id": session}
    request = urllib.request.Request(
        f"{warden.client_url}/v1/chat/completions", data=json.dumps(body).encode(), headers=headers
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        response.read()


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        return json.load(response)


# Each page in each look, half of them on a desk and half on a phone.
@pytest.mark.parametrize(
    ("looks", "size"),
    [([Look("en", "light"), Look("zh", "dark")], DESKTOP), ([Look("zh", "light"), Look("en", "dark")], PHONE)],
    ids=["desk", "phone"],
)
def test_every_page(open_page: OpenPage, house: House, shots: Path, looks: list[Look], size: tuple[int, int]) -> None:
    page = open_page(house.warden.console_url, lang=looks[0].lang, theme=looks[0].theme, size=size)
    walk(page, looks, shots, f"warden-{{}}-{{}}-{'desk' if size == DESKTOP else 'phone'}")
    expect(page.locator(".log")).not_to_be_empty()  # the engine's own words


def test_the_sign_in(open_page: OpenPage, house: House, shots: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text("open sesame")
    file = tmp_path / "lmwarden.toml"
    file.write_text(
        f'console.password_file = "{password}"\n[[models]]\nengine.attach = ["{house.engine_url}"]\nname = "{MODEL}"\n'
    )
    warden = start_configured_warden(["--config", str(file)], MODEL, tmp_path)
    try:
        walk_to_the_sign_in(open_page(warden.console_url), shots, "warden-{}-{}-desk", "open sesame")
    finally:
        warden.stop()


def column(page: Page, head: str) -> list[int]:
    """The numbers of one column of a list."""
    heads = [text.strip() for text in page.locator(".virtual thead th").all_inner_texts()]
    cells = page.locator(f".virtual tbody td:nth-child({heads.index(head) + 1})").all_inner_texts()
    return [int(cell.replace(",", "")) for cell in cells]


def test_the_figures_are_the_engines_own_to_the_token(open_page: OpenPage, house: House) -> None:
    page = open_page(f"{house.warden.console_url}/#/requests", size=(1440, 2400))
    page.wait_for_function(f"() => document.querySelectorAll('.virtual tbody tr').length === {CONVERSATIONS * TURNS}")
    assert house.counted.cached > 0
    until_seen(
        page,
        lambda: TokenSums(*(sum(column(page, head)) for head in ("Prompt", "Cached", "Completion"))),
        lambda sums: sums == house.counted,
    )


def test_the_card_counts_what_was_routed(open_page: OpenPage, house: House) -> None:
    page = open_page(f"{house.warden.console_url}/#/models/{MODEL}")
    replicas = until_seen(
        page,
        lambda: house.warden.routing()["replicas"],
        lambda rows: sum(row["sticky"] for row in rows) == CONVERSATIONS * (TURNS - 1),
    )
    for nth, counter in ((2, "sticky"), (10, "placed")):
        cells = page.locator(f".replicas tbody td:nth-of-type({nth})")
        expect(cells).to_have_text([str(replica[counter]) for replica in replicas])
    ratio = pytest.approx(house.counted.cached / house.counted.prompt)
    path = f"{house.warden.console_url}/api/stats/cached?window=1h&model={MODEL}"
    until_seen(page, lambda: ask(path)["cached_ratio"], lambda seen: seen == ratio)
    shows(page.locator(".labels"), "Affinity on", "Spill threshold 8 (auto)", "Sticky 100.0%", "In flight 0")


def test_the_history_says_the_same(open_page: OpenPage, house: House) -> None:
    url = house.warden.console_url
    page = open_page(f"{url}/#/stats")

    def counted() -> TokenSums:
        totals = ask(f"{url}/api/stats/tokens?window=1h")["totals"]
        return TokenSums(totals["cached"] + totals["computed"], totals["cached"], totals["completion"])

    until_seen(page, counted, lambda sums: sums == house.counted)
    page.reload()
    ratio = round(100 * house.counted.cached / house.counted.prompt)
    expect(page.locator(".chart-note").first).to_have_text(f"cached {ratio}% over the last hour")


def test_a_request_for_a_model_that_is_not_there_leaves_a_trace(open_page: OpenPage, house: House) -> None:
    body = json.dumps({"model": "no-such-model", "messages": []}).encode()
    request = urllib.request.Request(
        f"{house.warden.client_url}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    refused.value.close()
    page = open_page(f"{house.warden.console_url}/#/requests")
    page.locator(".own-answers .badge", has_text="404 unknown model 1").wait_for()


def test_the_waiting_room_is_set_on_the_page(open_page: OpenPage, house: House) -> None:
    page = open_page(f"{house.warden.console_url}/#/models/{MODEL}")
    card = page.locator(".waiting-room")
    card.get_by_text("open: nobody is held").wait_for()
    expect(card.get_by_label("Automatic")).to_be_checked()
    with answered(page):
        card.get_by_label("Tail").click()
    longest = card.get_by_label("Longest wait (s)")
    longest.fill("60")
    with answered(page):
        longest.press("Enter")
    expect(longest).to_have_value("60")
    card.get_by_label("Off", exact=True).click()
    card.get_by_text("Off: every request goes at once").wait_for()
    admission = house.warden.routing()["admission"]
    assert (admission["mode"], admission["prefer"], admission["max_wait_s"]) == ("off", "tail", 60.0)
    until_told_anew(page)
    with answered(page):
        card.get_by_label("Automatic").click()
    until_told_anew(page)
    card.get_by_label("Balanced").click()
    page.wait_for_function("() => document.querySelector('.choices .chosen dt')?.textContent === 'Balanced'")


def test_a_conversation_is_explained(open_page: OpenPage, house: House) -> None:
    page = open_page(f"{house.warden.console_url}/#/conversations")
    expect(page.locator(".virtual tbody a")).to_have_count(CONVERSATIONS)
    page.locator(".virtual tbody a").first.click()
    stayed = re.compile(r"^Stayed home: e0/\d had 0 in flight, not above the spill threshold 8\.\s*$")
    placed = re.compile(r"^New conversation: e0/\d was the least loaded of 4 \(score ")
    expect(page.locator(".turn-why")).to_have_text([*[stayed] * (TURNS - 1), placed])


def test_affinity_is_switched_on_the_page(open_page: OpenPage, house: House) -> None:
    page = open_page(f"{house.warden.console_url}/#/models/{MODEL}")
    page.get_by_role("switch").click()
    page.wait_for_selector("[role=switch][aria-checked=false]")
    assert house.warden.routing()["affinity"] is False
    until_told_anew(page)  # what is clicked next is what was switched
    page.get_by_role("switch").click()
    page.wait_for_selector("[role=switch][aria-checked=true]")
    assert house.warden.routing()["affinity"] is True
