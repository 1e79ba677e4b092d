"""A run is recorded by the warden, and replayed: the engine finds in its cache what it found then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.test_serve import config, running
from tests.waiting import PATIENCE_S

from lmwarden.bench.replay import Replay
from lmwarden.bench.trace import Trace, read_trace
from lmwarden.config import Flag
from lmwarden.gateway.trace_recorder import FOLDER
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving

MODEL = "qwen3-4b"
SYSTEM = "You are an agent. " * 300
TOOLS = [{"name": f"tool{number}", "description": "does something " * 20, "input_schema": {}} for number in range(4)]
MARKER = "MARKER-7"


def engine() -> SimulatedEngineOptions:
    return SimulatedEngineOptions(port=0, replicas=1, speed=200.0, model=MODEL)


async def converse(http: aiohttp.ClientSession, url: str, turns: int) -> list[int]:
    """Three conversations in turn with the same system prompt and tools. Returns each answer's cached tokens."""
    histories: dict[str, list[dict[str, str]]] = {name: [] for name in ("one", "two", "three")}
    cached = []
    for turn in range(turns):
        for name, history in histories.items():
            said = f"{MARKER} {name} {turn} " + f"work of {name} in turn {turn} " * 40
            history.append({"role": "user", "content": said})
            body = {"model": MODEL, "max_tokens": 64, "system": SYSTEM, "tools": TOOLS, "messages": history}
            headers = {"X-Claude-Code-Session-Id": f"session-of-{name}"}
            async with http.post(f"{url}/v1/messages", json=body, headers=headers) as response:
                assert response.status == 200
                answer = await response.json()
            history.append({"role": "assistant", "content": answer["content"][0]["text"]})
            cached.append(answer["usage"]["cache_read_input_tokens"])
    return cached


async def play(http: aiohttp.ClientSession, url: str, trace: Trace) -> list[int]:
    """The trace in its order, straight to an engine. Returns each answer's cached tokens."""
    replay, cached = Replay(trace, "again"), []
    for number, request in enumerate(trace.requests):
        body = {
            "model": MODEL,
            "prompt": replay.prompt(number),
            "max_tokens": request.output_tokens,
            "ignore_eos": True,
        }
        async with http.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 200
            answer = await response.json()
        replay.answered(number, answer["choices"][0]["text"])
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    return cached


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_recorded_run_is_replayed_with_the_same_hits(recorded: bool, tmp_path: Path) -> None:
    record = Flag("--record", ("ledger", "record_traces"), recorded)
    async with aiohttp.ClientSession() as http:
        async with (
            serving(engine()) as simulated,
            running(config(tmp_path, simulated, more=[record], max_num_seqs=32)) as warden,
        ):
            original = await converse(http, warden.client_url, turns=5)
            assert await asyncio.to_thread(warden.ledger.flush, PATIENCE_S)
            rows = warden.ledger.recent()
        assert [row.why for row in rows] == ["not_above"] * 12 + ["least_loaded"] * 3
        assert [row.candidates is None for row in rows] == [True] * 12 + [False] * 3
        assert {(row.client, row.kind, row.spill_threshold) for row in rows} == {("other", "main", 8)}
        if not recorded:
            assert not (tmp_path / FOLDER).exists()
            return
        (file,) = (tmp_path / FOLDER).iterdir()
        trace = read_trace(file)
        assert [request.cached_tokens for request in trace.requests] == original
        async with serving(engine()) as fresh:
            again = await play(http, fresh, trace)
    assert MARKER.encode() not in file.read_bytes()
    assert msgspec.json.decode(file.read_bytes().splitlines()[0]) == {
        "lmwarden_trace": 1, "unit": "bytes", "block": 256,
    }  # fmt: skip
    # A block is about 64 tokens, and tokens are known per byte on the average of the run only.
    assert sum(again) == pytest.approx(sum(original), rel=0.03)
    for then, now in zip(original, again, strict=True):
        assert now == pytest.approx(then, abs=200)
