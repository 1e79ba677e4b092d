"""D17, D18, D21, D23, D24, D26, D31: what is reached, what goes on, and what is said."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from tests.field_cases.house import FEW, S1, answer_as_asked, house, run, turn, user_id
from tests.gateway.conftest import KEY, post
from tests.memory import PeakMemory
from tests.stub_engine import Act, Peer, Seen, head, raw, whole

from lmwarden.gateway import GatewaySettings
from lmwarden.types import Decision, Outcome, ReplicaId

SESSION = f"X-Claude-Code-Session-Id: {S1}"
MARKER = "MARKER-7f3a"


# -- D17 -----------------------------------------------------------------------------------------------------------


@FEW
@given(
    slashes=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    query=st.text(alphabet="abc=&%2F?;+.-_~!$'()*,:@", max_size=30).map(lambda text: f"?{text}" if text else ""),
)
def test_d17_slashes_are_forgiven_and_the_query_goes_on_verbatim(slashes: list[int], query: str) -> None:
    async def scenario() -> None:
        async with house({"m": {"e0": 1}}) as made:
            path = "/" * slashes[0] + "v1" + "/" * slashes[1] + "messages" + "/" * (slashes[2] - 1)
            response = await made.ask(path + query, turn())
            assert response.status == 200, "and never a redirect"
            assert made.engines["e0"].seen[0].line == f"POST /v1/messages{query} HTTP/1.1".encode()

    run(scenario())


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (404, {"detail": "Not Found"}, {"type": "error", "error": {"type": "not_found_error", "message": "Not Found"}}),
        (200, {"input_tokens": 12}, {"input_tokens": 12}),
    ],
)
async def test_d17_counting_tokens_is_the_engines_answer_and_no_turn(
    status: int, answer: dict[str, Any], said: dict[str, Any]
) -> None:
    async with house() as made:
        home = (await made.ask("/v1/messages", turn(), SESSION)).header("X-LMWarden-Replica")
        for engine in made.engines.values():
            engine.default = whole(answer, status)
        for _ in range(6):
            response = await made.ask("/v1/messages/count_tokens?beta=true", turn(), SESSION)
            assert (response.status, response.json()) == (status, said)
            assert response.header("X-LMWarden-Decision") == Decision.BALANCED
            (last,) = [
                engine.seen[-1] for engine in made.engines.values() if engine.seen and b"count" in engine.seen[-1].line
            ][:1]
            assert last.line == b"POST /v1/messages/count_tokens?beta=true HTTP/1.1"
        for engine in made.engines.values():
            engine.default = answer_as_asked
        assert (await made.ask("/v1/messages", turn(), SESSION)).header("X-LMWarden-Replica") == home
        assert made.view().conversations == 1


async def test_d17_a_preflight_is_decided_without_a_key_and_lets_no_page_in() -> None:
    request = (
        b"OPTIONS /v1/messages HTTP/1.1\r\nHost: warden\r\nOrigin: http://evil.test\r\n"
        b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n"
    )
    async with house() as made:
        response = await made.send(request)
        assert response.status == 403, "decided, and not 401"
        assert not any(name.lower().startswith("access-control-allow") for name, _ in response.headers)
        assert not any(engine.seen for engine in made.engines.values())


# -- D18 -----------------------------------------------------------------------------------------------------------


async def test_d18_a_truncated_answer_to_http_1_0_is_recorded_as_failed() -> None:
    async with house({"m": {"e0": 1}}) as made:
        made.engines["e0"].default = raw(head(200, "text/event-stream") + b"\r\ndata: {}\n\n", then="close")
        client = await made.connect()
        await client.send(post("/v1/chat/completions", turn(stream=True), version="1.0"))
        try:
            await client.rest()
        except ConnectionError:
            pass  # a reset is how HTTP/1.0 learns of it
        await made.at_rest()
        assert b"chunked" not in client.received
        assert made.last_row().outcome is Outcome.FAILED


# -- D19 -----------------------------------------------------------------------------------------------------------

CHUNKED = (
    b"POST /v1/messages HTTP/1.1\r\nHost: warden\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer " + KEY + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
)


async def test_d19_a_large_body_in_chunks_arrives_equal_with_one_framing() -> None:
    body = json.dumps(turn("x" * 40_000_000)).encode()
    async with house({"m": {"e0": 1}}) as made:
        client = await made.connect()
        for at in range(0, len(body), 1 << 20):
            piece = body[at : at + (1 << 20)]
            await client.send((CHUNKED if at == 0 else b"") + b"%x\r\n%s\r\n" % (len(piece), piece))
        await client.send(b"0\r\n\r\n")
        assert (await client.response()).status == 200
        (seen,) = made.engines["e0"].seen
        assert seen.body == body
        assert seen.values("Content-Length") == [b"%d" % len(body)]
        assert seen.values("Transfer-Encoding") == []
        client.leave()


async def test_d19_a_body_in_chunks_beyond_the_limit_is_413_and_is_not_kept() -> None:
    assert GatewaySettings().max_body_bytes >= 32_000_000, "the default"
    piece = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
    async with house(max_body_bytes=1 << 22) as made:
        client = await made.connect()
        peak = PeakMemory()
        await client.send(CHUNKED)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                await client.send(piece)
        response = await client.response()
        assert (response.status, response.json()["error"]["type"]) == (413, "request_too_large")
        assert peak.grown_bytes < 32_000_000
        assert not any(engine.seen for engine in made.engines.values())
        client.leave()


# -- D21 -----------------------------------------------------------------------------------------------------------

ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstd.compress,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
}


@FEW
@given(coding=st.sampled_from(sorted(ENCODE)), text=st.text(max_size=3000), spelled=st.sampled_from([str, str.upper]))
def test_d21_an_encoded_request_is_read_and_goes_on_decoded(
    coding: str, text: str, spelled: Callable[[str], str]
) -> None:
    async def scenario() -> None:
        async with house() as made:
            home = (await made.ask("/v1/messages", turn(metadata=user_id(S1)))).header("X-LMWarden-Replica") or ""
            await made.ask("/v1/messages", turn("another"))
            body = json.dumps(turn(text, metadata=user_id(S1)), ensure_ascii=False).encode("utf-8", "replace")
            response = await made.ask("/v1/messages", ENCODE[coding](body), f"Content-Encoding: {spelled(coding)}")
            assert (response.status, response.header("X-LMWarden-Replica")) == (200, home)
            seen = made.engines[home[:2]].seen[-1]
            assert seen.body == body
            assert seen.values("Content-Encoding") == []
            assert seen.values("Content-Length") == [b"%d" % len(body)]

    run(scenario())


@pytest.mark.parametrize("coding", ["foo", "gzip, br", "compress"])
async def test_d21_an_unknown_coding_is_415_in_the_callers_envelope(coding: str) -> None:
    async with house() as made:
        for path, kind in (("/v1/messages", True), ("/v1/chat/completions", False)):
            response = await made.ask(path, b"\x28\xb5\x2f\xfd", f"Content-Encoding: {coding}")
            assert response.status == 415
            assert (response.json().get("type") == "error") is kind
        assert not any(engine.seen for engine in made.engines.values())


@pytest.mark.parametrize("coding", ENCODE)
async def test_d21_a_damaged_body_is_400_and_reaches_nobody(coding: str) -> None:
    async with house() as made:
        body = ENCODE[coding](json.dumps(turn(MARKER * 50)).encode())
        for damaged in (body[:-6], body[:9] + b"\xff\xff\xff" + body[12:], body + b"more"):
            response = await made.ask("/v1/messages", damaged, f"Content-Encoding: {coding}")
            assert response.status == 400
            assert response.json()["error"]["type"] == "invalid_request_error"
        assert not any(engine.seen for engine in made.engines.values())


# -- D23, D24 --------------------------------------------------------------------------------------------------------

FORGED = (
    "X-Forwarded-For: 10.0.0.9",
    "X-Forwarded-Host: evil.test",
    "Forwarded: for=10.0.0.9",
    "X-Real-IP: 10.0.0.9",
    "X-Gateway-Destination-Endpoint: 10.0.0.9:80",
    "x-envoy-original-path: /sleep",
    "X-LMWarden-Decision: sticky",
    "X-LMWarden-Conversation: 00000000",
)


@FEW
@given(
    forged=st.lists(st.sampled_from(FORGED), max_size=5),
    rank=st.sampled_from(["999", "-1", "x", "03", " ", "0x1", "１"]),
)
def test_d23_what_a_client_forges_reaches_no_engine_and_changes_nothing(forged: list[str], rank: str) -> None:
    async def scenario() -> None:
        async with house({"m": {"e0": 4}}) as made:
            engine = made.engines["e0"]
            response = await made.ask("/v1/messages", turn(), *forged)
            assert response.status == 200
            (seen,) = engine.seen
            for line in forged:
                assert seen.values(line.partition(":")[0]) == []
            assert seen.values("Host") == [f"127.0.0.1:{engine.port}".encode()]
            assert seen.values("Authorization") == [b"Bearer engine-key"]
            assert len(seen.values("X-data-parallel-rank")) == 1
            assert KEY not in seen.head
            shown = rank.encode().decode("latin-1")
            for lines in ([f"X-data-parallel-rank: {shown}"], ["X-data-parallel-rank: 1", "X-data-parallel-rank: 2"]):
                bad = await made.ask("/v1/messages", turn(), *lines)
                assert bad.status == 400
                assert "0 to 3" in bad.json()["error"]["message"]
            good = await made.ask("/v1/messages", turn(), "X-data-parallel-rank: 3")
            assert good.header("X-LMWarden-Decision") == Decision.CLIENT_PINNED
            assert engine.seen[-1].values("X-data-parallel-rank") == [b"3"]
            assert len(engine.seen) == 2

    run(scenario())


ADMINISTRATION = (
    "sleep",
    "wake_up",
    "reset_prefix_cache",
    "collective_rpc",
    "v1/load_lora_adapter",
    "metrics",
    "docs",
    "pause",
    "openapi.json",
    "server_info",
    "resume",
    "v1/models/m",
    "load",
    "ping",
    "version",
    "health",
    "inference/v1/generate",
)
DRESS = (
    "/{}",
    "//{}",
    "/{}/",
    "/v1/../{}",
    "/v1/%2e%2e/{}",
    "/v1/messages/../../{}",
    "/./{}",
    "/%2f{}",
    "/{}?x=1",
    "/{};x",
    "/{}%00",
    "/v1/messages%2f..%2f..%2f{}",
    "\\{}",
    "/v1/messages/..;/{}",
    "http://g/{}",
    "http://10.0.0.9:80/{}",
)


@FEW
@given(
    path=st.sampled_from(ADMINISTRATION),
    dress=st.sampled_from(DRESS),
    method=st.sampled_from(["POST", "GET", "PUT", "DELETE", "HEAD"]),
)
def test_d24_engine_administration_is_not_to_be_reached(path: str, dress: str, method: str) -> None:
    async def scenario() -> None:
        async with house({"m": {"e0": 1}}) as made:
            target = dress.format(path)
            request = post(target, turn()).replace(b"POST ", method.encode() + b" ", 1)
            client = await made.connect()
            await client.send(request)
            await client.until(b"\r\n\r\n")
            assert int(client.received[9:12]) in (400, 403, 404, 405), client.received
            assert made.engines["e0"].seen == []

    run(scenario())


@pytest.mark.parametrize(
    "members",
    [
        {"api_base": "http://10.0.0.9/"},
        {"base_url": "http://10.0.0.9/", "url": "http://10.0.0.9/"},
        {"metadata": {"endpoint": "http://10.0.0.9/"}},
    ],
)
async def test_d24_only_configured_engines_are_connected_to(
    members: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house({"m": {"e0": 1}}) as made:
        asked: list[tuple[str, int]] = []
        pool = next(iter(made.gateway._services["m"].pools.values()))
        loop = pool._loop

        class Watched:
            """The loop, as the pool sees it."""

            def create_connection(self, factory: Any, host: str, port: int, **more: Any) -> Any:
                asked.append((host, port))
                return loop.create_connection(factory, host, port, **more)

            def __getattr__(self, name: str) -> Any:
                return getattr(loop, name)

        monkeypatch.setattr(pool, "_loop", Watched())
        body = turn(**members)
        assert (await made.ask("/v1/messages", body)).status == 200
        for name in ("http://169.254.169.254/", "../../etc", "m/../x", "127.0.0.1:80"):
            assert (await made.ask("/v1/messages", body | {"model": name})).status == 404
        assert asked == [("127.0.0.1", made.engines["e0"].port)]


# -- D26 -----------------------------------------------------------------------------------------------------------


async def test_d26_an_error_of_100_megabytes_is_relayed_with_bounded_memory() -> None:
    piece = f'{{"detail":"{MARKER}"}}'.encode() * 40_000
    pieces = 100_000_000 // len(piece)

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(head(400) + b"Content-Length: %d\r\n\r\n" % (pieces * len(piece)))
        for _ in range(pieces):
            await peer.send(piece)

    async with house({"m": {"e0": 1}}) as made:
        made.engines["e0"].default = act
        reader, writer = await asyncio.open_connection("127.0.0.1", made.gateway.port)
        writer.write(post("/v1/messages", turn(stream=True)))
        await reader.readuntil(b"\r\n\r\n")
        tracemalloc.start()
        got = 0
        while got < pieces * len(piece):
            read = await reader.read(1 << 20)
            assert read, "cut"
            got += len(read)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        writer.close()
        assert peak < 16_000_000
        await made.at_rest()
        assert MARKER not in repr(made.rows)
        assert made.last_row().outcome is Outcome.CLIENT_ERROR


@FEW
@given(
    broken=st.sampled_from(
        [
            b'{"model":"m","messages":[{"role":"user","content":"MARKER-7f3a',
            b'{"model":"MARKER-7f3a","messages":[]}',
            b'["MARKER-7f3a"]',
            b"MARKER-7f3a",
            b'{"model":{"MARKER-7f3a":1}}',
            b'{"model":"m","messages":' + b'[{"content":7,"role":["MARKER-7f3a"]},' * 5000,
            b'{"model":"m","messages":[' + b",".join([b'{"content":7,"role":["MARKER-7f3a"]}'] * 5000) + b"]}",
            b'{"model":"m","str\\u0065am_options":"MARKER-7f3a","stream_options":1,"stream":true}',
        ]
    ),
    path=st.sampled_from(["/v1/messages", "/v1/chat/completions", "/v1/MARKER-7f3a"]),
    lines=st.sampled_from([(), ("X-data-parallel-rank: MARKER-7f3a",), ("Content-Encoding: MARKER-7f3a",)]),
)
def test_d26_what_was_typed_is_in_no_error_of_ours(broken: bytes, path: str, lines: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with house({"m": {"e0": 2}}) as made:
            response = await made.ask(path, broken, *lines)
            assert response.status < 500
            assert MARKER.encode() not in response.body
            assert MARKER not in repr(response.headers) + repr(made.rows)

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_d26_an_engines_error_that_repeats_the_prompt_is_the_clients_alone(path: str) -> None:
    async with house() as made:
        for engine in made.engines.values():
            engine.default = whole({"error": {"message": f"messages.0: {MARKER} is no role", "type": "x"}}, 400)
        response = await made.ask(path, turn(messages=[{"role": MARKER, "content": 7}]))
        assert (response.status, MARKER.encode() in response.body) == (400, True)
        await made.at_rest()
        assert MARKER not in repr(response.headers) + repr(made.rows)


# -- D31 -----------------------------------------------------------------------------------------------------------

HTML = b"<html><h1>502 Bad Gateway</h1></html>"
TYPES: dict[int, tuple[str, str]] = {
    400: ("invalid_request_error", "invalid_request_error"),
    404: ("not_found_error", "not_found_error"),
    413: ("request_too_large", "invalid_request_error"),
    422: ("invalid_request_error", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("api_error", "server_error"),
    502: ("api_error", "server_error"),
    504: ("timeout_error", "server_error"),
    529: ("overloaded_error", "server_error"),
}
"""Anthropic's word for a status, and OpenAI's."""
ANTHROPICS = ("/v1/messages", "/v1/messages/count_tokens")


def said(path: str, status: int, message: str) -> dict[str, Any]:
    """An error in the envelope of a path's API."""
    anthropics, openais = TYPES[status]
    if path in ANTHROPICS:
        return {"type": "error", "error": {"type": anthropics, "message": message}}
    return {"error": {"message": message, "type": openais, "param": None, "code": status}}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("status", "body", "lines", "kind", "words"),
    [
        (
            400,
            b'{"error":{"message":"maximum context length is 32768","type":"BadRequestError"}}',
            (),
            "application/json",
            "maximum context length is 32768",
        ),
        (429, b'{"error":{"message":"slow down"}}', (), "application/json", "slow down"),
        (
            429,
            b'{"error":{"message":"slow down"}}',
            ("Retry-After: 90", "x-should-retry: false"),
            "application/json",
            "slow down",
        ),
        (500, b'{"error":{"message":"engine"}}', (), "application/json", "engine"),
        (502, HTML, (), "text/html", None),
    ],
)
async def test_d31_an_engines_error_has_the_callers_envelope_and_hurts_nobody_else(
    path: str, status: int, body: bytes, lines: tuple[str, ...], kind: str, words: str | None
) -> None:
    async with house() as made:
        home = (await made.ask(path, turn(), SESSION)).header("X-LMWarden-Replica") or ""
        engine = made.engines[home[:2]]
        engine.script.append(whole(body, status, *lines, content_type=kind))
        sent = sum(len(stub.seen) for stub in made.engines.values())
        response = await made.ask(path, turn(), SESSION)
        assert (response.status, response.values("Content-Type")) == (status, ["application/json"])
        assert len(response.values("Content-Length")) == 1
        if words is None:
            message = response.json()["error"]["message"]
            assert str(status) in message
            assert "Gateway" not in message, "no page in an error"
            assert response.json() == said(path, status, message)
        elif path == "/v1/messages":
            assert response.json() == said(path, status, words)
        else:
            assert response.body == body, "it is theirs already"
        known = dict(line.split(": ") for line in lines)
        assert response.header("Retry-After") == known.get("Retry-After"), "never invented"
        assert response.header("x-should-retry") == known.get("x-should-retry")
        assert sum(len(stub.seen) for stub in made.engines.values()) == sent + 1, "not sent again"
        after = await made.ask(path, turn(), SESSION)
        assert (after.status, after.header("X-LMWarden-Replica")) == (200, home), "and the replica is not paused"
        assert after.header("X-LMWarden-Decision") in (Decision.STICKY, Decision.BALANCED)


