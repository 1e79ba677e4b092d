"""The built page as it is served."""

from __future__ import annotations

import gzip
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from starlette.applications import Starlette

from lmwarden.console import static_files
from lmwarden.console.server import ConsoleServer


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A browser that unpacks nothing by itself."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = ConsoleServer(Starlette(routes=[*static_files.routes()]), listener)
    server.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with aiohttp.ClientSession(url, auto_decompress=False, skip_auto_headers=["Accept-Encoding"]) as session:
        yield session
    await server.stop()


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/console.js", "text/javascript; charset=utf-8"),
        ("/console.css", "text/css; charset=utf-8"),
        ("/favicon.svg", "image/svg+xml"),
    ],
)
async def test_each_file_has_its_type_and_both_forms(client: aiohttp.ClientSession, path: str, media_type: str) -> None:
    async with client.get(path) as answer:
        plain = await answer.read()
        assert (answer.status, answer.headers["content-type"]) == (200, media_type)
        assert "content-encoding" not in answer.headers
        assert (answer.headers["cache-control"], answer.headers["vary"]) == ("no-cache", "Accept-Encoding")
    async with client.get(path, headers={"Accept-Encoding": "br, gzip;q=0.5"}) as answer:
        packed = await answer.read()
        assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain)


@pytest.mark.parametrize("accepted", ["br", "gzip;q=0", "gzip; q=0.0"])
async def test_who_does_not_take_gzip_gets_none(client: aiohttp.ClientSession, accepted: str) -> None:
    async with client.get("/", headers={"Accept-Encoding": accepted}) as answer:
        assert "content-encoding" not in answer.headers


async def test_a_browser_that_has_it_is_told_so(client: aiohttp.ClientSession) -> None:
    async with client.get("/console.js") as answer:
        etag = answer.headers["etag"]
    for known in (etag, etag.removeprefix("W/"), f'"other", {etag}', "*"):
        async with client.get("/console.js", headers={"If-None-Match": known}) as answer:
            assert (answer.status, await answer.read(), answer.headers["etag"]) == (304, b"", etag)
    async with client.get("/console.js", headers={"If-None-Match": '"other"'}) as answer:
        assert answer.status == 200


def test_a_page_that_was_not_built_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="index"):
        static_files.routes(tmp_path)


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_inline() -> None:
    document = (static_files.FOLDER / "index.html").read_text()
    assert re.findall(r'(?:src|href)="([^"]+)"', document) == ["./favicon.svg", "./console.js", "./console.css"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=", document)
    assert "url(" not in (static_files.FOLDER / "console.css").read_text()
    assert "unsafe" not in static_files.CONTENT_SECURITY_POLICY


def test_the_first_visit_is_below_100_kilobytes() -> None:
    files = static_files.load().values()
    assert sum(len(file.compressed) for file in files) < 100_000
    assert all(gzip.decompress(file.compressed) == file.plain for file in files)
