"""What the agents send, and what becomes of answers of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.bench.stub_endpoint import CHAT_STREAM, MESSAGES_STREAM, StubEndpoint, event, serving
from tests.waiting import PATIENCE_S, turns

from lmwarden.bench.client import AgentClient, listed_models
from lmwarden.bench.conversation import Api, Conversation
from lmwarden.bench.errors import BenchError
from lmwarden.bench.measure import TurnRecord
from lmwarden.bench.plans import LEFT_TEXT
from lmwarden.bench.sessions import SessionSource
from lmwarden.bench.workload import load_workload

SOURCE = SessionSource(load_workload("claude-code"), think=None, seed=1, sessions=4, arm="on")


def conversation(index: int = 0, api: Api = Api.MESSAGES) -> Conversation:
    return Conversation(SOURCE.session(index), "m", api)


def record(turn: int = 0) -> TurnRecord:
    return TurnRecord(session=0, turn=turn, sent_s=0.0)


@pytest.fixture
async def stub() -> AsyncIterator[StubEndpoint]:
    async with serving(StubEndpoint()) as endpoint:
        yield endpoint


def client(stub: StubEndpoint, api: Api = Api.MESSAGES, key: str | None = None) -> AgentClient:
    ticks = iter(range(1_000_000))
    return AgentClient(stub.url, api=api, key=key, clock=lambda: float(next(ticks)))


def plain(message: dict[str, Any]) -> tuple[str, str]:
    content = message["content"]
    return message["role"], content if isinstance(content, str) else content[0]["text"]


@pytest.mark.parametrize("api", [Api.MESSAGES, Api.CHAT])
async def test_each_turn_extends_the_last_one_with_the_answer_that_came(stub: StubEndpoint, api: Api) -> None:
    agent = conversation(api=api)
    async with client(stub, api) as agents:
        for turn in range(3):
            assert await agents.play(agent, record(turn))
    histories = [[plain(message) for message in body["messages"]] for body in stub.bodies]
    assert histories[1][: len(histories[0])] == histories[0]
    assert histories[2][: len(histories[1])] == histories[1]
    assert histories[1][-2] == ("assistant", "one two.")
    assert len(histories[2]) == len(histories[0]) + 4
    assert [body["max_tokens"] for body in stub.bodies] == [256, 256, 256]


async def test_messages_look_like_claude_code(stub: StubEndpoint) -> None:
    agent = conversation()
    async with client(stub, key="secret") as agents:
        await agents.play(agent, record())
    headers, body = stub.headers[0], stub.bodies[0]
    session_id = agent.session.session_id
    assert headers["X-Claude-Code-Session-Id"] == session_id
    assert headers["Authorization"] == "Bearer secret"
    assert msgspec.json.decode(body["metadata"]["user_id"])["session_id"] == session_id
    assert body["system"][0]["text"] == SOURCE.system_text()
    assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert body["stream"] is True


async def test_only_the_last_message_is_marked(stub: StubEndpoint) -> None:
    agent = conversation()
    async with client(stub) as agents:
        for turn in range(2):
            await agents.play(agent, record(turn))
    marked = [b"cache_control" in msgspec.json.encode(message) for message in stub.bodies[1]["messages"]]
    assert marked == [False, False, True]


async def test_chat_asks_for_usage_and_names_its_session(stub: StubEndpoint) -> None:
    agent = conversation(api=Api.CHAT)
    async with client(stub, Api.CHAT) as agents:
        await agents.play(agent, record())
    assert stub.bodies[0]["stream_options"] == {"include_usage": True}
    assert stub.headers[0]["X-Session-Id"] == agent.session.session_id


@pytest.mark.parametrize("api", [Api.MESSAGES, Api.CHAT])
async def test_a_turn_records_usage_times_and_decision(stub: StubEndpoint, api: Api) -> None:
    seen = record()
    async with client(stub, api) as agents:
        assert await agents.play(conversation(api=api), seen)
    assert (seen.prompt_tokens, seen.cached_tokens, seen.output_tokens) == (1000, 900, 41)
    assert (seen.decision, seen.replica, seen.waited_s) == ("sticky", "e0/1", 0.0)
    assert seen.first_token_s is not None and seen.ended_s is not None
    assert seen.sent_s < seen.first_token_s < seen.ended_s
    assert not seen.failed


async def test_a_client_that_leaves_closes_the_connection_and_goes_on(stub: StubEndpoint) -> None:
    """The endpoint sees the connection end; the history says that the answer was interrupted."""
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        try:
            for piece in MESSAGES_STREAM[:4]:
                await response.write(piece)
            await asyncio.Event().wait()
        finally:
            gone.set()
        raise AssertionError

    stub.answer = endless
    session = SOURCE.session(0)
    impatient = replace(session, turns=(replace(session.turns[0], leaves_after_s=0.01), *session.turns[1:]))
    agent, seen = Conversation(impatient, "m", Api.MESSAGES), record()
    async with client(stub) as agents, asyncio.timeout(PATIENCE_S):
        assert await agents.play(agent, seen)
        await gone.wait()
        stub.answer = stub.whole_answer
        assert await agents.play(agent, record(1))
    assert seen.left and not seen.failed
    assert seen.first_token_s is not None and seen.ended_s is not None and seen.output_tokens is None
    assert [plain(message) for message in stub.bodies[1]["messages"]][1] == ("assistant", LEFT_TEXT)


@pytest.mark.parametrize("pause_turns", [None, 50], ids=["at once", "in pieces"])
async def test_an_answer_that_ends_before_its_client_leaves_has_ended(
    stub: StubEndpoint, pause_turns: int | None
) -> None:
    if pause_turns is not None:
        streaming(stub, MESSAGES_STREAM, turns_between=pause_turns)
    session = SOURCE.session(0)
    patient = replace(session, turns=(replace(session.turns[0], leaves_after_s=1000.0), *session.turns[1:]))
    seen = record()
    async with client(stub) as agents:
        assert await agents.play(Conversation(patient, "m", Api.MESSAGES), seen)
    assert not seen.left and seen.output_tokens == 41


async def test_the_delay_of_the_network_is_part_of_the_wait(stub: StubEndpoint) -> None:
    """The send is read from the clock before the delay: its tick is the first."""
    seen = record()
    ticks = iter(range(1_000_000))
    slow = AgentClient(
        stub.url, api=Api.MESSAGES, key=None, clock=lambda: float(next(ticks)), speed=1000.0, network_s=1.0
    )
    async with slow as agents:
        assert await agents.play(conversation(), seen)
    assert seen.sent_s == 0.0


async def test_without_a_warden_there_is_no_decision(stub: StubEndpoint) -> None:
    stub.decision = None
    seen = record()
    async with client(stub) as agents:
        assert await agents.play(conversation(), seen)
    assert (seen.decision, seen.waited_s) == (None, None)


def streaming(stub: StubEndpoint, pieces: Sequence[bytes], *, turns_between: int = 0, cut: bool = False) -> None:
    """Let the stub send these pieces, then end the answer, or cut the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await turns(turns_between)
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    stub.answer = answer


