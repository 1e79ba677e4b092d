"""The console's port, attacked by pages of other sites, by who has no password, and by who only wants to do harm."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.memory import PeakMemory
from tests.security.house import MODEL, PASSWORD, House, house, request
from tests.waiting import PATIENCE_S

from lmwarden.console.app import LOG_BYTES
from lmwarden.engine.logs import tail

AS_JSON = "Content-Type: application/json"
DRAIN = f"/api/models/{MODEL}/replicas/e0/0/drain"
RESTART = f"/api/models/{MODEL}/replicas/e0/0/restart"
ROUTING = f"/api/models/{MODEL}/routing"


class Operator:
    """Somebody who is signed in with a browser, which adds the cookie to whatever any page makes it send."""

    def __init__(self, of: House, cookie: str, csrf: str) -> None:
        self._of = of
        self._lines = (f"Cookie: {cookie}", f"X-CSRF-Token: {csrf}")

    async def send(self, method: str, path: str, body: object, *lines: str) -> bytes:
        host = f"localhost:{self._of.console_port}"
        return await self._of.ask(request(method, path, body, *self._lines, *lines, host=host), console=True)

    async def drained(self) -> bool:
        answer = await self.send("GET", ROUTING, b"")
        return bool(json.loads(content(answer))["replicas"][0]["drained"])


def status(answer: bytes) -> int:
    return int(answer[9:12])


def content(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def headers(answer: bytes) -> dict[str, str]:
    lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
async def of(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        yield made


@pytest.fixture
async def operator(of: House) -> Operator:
    enters = request("POST", "/api/session", {"password": PASSWORD}, AS_JSON, host="localhost")
    answer = await of.ask(enters, console=True)
    assert status(answer) == 204
    cookie = next(
        line.partition(": ")[2].partition(";")[0]
        for line in answer.decode().split("\r\n")
        if line.lower().startswith("set-cookie: lmwarden-session")
    )
    shows = request("GET", "/api/session", b"", f"Cookie: {cookie}", host="localhost")
    return Operator(of, cookie, json.loads(content(await of.ask(shows, console=True)))["csrf"])


# -- pages of other sites ---------------------------------------------------------------------------------------------


async def test_a_page_of_another_site_changes_nothing_with_a_valid_cookie_and_token(
    of: House, operator: Operator
) -> None:
    port = of.console_port
    origins = (
        "http://evil.test", "null", "", "http://localhost", f"http://localhost:{port + 1}", f"http://127.0.0.1:{port}",
        f"http://evil.localhost:{port}", f"http://localhost.:{port}", f"http://localhost.evil.test:{port}",
        f"http://localhost:{port}.evil.test", f"http://localhost:{port}@evil.test", f"http://evil.test#localhost:{port}",
        f"http://evil.test/localhost:{port}", "file://", "http://[", f"localhost:{port}", f"http://localhost:0{port}",
        f"http://[::1]:{port}", f"http://localhost:{port}, http://evil.test", f"http://ⓛocalhost:{port}",
    )  # fmt: skip
    for path in (DRAIN, RESTART):
        for origin in origins:
            answer = await operator.send("POST", path, b"{}", AS_JSON, f"Origin: {origin}")
            assert status(answer) == 403, (origin, answer)
            assert "access-control-allow-origin" not in headers(answer)
        for site in ("cross-site", "same-site", "CROSS-SITE", "anything"):
            assert status(await operator.send("POST", path, b"{}", AS_JSON, f"Sec-Fetch-Site: {site}")) == 403
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "",
            "text/json",
        ):
            assert status(await operator.send("POST", path, b"{}", f"Content-Type: {kind}")) == 415
        assert status(await operator.send("POST", path, b"{}")) == 415
    assert not await operator.drained()
    own = f"http://LOCALHOST:{port}"
    assert status(await operator.send("POST", DRAIN, {"allow_outage": True}, AS_JSON, f"Origin: {own}")) == 200
    assert await operator.drained()


async def test_a_preflight_of_another_site_grants_nothing(of: House, operator: Operator) -> None:
    wanted = ("Access-Control-Request-Method: PATCH", "Access-Control-Request-Headers: x-csrf-token, content-type")
    for origin in ("http://evil.test", f"http://localhost:{of.console_port}"):
        answer = await operator.send("OPTIONS", ROUTING, b"", f"Origin: {origin}", *wanted)
        assert status(answer) in (403, 405, 415)
        assert not [name for name in headers(answer) if name.startswith("access-control-")]


async def test_no_answer_can_be_framed_sniffed_or_read_by_another_site(of: House, operator: Operator) -> None:
    asked = ["/", "/console.js", "/api/models", "/api/session", "/metrics", "/nothing", "/api/requests?limit=x"]
    answers = [await operator.send("GET", path, b"") for path in asked]
    answers.append(await operator.send("PATCH", ROUTING, b"nonsense", AS_JSON))
    answers.append(await of.ask(request("GET", "/api/models", b"", host="localhost"), console=True))
    answers.append(await of.ask(request("GET", "/", b"", host="evil.test"), console=True))
    assert {status(answer) for answer in answers} == {200, 400, 401, 403, 404}
    for answer in answers:
        found = headers(answer)
        assert found["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in found["content-security-policy"]
        assert "unsafe" not in found["content-security-policy"]
        assert found["x-content-type-options"] == "nosniff"
        assert found["cross-origin-resource-policy"] == "same-origin"
        assert found["referrer-policy"] == "no-referrer"
        assert found["cache-control"] in ("no-store", "no-cache")
        assert "access-control-allow-origin" not in found
        assert "server" not in found


async def test_a_name_that_was_pointed_here_reads_nothing(of: House, operator: Operator) -> None:
    port = of.console_port
    foreign = (
        "evil.test", f"evil.test:{port}", "localhost.evil.test", "127.0.0.1.evil.test", "evil.localhost", "localhost.",
        "0.0.0.0", "10.0.0.1", "[::ffff:10.0.0.1]", "", "[", "localhost:1:2", "localhost/..", "evil.test\\localhost",
        "evil.test@localhost", "localhost@evil.test", "localhost?", "localhost#", "localhost:", "[::1", "localhost:x",
        "2130706433", "0x7f.1", "127.1",
    )  # fmt: skip
    for host in foreign:
        for path in ("/", "/api/session", "/api/models"):
            answer = await of.ask(request("GET", path, b"", host=host), console=True)
            assert status(answer) == 403, (host, answer)
    twice = request("GET", "/", b"", "Host: localhost", host="localhost")
    assert status(await of.ask(twice, console=True)) in (400, 403)
    none = b"GET / HTTP/1.0\r\n\r\n"
    assert status(await of.ask(none, console=True)) == 403


# -- who has no password ----------------------------------------------------------------------------------------------


async def test_no_spelling_of_a_path_gets_past_the_sign_in(of: House) -> None:
    for path in (
        "//api/models", "/api//models", "/api/models/", "/./api/models", "/x/../api/models", "/%2e/api/models",
        "/api/session/../models", "/api/session/", "/api/session;/../models", "/api/session%2f..%2fmodels",
        "/API/SESSION", "/api/session%00/../models", "/console.js/../api/keys", "/console.js%3f/../../api/keys",
        "/%61pi/models", "/api%2fmodels", "/favicon.svg/api/keys", "/api/keys?/api/session", "/api/keys%23/api/session",
        "http://localhost/api/keys", "/metrics", "/metrics/", "/../../etc/passwd", "/console.js/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd", "/static/../session.py",
    ):  # fmt: skip
        for method in ("GET", "HEAD", "POST", "DELETE"):
            answer = await of.ask(request(method, path, b"{}", AS_JSON, host="localhost"), console=True)
            assert status(answer) in (400, 401), (method, path, answer)
            assert "location" not in headers(answer)


async def test_bodies_are_bounded_before_anybody_is_known(of: House) -> None:
    for path, body in (
        ("/api/session", b'{"password": "' + b"x" * 70_000 + b'"}'),
        ("/api/session", b"[" * 60_000),
        ("/api/session", b'{"a":' * 10_000),
        ("/api/keys", b"x" * (8 << 20)),
    ):
        answer = await of.ask(request("POST", path, body, AS_JSON, host="localhost"), console=True)
        assert status(answer) in (400, 401, 413), answer
    endless = b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + AS_JSON.encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", of.console_port)
    writer.write(endless + b"\r\n\r\n")
    peak = PeakMemory()
    try:
        for _ in range(2048):
            writer.write(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert b" 413 " in await reader.readline()
    except ConnectionError:
        pass
    finally:
        writer.close()
    assert peak.grown_bytes < 32 << 20


async def test_guesses_are_slowed_down_and_the_operator_is_not_locked_out(of: House, operator: Operator) -> None:
    guess = request("POST", "/api/session", {"password": "guess"}, AS_JSON, host="localhost")
    for _ in range(30):
        if status(answer := await of.ask(guess, console=True)) == 429:
            break
    assert status(answer) == 429
    assert 1 <= int(headers(answer)["retry-after"]) <= 60
    right = request("POST", "/api/session", {"password": PASSWORD}, AS_JSON, host="localhost")
    assert status(await of.ask(right, console=True)) == 429, "who guesses may not learn by being let in"
    assert status(await operator.send("GET", "/api/models", b"")) == 200


# -- without a password -----------------------------------------------------------------------------------------------


async def test_what_came_through_a_proxy_is_not_from_this_machine(tmp_path: Path) -> None:
    async with house(tmp_path, password=False) as of:
        for line in ("X-Forwarded-For: 10.0.0.9", "Forwarded: for=10.0.0.9", "Via: 1.1 proxy", "X-Real-IP: 10.0.0.9"):
            changes = request("PATCH", ROUTING, {"affinity": False}, AS_JSON, line, host="localhost")
            assert status(await of.ask(changes, console=True)) == 403
            shows = request("GET", "/api/session", b"", line, host="localhost")
            assert json.loads(content(await of.ask(shows, console=True)))["may_change"] is False
        changes = request("PATCH", ROUTING, {"affinity": False}, AS_JSON, host="localhost")
        assert status(await of.ask(changes, console=True)) == 200


def test_of_a_log_of_two_gigabytes_only_the_end_is_read(tmp_path: Path) -> None:
    """A file with a hole: it takes no room on the disk. Its end is what the console shows."""
    log = tmp_path / "e0.log"
    with log.open("wb") as file:
        file.truncate(2 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last line\n")
    peak = PeakMemory()
    lines = tail(log, 500, LOG_BYTES)
    assert lines[-1] == "the last line"
    assert sum(map(len, lines)) <= LOG_BYTES
    assert peak.grown_bytes < 64 << 20
