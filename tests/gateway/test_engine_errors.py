"""Errors of engines, in the envelope of whoever asked."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.coded import ENCODERS
from tests.gateway.conftest import SceneMaker, chat, post
from tests.stub_engine import Act, Peer, Seen, head, raw, whole

from lmwarden.gateway.engine_errors import MAX_HELD_BYTES, MAX_TEXT_BYTES, in_envelope
from lmwarden.gateway.routes import Api
from lmwarden.types import Outcome, ReplicaId

JSON = b"application/json"
PATHS = {Api.ANTHROPIC: "/v1/messages", Api.OPENAI: "/v1/chat/completions"}
MARKER = "MARKER-7f3a"


def message(body: bytes, api: Api, *, status: int = 400, content_type: bytes = JSON) -> str:
    """What an error says after it was put into the envelope."""
    made = in_envelope(status, body, content_type, api)
    assert made is not None
    value = json.loads(made)
    assert (value.get("type") == "error") is (api is Api.ANTHROPIC)
    assert in_envelope(status, made, JSON, api) is None, "what we make is not made again"
    said = value["error"]["message"]
    assert isinstance(said, str)
    return said


def is_ours(said: str, status: int) -> bool:
    return str(status) in said and "no readable reason" in said and said.endswith(".")


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.ANTHROPIC, b'{"type":"error","error":{"type":"BadRequestError","message":"x"}}'),
        (Api.ANTHROPIC, b' {"error": {"message": "", "type": ""}, "request_id": 7, "type": "error"}\n'),
        (Api.ANTHROPIC, b'{"type":"error","error":{"type":"e","message":"half a character: \\ud83d"}}'),
        (Api.ANTHROPIC, b'\xef\xbb\xbf{"type":"error","error":{"type":"e","message":"\xff"}}'),
        (Api.OPENAI, b'{"error":{"message":"x"}}'),
        (Api.OPENAI, b'{"error":{"message":"","type":null,"param":{},"code":400},"more":[NaN]}'),
    ],
)
def test_what_is_in_the_envelope_stays_as_it_is(api: Api, body: bytes) -> None:
    assert in_envelope(400, body, b"text/html", api) is None, "whatever its head says"


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "starting"}, "starting"),
        ({"error": {"message": "a"}, "type": "error"}, "a"),
        ({"object": "error", "message": "b", "type": "BadRequestError", "param": None, "code": 400}, "b"),
        ({"error": None, "message": " c\n"}, " c\n"),
        ({"error": {"type": "x"}, "detail": "d"}, "d"),
        ({"detail": [{"loc": ["body"], "msg": "Field required", "input": MARKER}, {"msg": "e"}, 7, {"msg": 7}]}, None),
        ({"message": ["f"]}, '{"message": ["f"]}'),
        (["g"], '["g"]'),
        ("h", "h"),
        (7, "7"),
    ],
)
def test_words_are_found_wherever_they_are(api: Api, body: Any, words: str | None) -> None:
    said = message(json.dumps(body).encode(), api)
    assert said == (words if words is not None else "Field required; e")


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", JSON),
        (b" \r\n", b"text/plain"),
        (b"{}", JSON),
        (b"[]", JSON),
        (b'""', JSON),
        (b'{"error":{"message":" "}}'.replace(b"error", b"errors"), b"text/html"),
        (b"<html>MARKER</html>", b"text/plain"),
        (b"\n <!doctype html>MARKER", JSON),
        (b"MARKER, said the page", b"Text/HTML; charset=utf-8"),
        (b"MARKER\x00\x01", b"text/plain"),
        (b"MARKER \xff\xfe", b"text/plain"),
        (b"MARKER " * MAX_TEXT_BYTES, b"text/plain"),
        (b"[" * 60_000, JSON),
        (b'{"MARKER":[' + b"1," * MAX_TEXT_BYTES + b"1]}", JSON),
    ],
)
def test_what_has_no_words_gets_a_sentence(api: Api, body: bytes, content_type: bytes) -> None:
    said = message(body, api, status=502, content_type=content_type)
    assert is_ours(said, 502)
    assert "MARKER" not in said


@pytest.mark.parametrize("api", list(Api))
def test_a_short_text_is_its_own_message(api: Api) -> None:
    assert message(b"upstream connect error\n", api, content_type=b"text/plain") == "upstream connect error"
    longest = b"x" * MAX_TEXT_BYTES
    assert message(longest, api, content_type=b"") == longest.decode()
    assert is_ours(message(longest + b"x", api, content_type=b""), 400)


def test_half_a_character_does_not_stop_an_error() -> None:
    said = message(b'{"error":{"message":"no \\ud83d"}}', Api.ANTHROPIC)
    assert said == "no ?"


def test_openais_code_and_param_stay() -> None:
    theirs = {"message": "too long", "code": "context_length_exceeded", "param": "messages", "object": "error"}
    made = in_envelope(400, json.dumps(theirs).encode(), JSON, Api.OPENAI)
    assert made is not None
    assert json.loads(made)["error"] == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


@given(st.binary(max_size=300), st.integers(400, 999), st.sampled_from([JSON, b"text/html", b""]), st.sampled_from(Api))
def test_any_bytes_become_an_envelope(body: bytes, status: int, content_type: bytes, api: Api) -> None:
    assert message(body, api, status=status, content_type=content_type)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "detail", "type", "msg", "code", "param", "x"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(_values, st.sampled_from(Api))
def test_any_json_is_in_the_envelope_or_comes_into_it(value: Any, api: Api) -> None:
    body = json.dumps(value).encode()
    if in_envelope(400, body, JSON, api) is None:
        assert isinstance(value["error"]["message"], str)
        assert (value.get("type") == "error") is (api is Api.ANTHROPIC)
    else:
        assert message(body, api)


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("more", [0, 1])
async def test_what_is_too_long_to_hold_goes_on_as_it_came(make_scene: SceneMaker, api: Api, more: int) -> None:
    start, end = b'{"message":"m","pad":"', b'"}'
    body = start + b"x" * (MAX_HELD_BYTES - len(start) - len(end) + more) + end
    async with make_scene() as scene:
        scene.engine.script.append(whole(body, 400, "ETag: 1"))
        response = await scene.ask(post(PATHS[api], chat()))
        assert response.status == 400
        assert (response.body == body) is bool(more)
        assert response.header("ETag") == ("1" if more else None)
        if not more:
            assert response.json()["error"]["message"] == "m"


async def test_many_small_chunks_are_held_no_longer_than_one_large(make_scene: SceneMaker) -> None:
    """The framing counts: with a byte in each chunk it is most of what came."""
    pieces = MAX_HELD_BYTES // 2
    framed = b"1;padding\r\nx\r\n" * pieces + b"0\r\n\r\n"
    async with make_scene() as scene:
        scene.engine.script.append(raw(head(400, "text/plain") + b"Transfer-Encoding: chunked\r\n\r\n" + framed))
        response = await scene.ask(post("/v1/messages", chat()))
        assert (response.status, response.body, response.complete) == (400, b"x" * pieces, True)


async def test_a_head_that_repeats_loses_the_same_lines_each_time(make_scene: SceneMaker) -> None:
    """Heads that are known come as one text."""
    async with make_scene() as scene:
        scene.engine.default = whole({"detail": "Not Found"}, 404, "ETag: 1", "X-Kept: yes")
        for _ in range(6):
            response = await scene.ask(post("/v1/messages", chat()))
            assert response.json() == {"type": "error", "error": {"type": "not_found_error", "message": "Not Found"}}
            assert response.values("Content-Type") == ["application/json"]
            assert response.values("Content-Length") == [str(len(response.body))]
            assert (response.header("ETag"), response.values("X-Kept")) == (None, ["yes"])
        assert {seen.connection for seen in scene.engine.seen} == {0}


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("foo", b'{"message":"m"}'),
        ("gzip, gzip", b'{"message":"m"}'),
        ("gzip", b'{"message":"not compressed"}'),
        ("gzip", gzip.compress(bytes(MAX_HELD_BYTES + 1))),
        ("gzip", gzip.compress(bytes(20_000_000))),
    ],
)
async def test_what_cannot_be_decoded_goes_on_as_it_came(make_scene: SceneMaker, coding: str, body: bytes) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(whole(body, 400, f"Content-Encoding: {coding}"))
        response = await scene.ask(post("/v1/messages", chat(), "Accept-Encoding: gzip"))
        assert (response.status, response.body, response.header("Content-Encoding")) == (400, body, coding)


@pytest.mark.parametrize("coding", ["gzip", "foo"])
async def test_an_empty_body_has_no_coding(make_scene: SceneMaker, coding: str) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(whole(b"", 500, f"Content-Encoding: {coding}"))
        response = await scene.ask(post("/v1/messages", chat()))
        assert is_ours(response.json()["error"]["message"], 500)
        assert response.header("Content-Encoding") is None


async def test_who_takes_no_coding_gets_none(make_scene: SceneMaker) -> None:
    theirs = {"type": "error", "error": {"type": "api_error", "message": "m"}}
    async with make_scene() as scene:
        scene.engine.default = whole(gzip.compress(json.dumps(theirs).encode()), 500, "Content-Encoding: gzip")
        for path in PATHS.values():
            response = await scene.ask(post(path, chat()))
            assert response.header("Content-Encoding") is None
            assert response.json()["error"]["message"] == "m"


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 13\r\n\r\n", b"\r\n", b"Transfer-Encoding: chunked\r\n\r\nd\r\n"]
)
async def test_http_1_0_gets_no_chunks(make_scene: SceneMaker, framing: bytes) -> None:
    answer = head(400) + framing + b'{"detail":"m"' + (b"\r\n1\r\n}\r\n0\r\n\r\n" if framing[:1] == b"T" else b"}")
    answer = answer.replace(b"Length: 13", b"Length: 14")
    async with make_scene() as scene:
        scene.engine.script.append(raw(answer, then="close"))
        client = await scene.connect()
        await client.send(post("/v1/messages", chat(), version="1.0"))
        received = bytes(await client.rest())
        lines, _, body = received.partition(b"\r\n\r\n")
        assert json.loads(body)["error"] == {"type": "invalid_request_error", "message": "m"}
        assert b"chunked" not in lines
        assert b"\r\nConnection: close" in lines
        assert b"Content-Length: %d" % len(body) in lines


async def test_half_of_a_coding_is_no_error_either(make_scene: SceneMaker) -> None:
    body = gzip.compress(b'{"detail":"m"}')[:-9]
    async with make_scene() as scene:
        scene.engine.script.append(whole(body, 400, "Content-Encoding: gzip"))
        response = await scene.ask(post("/v1/messages", chat(), "Accept-Encoding: gzip"))
        assert (response.status, response.json()["error"]["type"]) == (502, "api_error")


HALVES = [
    raw(head(400) + b'Content-Length: 99\r\n\r\n{"error":', then="close"),
    raw(head(400) + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"err\r\n', then="close"),
    raw(head(400) + b'\r\n{"error":', then="close"),
]


@pytest.mark.parametrize("half", HALVES)
async def test_half_an_error_is_none(make_scene: SceneMaker, half: Act) -> None:
    """Nothing of it has reached the client, so there is a whole answer to give."""
    async with make_scene(verdict_s=0.05, sweep_s=0.02) as scene:
        scene.engine.script.append(half)
        response = await scene.ask(post("/v1/messages", chat()))
        assert (response.status, response.json()["error"]["type"], response.complete) == (502, "api_error", True)
        await scene.at_rest()
        assert scene.rows[-1].outcome is Outcome.FAILED


async def test_half_an_error_of_an_engine_that_died_is_asked_for_again(make_scene: SceneMaker) -> None:
    async def dies(peer: Peer, seen: Seen) -> None:
        await peer.send(head(500) + b'Content-Length: 99\r\n\r\n{"error":')
        scene.engines[0].refuse()
        peer.reset()

    async with make_scene(engines=2, verdict_s=5) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engines[0].script.append(dies)
        response = await scene.ask(post("/v1/messages", chat()))
        assert (response.status, response.header("X-LMWarden-Replica")) == (200, "e1/0")


async def test_who_leaves_while_it_is_held_is_gone(make_scene: SceneMaker) -> None:
    begun = asyncio.Event()

    async def slow(peer: Peer, seen: Seen) -> None:
        await peer.send(head(400) + b'Content-Length: 99\r\n\r\n{"error":')
        begun.set()
        await peer.gone()

    async with make_scene() as scene:
        scene.engine.script.append(slow)
        client = await scene.connect()
        await client.send(post("/v1/messages", chat()))
        await begun.wait()
        client.leave()
        await scene.at_rest()
        assert scene.rows[-1].outcome is Outcome.CANCELLED
        assert client.received == b""


@pytest.mark.parametrize("api", list(Api))
async def test_nothing_of_it_is_kept(make_scene: SceneMaker, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    async with make_scene() as scene:
        for body in (f'{{"detail":"{MARKER}"}}', f"<{MARKER}>", f'{{"detail":"{MARKER}'):
            scene.engine.script.append(whole(body.encode(), 400))
            assert (await scene.ask(post(PATHS[api], chat()))).status == 400
        await scene.at_rest()
        assert MARKER not in repr(scene.rows) + caplog.text


@pytest.mark.parametrize("kind", list(ENCODERS))
async def test_a_compressed_error_is_put_into_the_envelope_for_who_takes_it_compressed(
    make_scene: SceneMaker, kind: str
) -> None:
    """What goes to the client is ours then, and not compressed."""
    coding, encode = ENCODERS[kind]
    async with make_scene() as scene:
        scene.engine.script.append(whole(encode(b'{"detail":"too long"}'), 400, f"Content-Encoding: {coding}"))
        response = await scene.ask(post("/v1/messages", chat(), f"Accept-Encoding: {coding}"))
        theirs = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
        assert (response.status, response.json()) == (400, theirs)
        assert response.header("Content-Encoding") is None
