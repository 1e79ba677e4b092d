"""An engine's process dies: which requests are sent elsewhere, which are cut, and that nobody else notices.

The kernel closes a dead process's connections, and the supervisor tells of its end; either may come first, and for an
engine that is not ours the second never comes.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.gateway.conftest import Client, Response, Scene, SceneMaker, chat, post
from tests.gateway.engine_process import DONE, event
from tests.listening import listening
from tests.stub_engine import CHAT, STREAM_HEAD, Act, Peer, Seen, StubEngine, head, raw, silence, whole
from tests.waiting import PATIENCE_S, until

from lmwarden.gateway.pool import PoolUser
from lmwarden.gateway.upstream import UpstreamConnection
from lmwarden.types import Outcome, ReplicaId, RoutingRequest

ASK = post("/v1/chat/completions", chat())
HEAD_ONLY = head() + b"Content-Length: 5\r\n\r\n"
SOON = {"verdict_s": 0.05, "sweep_s": 0.02}
CLOSED_BY_END = head(200, "text/event-stream") + b"\r\n"
"""A head after which only the end of the connection ends the body."""


def ending(engine: StubEngine, first: bytes = b"", *, reset: bool = False, listening: bool = False) -> Act:
    """Refuse connections from now on (unless ``listening``), send ``first`` and close the connection."""

    async def act(peer: Peer, seen: Seen) -> None:
        if not listening:
            engine.refuse()
        await raw(first, then="reset" if reset else "close")(peer, seen)

    return act


async def suspicious(scene: Scene) -> Client:
    """Ask, and wait until the first engine has closed the connection, and has taken the probe's."""
    scene.router.retry_at = ReplicaId("e1", 0)
    scene.engine.script.append(ending(scene.engine, listening=True))
    client = await scene.connect()
    await client.send(ASK)
    await until(
        lambda: scene.engine.connections == 2 and any(exchange._suspicious for exchange in scene.gateway.exchanges),
        lambda: "no exchange became suspicious",
    )
    return client


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200", HEAD_ONLY, STREAM_HEAD, CLOSED_BY_END])
async def test_closed_without_a_byte_of_the_body_and_nobody_listens_goes_elsewhere(
    make_scene: SceneMaker, first: bytes, reset: bool
) -> None:
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(ending(scene.engine, first, reset=reset))
        response = await scene.ask(ASK)
        assert (response.status, response.json()) == (200, CHAT)
        assert response.header("X-LMWarden-Replica") == "e1/0"
        await scene.at_rest()
        (row,) = scene.rows
        assert (row.outcome, row.retried, row.replica) == (Outcome.OK, True, "e1/0")
        assert [len(engine.seen) for engine in scene.engines] == [1, 1]


@pytest.mark.parametrize("first", [b"", HEAD_ONLY, CLOSED_BY_END])
async def test_closed_but_somebody_listens_is_502_and_not_sent_again(make_scene: SceneMaker, first: bytes) -> None:
    async with make_scene(engines=2, **SOON) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(ending(scene.engine, first, listening=True))
        assert (await scene.ask(ASK)).status == 502
        assert scene.engines[1].seen == []
        assert scene.router.retried == set()
        probes = scene.gateway._services["m"].pools["e0"]._tasks
        await until(lambda: not probes, lambda: "a probe goes on although its request was answered")


async def test_a_listener_that_outlives_our_process_does_not_hide_its_end(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2, verdict_s=30, sweep_s=0.01) as scene:
        client = await suspicious(scene)
        await scene.sweeps(5)
        assert scene.engines[1].seen == []
        scene.gateway.engine_lost("m", "e1")  # not its engine
        assert scene.router.retried == set()
        scene.gateway.engine_lost("m", "e0")
        response = await client.response()
        assert (response.status, response.header("X-LMWarden-Replica")) == (200, "e1/0")
        assert [len(engine.seen) for engine in scene.engines] == [1, 1]


async def test_a_listener_that_closes_a_moment_later_is_noticed(make_scene: SceneMaker) -> None:
    """A dying process closes its connections first."""
    async with make_scene(engines=2, verdict_s=30) as scene:
        client = await suspicious(scene)
        await scene.engine.stop()
        response = await client.response()
        assert (response.status, response.header("X-LMWarden-Replica")) == (200, "e1/0")


