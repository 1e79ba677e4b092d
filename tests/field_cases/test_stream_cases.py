"""D10 to D12: what passes by is passed on as it is, and never finished by us."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.field_cases.house import FEW, PATHS, STREAMS, House, house, in_chunks, run, turn
from tests.gateway.conftest import post
from tests.stub_engine import STREAM_HEAD, Peer, Seen, chunk, raw
from tests.waiting import PATIENCE_S, until

from lmwarden.gateway.relay import Relay
from lmwarden.types import Outcome

PIECES = [
    'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"北京🙂"}}',
    'event: content_block_delta\ndata: {"delta":{"type":"thinking_delta","thinking":"\u2028"}}',
    'event: content_block_delta\ndata: {"delta":{"type":"signature_delta","signature":"=="}}',
    *(
        'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"input_json_delta",'
        f'"partial_json":{json.dumps(part, ensure_ascii=False)}}}}}'
        for part in ('{"', "co", 'de":"é"}')
    ),
    'event: novelty\ndata: {"type":"novelty","usage":"\u0085"}',
    ": a comment",
    "id: 7\nretry: 100",
    "data",
    "event: lonely",
    'data: {"type":\ndata: "spread"}',
    'data: {"choices":[{"delta":{"content":"\\ud83d"},"finish_reason":null}]}',
    "data: {broken",
]


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A path, and a stream for it, cut into chunks anywhere."""
    path = draw(st.sampled_from(PATHS))
    line_end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    events = [piece.encode() for piece in draw(st.lists(st.sampled_from(PIECES), max_size=12))]
    known, last = STREAMS[path]
    text = b"\n\n".join([*(event.strip() for event in known), *events, last.strip()]) + b"\n\n"
    text = text.replace(b"\n", line_end.encode())
    if draw(st.booleans()):
        text = b"\xef\xbb\xbf" + text
    if draw(st.booleans()):
        size = draw(st.integers(1, 3))
        edges = [*range(0, len(text), size), len(text)]
    else:
        edges = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=20))})
    return path, [text[start:stop] for start, stop in pairwise(edges) if stop > start]


@FEW
@given(made_up=streams())
def test_d10_whatever_comes_in_whatever_pieces_arrives_byte_for_byte(made_up: tuple[str, list[bytes]]) -> None:
    async def scenario() -> None:
        path, pieces = made_up
        async with house({"m": {"e0": 1}}) as made:
            made.engines["e0"].default = in_chunks(pieces)
            # Who asks for usage gets every byte; D13 is about who does not.
            response = await made.ask(path, turn(stream=True, stream_options={"include_usage": True}))
            assert response.complete
            assert response.body == b"".join(pieces)
            await made.at_rest()
            assert made.last_row().outcome is Outcome.OK

    run(scenario())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
async def test_d10_an_event_is_passed_on_when_it_is_complete(path: str, asked: bool, line_end: bytes) -> None:
    """The engine sends the next event only after the client had the one before."""
    events, end = STREAMS[path]
    events = tuple(event.replace(b"\n", line_end) for event in events)
    received = asyncio.Event()

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD)
        for event in events:
            received.clear()
            await peer.send(chunk(event))
            await received.wait()
        await peer.send(chunk(end) + b"0\r\n\r\n")

    async with house({"m": {"e0": 1}}) as made:
        made.engines["e0"].default = act
        client = await made.connect()
        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
        await client.send(post(path, turn(stream=True, **options)))
        for event in events:
            await client.until(event)
            received.set()
        assert (await client.response()).complete


# -- D11 -----------------------------------------------------------------------------------------------------------

BREAKS: dict[str, tuple[bytes, str]] = {
    "reset": (b"", "reset"),
    "closed": (b"", "close"),
    "a clean end without the last event": (b"0\r\n\r\n", "keep"),
    "half an event": (chunk(b"data: {"), "reset"),
    "half a chunk": (b"40\r\ndata: {", "close"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("how", BREAKS)
async def test_d11_a_stream_that_breaks_never_looks_finished_and_is_not_sent_again(path: str, how: str) -> None:
    events, end = STREAMS[path]
    rest, then = BREAKS[how]
    relayed = asyncio.Event()

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD + b"".join(map(chunk, events)))
        await relayed.wait()
        await raw(rest, then=then)(peer, seen)

    async with house({"m": {"e0": 1, "e1": 1}}) as made:
        for engine in made.engines.values():
            engine.default = act
        client = await made.connect()
        await client.send(post(path, turn(stream=True)))
        await client.until(events[-1])
        relayed.set()
        response = await client.response()
        assert response.closed
        assert not response.complete
        assert b"".join(events).startswith(response.body[: len(b"".join(events))])
        assert end not in response.body
        assert b'"error"' not in response.body, "nothing of ours inside of a stream"
        await made.at_rest()
        assert sum(len(engine.seen) for engine in made.engines.values()) == 1
        assert made.last_row().outcome is Outcome.FAILED


ERRORS: dict[str, bytes] = {
    "/v1/messages": b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"engine dead"}}\n\n',
    "/v1/chat/completions": b'data: {"error":{"message":"engine dead","code":500}}\n\ndata: [DONE]\n\n',
    "/v1/completions": b'data: {"error":{"message":"engine dead","code":500}}\n\ndata: [DONE]\n\n',
    "/v1/responses": b'event: error\ndata: {"type":"error","message":"engine dead"}\n\n',
}


