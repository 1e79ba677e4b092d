"""Requests that the router holds: what the gateway does with them while they wait, and when they leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.gateway.conftest import Client, Scene, SceneMaker, chat, post
from tests.stub_engine import silence
from tests.waiting import PATIENCE_S, until

from lmwarden.gateway import exchange
from lmwarden.types import Outcome, RefuseReason, ReplicaId

HERE = ReplicaId("e0", 0)
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


class Watch:
    """The gateway's clock, set by the test."""

    def __init__(self, scene: Scene) -> None:
        self.now = 1000.0
        scene.gateway.clock = lambda: self.now


async def hold(scene: Scene, request: bytes) -> Client:
    """Have one request wait."""
    scene.router.choose = lambda request: None
    scene.router.asked.clear()
    client = await scene.connect()
    await client.send(request)
    await asyncio.wait_for(scene.router.asked.wait(), PATIENCE_S)
    return client


def let_go(scene: Scene, ticket: int = 1) -> None:
    scene.gateway.perform("m", (scene.router.dispatch(ticket, HERE),))


async def test_the_wait_is_told_to_the_client_and_written_down(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        watch = Watch(scene)
        client = await hold(scene, post(CHAT, chat()))
        (held,) = scene.gateway.held("m")
        assert (held.since, held.key_name) == (1000.0, "tester")
        watch.now += 60.0
        let_go(scene)
        response = await client.response()
        assert (response.status, response.header("X-LMWarden-Wait-Ms")) == (200, "60000")
        assert scene.gateway.held("m") == []
        await scene.at_rest()
        assert scene.rows[0].waited_s == 60.0
        counted = scene.gateway.snapshot()["m"]
        assert (sum(counted.wait_counts), counted.wait_sum_s) == (1, 60.0)


async def test_who_does_not_wait_is_not_counted_as_waiting(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        response = await scene.ask(post(CHAT, chat()))
        assert response.header("X-LMWarden-Wait-Ms") == "0"
        await scene.at_rest()
        assert sum(scene.gateway.snapshot()["m"].wait_counts) == 0


async def test_a_client_that_closes_its_side_while_it_waits_has_left(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        watch = Watch(scene)
        client = await hold(scene, post(CHAT, chat()))
        watch.now += 7.0
        client.finish_sending()
        await scene.at_rest()
        assert scene.engine.seen == []
        (row,) = scene.rows
        assert (row.outcome, row.decision, row.waited_s) == (Outcome.CANCELLED, None, 7.0)
        assert sum(scene.gateway.snapshot()["m"].wait_counts) == 1


async def test_a_client_that_leaves_in_the_middle_of_its_next_body_gives_everything_back(
    make_scene: SceneMaker,
) -> None:
    """``at_rest`` sees that nothing of either body is held."""
    async with make_scene() as scene:
        client = await hold(scene, post(CHAT, chat()))
        await client.send(post(CHAT, b"x" * 200_000)[:150_000])
        await until(lambda: scene.gateway.budget.held_bytes > 100_000)
        client.leave()
        await scene.at_rest()
        assert [row.outcome for row in scene.rows] == [Outcome.CANCELLED]


async def test_a_body_that_waits_counts_as_held(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        body = chat(padding="x" * 50_000)
        client = await hold(scene, post(CHAT, body))
        assert scene.gateway.budget.held_bytes > 50_000
        let_go(scene)
        assert (await client.response()).status == 200


async def test_who_waits_when_the_warden_stops_is_told_to_come_back(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        clients = [await hold(scene, post(path, chat())) for path in (CHAT, MESSAGES)]
        await scene.gateway.stop(0)
        for client in clients:
            response = await client.response()
            assert (response.status, response.header("Retry-After")) == (503, "5")
        await scene.at_rest()
        assert {(row.outcome, row.decision, row.status) for row in scene.rows} == {(Outcome.REFUSED, None, 503)}
        assert {outcome for outcome, _ in scene.router.ends.values()} == {Outcome.CANCELLED}


async def test_who_waits_when_the_warden_stops_is_served_if_there_is_time(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await hold(scene, post(CHAT, chat()))
        stopping = asyncio.ensure_future(scene.gateway.stop(PATIENCE_S))
        await asyncio.sleep(0)
        assert scene.gateway.draining
        let_go(scene)
        assert (await client.response()).status == 200
        await stopping


@pytest.mark.parametrize(("path", "status", "kind"), [(MESSAGES, 529, "overloaded_error"), (CHAT, 503, "server_error")])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_full_room_is_said_in_the_callers_words(
    make_scene: SceneMaker, path: str, status: int, kind: str, waits: bool
) -> None:
    async with make_scene() as scene:
        if waits:
            client = await hold(scene, post(path, chat()))
            scene.gateway.perform("m", scene.router.refuse(1, RefuseReason.ROOM_FULL))
        else:
            scene.router.choose = lambda request: RefuseReason.ROOM_FULL
            client = await scene.connect()
            await client.send(post(path, chat()))
        response = await client.response()
        assert (response.status, response.header("Retry-After")) == (status, "7")
        error: dict[str, Any] = response.json()["error"]
        assert error["type"] == kind
        await scene.at_rest()
        assert scene.rows[0].outcome is Outcome.REFUSED
        assert sum(scene.gateway.snapshot()["m"].wait_counts) == waits


@pytest.mark.parametrize("streamed", [True, False])
async def test_the_wait_is_part_of_the_time_in_which_the_answer_must_begin(
    make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    monkeypatch.setattr(exchange, "_LEAST_ANSWER_S", 0.02)
    limits = {"stream_silence_s": 290.0, "answer_silence_s": 290.0}
    async with make_scene(sweep_s=0.01, **limits) as scene:
        watch = Watch(scene)
        scene.engine.script.append(silence())
        client = await hold(scene, post(CHAT, chat(stream=streamed)))
        watch.now += 240.0
        let_go(scene)
        await scene.engine.requests(1)
        watch.now += 51.0
        response = await client.response()
        assert response.status == 504
        await scene.at_rest()
        assert (scene.rows[0].outcome, scene.rows[0].waited_s) == (Outcome.TIMEOUT, 240.0)


async def test_an_engine_gets_some_time_however_long_the_request_waited(make_scene: SceneMaker) -> None:
    async with make_scene(sweep_s=0.01, stream_silence_s=290.0) as scene:
        watch = Watch(scene)
        client = await hold(scene, post(CHAT, chat()))
        watch.now += 295.0
        let_go(scene)
        assert (await client.response()).status == 200
