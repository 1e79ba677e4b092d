"""Keys on the console: made and shown once, listed with their use, revoked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message
from tests.console.scene import Console
from tests.ledger.samples import LIMIT_S, record

from lmwarden.access.keys import Authenticator, KeyStore
from lmwarden.console import keys_api
from lmwarden.console.check_client import Keyless
from lmwarden.ledger.ledger import Ledger

KEYS = "/api/keys"


async def test_a_key_is_made_shown_once_and_works(whole_console: Console, keys: KeyStore) -> None:
    made = await whole_console.ask("POST", KEYS, 201, {"name": "anna"})
    assert made["name"] == "anna"
    found = Authenticator(keys, b"s" * 32, required=True).check(made["key"].encode())
    assert found is not None
    assert found.name == "anna"
    async with whole_console.session.get(whole_console.url + KEYS) as response:
        text = await response.text()
    assert made["key"] not in text
    assert keys.stored()[0].digest not in text
    assert made["key"] not in repr(keys_api.MadeKey("anna", made["key"]))


async def test_the_list_says_how_each_is_used(whole_console: Console, ledger: Ledger, keys: KeyStore) -> None:
    assert await whole_console.get(KEYS) == {"items": [], "next": None, "keyless": "this_machine"}
    keys.create("anna")
    keys.create("ben")
    now = time.time()
    ledger.record(record(key_name="anna", finished_at=now))
    ledger.record(record(key_name="anna", finished_at=now - 2 * 86_400))
    assert ledger.flush(LIMIT_S)
    anna, ben = (await whole_console.get(KEYS))["items"]
    assert abs(anna.pop("created_at") - now) < 60
    assert anna == {
        "name": "anna", "last_used_at": now, "requests_24h": 1, "prompt_tokens_24h": 1000, "completion_tokens_24h": 50,
        "models": None,
    }  # fmt: skip
    assert (ben["name"], ben["last_used_at"], ben["requests_24h"]) == ("ben", None, 0)


async def test_it_is_paged(whole_console: Console, keys: KeyStore) -> None:
    for name in ("a", "b", "c"):
        keys.create(name)
    page = await whole_console.get(f"{KEYS}?limit=2")
    assert [item["name"] for item in page["items"]] == ["a", "b"]
    rest = await whole_console.get(f"{KEYS}?limit=2&before={page['next']}")
    assert ([item["name"] for item in rest["items"]], rest["next"]) == (["c"], None)
    for query in ("limit=0", "limit=501", "limit=x", "before=-1"):
        assert "must be an integer" in (await whole_console.get(f"{KEYS}?{query}", 400))["error"]


async def test_a_key_is_revoked(whole_console: Console, keys: KeyStore) -> None:
    keys.create("anna")
    await whole_console.ask("DELETE", f"{KEYS}/anna", 204)
    assert keys.stored() == []
    assert "there is no key 'anna'" in (await whole_console.ask("DELETE", f"{KEYS}/anna", 404))["error"]


async def test_names_that_cannot_be(whole_console: Console, keys: KeyStore) -> None:
    keys.create("anna")
    for body in ({"name": "anna"}, {"name": ""}, {"name": "a b"}, {"name": 7}, {}, {"name": "x", "more": 1}):
        answer = await whole_console.ask("POST", KEYS, 400, body)
        assert "\n" not in answer["error"]
    assert len(keys.stored()) == 1


async def test_a_key_is_limited_to_models(whole_console: Console, keys: KeyStore) -> None:
    made = await whole_console.ask("POST", KEYS, 201, {"name": "anna", "models": ["org/model"]})
    assert made["models"] == ["org/model"]
    await whole_console.ask("POST", KEYS, 201, {"name": "ben", "models": None})
    lines = (await whole_console.get(KEYS))["items"]
    assert [line["models"] for line in lines] == [["org/model"], None]
    assert [key.models for key in keys.stored()] == [["org/model"], None]


async def test_what_is_answered_is_what_is_kept(whole_console: Console, keys: KeyStore) -> None:
    made = await whole_console.ask("POST", KEYS, 201, {"name": "anna", "models": ["org/model", "org/model"]})
    assert made["models"] == keys.stored()[0].models == ["org/model"]


@pytest.mark.parametrize("body", [{"name": "x", "more": 1}, {"name": "x", "model": ["org/model"]}, {"models": None}])
async def test_what_a_body_may_have_is_said(whole_console: Console, keys: KeyStore, body: dict[str, Any]) -> None:
    answer = await whole_console.ask("POST", KEYS, 400, body)
    assert '{"name": "…", "models": […]}' in answer["error"]
    assert keys.stored() == []


async def test_models_that_a_key_cannot_be_limited_to(whole_console: Console, keys: KeyStore) -> None:
    cannot_be: list[Any] = [[], [""], [3], "org/model", {}, ["a\nb"], [f"m{number}" for number in range(101)]]
    for models in cannot_be:
        answer = await whole_console.ask("POST", KEYS, 400, {"name": "anna", "models": models})
        assert "\n" not in answer["error"]
    assert keys.stored() == []


async def test_a_name_that_is_not_served_is_a_mistake(keys: KeyStore) -> None:
    api = keys_api.KeysApi(keys, None, Keyless.NOBODY, lambda: ["big", "small"])
    body = b'{"name": "anna", "models": ["big", "bgi"]}'

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    with pytest.raises(HTTPException, match=r"there is a name that is not served.*; served: big, small"):
        await api.create(Request({"type": "http", "method": "POST", "headers": []}, receive))
    assert keys.stored() == []


async def test_changes_from_elsewhere_do_nothing(whole_console: Console, keys: KeyStore) -> None:
    keys.create("anna")
    for headers in ({"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}):
        await whole_console.ask("POST", KEYS, 403, {"name": "evil"}, **headers)
        await whole_console.ask("DELETE", f"{KEYS}/anna", 403, **headers)
    assert [key.name for key in keys.stored()] == ["anna"]


async def test_files_that_cannot_be_read(
    whole_console: Console, ledger: Ledger, keys: KeyStore, tmp_path: Path
) -> None:
    keys.create("anna")
    # Without the history the use is not known, which is not 0.
    ledger.stop()
    ledger.path.write_bytes(b"no database at all" * 100)
    (line,) = (await whole_console.get(KEYS))["items"]
    assert [line[key] for key in ("last_used_at", "requests_24h", "prompt_tokens_24h")] == [None] * 3
    (tmp_path / "keys.json").write_text("{")
    for answer in (
        await whole_console.get(KEYS, 503),
        await whole_console.ask("POST", KEYS, 503, {"name": "ben"}),
        await whole_console.ask("DELETE", f"{KEYS}/anna", 503),
    ):
        assert "keys.json: is damaged" in answer["error"]
