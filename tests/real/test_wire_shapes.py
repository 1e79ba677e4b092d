"""The simulated engine speaks as vLLM does: the same requests to both, the shapes of the answers compared.

The simulated engine may say less than vLLM (members that are always null are left out), never something else:
every member that it sends must be in vLLM's answer, in the same place and of the same type, and its streams must
have the same events in the same order. Whatever is built against the simulated engine then also meets a real one.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any, NamedTuple

import aiohttp
import pytest
from tests.real.vllm_server import MAX_MODEL_LEN_TOKENS, MODEL, RANKS, VllmServer

from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving

pytestmark = pytest.mark.real

OPTIONS = SimulatedEngineOptions(
    replicas=RANKS, hardware="tiny-cpu", speed=10, model=MODEL, balancer="0.27", max_model_len=MAX_MODEL_LEN_TOKENS
)
MESSAGES = [{"role": "user", "content": "Hello there, tell me about the test."}]
CHAT, COMPLETIONS, MESSAGES_API = "/v1/chat/completions", "/v1/completions", "/v1/messages"
USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
SHORT = {"max_tokens": 5, "ignore_eos": True}
LONG = {"max_tokens": 1000, "ignore_eos": True}
"""Two seconds: vLLM makes one event of all tokens that came while its server did not run, the last one among them."""
TOO_LONG = [{"role": "user", "content": "too long " * 9000}]


class Case(NamedTuple):
    """One request, and the status that both engines must answer it with."""

    path: str
    body: dict[str, Any]
    rank: str | None = None
    status: int = 200


CASES = {
    "chat": Case(CHAT, {"messages": MESSAGES, **SHORT}, "1"),
    "chat, streamed": Case(CHAT, {"messages": MESSAGES, "stream": True, **LONG}, "1"),
    "chat, streamed, usage": Case(CHAT, {"messages": MESSAGES, "stream": True, **LONG, **USAGE}),
    "chat, streamed, usage on": Case(CHAT, {"messages": MESSAGES, "stream": True, **LONG, **CONTINUOUS}),
    "completions": Case(COMPLETIONS, {"prompt": [5, 6, 7, 8], **SHORT}, "0"),
    "completions, streamed": Case(COMPLETIONS, {"prompt": "Hello", "stream": True, **LONG}),
    "completions, streamed, usage": Case(COMPLETIONS, {"prompt": "Hello", "stream": True, **LONG, **USAGE}),
    "messages": Case(MESSAGES_API, {"messages": MESSAGES, "max_tokens": 2}, "1"),
    "messages, streamed": Case(MESSAGES_API, {"messages": MESSAGES, "max_tokens": 2, "stream": True}),
    "responses": Case("/v1/responses", {"input": "Hello", "max_output_tokens": 3}),
    "responses, streamed": Case("/v1/responses", {"input": "Hello", "max_output_tokens": 3, "stream": True}),
    "count_tokens": Case("/v1/messages/count_tokens", {"messages": MESSAGES}),
    "tokenize": Case("/tokenize", {"prompt": "Hello"}),
    "tokenize, messages": Case("/tokenize", {"messages": MESSAGES}),
    "rank that is no number": Case(CHAT, {"messages": MESSAGES, **SHORT}, "abc"),
    "rank out of range": Case(CHAT, {"messages": MESSAGES, **SHORT}, "9", 400),
    "rank out of range, messages": Case(MESSAGES_API, {"messages": MESSAGES, **SHORT}, "9", 400),
    "rank that is ignored": Case("/v1/responses", {"input": "Hello", "max_output_tokens": 3}, "9"),
    "prompt too long": Case(CHAT, {"messages": TOO_LONG, **SHORT}, None, 400),
    "prompt too long, messages": Case(MESSAGES_API, {"messages": TOO_LONG, **SHORT}, None, 400),
    "max_tokens too large": Case(CHAT, {"messages": MESSAGES, "max_tokens": 50_000}, None, 400),
    "max_tokens too large, messages": Case(MESSAGES_API, {"messages": MESSAGES, "max_tokens": 50_000}, None, 400),
    "max_tokens too large, completions": Case(COMPLETIONS, {"prompt": "Hello", "max_tokens": 50_000}, None, 400),
    "max_output_tokens too large": Case("/v1/responses", {"input": "Hello", "max_output_tokens": 50_000}, None, 400),
    "unknown model": Case(CHAT, {"messages": MESSAGES, "model": "other"}, None, 404),
    "unknown model, messages": Case(MESSAGES_API, {"messages": MESSAGES, "model": "other", **SHORT}, None, 404),
}


@pytest.mark.parametrize("name", CASES)
async def test_the_simulated_engine_answers_in_vllms_shape(vllm: VllmServer, name: str) -> None:
    case = CASES[name]
    async with serving(OPTIONS) as simulated:
        theirs = await _ask(vllm.url, case)
        ours = await _ask(simulated, case)

    assert (theirs[0], ours[0]) == (case.status, case.status)
    assert [kind for kind, _ in ours[1]] == [kind for kind, _ in theirs[1]], "the events"
    for (kind, said), (_, real) in zip(ours[1], theirs[1], strict=True):
        assert _additions(said, real, kind) == []


async def _ask(url: str, case: Case) -> tuple[int, list[tuple[str, Any]]]:
    """The status, and the parts of the answer as (kind, decoded JSON); runs of events of one kind are one."""
    headers = {} if case.rank is None else {"X-data-parallel-rank": case.rank}
    body = {"model": MODEL, "temperature": 0, **case.body}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}{case.path}", json=body, headers=headers) as response,
    ):
        text = await response.text()
        if response.content_type != "text/event-stream":
            return response.status, [("whole", json.loads(text))]
    events = [_event(block) for block in text.split("\n\n") if block]
    return response.status, [next(run) for _, run in groupby(events, key=lambda event: event[0])]


def _event(block: str) -> tuple[str, Any]:
    *names, data = block.split("\n")
    if data == "data: [DONE]":
        return data, None
    decoded = json.loads(data.removeprefix("data: "))
    # Chat has no event names: what tells its chunks apart is which members they have.
    choice = (decoded.get("choices") or [{}])[0]
    kind = "".join(names) or f"{'role' in choice.get('delta', {})} {choice.get('finish_reason')} {'usage' in decoded}"
    return kind, decoded


def _additions(ours: Any, theirs: Any, where: str) -> list[str]:
    """What the simulated engine says that vLLM does not, or says otherwise. Null goes with anything."""
    if ours is None or theirs is None:
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        missing = [f"{where}.{key}: vLLM has no such member" for key in ours if key not in theirs]
        return missing + [
            line for key in ours if key in theirs for line in _additions(ours[key], theirs[key], f"{where}.{key}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list):
        return _additions(ours[0], theirs[0], f"{where}[0]") if ours and theirs else []
    return [] if type(ours) is type(theirs) else [f"{where}: {type(ours).__name__}, in vLLM {type(theirs).__name__}"]
