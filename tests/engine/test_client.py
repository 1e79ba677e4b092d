"""Asking an engine: the three kinds of failure."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from unittest.mock import Mock

import aiohttp
import msgspec
import pytest
from tests.engine.fake_vllm import CHAT, FakeVllm, Served, fake_vllm
from tests.waiting import PATIENCE_S

from lmwarden.engine import client as client_module
from lmwarden.engine.client import (
    EngineClient,
    EngineLacksError,
    EngineRefusedError,
    EngineSilentError,
    EngineUnwellError,
)


@pytest.fixture
async def engine() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


@pytest.fixture
async def client(engine: FakeVllm) -> AsyncIterator[EngineClient]:
    async with aiohttp.ClientSession() as session:
        yield EngineClient(engine.endpoint(), session, timeout_s=PATIENCE_S)


async def test_a_healthy_engine(engine: FakeVllm, client: EngineClient) -> None:
    await client.health()
    assert [card.id for card in await client.models()] == ["tiny"]
    assert len((await client.metrics()).ranks) == 2
    assert await client.version() == "0.32.0"
    assert engine.authorizations == {"Bearer sk-e"}


async def test_of_an_odd_card_only_the_name_is_taken(engine: FakeVllm, client: EngineClient) -> None:
    engine.models = {"data": [{"id": "m", "root": 7, "parent": [1], "owned_by": {"a": 1}, "max_model_len": "many"}]}
    (card,) = await client.models()
    assert (card.id, card.root, card.parent, card.owned_by, card.max_model_len) == ("m", None, None, None, None)


async def test_nobody_listens(engine: FakeVllm, client: EngineClient) -> None:
    await engine.stop()
    with pytest.raises(EngineRefusedError, match="does not accept connections"):
        await client.health()
    await engine.start()


@pytest.mark.parametrize(
    ("others", "kind"),
    [
        ("[Errno 101] Network is unreachable, [Errno 111] Connection refused", EngineRefusedError),
        ("[Errno 101] a, [Errno 113] b", EngineSilentError),
    ],
)
async def test_of_several_addresses_one_that_refuses_is_proof(
    client: EngineClient, others: str, kind: type[Exception]
) -> None:
    # As aiohttp joins the errors of a name with several addresses: without a number.
    joined = aiohttp.ClientConnectorError(Mock(), OSError(f"Multiple exceptions: {others}"))
    assert type(client._not_connected(joined)) is kind


async def test_a_host_that_is_none_and_a_port_without_tls(engine: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*given: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    nowhere = msgspec.structs.replace(engine.endpoint(), host="no-such-host.invalid")
    plain = msgspec.structs.replace(engine.endpoint(), tls=True)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(EngineSilentError, match="its name does not resolve"):
            await EngineClient(nowhere, session, timeout_s=PATIENCE_S).health()
        with pytest.raises(EngineUnwellError, match="TLS handshake"):
            await EngineClient(plain, session, timeout_s=PATIENCE_S).health()


async def test_silence(engine: FakeVllm) -> None:
    engine.silent = True
    async with aiohttp.ClientSession() as session:
        with pytest.raises(EngineSilentError, match=r"did not answer within 0\.05 s"):
            await EngineClient(engine.endpoint(), session, timeout_s=0.05).health()


async def test_unhealthy(engine: FakeVllm, client: EngineClient) -> None:
    engine.health_status = 503
    with pytest.raises(EngineUnwellError, match="/health answers 503"):
        await client.health()


@pytest.mark.parametrize(
    ("status", "models", "says"),
    [
        (200, "<html>", "answers, but is no vLLM server: its /v1/models is no list of models"),
        (200, '{"data": 3}', "answers, but is no vLLM server: its /v1/models is no list of models"),
        (200, "{}", "answers, but is no vLLM server: its /v1/models is no list of models"),
        (
            200,
            '{"data":[{"id":"a","meta":' + "[" * 100_000 + "]" * 100_000 + "}]}",
            "answers, but is no vLLM server: its /v1/models is no list of models",
        ),
        (200, '{"data": []}', "/v1/models lists no model"),
        (404, "<html>", "answers, but is no vLLM server: /v1/models is 404 there"),
        (503, "", "/v1/models answers 503"),
    ],
)
async def test_no_models(engine: FakeVllm, client: EngineClient, status: int, models: str, says: str) -> None:
    engine.models, engine.models_status = models, status
    with pytest.raises(EngineUnwellError, match=says):
        await client.models()


async def test_a_missing_engine_key_is_said(engine: FakeVllm, client: EngineClient) -> None:
    engine.models_status = 401
    with pytest.raises(EngineUnwellError, match="api_key_file"):
        await client.models()


async def test_html_instead_of_metrics(engine: FakeVllm, client: EngineClient) -> None:
    engine.metrics = "<html>hello</html>"
    with pytest.raises(EngineUnwellError, match="no vLLM figures"):
        await client.metrics()


async def test_an_endless_page_is_not_read_to_its_end(
    engine: FakeVllm, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_PAGE_BYTES", 5000)
    engine.metrics = "x" * 100_000
    with pytest.raises(EngineUnwellError, match="more than 5000 bytes"):
        await client.metrics()


async def test_a_page_that_drips_is_given_up(engine: FakeVllm) -> None:
    engine.drips = True
    async with aiohttp.ClientSession() as session:
        with pytest.raises(EngineSilentError, match=r"/metrics did not answer within 0\.05 s"):
            await EngineClient(engine.endpoint(), session, timeout_s=0.05).metrics()


@pytest.mark.parametrize(("status", "lacks"), [(404, True), (405, True), (501, True), (401, True), (500, False)])
async def test_no_metrics_is_not_the_same_as_failing_metrics(
    engine: FakeVllm, client: EngineClient, status: int, lacks: bool
) -> None:
    engine.metrics_status = status
    with pytest.raises(EngineUnwellError) as raised:
        await client.metrics()
    assert isinstance(raised.value, EngineLacksError) is lacks


async def test_without_a_health_page_the_models_tell_and_that_is_remembered(
    engine: FakeVllm, client: EngineClient
) -> None:
    engine.health_status = 404
    await client.health()
    await client.health()
    assert engine.asked == ["/health", "/v1/models", "/v1/models"]
    engine.models_status = 503
    with pytest.raises(EngineUnwellError, match="/v1/models answers 503"):
        await client.health()
    # Something else listens there now.
    engine.health_status = 200
    engine.asked.clear()
    await client.health()
    assert engine.asked == ["/health"]


async def test_a_request_of_our_own_carries_key_and_rank(engine: FakeVllm, client: EngineClient) -> None:
    engine.served = Served(ranks=2)
    status, answer = await client.generate(CHAT, b'{"messages":[{"content":"x"}]}', rank=1, timeout_s=PATIENCE_S)
    assert (status, b"usage" in answer) == (200, True)
    await client.generate(CHAT, b'{"messages":[{"content":"x"}]}', rank=None, timeout_s=PATIENCE_S)
    assert engine.posts == [(CHAT, "1"), (CHAT, None)]
    assert engine.authorizations == {"Bearer sk-e"}
