"""The client port, attacked by somebody who has an ordinary key, or none: the whole warden, two models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.listening import Listener
from tests.security.house import BIG, ENGINE_KEY, MODEL, SIGNED_IN, House, house, request
from tests.waiting import PATIENCE_S

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
CHAT_PATH, MESSAGES_PATH = "/v1/chat/completions", "/v1/messages"


@pytest.fixture
async def of(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        yield made


def status(answer: bytes) -> int:
    return int(answer[9:12])


def content(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


# -- what is reachable ------------------------------------------------------------------------------------------------

ADMINISTRATION = (
    "/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc", "/v1/../sleep", "/v1/%2e%2e/sleep",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/metrics", "/docs", "/redoc", "/openapi.json", "/server_info",
    "/start_profile", "/scale_elastic_ep", "/abort_requests", "/load", "/ping", "/invocations", "/v1/chat/../../sleep",
    "/v1//../sleep", "/v1/messages/../../sleep", "/v1/messages%2f..%2f..%2fsleep", "//sleep", "/.//sleep",
    "/v1/messages;/sleep", "/pause", "/resume", "/api/keys", "/api/models",
    "/v1/chat/completions/../../../sleep", "/sleep?/v1/messages", "/sleep#/v1/messages", "*", "/v1/messages\\..\\sleep",
    "http://127.0.0.1:1/sleep", "http://169.254.169.254/latest/meta-data/",
)  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
async def test_an_engines_administration_is_not_reachable(of: House, method: str) -> None:
    authorization = f"Authorization: Bearer {of.key}"
    for target in ADMINISTRATION:
        answer = await of.ask(request(method, target, b"{}", authorization, host="gateway"))
        assert status(answer) in (400, 404), (target, answer[:200])
        assert b"error" in answer
    for line in ("CONNECT 127.0.0.1:1 HTTP/1.1", "TRACE /v1/messages HTTP/1.1", "OPTIONS * HTTP/1.1"):
        answer = await of.ask(f"{line}\r\nHost: x\r\n{authorization}\r\nConnection: close\r\n\r\n".encode())
        assert status(answer) in (400, 403, 404), (line, answer[:200])
    assert of.engine.generations == of.big.generations == []


async def test_nothing_in_a_request_says_where_the_warden_connects_to(of: House) -> None:
    """A listener that nobody configured is named in every way; it must hear nothing."""
    heard: list[object] = []
    listener = Listener(lambda reader, writer: heard.append(writer))
    await listener.listen()
    port = listener.port
    url = f"http://127.0.0.1:{port}/"
    bodies: list[dict[str, Any]] = [
        CHAT | {name: url}
        for name in ("api_base", "base_url", "engine", "endpoint", "callback", "webhook", "kv_transfer_params")
    ]
    bodies += [CHAT | {"kv_transfer_params": {"remote_host": "127.0.0.1", "remote_port": port}}]
    bodies += [CHAT | {"model": model} for model in (url, "http://169.254.169.254/", "../../etc", f"{MODEL}/../{BIG}")]
    for body in bodies:
        assert status(await of.ask(of.post(CHAT_PATH, body))) in (200, 404)
    lines = (
        f"X-Gateway-Destination-Endpoint: 127.0.0.1:{port}",
        f"X-Forwarded-Host: 127.0.0.1:{port}",
        f"X-Original-URL: {url}",
        f"X-Rewrite-URL: {url}",
        f"Forwarded: host=127.0.0.1:{port}",
        f"X-Envoy-Original-Dst-Host: 127.0.0.1:{port}",
        f"Proxy-Connection: {url}",
    )
    for line in lines:
        assert status(await of.ask(of.post(CHAT_PATH, CHAT, line))) == 200
    assert status(await of.ask(request("POST", url + "v1/messages", CHAT, f"x-api-key: {of.key}", host="x"))) == 200
    await listener.close()
    assert not heard


async def test_forged_headers_reach_no_engine_and_move_nothing(of: House) -> None:
    forged = (
        "X-Forwarded-For: 10.0.0.9", "X-Forwarded-Proto: https", "X-Real-IP: 10.0.0.9", "Forwarded: for=10.0.0.9",
        "X-Gateway-Destination-Endpoint: 10.0.0.9:80", "X-Envoy-Internal: true", "X-LMWarden-Decision: sticky",
        "X-LMWarden-Conversation: 00000000", "X-LMWarden-Wait-Ms: 5", "X-LMWarden-Anything: x",
        "Proxy-Authorization: x", "TE: trailers", "Keep-Alive: timeout=9",
        "Connection: authorization, x-data-parallel-rank, content-length",
    )  # fmt: skip
    beginning = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: evil.test\r\nAuthorization: Bearer {of.key}\r\n"
    body = json.dumps(CHAT)
    text = beginning + "\r\n".join(forged) + f"\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    assert b" 200 " in await of.ask(text.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1).encode())
    (seen,) = of.engine.generations
    names = {line.partition(b":")[0].strip().lower() for line in seen.head.split(b"\r\n")[1:]}
    assert names == {b"host", b"authorization", b"accept-encoding", b"content-length"}
    assert seen.values("host") == [f"127.0.0.1:{of.engine.port}".encode()]
    assert seen.values("authorization") == [f"Bearer {ENGINE_KEY}".encode()]


@pytest.mark.parametrize(
    "lines",
    [
        ["X-data-parallel-rank: 3"], ["X-data-parallel-rank: 999"], ["X-data-parallel-rank: -1"],
        ["X-data-parallel-rank: 0x0"], ["X-data-parallel-rank: "], ["X-data-parallel-rank: 00"],
        ["X-data-parallel-rank: 0", "X-data-parallel-rank: 0"], ["X-data-parallel-rank: ٠"],
        ["X-data-parallel-rank: " + "0" * 5000], ["X-LMWarden-Replica: e0/0", "X-LMWarden-Replica: e0/0"],
        ["X-LMWarden-Replica: e1/0"], ["X-LMWarden-Replica: ../e0/0"],
    ],
)  # fmt: skip
async def test_a_forged_rank_is_400_and_reaches_no_engine(of: House, lines: list[str]) -> None:
    answer = await of.ask(of.post(CHAT_PATH, CHAT, *lines))
    assert status(answer) == 400
    assert json.loads(content(answer))["error"]["code"] == "invalid_replica"
    assert of.engine.generations == of.big.generations == []


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_a_key_is_good_for_its_models_only_and_knows_of_no_others(of: House) -> None:
    small, big, neither, free = (
        of.make_key("small", MODEL),
        of.make_key("big", BIG),
        of.make_key("neither", "gone"),
        of.make_key("free"),
    )
    served = {
        small: {MODEL, "small", "claude-x", f"{MODEL}[1m]"}, big: {BIG, "opus"}, neither: set(),
        free: {MODEL, "small", "claude-x", f"{MODEL}[1m]", BIG, "opus"},
    }  # fmt: skip
    everything = served[free]
    for key, names in served.items():
        for path in (CHAT_PATH, MESSAGES_PATH, "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize"):
            unknown = await of.ask(of.post(path, CHAT | {"model": "nobody-serves-this"}, key=key))
            assert status(unknown) == 404
            for name in everything:
                answer = await of.ask(of.post(path, CHAT | {"model": name}, key=key))
                assert status(answer) == (200 if name in names else 404), (path, name)
                if name not in names:
                    assert answer == unknown, "a key could find out what else is served"
            for hidden in everything - names:
                assert f"{hidden},".encode() not in unknown
                assert f"{hidden}.".encode() not in unknown
        listing = await of.ask(request("GET", "/v1/models", b"", f"x-api-key: {key}", host="x"))
        listed = {entry["id"] for entry in json.loads(content(listing))["data"]}
        assert listed == {name for name in names if name in (MODEL, "small", BIG, "opus")}


async def test_a_model_that_is_named_twice_gets_past_no_scope(of: House) -> None:
    """The last one counts, escaped or not, as for the engine's own parser."""
    key = of.make_key("small", MODEL)
    for named_last in (b'"model"', b'"mod\\u0065l"', b'"\\u006dodel"'):
        body = b'{"model": "%b", "messages": [], %b: "%b"}' % (MODEL.encode(), named_last, BIG.encode())
        assert status(await of.ask(of.post(CHAT_PATH, body, key=key))) == 404
        turned = b'{%b: "%b", "messages": [], "model": "%b"}' % (named_last, BIG.encode(), MODEL.encode())
        assert status(await of.ask(of.post(CHAT_PATH, turned, key=key))) in (200, 400)
    assert of.big.generations == []