SHAPES: dict[str, Callable[[str], Any]] = {
    "openai": lambda words: {"error": {"message": words, "type": "BadRequestError", "param": None, "code": 400}},
    "anthropic": lambda words: {"type": "error", "error": {"type": "BadRequestError", "message": words}},
    "older vllm": lambda words: {"object": "error", "message": words, "type": "BadRequestError", "code": 400},
    "framework": lambda words: {"detail": words},
    "word": lambda words: {"error": words},
    "text": lambda words: words,
}


def framed(how: str, status: int, body: bytes, *lines: str, kind: str) -> Act:
    """An answer in one of the three framings of HTTP/1.1, in small pieces."""
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]

    async def act(peer: Peer, seen: Seen) -> None:
        start = head(status, kind, *lines)
        if how == "chunked":
            await peer.send(start + b"Transfer-Encoding: chunked\r\n\r\n")
            for piece in pieces:
                await peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await peer.send(b"0\r\n\r\n")
            return
        await peer.send(start + (b"Content-Length: %d\r\n\r\n" % len(body) if how == "length" else b"\r\n"))
        for piece in pieces:
            await peer.send(piece)
        if how == "close":
            peer.close()

    return act


@FEW
@given(
    path=st.sampled_from([*ANTHROPICS, "/v1/chat/completions", "/v1/completions", "/v1/responses"]),
    status=st.sampled_from(sorted(TYPES)),
    shape=st.sampled_from(sorted(SHAPES)),
    words=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(str.strip),
    how=st.sampled_from(["length", "chunked", "close"]),
    coding=st.sampled_from(["", *ENCODE]),
    stream=st.booleans(),
)
def test_d31_whatever_shape_framing_and_coding_an_error_has_its_words_come_in_the_callers_envelope(
    path: str, status: int, shape: str, words: str, how: str, coding: str, stream: bool
) -> None:
    async def scenario() -> None:
        body = json.dumps(SHAPES[shape](words)).encode()
        sent = ENCODE[coding](body) if coding else body
        lines = ("X-Kept: yes", *([f"Content-Encoding: {coding}"] if coding else []))
        async with house({"m": {"e0": 1}}) as made:
            made.engines["e0"].default = framed(how, status, sent, *lines, kind="application/json")
            response = await made.ask(path, turn(stream=stream), "Accept-Encoding: gzip, deflate, br, zstd")
            assert (response.status, response.complete, response.header("X-Kept")) == (status, True, "yes")
            assert response.values("Content-Type") == ["application/json"]
            if shape == ("anthropic" if path in ANTHROPICS else "openai"):
                assert response.body == sent
                assert response.header("Content-Encoding") == (coding or None)
            else:
                assert response.json() == said(path, status, words)
                assert response.header("Content-Encoding") is None
            assert response.header("Retry-After") is None
            await made.at_rest()
            assert made.last_row().status == status
            assert made.last_row().outcome is (Outcome.CLIENT_ERROR if status < 500 else Outcome.FAILED)

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_d31_our_own_refusals_come_in_the_callers_envelope(path: str) -> None:
    async with house() as made:
        unknown = await made.ask(path, turn(model="none"))
        for name in made.engines:
            made.routers["m"].replica_down(ReplicaId(name, 0), made.gateway.clock())
        down = await made.ask(path, turn(), SESSION)
        assert (unknown.status, down.status) == (404, 503)
        assert unknown.header("Retry-After") is None
        assert 1 <= int(down.header("Retry-After") or 0) <= 60
        kinds = [response.json()["error"]["type"] for response in (unknown, down)]
        assert kinds == (
            ["not_found_error", "api_error"] if path == "/v1/messages" else ["not_found_error", "server_error"]
        )


async def test_d31_a_503_is_sent_again_once_and_only_once() -> None:
    async with house() as made:
        for engine in made.engines.values():
            engine.default = whole({"error": {"message": "loading"}}, 503)
        response = await made.ask("/v1/messages", turn(), SESSION)
        assert response.status == 503
        assert response.json() == {"type": "error", "error": {"type": "api_error", "message": "loading"}}
        assert response.header("Retry-After") is None
        assert sum(len(engine.seen) for engine in made.engines.values()) == 2
