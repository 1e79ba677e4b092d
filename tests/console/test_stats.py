"""/api/stats: what a query means, and that an answer is the ledger's to the token."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
from starlette.applications import Starlette
from tests.console.scene import Console, Scene
from tests.ledger.samples import LIMIT_S, record
from tests.ledger.views import view

from lmwarden.console import stats
from lmwarden.console.server import ConsoleServer
from lmwarden.ledger.history import History, Question, Stretch
from lmwarden.ledger.ledger import FILE, Ledger
from lmwarden.ledger.schema import LedgerError

CHARTS = ("tokens", "latency", "requests", "replicas")
MODEL = "org/model"


async def test_a_row_is_in_all_charts_at_once(whole_console: Console, ledger: Ledger) -> None:
    now = time.time()  # for both: a step may end between two looks at the clock
    for name in ("e0/0", "e0/1"):
        ledger.record(record(model=MODEL, replica=name, finished_at=now))
    assert ledger.flush(LIMIT_S)
    tokens = await whole_console.get("/api/stats/tokens")
    assert tokens["totals"] == {"cached": 1800, "computed": 200, "completion": 100}
    assert tokens["cached_ratio"] == 0.9
    rates = [point["cached"] for point in tokens["points"] if point["cached"] is not None]
    assert rates == [180.0]
    latency = await whole_console.get(f"/api/stats/latency?window=1h&model={MODEL}")
    assert latency["totals"]["count"] == 2
    assert latency["totals"]["p95"] == pytest.approx(0.25, rel=0.045)
    requests = await whole_console.get("/api/stats/requests?window=6h&replica=e0/1")
    assert (requests["totals"]["sticky"], requests["totals"]["ok"], requests["step_s"]) == (1, 1, 60)


async def test_prompts_of_which_the_engine_did_not_tell_are_in_no_ratio(whole_console: Console, ledger: Ledger) -> None:
    """Clients that left before the end: their prompts are in the chart, and say nothing of the cache."""
    for cached in (900, None, None, None):
        ledger.record(record(model=MODEL, replica="e0/0", prompt_tokens=1000, cached_tokens=cached))
    ledger.record(record(model=MODEL, replica="e0/1", prompt_tokens=1000, cached_tokens=None))
    assert ledger.flush(LIMIT_S)
    tokens = await whole_console.get(f"/api/stats/tokens?model={MODEL}")
    assert (tokens["totals"]["cached"], tokens["totals"]["computed"]) == (900, 4100)
    shares = await whole_console.get(f"/api/stats/cached?window=1h&model={MODEL}")
    live = await whole_console.get("/api/overview")
    line = next(line for line in live["overview"]["models"] if line["name"] == MODEL)
    assert tokens["cached_ratio"] == shares["cached_ratio"] == line["cached_ratio_1h"] == 0.9
    told = [(share["replica"], share["cached_ratio"], share["prompt_tokens"]) for share in shares["replicas"]]
    assert told == [("e0/0", 0.9, 4000), ("e0/1", None, 1000)]


async def test_looks_at_the_routers_are_in_the_chart_of_replicas(whole_console: Console, ledger: Ledger) -> None:
    ledger.observe({MODEL: view()}, 100.0, time.time() - 60)
    ledger.stop()
    chart = await whole_console.get("/api/stats/replicas")
    assert chart["replicas"] == 2
    assert [point["busy"] for point in chart["points"] if point["busy"] is not None] == [1.0]
    assert (await whole_console.get("/api/stats/replicas?replica=e0/1"))["replicas"] == 1
    assert (await whole_console.get(f"/api/stats/replicas?model={MODEL}"))["replicas"] == 2
    ledger.start()


async def test_the_cached_share_of_each_replica_is_of_the_window_alone(whole_console: Console, ledger: Ledger) -> None:
    long_ago = time.time() - 3 * 3600
    ledger.record(record(model=MODEL, replica="e0/0", finished_at=long_ago, prompt_tokens=9000, cached_tokens=0))
    ledger.record(
        record(model=MODEL, replica="e0/0", finished_at=time.time() - 60, prompt_tokens=100, cached_tokens=75)
    )
    ledger.record(record(model=MODEL, replica="e0", finished_at=time.time() - 60, prompt_tokens=100, cached_tokens=25))
    ledger.record(record(model="another", replica="e0/1", prompt_tokens=100, cached_tokens=100))
    assert ledger.flush(LIMIT_S)
    answer = await whole_console.get(f"/api/stats/cached?window=1h&model={MODEL}")
    assert 3599 <= answer["to"] - answer["from"] <= 3601
    first, second = answer["replicas"]
    assert (first["cached_ratio"], first["prompt_tokens"]) == (0.75, 100)
    assert second == {
        "replica": "e0/1",
        "cached_ratio": None,
        "prompt_tokens": 0,
        "first_byte_p50_s": None,
        "first_byte_p95_s": None,
    }
    assert answer["cached_ratio"] == 0.5, "what an engine placed itself is in the whole"
    day = await whole_console.get(f"/api/stats/cached?window=24h&model={MODEL}")
    assert day["replicas"][0]["prompt_tokens"] == 9100
    for query, status in (("", 400), (f"model={MODEL}&replica=e0/0", 400), ("model=none", 404)):
        await whole_console.get(f"/api/stats/cached?{query}", status)


async def test_first_bytes_of_all_replicas_are_those_of_each_ones_chart(whole_console: Console, ledger: Ledger) -> None:
    for name, first_byte_s in (("e0/0", 0.25), ("e0/0", 0.5), ("e0/0", 8.0), ("e0/1", 2.0)):
        ledger.record(record(model=MODEL, replica=name, first_byte_s=first_byte_s))
    assert ledger.flush(LIMIT_S)
    answer = await whole_console.get(f"/api/stats/cached?model={MODEL}")
    for share in answer["replicas"]:
        chart = await whole_console.get(f"/api/stats/latency?model={MODEL}&replica={share['replica']}")
        seen = share["first_byte_p50_s"], share["first_byte_p95_s"]
        assert seen == (chart["totals"]["p50"], chart["totals"]["p95"])
    assert answer["replicas"][0]["first_byte_p50_s"] == pytest.approx(0.5, rel=0.045)
    assert answer["replicas"][0]["first_byte_p95_s"] == pytest.approx(8.0, rel=0.045)


@pytest.mark.parametrize("chart", CHARTS)
async def test_csv(whole_console: Console, chart: str) -> None:
    async with whole_console.session.get(f"{whole_console.url}/api/stats/{chart}?window=15m&format=csv") as response:
        assert response.status == 200
        assert response.content_type == "text/csv"
        assert response.headers["Content-Disposition"] == f'attachment; filename="{chart}.csv"'
        lines = (await response.text()).splitlines()
    assert lines[0].startswith("time,t,")
    assert 90 <= len(lines) - 1 <= 91


@pytest.mark.parametrize(
    ("query", "seconds", "step_s"),
    [
        ("", 3600, 10),
        ("window=6h", 6 * 3600, 60),
        ("window=24h", 86_400, 300),
        ("window=7d", 7 * 86_400, 1800),
        ("window=90m", 90 * 60, 30),
        ("from=1000000&to=1003600", 3600, 600),
        ("from=1000000.5&to=1003600", 3600, 600),
    ],
)
async def test_windows(whole_console: Console, query: str, seconds: int, step_s: int) -> None:
    chart = await whole_console.get(f"/api/stats/tokens?{query}")
    assert chart["step_s"] == step_s
    assert 0 <= chart["to"] - chart["from"] - seconds <= step_s
    assert len(chart["points"]) == (chart["to"] - chart["from"]) / step_s <= 500
    assert [point["t"] for point in chart["points"][:2]] == [chart["from"], chart["from"] + step_s]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("window=1w", "window: must be a number of m, h or d, as 1h, 6h, 24h or 7d, not '1w'"),
        ("window=0h", "window: must be"),
        ("window=²h", "window: must be"),
        ("window=1h&from=1&to=100", "window: not together with from and to"),
        ("from=5&to=6", "from, to: must be at least 10 s and at most 366 days apart"),
        ("from=100&to=5", "from, to: must be"),
        ("window=9999d", "from, to: must be"),
        ("to=100", "from, to: must be"),
        ("from=yesterday", "from: must be a time in Unix seconds, not 'yesterday'"),
        ("from=nan", "from: must be"),
        ("from=-1", "from: must be"),
        ("from=1&to=inf", "to: must be"),
        (f"from={'9' * 400}", "from: must be"),
        ("format=xlsx", "format: must be json or csv, not 'xlsx'"),
    ],
)
async def test_what_is_no_question(whole_console: Console, query: str, sentence: str) -> None:
    for chart in CHARTS:
        answer = await whole_console.get(f"/api/stats/{chart}?{quote(query, safe='=&')}", 400)
        assert answer["error"].startswith(sentence)


@pytest.mark.parametrize("chart", CHARTS)
async def test_an_unknown_model(whole_console: Console, chart: str) -> None:
    await whole_console.get(f"/api/stats/{chart}?model=no%20such", 404)


async def test_who_asks_the_same_within_a_second_gets_the_same(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    stretch = History.stretch

    def counted(self: History, question: Question, now: float) -> Stretch:
        asked.append(now)
        return stretch(self, question, now)

    monkeypatch.setattr(History, "stretch", counted)
    now = 1e6
    async with aiohttp.ClientSession() as session:
        listener = socket.create_server(("127.0.0.1", 0))
        scene = Scene(session)
        app = Starlette(routes=stats.routes(scene.control, ledger, clock=lambda: now))
        server = ConsoleServer(app, listener, end_streams=lambda: None)
        server.start()
        console = Console(scene, session, f"http://127.0.0.1:{listener.getsockname()[1]}")
        await asyncio.gather(*(console.get("/api/stats/tokens") for _ in range(5)))
        now = 1e6 + 0.9
        async with session.get(console.url + "/api/stats/tokens?format=csv&window=1h") as response:
            assert response.status == 200
        await console.get("/api/stats/tokens?format=json&window=1h")
        await console.get("/api/stats/requests")
        assert asked == [1e6, 1e6 + 0.9, 1e6 + 0.9]
        now = 1e6 + 1
        await console.get("/api/stats/tokens")
        assert asked[3:] == [1e6 + 1]
        await server.stop()
        await scene.control.close()


async def test_a_history_that_cannot_be_read_is_said(
    whole_console: Console, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: History, question: Question, now: float) -> Stretch:
        raise LedgerError("the disk is gone")

    monkeypatch.setattr(History, "stretch", broken)
    answer = await whole_console.get("/api/stats/tokens", 503)
    assert answer == {"error": "the history cannot be read: the disk is gone"}
    assert (tmp_path / FILE).exists()
