"""What to set in each client, as the browser that asks would reach this warden."""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

import aiohttp
import pytest
from tests.console.conftest import ENGINE, serving
from tests.console.scene import Console, Scene
from tests.ledger.samples import LIMIT_S, record

from lmwarden.access.keys import KeyStore
from lmwarden.config import Flag, load
from lmwarden.console.app import Parts
from lmwarden.console.connect_texts import Client
from lmwarden.ledger.ledger import Ledger

CONNECT = "/api/connect"


async def test_the_texts_of_all_clients(whole_console: Console) -> None:
    answer = await whole_console.get(f"{CONNECT}?model=org/model")
    assert (answer["model"], answer["url"], answer["key_needed"]) == ("org/model", "http://127.0.0.1:8080", False)
    assert [line["client"] for line in answer["clients"]] == list(get_args(Client))
    for line in answer["clients"]:
        assert "http://127.0.0.1:8080" in line["text"]
        assert "org/model" in line["text"]
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768" in answer["clients"][0]["text"]
    assert (await whole_console.get(CONNECT))["model"] == "org/model"
    assert "no model" in (await whole_console.get(f"{CONNECT}?model=nobody", 404))["error"]


@pytest.mark.parametrize(
    ("bound", "host", "url"),
    [
        ("0.0.0.0", "warden.example:8081", "http://warden.example:8080"),
        ("::", "[::1]:8081", "http://[::1]:8080"),
        ("10.1.2.3", "warden.example", "http://10.1.2.3:8080"),
        ("2001:db8::1", "warden.example", "http://[2001:db8::1]:8080"),
    ],
)
async def test_the_address_is_one_that_the_browser_reaches(
    ledger: Ledger, keys: KeyStore, bound: str, host: str, url: str
) -> None:
    config = load(None, [Flag("--engine", ("models",), ENGINE), Flag("--host", ("client", "host"), bound)])
    async with aiohttp.ClientSession() as session:
        parts = Parts(config, 8080, ledger, keys)
        async with (
            serving(Scene(session), session, parts=parts) as console,
            session.get(console.url + CONNECT, headers={"Host": host}) as response,
        ):
            answer = await response.json()
    assert answer["url"] == url
    # Reachable from elsewhere, so it wants a key; the texts say how to get one.
    assert answer["key_needed"]
    assert "lmwarden keys create" in answer["clients"][0]["text"]


async def test_the_first_request_ticks(whole_console: Console, ledger: Ledger) -> None:
    assert (await whole_console.get(CONNECT))["first_request_at"] is None
    now = time.time()
    ledger.record(record(model="org/model", finished_at=now + 1))
    ledger.record(record(model="org/model", finished_at=now + 2))
    assert ledger.flush(LIMIT_S)
    assert (await whole_console.get(CONNECT))["first_request_at"] == now + 1
    assert (await whole_console.get(f"{CONNECT}?since={now + 1.5}"))["first_request_at"] == now + 2
    assert (await whole_console.get(f"{CONNECT}?since={now + 3}"))["first_request_at"] is None
    for since in ("x", "nan", "inf", ""):
        assert "Unix seconds" in (await whole_console.get(f"{CONNECT}?since={since}", 400))["error"]


async def test_without_a_history_it_is_not_known(whole_console: Console, ledger: Ledger, tmp_path: Path) -> None:
    ledger.stop()
    ledger.path.write_bytes(b"no database at all" * 100)
    assert (await whole_console.get(CONNECT))["first_request_at"] is None