async def failure(stub: StubEndpoint, api: Api = Api.MESSAGES) -> str:
    seen = record()
    async with client(stub, api) as agents:
        assert not await agents.play(conversation(api=api), seen)
    assert seen.failed and seen.ended_s is not None and seen.error is not None
    return seen.error


async def test_an_error_status_is_a_failure_without_its_text(stub: StubEndpoint) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "MARKER"}}, status=503)

    stub.answer = refuse
    assert await failure(stub) == "status 503"


async def test_a_clean_end_without_the_end_mark_is_a_failure(stub: StubEndpoint) -> None:
    streaming(stub, MESSAGES_STREAM[:-1])
    assert "end mark" in await failure(stub)
    streaming(stub, CHAT_STREAM[:-1])
    assert "end mark" in await failure(stub, Api.CHAT)


async def test_a_cut_connection_is_a_failure(stub: StubEndpoint) -> None:
    streaming(stub, MESSAGES_STREAM[:4], cut=True)
    assert (await failure(stub)).startswith("connection")


async def test_an_error_event_is_a_failure(stub: StubEndpoint) -> None:
    pieces = [*MESSAGES_STREAM[:4], event({"type": "error", "error": {"type": "api_error"}})]
    streaming(stub, pieces)
    assert await failure(stub) == "error in the stream: api_error"


async def test_an_abort_nobody_asked_for_is_a_failure(stub: StubEndpoint) -> None:
    done = event({"choices": [{"delta": {"content": "a"}, "finish_reason": "abort"}]})
    streaming(stub, [*CHAT_STREAM[:2], done, b"data: [DONE]\n\n"])
    assert "aborted" in await failure(stub, Api.CHAT)


async def test_an_answer_without_a_token_is_a_failure(stub: StubEndpoint) -> None:
    streaming(stub, [*MESSAGES_STREAM[:3], *MESSAGES_STREAM[6:]])
    assert "without a token" in await failure(stub)


async def test_junk_instead_of_events_is_a_failure(stub: StubEndpoint) -> None:
    streaming(stub, [b"data: <html>\n\n"])
    assert "not JSON" in await failure(stub)


async def test_the_pool_is_not_capped(stub: StubEndpoint) -> None:
    """300 requests are at the endpoint at once: none is answered before all have arrived."""
    all_here = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        if len(stub.bodies) == 300:
            all_here.set()
        await all_here.wait()
        return await stub.whole_answer(request)

    stub.answer = hold
    async with client(stub) as agents, asyncio.timeout(PATIENCE_S):
        answered = await asyncio.gather(*(agents.play(conversation(i), record()) for i in range(300)))
    assert all(answered)


async def test_a_refused_connection_is_recorded(dead_port: int) -> None:
    seen = record()
    url = f"http://127.0.0.1:{dead_port}"
    async with AgentClient(url, api=Api.MESSAGES, key=None, clock=lambda: 1.0) as agents:
        assert not await agents.play(conversation(), seen)
    assert seen.failed


async def test_the_endpoint_lists_its_models(stub: StubEndpoint, dead_port: int) -> None:
    assert await listed_models(stub.url, None) == ["m"]
    with pytest.raises(BenchError, match=r"--url http://127\.0\.0\.1:\d+: GET /v1/models failed: connection refused"):
        await listed_models(f"http://127.0.0.1:{dead_port}", None)