@pytest.mark.parametrize("path", PATHS)
async def test_d11_an_error_inside_a_200_is_the_engines_word_and_counts_as_failed(path: str) -> None:
    events, _ = STREAMS[path]
    async with house({"m": {"e0": 1}}) as made:
        made.engines["e0"].default = in_chunks([*events, ERRORS[path]])
        response = await made.ask(path, turn(stream=True))
        assert response.complete
        assert response.body == b"".join(events) + ERRORS[path]
        await made.at_rest()
        assert made.last_row().outcome is Outcome.FAILED


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_d11_a_client_that_leaves_frees_its_engine_and_touches_nobody(path: str, streamed: bool) -> None:
    events, end = STREAMS[path]
    go_on = asyncio.Event()

    async def act(peer: Peer, seen: Seen) -> None:
        if streamed or b"stays" in seen.body:
            await peer.send(STREAM_HEAD + chunk(events[0]))
        await (go_on.wait() if b"stays" in seen.body else peer.gone())
        await peer.send(b"".join(map(chunk, [*events[1:], end])) + b"0\r\n\r\n")

    async with house({"m": {"e0": 1}}) as made:
        engine = made.engines["e0"]
        engine.default = act
        stays, leaves = await made.connect(), await made.connect()
        await stays.send(post(path, turn("stays", stream=True)))
        await stays.until(events[0][:20])
        await leaves.send(post(path, turn("leaves", stream=streamed)))
        await engine.requests(2)
        if streamed:
            await leaves.until(events[0][:20])
        leaves.leave()
        async with asyncio.timeout(PATIENCE_S):
            await engine.seen[1].dropped.wait()
        await until(lambda: made.view().in_flight == 1)
        go_on.set()
        assert (await stays.response()).complete


# -- D12 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_d12_a_long_silence_is_bridged_between_events_and_asks_the_engine_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gives up after some seconds without an event, in small: a heart-beat arrives at each silence."""
    events, end = STREAMS[path]
    beat = b"event: ping\n" if path == "/v1/messages" else b": ping\n\n"
    silent = [asyncio.Event() for _ in range(3)]
    beats: list[bytes] = []
    ping = Relay.ping

    def counted(relay: Relay, event: bytes) -> bytes | None:
        sent = ping(relay, event)
        beats.extend([] if sent is None else [sent])
        return sent

    monkeypatch.setattr(Relay, "ping", counted)

    async def act(peer: Peer, seen: Seen) -> None:
        await silent[0].wait()
        await peer.send(STREAM_HEAD + chunk(events[0]))
        await silent[1].wait()
        half = len(events[1]) // 2
        await peer.send(chunk(events[1][:half]))
        await silent[2].wait()
        await peer.send(chunk(events[1][half:]) + b"".join(map(chunk, [*events[2:], end])))
        await peer.gone()

    async with house({"m": {"e0": 1}}, sweep_s=0.01, ping_s=0.02) as made:
        made.engines["e0"].default = act
        client = await made.connect()
        await client.send(post(path, turn(stream=True)))
        await _sweeps(made, 8)
        assert client.received == b"", (
            "before the engine's first byte nothing is sent: it could still be sent elsewhere"
        )
        silent[0].set()
        await client.until(beat)
        silent[1].set()
        (exchange,) = made.gateway.exchanges
        await until(lambda: exchange._relay is not None and not exchange._relay.tap.between_events())
        begun = len(beats)  # the client may not have seen the last, nor the half of which usage may be withheld
        await _sweeps(made, 8)
        silent[2].set()
        await client.until(end)
        await _sweeps(made, 8)
        assert len(beats) == client.received.count(beat) == begun, "not inside of an event, and not after the last one"
        assert len(made.engines["e0"].seen) == 1
        text = client.received.replace(b'event: ping\ndata: {"type": "ping"}\n\n', b"").replace(b": ping\n\n", b"")
        assert all(event.strip() in _body(bytes(text)) for event in events)
        client.leave()


async def _sweeps(made: House, count: int) -> None:
    """Let the gateway look at its limits so many times in a silence."""
    await until(lambda: bool(made.gateway.exchanges))
    (exchange,) = made.gateway.exchanges
    exchange._quiet = 0
    await until(lambda: exchange._quiet >= count)


def _body(received: bytes) -> bytes:
    """The body without its chunk framing, which our events have made irregular for a search."""
    _, _, framed = received.partition(b"\r\n\r\n")
    return b"".join(part for at, part in enumerate(framed.split(b"\r\n")) if at % 2)
