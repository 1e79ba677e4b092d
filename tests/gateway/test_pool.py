"""What an engine's pool knows of its engine: when it was heard, and whether nobody listens."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.gateway.conftest import Scene, SceneMaker, chat, post
from tests.stub_engine import STREAM_HEAD, Peer, Seen, chunk, silence
from tests.waiting import until

from lmwarden.gateway import GatewaySettings
from lmwarden.gateway.outbox import Outbox
from lmwarden.gateway.pool import EnginePool
from lmwarden.gateway.upstream import UpstreamConnection
from lmwarden.types import EngineEndpoint, Outcome

EVENT = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'


async def test_an_engine_that_never_answered_was_never_heard(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2, sweep_s=0.01) as scene:
        scene.engine.default = silence()
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat()))
        await scene.engine.requests(1)
        await scene.sweeps(5)
        assert scene.gateway.last_heard("m", "e0") is None
        client.leave()


async def clock_moves() -> None:
    """The loop's clock counts milliseconds."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    await until(lambda: loop.time() > now)


def sweep(scene: Scene) -> None:
    """As the gateway does."""
    for exchange in scene.gateway.exchanges:
        exchange.sweep()
    for pool in scene.gateway._services["m"].pools.values():
        pool.sweep()


async def test_short_answers_are_heard_too(make_scene: SceneMaker) -> None:
    async with make_scene(sweep_s=3600) as scene:
        sweep(scene)
        before = asyncio.get_running_loop().time()
        await scene.ask(post("/v1/chat/completions", chat()))
        heard_at = scene.gateway.last_heard("m", "e0")
        assert heard_at is not None
        assert heard_at <= before
        sweep(scene)
        assert scene.gateway.last_heard("m", "e0") == heard_at


async def test_when_an_engine_was_heard_last(make_scene: SceneMaker) -> None:
    """Never later than it was, and not much earlier."""
    loop = asyncio.get_running_loop()
    async with make_scene(engines=2, sweep_s=3600, stream_silence_s=1e9, ping_s=1e9) as scene:
        speak, spoken_at = asyncio.Event(), [0.0]

        async def act(peer: Peer, seen: Seen) -> None:
            answer = STREAM_HEAD
            while True:
                await speak.wait()
                speak.clear()
                spoken_at.append(loop.time())
                await peer.send(answer + chunk(EVENT))
                answer = b""

        scene.engine.default = act
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat(stream=True)))
        await scene.engine.requests(1)
        for turn in range(1, 4):
            before = loop.time()
            sweep(scene)
            for _ in range(3):  # sweeps in which nothing comes change nothing
                heard_at = scene.gateway.last_heard("m", "e0")
                await clock_moves()
                sweep(scene)
                assert scene.gateway.last_heard("m", "e0") == heard_at
            swept_at = loop.time()
            client.received.clear()
            speak.set()
            await client.until(EVENT)
            sweep(scene)
            heard_at = scene.gateway.last_heard("m", "e0")
            assert heard_at is not None
            assert before <= heard_at <= swept_at <= spoken_at[turn]
        assert scene.gateway.last_heard("m", "e1") is None
        client.leave()


class Curious:
    """Wants to know whether nobody listens."""

    def __init__(self) -> None:
        self.told = 0

    def connected(self, connection: UpstreamConnection) -> None:
        raise AssertionError("a probe is no connection to send on")

    def connect_failed(self) -> None:
        raise AssertionError("a probe is no connection to send on")

    def cannot_connect(self) -> None:
        raise AssertionError("a probe is no connection to send on")

    def nobody_listens(self) -> None:
        self.told += 1


class Taken:
    """A transport that was there for a moment."""

    def abort(self) -> None: ...


REFUSED, RESET = ConnectionRefusedError(), ConnectionResetError()
TAKEN = None


@pytest.mark.parametrize(
    ("connects", "told"),
    [
        ([REFUSED], 1),
        ([RESET, REFUSED], 1),  # the listener closes while the connection is made
        ([TAKEN, REFUSED], 1),  # or a moment after that
        ([TAKEN, RESET, TAKEN, REFUSED], 1),
        ([TAKEN] * 4, 0),  # a proxy
        ([RESET] * 4, 0),
        ([OSError("no route to host")], 0),
        ([TimeoutError()], 0),
    ],
)
async def test_what_a_probe_takes_for_a_dead_engine(connects: Sequence[OSError | None], told: int) -> None:
    real = asyncio.get_running_loop()
    left = list(connects)

    class Loop:
        create_task = staticmethod(real.create_task)
        create_future = staticmethod(real.create_future)
        time = staticmethod(real.time)

        async def create_connection(self, factory: Any, *arguments: Any, **more: Any) -> tuple[Any, Any]:
            outcome = left.pop(0)
            if outcome is not None:
                raise outcome
            connection = factory()
            connection.connection_lost(None)  # taken, and closed at once
            return Taken(), connection

    pool = EnginePool(
        EngineEndpoint(engine="e0", host="h", port=1, model="m"),
        GatewaySettings(),
        Loop(),  # type: ignore[arg-type]
        Outbox(real),
    )
    curious = Curious()
    await pool.probe(curious)
    assert (curious.told, left) == (told, [])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
@pytest.mark.parametrize("api", ["messages", "chat/completions"])
async def test_a_want_of_our_own_is_no_failure_of_an_engine(
    make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch, number: int, api: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(number, "of ours")

    async with make_scene(engines=2) as scene:
        pools = scene.gateway._services["m"].pools.values()
        with monkeypatch.context() as patch:
            for pool in pools:
                patch.setattr(pool, "_loop", SimpleNamespace(create_connection=fail, create_task=asyncio.create_task))
            response = await scene.ask(post(f"/v1/{api}", chat()))
            assert response.status == (529 if api == "messages" else 503)
            assert int(response.header("Retry-After") or 0) > 0
        await scene.at_rest()
        (row,) = scene.rows
        assert (row.outcome, row.retried) == (Outcome.REFUSED, False)
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 200


async def test_a_host_that_is_no_name_is_told_and_not_waited_for() -> None:
    loop = asyncio.get_running_loop()
    pool = EnginePool(
        EngineEndpoint(engine="e0", host="foo..bar", port=1, model="m"), GatewaySettings(), loop, Outbox(loop)
    )
    told: list[bool] = []
    user: Any = SimpleNamespace(connect_failed=lambda: told.append(True))
    task = pool.acquire(user, fresh=False)
    assert task is not None
    await task
    await pool.probe(user)
    assert told == [True]
