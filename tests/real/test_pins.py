"""Pins against a real vLLM: seen to be obeyed, and seen to be ignored where a proxy drops the header.

The proxy is the case that nobody notices: every answer is right, and every turn reads its whole history again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from tests.real.vllm_server import MODEL, RANKS, VllmServer

from lmwarden.engine.client import RANK_HEADER, EngineClient
from lmwarden.engine.discover import discover
from lmwarden.engine.pins import CHAT, MESSAGES, PinReport, PinTest
from lmwarden.types import EngineEndpoint, PinVerdict

pytestmark = pytest.mark.real

PATIENCE_S = 120


async def reports_of(url: str) -> tuple[dict[str, PinReport], list[bool]]:
    """The reports of both endpoints, and whether usage details were seen."""
    parts = urlsplit(url)
    endpoint = EngineEndpoint(engine="e0", host="127.0.0.1", port=parts.port or 0, ranks=RANKS, model=MODEL)
    reports: dict[str, PinReport] = {}
    details: list[bool] = []
    heard = asyncio.Event()

    def report(path: str, news: PinReport) -> None:
        reports[path] = news
        heard.set()

    async with aiohttp.ClientSession() as session:
        client = EngineClient(endpoint, session, timeout_s=PATIENCE_S)
        test = PinTest(endpoint, client, report=report, report_details=details.append)
        test.begin(await discover(client, model=None, data_parallel_size=None))
        task = asyncio.ensure_future(test.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(reports) < 2:
                    heard.clear()
                    await heard.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return reports, details


@asynccontextmanager
async def proxy_without_ranks(url: str) -> AsyncIterator[str]:
    """Forwards everything but the rank header."""
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.Response:
            headers = {
                name: value
                for name, value in request.headers.items()
                if name.lower() not in ("host", "content-length", RANK_HEADER.lower())
            }
            target = url + request.path_qs
            async with session.request(request.method, target, data=await request.read(), headers=headers) as answer:
                kind = answer.headers.get("Content-Type", "")
                return web.Response(status=answer.status, body=await answer.read(), headers={"Content-Type": kind})

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", forward)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def test_a_real_vllm_obeys_ranks_on_both_endpoints(vllm: VllmServer) -> None:
    reports, details = await reports_of(vllm.url)
    assert {path: report.verdict for path, report in reports.items()} == dict.fromkeys(
        (CHAT, MESSAGES), PinVerdict.VERIFIED
    )
    assert details == [True]


async def test_under_the_load_of_others_it_is_verified_all_the_same(vllm: VllmServer) -> None:
    """Prompts of others end on all ranks while we test."""
    async with aiohttp.ClientSession() as session:

        async def others() -> None:
            for number in range(1_000_000):
                text = f"{number} the function reads the file " * 20
                body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
                async with session.post(vllm.url + CHAT, json=body) as answer:
                    await answer.read()

        load = [asyncio.ensure_future(others()) for _ in range(4)]
        try:
            reports, _ = await reports_of(vllm.url)
        finally:
            for one in load:
                one.cancel()
            await asyncio.gather(*load, return_exceptions=True)
    assert {report.verdict for report in reports.values()} == {PinVerdict.VERIFIED}


async def test_a_proxy_that_drops_the_header_is_found_out(vllm: VllmServer) -> None:
    async with proxy_without_ranks(vllm.url) as url:
        reports, _ = await reports_of(url)
    assert {path: report.verdict for path, report in reports.items()} == dict.fromkeys(
        (CHAT, MESSAGES), PinVerdict.FAILED
    )