async def test_a_revoked_key_is_refused_from_the_next_request_on_and_an_open_stream_ends_by_itself(of: House) -> None:
    key = of.make_key("ben")
    reader, writer = await asyncio.open_connection("127.0.0.1", of.client_port)
    asks = of.post(CHAT_PATH, CHAT, key=key).replace(b"Connection: close\r\n", b"")
    writer.write(asks)
    async with asyncio.timeout(PATIENCE_S):
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}}")
        of.revoke("ben")
        writer.write(asks)  # the very same head on the same connection: remembered heads are checked too
        while b" 401 " not in (line := await reader.readline()):
            assert line
    writer.close()
    assert status(await of.ask(of.post(CHAT_PATH, CHAT, key=key))) == 401


async def test_the_console_makes_and_revokes_keys_for_models(of: House) -> None:
    signed = [f"{name}: {value}" for name, value in SIGNED_IN.items()] + ["Content-Type: application/json"]

    async def console(method: str, path: str, body: object) -> bytes:
        return await of.ask(request(method, path, body, *signed, host="localhost"), console=True)

    made = json.loads(content(await console("POST", "/api/keys", {"name": "carl", "models": [BIG]})))
    assert made["models"] == [BIG]
    for model, wanted in ((BIG, 200), (MODEL, 404)):
        assert status(await of.ask(of.post(CHAT_PATH, CHAT | {"model": model}, key=made["key"]))) == wanted
    assert status(await console("DELETE", "/api/keys/carl", b"")) == 204
    assert status(await of.ask(of.post(CHAT_PATH, CHAT | {"model": BIG}, key=made["key"]))) == 401


