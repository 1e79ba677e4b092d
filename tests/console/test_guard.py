"""Who is let in, and who may change things."""

from __future__ import annotations

import time

from multidict import CIMultiDict
from starlette.applications import Starlette
from starlette.types import Scope
from tests.console.scene import ROUTING, Console

from lmwarden.console.guard import Guard
from lmwarden.console.session import is_local


async def test_another_sites_page_changes_nothing(console: Console) -> None:
    for headers in (
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = await console.patch({"affinity": False}, 403, **headers)
        assert "another site" in answer["error"]
    assert console.scene.router.view(time.monotonic()).settings.affinity


async def test_every_origin_line_is_looked_at(console: Console) -> None:
    headers = CIMultiDict(
        [("Origin", console.url), ("Origin", "http://evil.test"), ("Content-Type", "application/json")]
    )
    async with console.session.patch(console.url + ROUTING, data=b'{"affinity": false}', headers=headers) as answer:
        assert answer.status == 403
    assert console.scene.router.view(time.monotonic()).settings.affinity


async def test_the_consoles_own_page_may_change(console: Console) -> None:
    await console.patch({"affinity": False}, 200, **{"Origin": console.url, "Sec-Fetch-Site": "same-origin"})


async def test_what_a_form_can_send_is_refused(console: Console) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"Content-Type": kind}
        async with console.session.patch(console.url + ROUTING, data=b'{"affinity": false}', headers=headers) as answer:
            assert answer.status == 415
    assert console.scene.router.view(time.monotonic()).settings.affinity


async def test_only_known_names_reach_it(console: Console) -> None:
    allowed = ("localhost:1", "127.0.0.1", "[::1]:5", "warden.example", "WARDEN.example:9")
    foreign = ("evil.test", "", "127.0.0.1.evil.test", "10.0.0.1", "[")
    for host in (*allowed, *foreign):
        async with console.session.get(console.url + "/api/models", headers={"Host": host}) as response:
            assert response.status == (200 if host in allowed else 403), host


def test_a_socket_for_both_families_shows_ipv4_in_a_form_of_its_own() -> None:
    """What comes by IPv4 to a console that is bound to ``::``."""
    headers = [(b"host", b"192.0.2.5:8081")]
    for server, peer, known, local in (
        ("::ffff:192.0.2.5", "::ffff:127.0.0.1", True, True),
        ("::ffff:192.0.2.6", "::ffff:192.0.2.9", False, False),
        ("192.0.2.5", "::1", True, True),
    ):
        scope: Scope = {"type": "http", "headers": headers, "server": (server, 8081), "client": (peer, 5)}
        guard = Guard(Starlette(), [])
        assert guard._host_allowed("192.0.2.5:8081", scope) is known
        assert is_local(scope) is local


async def test_a_preflight_grants_nothing(console: Console) -> None:
    headers = {"Origin": "http://evil.test", "Access-Control-Request-Method": "PATCH"}
    async with console.session.options(console.url + ROUTING, headers=headers) as response:
        assert response.status == 403
        assert "Access-Control-Allow-Origin" not in response.headers
