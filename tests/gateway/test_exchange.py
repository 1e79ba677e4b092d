"""What happens to one request: re-sending, breaks, silence, leaving clients, relayed bytes."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from tests.gateway.conftest import Response, SceneMaker, chat, post
from tests.stub_engine import (
    CHAT,
    MESSAGE,
    STREAM_HEAD,
    Act,
    Peer,
    Seen,
    chunk,
    head,
    raw,
    silence,
    stream,
    whole,
)
from tests.waiting import PATIENCE_S, until

from lmwarden.types import Outcome, ReplicaId

EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    'data: {"choices":[{"index":0,"delta":{"content":"北京🙂 \\"usage\\""},"finish_reason":null}]}\n\n'.encode(),
    b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}\n\n',
]
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":398,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":384}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
MESSAGE_EVENTS = [
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":398}}}\n\n',
    b": a comment\n\n",
    'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"北京🙂"}}\n\n'.encode(),
    b'event: novelty\ndata: {"type":"novelty"}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":'
    b'{"input_tokens":14,"output_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":384}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]
STREAM = chat(stream=True)


@pytest.mark.parametrize("apart", [False, True])
async def test_a_message_stream_is_relayed_byte_for_byte(make_scene: SceneMaker, apart: bool) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(stream(MESSAGE_EVENTS, apart=apart))
        client = await scene.connect()
        await client.send(post("/v1/messages", STREAM))
        response = await client.response()
        assert response.complete
        assert response.body == b"".join(MESSAGE_EVENTS)
        assert client.received.endswith(b"".join(map(chunk, MESSAGE_EVENTS)) + b"0\r\n\r\n")
        await scene.at_rest()
        (row,) = scene.rows
        assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (398, 384, 4)
        assert (row.finish_reason, row.outcome, row.streamed) == ("max_tokens", Outcome.OK, True)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("options", "visible", "sent"),
    [
        ({}, False, b'{"include_usage":true}'),
        ({"stream_options": None}, False, b'{"include_usage":true}'),
        ({"stream_options": {"include_usage": False}}, False, b'{"include_usage":true}'),
        ({"stream_options": {"continuous_usage_stats": True}}, False, b'{"include_usage":true}'),
        ({"stream_options": {"include_usage": True}}, True, b'{"include_usage":true}'),
    ],
)
async def test_usage_is_learned_and_only_an_asked_for_chunk_is_seen(
    make_scene: SceneMaker, options: dict[str, object], visible: bool, sent: bytes, apart: bool
) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(stream([*EVENTS, USAGE, DONE], apart=apart))
        response = await scene.ask(post("/v1/chat/completions", chat(stream=True, **options)))
        assert response.complete
        assert response.body == b"".join([*EVENTS, *([USAGE] if visible else []), DONE])
        assert b'"stream_options":' + sent in scene.engine.seen[0].body
        await scene.at_rest()
        (row,) = scene.rows
        assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.finish_reason) == (398, 384, 4, "stop")


async def test_a_non_streamed_body_goes_up_untouched(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        body = b'{ "model" : "m","x":1.0e2, "messages":[]  }\n'
        await scene.ask(post("/v1/chat/completions", body))
        assert scene.engine.seen[0].body == body


async def test_an_alias_becomes_the_engines_name_and_nothing_else_changes(make_scene: SceneMaker) -> None:
    async with make_scene(aliases=["claude-*"], engine_model="Qwen/Q") as scene:
        body = b'{"x":{"model":"claude-a"},"messages":[{"content":"\\"model\\":\\"claude-a\\""}],'
        body += b' "model" : "claude-a[1m]" }'
        scene.engine.default = whole(MESSAGE)
        await scene.ask(post("/v1/messages", body))
        assert scene.engine.seen[0].body == body.replace(b'"claude-a[1m]"', b'"Qwen/Q"')


# -- sent again ---------------------------------------------------------------------------------------------------


async def test_a_failed_connect_goes_elsewhere(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        await scene.engines[0].stop()
        scene.router.retry_at = ReplicaId("e1", 0)
        response = await scene.ask(post("/v1/chat/completions", chat()))
        assert response.status == 200
        assert response.header("X-LMWarden-Decision") == "rehomed"
        assert response.header("X-LMWarden-Replica") == "e1/0"
        await scene.at_rest()
        assert scene.rows[0].retried


async def test_all_engines_dead_is_503_in_the_envelope(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        for engine in scene.engines:
            await engine.stop()
        scene.router.retry_at = ReplicaId("e1", 0)
        response = await scene.ask(post("/v1/messages", chat()))
        assert response.status == 503
        assert response.json()["error"]["type"] == "api_error"
        assert response.header("Retry-After") == "3"


async def test_a_503_head_goes_elsewhere_once(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        busy = whole({"error": "starting"}, 503, "Retry-After: 9")
        scene.engines[0].script.append(busy)
        response = await scene.ask(post("/v1/chat/completions", chat()))
        assert (response.status, response.json()) == (200, CHAT)
        scene.engines[0].script.append(busy)
        scene.engines[1].script.append(busy)
        response = await scene.ask(post("/v1/chat/completions", chat()))
        assert (response.status, response.json()["error"]["message"]) == (503, "starting")
        assert response.header("Retry-After") == "9", "the engine's own"
        assert (len(scene.engines[0].seen), len(scene.engines[1].seen)) == (2, 2)


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 502, 529])
async def test_other_errors_are_relayed_and_not_sent_again(make_scene: SceneMaker, status: int) -> None:
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        body = b'{"error":{"message":"This model\'s maximum context length is 10","code":400}}'
        scene.engine.script.append(whole(body, status))
        response = await scene.ask(post("/v1/chat/completions", chat(stream=True)))
        assert (response.status, response.body) == (status, body)
        assert response.header("Retry-After") is None
        assert scene.engines[1].seen == []


async def test_a_pooled_connection_that_closed_is_replaced_at_the_same_replica(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 200
        scene.engine.script.append(raw(b"", then="close"))  # as if its keep-alive time had just ended
        response = await scene.ask(post("/v1/chat/completions", chat()))
        assert response.status == 200
        assert [seen.connection for seen in scene.engine.seen] == [0, 0, 1]
        assert scene.router.retried == set()
        await scene.at_rest()
        assert [row.retried for row in scene.rows] == [False, True]


async def test_a_fresh_connection_that_closes_is_502_and_not_sent_again(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2, verdict_s=0.05, sweep_s=0.02) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(raw(b"", then="close"))
        response = await scene.ask(post("/v1/messages", chat()))
        assert response.status == 502
        assert response.json()["type"] == "error"
        assert (len(scene.engines[0].seen), len(scene.engines[1].seen)) == (1, 0)


async def test_a_pooled_connection_that_breaks_in_the_head_is_not_sent_again(make_scene: SceneMaker) -> None:
    async with make_scene(verdict_s=0.05, sweep_s=0.02) as scene:
        await scene.ask(post("/v1/chat/completions", chat()))
        scene.engine.script.append(raw(b"HTTP/1.1 200 OK\r\nConten", then="close"))
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 502
        assert len(scene.engine.seen) == 2


@pytest.mark.parametrize("first", [b"", head() + b"Content-Length: 5\r\n\r\n"])
async def test_an_engine_known_to_be_dead_loses_its_unanswered_requests_to_others(
    make_scene: SceneMaker, first: bytes
) -> None:
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(silence(first))
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat()))
        (seen,) = await scene.engine.requests(1)
        if first:  # and it was read
            (exchange,) = scene.gateway.exchanges
            await until(lambda: exchange._connection is not None and exchange._connection.answered)
        scene.gateway.engine_lost("m", "e0")
        response = await client.response()
        assert (response.status, response.header("X-LMWarden-Replica")) == (200, "e1/0")
        await asyncio.wait_for(seen.dropped.wait(), PATIENCE_S)


async def test_a_dead_engine_cuts_answered_requests_and_leaves_others_alone(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        scene.engine.script.append(silence(STREAM_HEAD + chunk(EVENTS[0])))
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", STREAM))
        await client.until(b"assistant")
        scene.gateway.engine_lost("m", "e1")
        scene.gateway.engine_lost("m", "e0")
        response = await client.response()
        assert response.closed
        assert not response.complete


# -- silence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"", STREAM_HEAD])
async def test_silence_is_504_at_its_limit_and_never_sent_again(make_scene: SceneMaker, first: bytes) -> None:
    async with make_scene(engines=2, stream_silence_s=0.1, sweep_s=0.02) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(silence(first))
        response = await scene.ask(post("/v1/messages", STREAM))
        assert response.status == 504
        assert response.json()["error"]["type"] == "timeout_error"
        (seen,) = await scene.engine.requests(1)
        await asyncio.wait_for(seen.dropped.wait(), PATIENCE_S)
        assert scene.engines[1].seen == []
        await scene.at_rest()
        assert scene.rows[0].outcome is Outcome.TIMEOUT


async def test_silence_inside_an_answer_cuts_it(make_scene: SceneMaker) -> None:
    async with make_scene(stream_silence_s=0.4, sweep_s=0.02) as scene:
        scene.engine.script.append(silence(STREAM_HEAD + chunk(EVENTS[0])))
        response = await scene.ask(post("/v1/chat/completions", STREAM))
        assert response.status == 200
        assert response.closed
        assert not response.complete


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_pings_come_between_complete_events_only(make_scene: SceneMaker, path: str) -> None:
    async with make_scene(ping_s=0.05, sweep_s=0.025) as scene:
        events = MESSAGE_EVENTS if "messages" in path else [*EVENTS, DONE]
        ping = b'event: ping\ndata: {"type": "ping"}\n\n' if "messages" in path else b": ping\n\n"
        half_sent, go_on = asyncio.Event(), asyncio.Event()

        async def act(peer: Peer, seen: Seen) -> None:
            await peer.send(STREAM_HEAD + chunk(events[0]))
            await go_on.wait()
            go_on.clear()
            await peer.send(chunk(events[1][:9]))
            half_sent.set()
            await go_on.wait()
            await peer.send(chunk(events[1][9:]) + b"".join(map(chunk, events[2:])) + b"0\r\n\r\n")

        scene.engine.script.append(act)
        client = await scene.connect()
        await client.send(post(path, STREAM))
        await client.until(ping)
        go_on.set()
        await half_sent.wait()
        await scene.sweeps(6)  # several ping times with half an event at the client
        go_on.set()
        response = await client.response()
        assert response.complete
        assert response.body.replace(ping, b"") == b"".join(events)
        assert response.body.startswith(events[0] + ping)
        assert events[1] in response.body


# -- breaks -------------------------------------------------------------------------------------------------------

_CUTS: dict[str, Act] = {
    "reset": raw(b"", then="reset"),
    "close": raw(b"", then="close"),
    "garbage": raw(b"not a chunk", then="close"),
    "ends in order without DONE": raw(b"0\r\n\r\n"),
    "abort": raw(chunk(EVENTS[2].replace(b'"stop"', b'"abort"')) + chunk(DONE) + b"0\r\n\r\n"),
}


def in_two(first: bytes, go_on: asyncio.Event, rest: Act) -> Act:
    """Begin a stream, and go on with it when told."""

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD + first)
        await go_on.wait()
        await rest(peer, seen)

    return act


@pytest.mark.parametrize("name", _CUTS)
async def test_a_broken_stream_never_looks_finished(make_scene: SceneMaker, name: str) -> None:
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        go_on = asyncio.Event()
        scene.engine.script.append(in_two(chunk(EVENTS[0]), go_on, _CUTS[name]))
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", STREAM))
        await client.until(b"assistant")
        go_on.set()
        response = await client.response()
        assert response.closed
        assert not response.complete
        assert response.body == EVENTS[0]
        assert scene.engines[1].seen == []
        await scene.at_rest()
        assert scene.rows[0].outcome is Outcome.FAILED


async def test_an_aborted_message_is_cut(make_scene: SceneMaker) -> None:
    events = [*MESSAGE_EVENTS[:4], MESSAGE_EVENTS[4].replace(b'"max_tokens"', b"null"), MESSAGE_EVENTS[5]]
    async with make_scene() as scene:
        go_on = asyncio.Event()
        rest = raw(b"".join(map(chunk, events[4:])) + b"0\r\n\r\n")
        scene.engine.script.append(in_two(b"".join(map(chunk, events[:4])), go_on, rest))
        client = await scene.connect()
        await client.send(post("/v1/messages", STREAM))
        await client.until(b"novelty")
        go_on.set()
        response = await client.response()
        assert not response.complete
        assert b"message_stop" not in client.received


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"choices":[{"finish_reason":"abort"}]}'),
        ("/v1/completions", b'{"choices":[{"finish_reason":"length"},{"finish_reason":"abort"}]}'),
        ("/v1/messages", b'{"type":"message","stop_reason":null,"content":[]}'),
        ("/v1/responses", b'{"id":"resp_1","status":"cancelled","usage":null}'),
    ],
)
async def test_an_aborted_answer_is_502(make_scene: SceneMaker, path: str, body: bytes) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(whole(body))
        response = await scene.ask(post(path, chat()))
        assert response.status == 502
        await scene.at_rest()
        assert (scene.rows[0].outcome, scene.rows[0].finish_reason) in (
            (Outcome.FAILED, "abort"),
            (Outcome.FAILED, "cancelled"),
        )


async def test_an_aborted_response_is_cut(make_scene: SceneMaker) -> None:
    begun = b'event: response.created\ndata: {"type":"response.created","response":{"status":"in_progress"}}\n\n'
    ended = begun.replace(b"created", b"completed").replace(b"in_progress", b"cancelled")
    async with make_scene() as scene:
        go_on = asyncio.Event()
        scene.engine.script.append(in_two(chunk(begun), go_on, raw(chunk(ended) + b"0\r\n\r\n")))
        client = await scene.connect()
        await client.send(post("/v1/responses", STREAM))
        await client.until(b"in_progress")
        go_on.set()
        response = await client.response()
        assert (response.complete, response.body) == (False, begun)
        await scene.at_rest()
        assert scene.rows[0].outcome is Outcome.FAILED


async def test_an_error_event_is_relayed_and_counts_as_failed(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        events = [EVENTS[0], b'data: {"error":{"message":"engine dead","code":500}}\n\n', DONE]
        scene.engine.script.append(stream(events))
        response = await scene.ask(post("/v1/chat/completions", STREAM))
        assert response.body == b"".join(events)
        await scene.at_rest()
        assert scene.rows[0].outcome is Outcome.FAILED


async def test_a_cut_json_answer_stays_incomplete(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(raw(head() + b"Content-Length: 100\r\n\r\nabc", then="close"))
        response = await scene.ask(post("/v1/chat/completions", chat()))
        assert (response.status, response.body, response.complete) == (200, b"abc", False)


# -- the client leaves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"", STREAM_HEAD, STREAM_HEAD + chunk(EVENTS[0])])
async def test_a_client_that_leaves_stops_the_engine_at_once(make_scene: SceneMaker, first: bytes) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(silence(first))
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", STREAM))
        (seen,) = await scene.engine.requests(1)
        if b"data" in first:
            await client.until(b"assistant")
        client.leave()
        await asyncio.wait_for(seen.dropped.wait(), PATIENCE_S)
        await scene.at_rest()
        assert scene.rows[0].outcome is Outcome.CANCELLED
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 200


async def test_a_client_that_leaves_the_waiting_room_is_cancelled(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.router.choose = lambda request: None
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat()))
        await asyncio.wait_for(scene.router.asked.wait(), PATIENCE_S)
        client.leave()
        await scene.at_rest()
        assert scene.engine.seen == []
        assert (scene.rows[0].outcome, scene.rows[0].decision) == (Outcome.CANCELLED, None)


# -- framings -----------------------------------------------------------------------------------------------------


async def _framed(scene: object, request: bytes, act: Act) -> Response:
    scene.engine.script.append(act)  # type: ignore[attr-defined]
    response: Response = await scene.ask(request)  # type: ignore[attr-defined]
    return response


async def test_http_1_0_gets_no_chunks_and_a_close(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(stream([*EVENTS, USAGE, DONE]))
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", STREAM, version="1.0").replace(b"Host: gateway\r\n", b""))
        received = await client.rest()
        text, _, body = received.partition(b"\r\n\r\n")
        assert body == b"".join([*EVENTS, DONE])
        assert b"transfer-encoding" not in text.lower()
        assert b"Connection: close" in text


async def test_a_cut_http_1_0_stream_ends_with_a_reset(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(raw(STREAM_HEAD + chunk(EVENTS[0]), then="reset"))
        client = await scene.connect()
        await client.send(post("/v1/messages", STREAM, version="1.0"))
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_an_answer_that_ends_by_closing_is_chunked(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        act = raw(head() + b"\r\n" + b'{"usage":{"prompt_tokens":3}}', then="close")
        response = await _framed(scene, post("/v1/chat/completions", chat()), act)
        assert (response.body, response.complete) == (b'{"usage":{"prompt_tokens":3}}', True)
        assert response.header("Transfer-Encoding") == "chunked"
        await scene.at_rest()
        assert scene.rows[0].prompt_tokens == 3


async def test_interim_answers_are_skipped(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        act = raw(interim + interim + head() + b"Content-Length: 2\r\n\r\n{}")
        response = await _framed(scene, post("/v1/chat/completions", chat()), act)
        assert (response.status, response.body, response.header("Link")) == (200, b"{}", None)


async def test_an_empty_answer(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        act = raw(b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n")
        response = await _framed(scene, post("/v1/chat/completions", chat()), act)
        assert (response.status, response.body, response.header("X-A")) == (204, b"", "b")


@pytest.mark.parametrize(
    "answer",
    [
        head() + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"hello\r\n\r\n",
        head() + b"Content-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["two framings", "no HTTP", "two answers", "endless head", "switch"],
)
async def test_an_answer_that_is_no_clear_http_is_502(make_scene: SceneMaker, answer: bytes) -> None:
    async with make_scene() as scene:
        response = await _framed(scene, post("/v1/messages", chat()), raw(answer))
        assert response.status == 502
        assert response.json()["type"] == "error"
        assert (await scene.ask(post("/v1/messages", chat()))).status == 200


async def test_hop_by_hop_and_our_own_names_do_not_come_from_the_engine(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        act = whole(
            b"{}",
            200,
            "Connection: X-Hop",
            "X-Hop: 1",
            "Keep-Alive: timeout=5",
            "X-LMWarden-Replica: forged",
            "X-Id: 7",
        )
        response = await _framed(scene, post("/v1/chat/completions", chat()), act)
        assert response.header("X-Hop") is None
        assert response.header("Keep-Alive") is None
        assert response.header("X-LMWarden-Replica") == "e0/0"
        assert response.header("X-Id") == "7"


async def test_a_compressed_answer_that_its_client_takes_goes_through_as_it_is(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        for body in (b"\x1f\x8b\x08zip", gzip.compress(b"{}")):
            act = whole(body, 200, "Content-Encoding: gzip")
            request = post("/v1/chat/completions", STREAM, "Accept-Encoding: br, gzip")
            response = await _framed(scene, request, act)
            assert (response.body, response.header("Content-Encoding")) == (body, "gzip")
            assert scene.engine.seen[-1].values("Accept-Encoding") == [b"identity"]


async def test_a_slow_reader_pauses_the_engine_and_gets_everything(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        piece = MESSAGE_EVENTS[2] * 500
        sent = 0

        async def flood(peer: Peer, seen: Seen) -> None:
            nonlocal sent
            await peer.send(STREAM_HEAD)
            for _ in range(800):
                await peer.send(chunk(piece))
                sent += 1
            await peer.send(b"".join(map(chunk, MESSAGE_EVENTS[4:])) + b"0\r\n\r\n")

        scene.engine.script.append(flood)
        client = await scene.connect()
        await client.send(post("/v1/messages", STREAM))
        await client.until(b"text/event-stream")
        await scene.stands_still(lambda: sent)
        assert sent < 800
        response = await client.response()
        assert response.complete
        assert response.body == piece * 800 + b"".join(MESSAGE_EVENTS[4:])


async def test_a_reader_that_stands_still_is_cut_off(make_scene: SceneMaker) -> None:
    async with make_scene(write_stall_s=0.1, sweep_s=0.02) as scene:

        async def flood(peer: Peer, seen: Seen) -> None:
            await peer.send(STREAM_HEAD)
            while True:
                await peer.send(chunk(MESSAGE_EVENTS[2] * 500))

        scene.engine.script.append(flood)
        client = await scene.connect()
        await client.send(post("/v1/messages", STREAM))
        (seen,) = await scene.engine.requests(1)
        await asyncio.wait_for(seen.dropped.wait(), PATIENCE_S)
        await scene.at_rest()
        assert scene.rows[0].outcome is Outcome.CANCELLED


@pytest.mark.parametrize("half", [True, False])
async def test_a_full_client_that_leaves_drops_the_engine_at_once(make_scene: SceneMaker, half: bool) -> None:
    async with make_scene() as scene:

        async def flood(peer: Peer, seen: Seen) -> None:
            await peer.send(STREAM_HEAD)
            while True:
                await peer.send(chunk(EVENTS[0] * 100))

        scene.engine.default = flood
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat(stream=True)))
        await client.until(b"data:")
        (connection,) = scene.gateway.connections
        await until(lambda: connection.write_paused)
        if half:
            client._writer.write_eof()
        else:
            client.leave()
        await asyncio.wait_for(scene.engine.seen[0].dropped.wait(), PATIENCE_S)
        await scene.at_rest()
        assert [row.outcome for row in scene.rows] == [Outcome.CANCELLED]


async def test_an_answer_to_a_client_that_closed_its_half_goes_out(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n")
        client._writer.write_eof()
        assert b" 200 OK" in await client.rest()


async def test_half_a_connection_does_not_stay(make_scene: SceneMaker) -> None:
    async with make_scene(linger_s=0.05, sweep_s=0.02) as scene:
        scene.engine.default = silence(STREAM_HEAD + chunk(EVENTS[0]))
        for request in (b"", b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n", post("/v1/messages", chat(stream=True))):
            client = await scene.connect()
            await client.send(request)
            client._writer.write_eof()
            await client.rest()
        assert not scene.gateway.connections


async def test_a_client_that_does_not_read_holds_little(make_scene: SceneMaker) -> None:
    size = 50_000_000
    async with make_scene() as scene:
        sent = most = 0
        client = await scene.connect()
        await until(lambda: bool(scene.gateway.connections))
        (connection,) = scene.gateway.connections

        async def large(peer: Peer, seen: Seen) -> None:
            nonlocal sent, most
            await peer.send(head(400) + b"Content-Length: %d\r\n\r\n" % size)
            while sent < size:
                most = max(most, connection.transport.get_write_buffer_size())
                await peer.send(b"x" * 65536)
                sent += 65536

        scene.engine.default = large
        await client.send(post("/v1/chat/completions", chat()))
        await scene.stands_still(lambda: sent)
        assert max(most, connection.transport.get_write_buffer_size()) < 1_000_000
        client.leave()