async def test_what_is_no_key(of: House) -> None:
    refused = ("", "Bearer", "x" * 4097, "é" * 20, "lmw_", of.key[:-1], of.key + "x", of.key.swapcase(), f"{of.key}\t,")
    for wrong in refused:
        for line in (f"Authorization: Bearer {wrong}", f"x-api-key: {wrong}"):
            for path in (CHAT_PATH, MESSAGES_PATH):
                answer = await of.ask(request("POST", path, CHAT, line, host="x"))
                assert status(answer) == 401, (line, answer)
                assert b"x-should-retry: false" in answer
    both = (f"Authorization: Bearer {of.key}", f"x-api-key: {of.make_key('dora')}")
    assert status(await of.ask(request("POST", CHAT_PATH, CHAT, *both, host="x"))) == 401
    assert of.engine.generations == []
    for scheme in ("Bearer", "bearer", "BEARER"):
        right = f"Authorization: {scheme} {of.key}"
        assert status(await of.ask(request("POST", CHAT_PATH, CHAT, right, host="x"))) == 200


# -- what may not grow ------------------------------------------------------------------------------------------------


async def test_random_ids_models_and_paths_make_no_series_and_no_lines(
    of: House, capsys: pytest.CaptureFixture[str]
) -> None:
    async def series() -> set[str]:
        of.warden.control.take()
        signed = f"Authorization: {SIGNED_IN['Authorization']}"
        page = await of.ask(request("GET", "/metrics", b"", signed, host="localhost"), console=True)
        lines = content(page).decode().splitlines()
        return {line.rpartition(" ")[0] for line in lines if line and not line.startswith("#")}

    await send_all(of, [of.post(MESSAGES_PATH, CHAT, "X-Session-Id: first"), *odd_requests(of, "0")])
    before = await series()
    capsys.readouterr()
    await send_all(of, [one for number in range(1, 60) for one in odd_requests(of, str(number))])
    assert await series() == before
    said = capsys.readouterr()
    assert said.out + said.err == "", "a line per request would let anybody fill the disk"


def odd_requests(of: House, number: str) -> list[bytes]:
    """Things that a client chooses, each another one each time."""
    return [
        of.post(MESSAGES_PATH, CHAT, f"X-Session-Id: once-{number}", f"User-Agent: agent-{number}/1"),
        of.post(CHAT_PATH, CHAT | {"model": f"model-{number}"}),
        of.post(CHAT_PATH, CHAT | {"model": f"claude-{number}"}),
        of.post(f"/v1/{number}", CHAT),
        of.post(CHAT_PATH, CHAT, f"X-LMWarden-Replica: e{number}/7"),
        of.post(CHAT_PATH, CHAT, key=f"lmw_{number}"),
        of.post(CHAT_PATH, CHAT, f"X-Header-{number}: x"),
        f"BREW /{number} HTTP/1.1\r\n\r\n".encode(),
    ]


async def send_all(of: House, requests: list[bytes]) -> None:
    """Each on a connection of its own, some at a time."""
    for begin in range(0, len(requests), 64):
        answers = await asyncio.gather(*(of.ask(one) for one in requests[begin : begin + 64]))
        assert all(status(answer) in (200, 400, 401, 404) for answer in answers)
