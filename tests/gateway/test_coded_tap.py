"""Answers that an engine compressed: counted, broken off where they break off, and readable for their client."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
from backports import zstd
from tests.gateway.conftest import Response, SceneMaker, chat, post
from tests.stub_engine import STREAM_HEAD, Act, Peer, Seen, chunk, head
from tests.waiting import until

from lmwarden.gateway.coded_tap import MAX_DECODED_BYTES, CodedTap, accepts
from lmwarden.gateway.codings import CODINGS, CorruptError, Decoder
from lmwarden.gateway.stream_taps import ChatTap
from lmwarden.gateway.usage import BodyTap
from lmwarden.types import Outcome

ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}
EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
]
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":398,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
BODY = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":398,"completion_tokens":4}}'


def encoded_stream(coding: str, text: bytes, *, pieces: int = 40, end: bytes = b"0\r\n\r\n") -> Act:
    """A stream that is one encoded body, in many chunks."""
    body = ENCODE[coding](text)
    size = max(1, len(body) // pieces)

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD[:-2] + f"Content-Encoding: {coding}\r\n\r\n".encode())
        for at in range(0, len(body), size):
            await peer.send(chunk(body[at : at + size]))
        await peer.send(end)

    return act


def encoded_body(coding: str, text: bytes, status: int = 200) -> Act:
    body = ENCODE[coding](text)

    async def act(peer: Peer, seen: Seen) -> None:
        lines = head(status, "application/json", f"Content-Encoding: {coding}", f"Content-Length: {len(body)}")
        await peer.send(lines + b"\r\n" + body)

    return act


async def _ask(make_scene: SceneMaker, act: Act, *lines: str, **members: object) -> tuple[Response, tuple[object, ...]]:
    async with make_scene() as scene:
        scene.engine.script.append(act)
        response: Response = await scene.ask(post("/v1/chat/completions", chat(**members), *lines))
        await scene.at_rest()
        (row,) = scene.rows
        return response, (row.prompt_tokens, row.completion_tokens, row.outcome)


COUNTED = (398, 4, Outcome.OK)
SHOWN = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_stream_that_its_client_takes_is_counted_and_passed_on_byte_for_byte(
    make_scene: SceneMaker, coding: str
) -> None:
    text = b"".join([*EVENTS, USAGE, DONE])
    act = encoded_stream(coding, text)
    response, row = await _ask(make_scene, act, "Accept-Encoding: gzip, deflate, br, zstd", **SHOWN)
    assert response.complete
    assert response.header("Content-Encoding") == coding
    assert response.body == ENCODE[coding](text)
    assert row == COUNTED


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("lines", [(), ("Accept-Encoding: identity",)])
async def test_a_client_that_does_not_take_it_gets_the_text(
    make_scene: SceneMaker, coding: str, lines: tuple[str, ...]
) -> None:
    text = b"".join([*EVENTS, USAGE, DONE])
    response, row = await _ask(make_scene, encoded_stream(coding, text), *lines, **SHOWN)
    assert response.complete
    assert response.header("Content-Encoding") is None
    assert response.body == text
    assert row == COUNTED


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_usage_chunk_that_was_not_asked_for_is_withheld_from_the_text(
    make_scene: SceneMaker, coding: str
) -> None:
    act = encoded_stream(coding, b"".join([*EVENTS, USAGE, DONE]))
    response, row = await _ask(make_scene, act, f"Accept-Encoding: {coding}", stream=True)
    assert response.complete
    assert response.header("Content-Encoding") is None
    assert response.body == b"".join([*EVENTS, DONE])
    assert row == COUNTED


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("taken", [False, True])
async def test_bodies_and_errors_agree_with_their_head(make_scene: SceneMaker, coding: str, taken: bool) -> None:
    lines = (f"Accept-Encoding: {coding}",) if taken else ()
    for status, text in ((200, BODY), (404, b'{"error":{"message":"no such thing"}}')):
        response, row = await _ask(make_scene, encoded_body(coding, text, status), *lines)
        assert response.complete
        assert response.status == status
        assert response.header("Content-Encoding") == (coding if taken else None)
        assert response.body == (ENCODE[coding](text) if taken else text)
        assert len(response.values("Content-Length") + response.values("Transfer-Encoding")) == 1
        assert row == (COUNTED if status == 200 else (None, None, Outcome.CLIENT_ERROR))


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("lines", [(), ("Accept-Encoding: *",)])
async def test_a_stream_that_breaks_off_is_cut_whatever_its_framing_says(
    make_scene: SceneMaker, coding: str, lines: tuple[str, ...]
) -> None:
    async def half(peer: Peer, seen: Seen) -> None:
        encoded = ENCODE[coding](b"".join([*EVENTS * 400, USAGE, DONE]) + bytes(range(256)) * 200)
        await peer.send(STREAM_HEAD[:-2] + f"Content-Encoding: {coding}\r\n\r\n".encode())
        await peer.send(chunk(encoded[: len(encoded) - 3]) + b"0\r\n\r\n")

    response, row = await _ask(make_scene, half, *lines, **SHOWN)
    assert not response.complete or response.status == 502
    assert row[2] is Outcome.FAILED


async def test_an_abort_inside_of_it_is_not_passed_on(make_scene: SceneMaker) -> None:
    abort = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}\n\n'
    response, row = await _ask(make_scene, encoded_stream("gzip", EVENTS[0] + abort + DONE, pieces=1), **SHOWN)
    assert not response.complete or response.status == 502
    assert row[2] is Outcome.FAILED


async def test_an_unknown_coding_passes_and_is_not_looked_into(make_scene: SceneMaker) -> None:
    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD[:-2] + b"Content-Encoding: foo\r\n\r\n" + chunk(b"?") + b"0\r\n\r\n")

    response, row = await _ask(make_scene, act, stream=True)
    assert (response.complete, response.body, response.header("Content-Encoding")) == (True, b"?", "foo")
    assert row == (None, None, Outcome.OK)


async def test_damage_passes_where_the_client_has_to_judge_and_is_502_where_we_have_to(make_scene: SceneMaker) -> None:
    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(head(200, "application/json", "Content-Encoding: gzip", "Content-Length: 6") + b"\r\nbroken")

    response, row = await _ask(make_scene, act, "Accept-Encoding: gzip")
    assert (response.status, response.body) == (200, b"broken")
    assert row == (None, None, Outcome.OK)
    response, row = await _ask(make_scene, act)
    assert response.status == 502
    assert row[2] is Outcome.FAILED


@pytest.mark.parametrize(("lines", "pinged"), [(("Accept-Encoding: gzip",), False), ((), True)])
async def test_a_ping_comes_into_the_text_and_never_into_the_coding(
    make_scene: SceneMaker, lines: tuple[str, ...], pinged: bool
) -> None:
    go_on = asyncio.Event()

    async def act(peer: Peer, seen: Seen) -> None:
        encoder = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
        first = encoder.compress(EVENTS[0]) + encoder.flush(zlib.Z_SYNC_FLUSH)
        await peer.send(STREAM_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n" + chunk(first))
        await go_on.wait()
        await peer.send(chunk(encoder.compress(USAGE + DONE) + encoder.flush()) + b"0\r\n\r\n")

    async with make_scene(sweep_s=0.01, ping_s=0.02) as scene:
        scene.engine.script.append(act)
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat(**SHOWN), *lines))
        await client.until(b": ping" if pinged else b"\xff\xff\r\n")
        (exchange,) = scene.gateway.exchanges
        await until(lambda: exchange._quiet >= 6)
        go_on.set()
        response = await client.response()
        assert response.complete
        text = response.body if pinged else gzip.decompress(response.body)
        assert (b": ping\n\n" in text) is pinged
        assert text.replace(b": ping\n\n", b"") == EVENTS[0] + USAGE + DONE


def test_more_than_its_size_can_stand_for_is_not_looked_into() -> None:
    bomb = gzip.compress(bytes(MAX_DECODED_BYTES + 1))
    tap = CodedTap(BodyTap(), Decoder("gzip"), passed_on=False)
    assert tap.feed(bomb) is False
    assert tap.clean_end(), "the framing alone decides"
    with pytest.raises(CorruptError):
        list(CodedTap(ChatTap(), Decoder("gzip"), passed_on=True).parts(bomb))


def test_an_empty_body_is_no_broken_one() -> None:
    tap = CodedTap(BodyTap(kind=None), Decoder("br"), passed_on=True)
    assert tap.clean_end()


@pytest.mark.parametrize(
    ("header", "coding", "verdict"),
    [
        (None, "gzip", False),
        (b"", "gzip", False),
        (b"gzip, deflate, br, zstd", "zstd", True),
        (b"X-GZip", "gzip", True),
        (b"gzip;q=0", "gzip", False),
        (b"gzip; q=0.0, *", "gzip", False),
        (b"*;q=0.5", "br", True),
        (b"*;q=0", "br", False),
        (b"*, br;q=0", "br", False),
        (b"identity", "br", False),
        (b"br;q=0.001", "br", True),
    ],
)
def test_what_a_client_takes(header: bytes | None, coding: str, verdict: bool) -> None:
    assert accepts(header, coding) is verdict