async def test_a_port_that_closes_all_that_it_takes_is_tried_a_few_times_only(make_scene: SceneMaker) -> None:
    """A proxy whose engine is gone: it says nothing about what the engine did before."""
    taken = 0

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        writer.close()

    async with listening(take) as proxy, make_scene(ports=[proxy.port], verdict_s=0.4, sweep_s=0.02) as scene:
        assert (await scene.ask(ASK)).status == 502
        assert 1 < taken < 8


async def test_a_word_that_comes_too_late_does_no_harm(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2, **SOON) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(ending(scene.engine, listening=True))
        assert (await scene.ask(ASK)).status == 502
        scene.gateway.engine_lost("m", "e0")
        assert scene.engines[1].seen == []


async def test_the_word_first_and_the_reset_after_it_is_one_retry(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(silence())
        client = await scene.connect()
        await client.send(ASK)
        await scene.engine.requests(1)
        scene.gateway.engine_lost("m", "e0")
        await scene.engine.stop()
        assert (await client.response()).status == 200
        assert len(scene.engines[1].seen) == 1


@pytest.mark.parametrize("leave", [True, False])
async def test_nobody_waits_for_a_verdict_any_more(make_scene: SceneMaker, leave: bool) -> None:
    """The client leaves, or the gateway stops."""
    async with make_scene(engines=2, verdict_s=30) as scene:
        client = await suspicious(scene)
        if leave:
            client.leave()
        else:
            await scene.gateway.stop(0)
        await scene.at_rest()
        scene.gateway.engine_lost("m", "e0")
        assert [row.outcome for row in scene.rows] == [Outcome.CANCELLED if leave else Outcome.FAILED]
        assert scene.engines[1].seen == []


async def test_it_is_not_sent_a_third_time(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(whole(b"{}", 503))
        scene.engines[1].script.append(ending(scene.engines[1]))
        assert (await scene.ask(ASK)).status == 502
        assert [len(engine.seen) for engine in scene.engines] == [1, 1]


async def test_a_pooled_connection_first_tries_its_own_engine(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        await scene.ask(ASK)
        scene.engine.script.append(ending(scene.engine))
        response = await scene.ask(ASK)
        assert (response.status, response.header("X-LMWarden-Replica")) == (200, "e1/0")


async def test_a_connect_that_is_not_wanted_any_more_never_sends(make_scene: SceneMaker) -> None:
    """Its engine died meanwhile and the request is elsewhere: what the connect brings must not be used for it."""
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        pool = scene.gateway._services["m"].pools["e0"]
        connect = pool._connect

        async def slowly(user: PoolUser) -> None:
            begun.set()
            try:
                await go_on.wait()
                await connect(user)
            finally:
                ended.set()

        pool._connect = slowly
        scene.engines[1].script.append(silence())
        client = await scene.connect()
        await client.send(ASK)
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        scene.gateway.engine_lost("m", "e0")
        await scene.engines[1].requests(1)
        go_on.set()
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        assert scene.engine.seen == []
        assert scene.engine.connections == 0
        client.leave()
        await scene.at_rest()
        assert [row.outcome for row in scene.rows] == [Outcome.CANCELLED]


async def test_a_connection_that_is_lost_before_it_is_used_was_a_failed_connect(make_scene: SceneMaker) -> None:
    """Closed in the very turn in which it opened; nobody would hear of it any more."""
    async with make_scene(engines=2) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        pool = scene.gateway._services["m"].pools["e0"]
        real = pool._loop

        class Loop:
            create_task = staticmethod(real.create_task)
            time = staticmethod(real.time)

            async def create_connection(self, *arguments: Any, **more: Any) -> tuple[Any, UpstreamConnection]:
                transport, connection = await real.create_connection(*arguments, **more)
                transport.abort()
                return transport, connection

        pool._loop = Loop()
        response = await scene.ask(ASK)
        assert (response.status, response.header("X-LMWarden-Replica")) == (200, "e1/0")
        assert scene.engine.seen == []


# -- kill -9 ------------------------------------------------------------------------------------------------------

STREAMS = 200
PIECES = 25
MODES = ("stream", "stream", "stream", "silent", "head")


@asynccontextmanager
async def engine_processes(count: int) -> AsyncIterator[list[tuple[asyncio.subprocess.Process, int]]]:
    """Engines in processes of their own, with their ports. The first one is silent where it is asked to be."""
    processes: list[tuple[asyncio.subprocess.Process, int]] = []
    try:
        for number in range(count):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.gateway.engine_process",
                "lively" if number else "silent",
                stdout=asyncio.subprocess.PIPE,
            )
            processes.append((process, 0))
        for number, (process, _) in enumerate(processes):
            assert process.stdout is not None
            processes[number] = (process, int(await process.stdout.readline()))
        yield processes
    finally:
        for process, _ in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _until_all_are_at_work(scene: Scene) -> None:
    """Every request is at its engine, and every one that will get a byte before the death has got it."""
    mute = sum(MODES[number // 4 % len(MODES)] != "stream" and number % 4 == 0 for number in range(STREAMS))
    pools = scene.gateway._services["m"].pools.values()
    await until(
        lambda: (
            sum(len(pool.connections) for pool in pools) == STREAMS and len(scene.router.first_bytes) == STREAMS - mute
        ),
        lambda: "the engines did not get to work",
    )


@pytest.mark.parametrize("told", ["first", "later", "never"])
async def test_kill_9_of_one_of_four_engines_during_200_streams(make_scene: SceneMaker, told: str) -> None:
    """``told``: when the end of the process is told, compared to the ends of its connections."""
    async with (
        engine_processes(4) as processes,
        make_scene(engines=4, ports=[port for _, port in processes]) as scene,
    ):
        scene.router.retry_at = ReplicaId("e1", 0)

        def by_number(request: RoutingRequest) -> ReplicaId:
            return ReplicaId(f"e{(len(scene.router.offered) - 1) % 4}", 0)

        scene.router.choose = by_number
        clients: list[Client] = []
        for number in range(STREAMS):
            body = chat(stream=True, name=f"r{number}", mode=MODES[number // 4 % len(MODES)], pieces=PIECES)
            client = await scene.connect()
            await client.send(post("/v1/chat/completions", body))
            clients.append(client)
            await _offered(scene, number + 1)
        await _until_all_are_at_work(scene)

        victim = processes[0][0]
        for process, _ in processes[1:]:
            process.send_signal(signal.SIGUSR1)
        victim.kill()
        if told == "first":
            scene.gateway.engine_lost("m", "e0")
        elif told == "later":
            await victim.wait()
            await until(lambda: not scene.gateway._services["m"].pools["e0"].connections)
            scene.gateway.engine_lost("m", "e0")
        responses: list[Response] = await asyncio.gather(*(client.response() for client in clients))

        await scene.at_rest()
        outcomes: Counter[str] = Counter()
        for number, response in enumerate(responses):
            whole_text = b"".join(event(f"r{number}", piece) for piece in range(PIECES)) + DONE
            if number % 4 == 0 and MODES[number // 4 % len(MODES)] == "stream":
                outcomes["cut"] += 1
                assert response.closed
                assert not response.complete
                assert response.body == event(f"r{number}", 0)
            else:
                outcomes["whole"] += 1
                assert response.complete
                assert response.body == whole_text
                expected = "e1/0" if number % 4 == 0 else f"e{number % 4}/0"
                assert response.header("X-LMWarden-Replica") == expected
        assert outcomes == {"cut": 30, "whole": 170}
        assert Counter(row.outcome for row in scene.rows) == {Outcome.FAILED: 30, Outcome.OK: 170}
        assert sum(row.retried for row in scene.rows) == len(scene.router.retried) == 20
        assert scene.gateway.snapshot()["m"].open_exchanges == 0


async def _offered(scene: Scene, count: int) -> None:
    while len(scene.router.offered) < count:
        scene.router.asked.clear()
        await asyncio.wait_for(scene.router.asked.wait(), PATIENCE_S)
