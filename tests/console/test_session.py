"""The console with a password: who is let in, by which way, and who is not."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from starlette.datastructures import Headers
from starlette.routing import Route
from tests.access.clock import Now
from tests.console.conftest import serving
from tests.console.scene import MODEL, ROUTING, Console, Scene

from lmwarden import __version__
from lmwarden.access.keys import KeyStore
from lmwarden.access.password import PasswordFile
from lmwarden.access.throttle import TRIES
from lmwarden.bench.console import Console as BenchConsole
from lmwarden.bench.errors import BenchError
from lmwarden.config import Flag, load
from lmwarden.console import session, static_files
from lmwarden.console.app import Parts, make_app
from lmwarden.console.session import SignIn
from lmwarden.ledger.ledger import Ledger

PASSWORD = "correct horse"
WRONG = "wrong horses"
SESSION = "/api/session"


class Locked(Console):
    """A console with a password; its client keeps no cookies by itself."""

    file: Path
    now: Now

    async def answer(
        self, method: str, path: str, *, body: Any = None, cookies: Any = None, **headers: str
    ) -> tuple[int, Any, aiohttp.ClientResponse]:
        """Status, body and the response, which is closed. ``cookies``: name to value."""
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        async with self.session.request(method, self.url + path, json=body, headers=headers) as response:
            text = await response.read()
            is_json = text and response.content_type == "application/json"
            return response.status, (await response.json() if is_json else text), response

    async def sign_in(self, password: str = PASSWORD, **headers: str) -> dict[str, str]:
        """The cookies of a new session."""
        status, _, response = await self.answer("POST", SESSION, body={"password": password}, **headers)
        assert status == 204
        return {name: morsel.value for name, morsel in response.cookies.items()}

    async def csrf(self, cookies: Mapping[str, str]) -> str:
        _, state, _ = await self.answer("GET", SESSION, cookies=cookies)
        return str(state["csrf"])


def basic(password: str, user: str = "lmwarden") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
async def locked(tmp_path: Path, ledger: Ledger, keys: KeyStore) -> AsyncIterator[Locked]:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(PASSWORD)
    now = Now()
    parts = Parts(load(None, [Flag("e", ("models",), [{"engine": {"attach": ["http://h:1"]}}])]), 8080, ledger, keys)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        scene = Scene(session)
        sign_in = SignIn(PasswordFile(file, "console.password_file"), now)
        async with serving(scene, session, sign_in=sign_in, parts=parts) as plain:
            console = Locked(scene, session, plain.url)
            console.file, console.now = file, now
            yield console


async def test_nothing_is_shown_to_who_has_not_signed_in(locked: Locked, ledger: Ledger, keys: KeyStore) -> None:
    parts = Parts(load(None, [Flag("e", ("models",), [{"engine": {"attach": ["http://h:1"]}}])]), 8080, ledger, keys)
    app = make_app(locked.scene.control, [], parts=parts)
    open_to_all = {SESSION, *(route.path for route in static_files.routes())}
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    assert open_to_all < paths
    for path in {"/nothing", *paths} - open_to_all:
        path = re.sub(r"\{.*?\}", "x", path)
        for method in ("GET", "HEAD", "POST", "PATCH", "DELETE"):
            status, body, response = await locked.answer(method, path, **_JSON)
            assert status == 401, (method, path)
            # A scheme that browsers know would make them open a window of their own.
            assert response.headers["WWW-Authenticate"].startswith("Session ")
            assert method == "HEAD" or "sign in first" in body["error"]


_JSON = {"Content-Type": "application/json"}


async def test_the_page_signs_in_looks_and_changes(locked: Locked) -> None:
    assert (await locked.answer("GET", "/"))[0] == 200
    status, state, _ = await locked.answer("GET", SESSION)
    assert (status, state) == (
        200,
        {"sign_in": True, "signed_in": False, "may_change": False, "csrf": None, "version": __version__, "speed": 1.0},
    )
    cookies = await locked.sign_in(Origin=locked.url)
    assert (await locked.answer("GET", "/api/models", cookies=cookies))[0] == 200
    _, state, _ = await locked.answer("GET", SESSION, cookies=cookies)
    csrf = state.pop("csrf")
    assert state == {"sign_in": True, "signed_in": True, "may_change": True, "version": __version__, "speed": 1.0}
    change = {"affinity": False}
    status, _, _ = await locked.answer("PATCH", ROUTING, body=change, cookies=cookies, **{"X-CSRF-Token": csrf})
    assert status == 200
    # The same one after the page was loaded anew.
    assert await locked.csrf(cookies) == csrf


async def test_a_change_needs_the_second_token(locked: Locked) -> None:
    cookies, other = await locked.sign_in(), await locked.sign_in()
    for headers in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "x"}, {"X-CSRF-Token": await locked.csrf(other)}):
        status, body, _ = await locked.answer("PATCH", ROUTING, body={"affinity": False}, cookies=cookies, **headers)
        assert (status, "X-CSRF-Token" in body["error"]) == (403, True)
    status, _, _ = await locked.answer("DELETE", SESSION, cookies=cookies, **_JSON)
    assert status == 403
    locked.scene.refresh()
    assert locked.scene.control.routing_settings("org/model").affinity


async def test_cookies_of_other_programs_on_this_host_do_not_matter(locked: Locked) -> None:
    cookies = await locked.sign_in()
    ours = "; ".join(f"{name}={value}" for name, value in cookies.items())
    port = urlsplit(locked.url).port
    for foreign in (
        'prefs={"a":1,"b":[1, 2]}',
        "a=b c",
        "name=caf\u00e9",
        "flag",
        "user@host=1",
        "expires=1",
        'open="never closed',
        '_xsrf=2|ab|cd; username-localhost-8888="2|1:0|10:17|23:username|44:abc="',
        "lmwarden-session-1=another",
        f"not-lmwarden-session-{port}=another; x=lmwarden-session-{port}=another",
    ):
        for header in (f"{foreign}; {ours}", f"{ours}; {foreign}", f"{foreign};{ours}"):
            assert (await locked.answer("GET", "/api/models", Cookie=header))[0] == 200, header
        assert (await locked.answer("GET", "/api/models", Cookie=foreign))[0] == 401


@pytest.mark.parametrize("part", ["\\", "\\101", '"', ";", " ", "a=1; ", "; lmwarden-session-1=", 'a="'])
def test_any_cookies_are_looked_through_in_one_go(part: str) -> None:
    for value in (part * (4_000_000 // len(part)), 'a="' + part * (4_000_000 // len(part)) + '"'):
        # What is quadratic would take days.
        assert session._cookie(Headers({"cookie": value}), "lmwarden-session-8081") is None


async def test_cookies_are_kept_from_scripts_and_other_sites(locked: Locked) -> None:
    for origin, secure in ((None, False), (locked.url, False), ("https://warden.example", True)):
        headers = {} if origin is None else {"Origin": origin}
        host = {"Host": "warden.example"} if secure else {}
        _, _, response = await locked.answer("POST", SESSION, body={"password": PASSWORD}, **headers, **host)
        lines = response.headers.getall("Set-Cookie")
        assert len(lines) == 2
        port = locked.url.rpartition(":")[2]
        assert {line.partition("=")[0] for line in lines} == {f"lmwarden-session-{port}", f"lmwarden-known-{port}"}
        for line in lines:
            attributes = {part.strip().lower() for part in line.split(";")[1:]}
            assert {"httponly", "samesite=strict", "path=/"} <= attributes
            assert ("secure" in attributes) == secure
            assert PASSWORD not in line


async def test_signing_out_ends_the_session(locked: Locked) -> None:
    cookies = await locked.sign_in()
    csrf = {"X-CSRF-Token": await locked.csrf(cookies)}
    status, _, response = await locked.answer("DELETE", SESSION, cookies=cookies, **csrf, **_JSON)
    assert status == 204
    assert "lmwarden-session" in response.headers["Set-Cookie"]
    assert (await locked.answer("GET", "/api/models", cookies=cookies))[0] == 401
    # Nobody is signed in: nothing happens.
    assert (await locked.answer("DELETE", SESSION, **_JSON))[0] == 204


async def test_another_password_signs_everybody_out(locked: Locked) -> None:
    cookies = await locked.sign_in()
    assert (await locked.answer("GET", "/api/models", Authorization=basic(PASSWORD)))[0] == 200
    locked.file.write_text("yet another horse")  # two of one length and moment look the same
    locked.now.s += 2
    assert (await locked.answer("GET", "/api/models", cookies=cookies))[0] == 401
    assert (await locked.answer("GET", "/api/models", Authorization=basic(PASSWORD)))[0] == 401
    assert (await locked.answer("GET", "/api/models", Authorization=basic("yet another horse")))[0] == 200


async def test_scripts_send_the_password_with_each_request(locked: Locked) -> None:
    right = {"Authorization": basic(PASSWORD)}
    assert (await locked.answer("GET", "/metrics", **right))[0] == 200
    status, state, _ = await locked.answer("PATCH", ROUTING, body={"spill_threshold": 3}, **right)
    assert (status, state["spill_threshold"]) == (200, 3)
    assert (await locked.answer("POST", f"{MODEL}/replicas/e0/1/drain", **right, **_JSON))[0] == 200
    for wrong in (
        basic(WRONG), basic(PASSWORD, "root"), basic(""), "Basic", "Basic !", "Basic " + PASSWORD,
        f"Bearer {PASSWORD}", "Basic /////w==", "Basic " + base64.b64encode(PASSWORD.encode()).decode(),
    ):  # fmt: skip
        assert (await locked.answer("GET", "/api/models", Authorization=wrong))[0] == 401, wrong


async def test_another_sites_page_cannot_use_a_password_that_the_browser_adds(locked: Locked) -> None:
    for header in ({"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = await locked.answer(
            "PATCH", ROUTING, body={"affinity": False}, Authorization=basic(PASSWORD), **header
        )
        assert answer[0] == 403
        assert (await locked.answer("POST", SESSION, body={"password": PASSWORD}, **header))[0] == 403


async def test_wrong_passwords_are_counted_and_slowed_down(locked: Locked) -> None:
    known = await locked.sign_in()
    for _ in range(TRIES):
        status, body, _ = await locked.answer("POST", SESSION, body={"password": WRONG})
        assert (status, body) == (401, {"error": "this is not the password"})
    # Not even the right one is looked at now, by neither way; the wait is told.
    status, body, response = await locked.answer("POST", SESSION, body={"password": PASSWORD})
    assert (status, response.headers["Retry-After"]) == (429, "15")
    assert body == {"error": "too many wrong passwords came from here; try again in 15 s"}
    assert (await locked.answer("GET", "/api/models", Authorization=basic(PASSWORD)))[0] == 429
    # Whoever is signed in goes on, and a browser that was may sign in again.
    assert (await locked.answer("GET", "/api/models", cookies=known))[0] == 200
    mark = {name: value for name, value in known.items() if "known" in name}
    status, _, _ = await locked.answer("POST", SESSION, body={"password": PASSWORD}, cookies=mark)
    assert status == 204
    forged = dict.fromkeys(mark, "forged.mark")
    assert (await locked.answer("POST", SESSION, body={"password": PASSWORD}, cookies=forged))[0] == 429
    locked.now.s += 16
    assert (await locked.answer("POST", SESSION, body={"password": PASSWORD}))[0] == 204


async def test_bodies_that_are_no_sign_in(locked: Locked) -> None:
    bodies: tuple[Any, ...] = ({}, {"password": 7}, {"password": PASSWORD, "user": "root"}, [])
    for body in bodies:
        assert (await locked.answer("POST", SESSION, body=body))[0] == 400


async def test_without_a_password_there_is_nothing_to_sign_in_to(console: Console) -> None:
    state = await console.get(SESSION)
    assert state == {
        "sign_in": False, "signed_in": False, "may_change": True, "csrf": None, "version": __version__, "speed": 1.0,
    }  # fmt: skip
    assert "no password" in (await console.ask("POST", SESSION, 409, {"password": "x"}))["error"]
    await console.ask("DELETE", SESSION, 204)


async def test_metrics_may_be_open(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(PASSWORD)
    async with aiohttp.ClientSession() as session:
        sign_in = SignIn(PasswordFile(file, "console.password_file"))
        async with serving(Scene(session), session, sign_in=sign_in, open_metrics=True) as console:
            async with session.get(console.url + "/metrics") as response:
                assert response.status == 200
            await console.get("/api/models", 401)


async def test_the_load_tester_signs_in(locked: Locked) -> None:
    async with BenchConsole(locked.url, "org/model", password=PASSWORD) as console:
        await console.apply("off")
        assert not (await console.state()).affinity
    async with BenchConsole(locked.url, "org/model") as console:
        with pytest.raises(BenchError, match="asks for a password"):
            await console.state()
    async with BenchConsole(locked.url, "org/model", password=WRONG) as console:
        with pytest.raises(BenchError, match="refuses the password"):
            await console.state()
