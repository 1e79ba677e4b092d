"""Whatever comes at the socket: no crash, nothing left in flight, and the next good request is served."""

from __future__ import annotations

import asyncio
from random import Random

import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway import mutated
from tests.gateway.conftest import KEY, Client, Keys, Rows, ScriptedRouter, chat, post
from tests.stub_engine import CHAT, STREAM_HEAD, StubEngine, chunk, head, raw, whole
from tests.waiting import PATIENCE_S, until

from lmwarden.gateway import Gateway, GatewaySettings, ServedModel
from lmwarden.types import EngineEndpoint

GOOD = post("/v1/chat/completions", chat())
PIECES = st.sampled_from(
    [
        GOOD,
        GOOD[:40],
        GOOD[40:],
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\0",
        b" ",
        b"POST ",
        b"GET / HTTP/1.1\r\n",
        b"Host: g\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 99999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"ffffffffffffffff\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\n",
        b"x-api-key: %b\r\n" % KEY,
        b'{"model":"m"}',
        b"{" * 50,
        b"HTTP/1.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\n" % KEY,
        b"POST /v1/messages HTTP/1.0\r\n",
    ]
)
INPUT = st.lists(PIECES | st.binary(max_size=40), min_size=1, max_size=12)
EVENT = b'data: {"choices":[{"delta":{},"finish_reason":null}]}\n\n'
ANSWER = st.lists(
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 503 X\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n",
            b"\r\n",
            b"Content-Length: 5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Type: text/event-stream\r\n",
            b"hello",
            b"Connection: close\r\n",
            STREAM_HEAD,
            chunk(EVENT),
            chunk(EVENT)[:20],
            b"0\r\n\r\n",
            b"data: [DONE]\n\n",
            head() + b"Content-Length: 2\r\n\r\n{}",
            chunk(b"data: [DONE]\n\n"),
            b"HTTP/1.1 204 No Content\r\n\r\n",
        ]
    )
    | st.binary(max_size=20),
    max_size=8,
)
SLOWLY = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


async def scenario(sent: list[bytes], answer: list[bytes] | None, ending: str, leave: bool) -> None:
    loop = asyncio.get_running_loop()
    faults: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    router, rows = ScriptedRouter({"e0": 2}), Rows()
    async with StubEngine() as engine:
        if answer is not None:
            engine.default = raw(b"".join(answer), then=ending)
        endpoint = EngineEndpoint(engine="e0", host="127.0.0.1", port=engine.port, ranks=2, model="m")
        served = ServedModel(name="m", router=router, engines={"e0": endpoint}, identity_secret=b"s")
        limits = GatewaySettings(
            sweep_s=0.002,
            head_s=0.02,
            body_stall_s=0.02,
            stream_silence_s=0.03,
            answer_silence_s=0.03,
            linger_s=0.01,
            verdict_s=0.01,
            keep_alive_s=0.03,
            max_body_bytes=1_000_000,
        )
        gateway = Gateway([served], Keys(True), rows, limits)
        await gateway.start("127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            try:
                for piece in sent:
                    writer.write(piece)
                    await asyncio.sleep(0)
                if not leave:
                    while await asyncio.wait_for(reader.read(65536), PATIENCE_S):
                        pass
            except ConnectionError:
                pass
            writer.close()

            def held() -> tuple[object, ...]:
                return router.open, gateway.exchanges, gateway.budget.held_bytes, gateway.connections

            await until(lambda: not any(held()), lambda: f"held: {held()}")
            assert len(router.offered) == len(router.ends) == len(rows)

            engine.default = whole(CHAT)
            gateway.settings = GatewaySettings()  # to be served takes the time that it takes
            client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))
            await client.send(GOOD)
            assert (await client.response()).status == 200
            await client.closed()
        finally:
            await gateway.stop(0)
    assert faults == []


@SLOWLY
@given(sent=INPUT, leave=st.booleans())
def test_any_input_from_a_client(sent: list[bytes], leave: bool) -> None:
    uvloop.run(scenario(sent, None, "keep", leave))


@settings(SLOWLY, max_examples=60)
@given(rng=st.randoms(use_true_random=False), leave=st.booleans())
def test_any_mutated_requests_from_a_client(rng: Random, leave: bool) -> None:
    uvloop.run(scenario([mutated.requests(rng)], None, "keep", leave))


@SLOWLY
@given(answer=ANSWER, ending=st.sampled_from(["keep", "close", "reset"]), stream=st.booleans(), times=st.integers(1, 2))
def test_any_answer_from_an_engine(answer: list[bytes], ending: str, stream: bool, times: int) -> None:
    request = post("/v1/chat/completions", chat(stream=stream))
    uvloop.run(scenario([request] * times, answer, ending, False))
