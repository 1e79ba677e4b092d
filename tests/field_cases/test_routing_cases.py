"""D06 to D09: which replica is least loaded, and what becomes of one that goes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.field_cases.house import (
    FEW,
    PATHS,
    S1,
    STREAMS,
    House,
    answer_as_asked,
    bring_up,
    held,
    house,
    run,
    turn,
)
from tests.gateway.conftest import Keys, Response, Rows, post
from tests.stub_engine import STREAM_HEAD, Act, Peer, Seen, StubEngine, chunk, raw, silence, whole
from tests.waiting import until

from lmwarden.gateway import Gateway, ServedModel
from lmwarden.routing.router import Router
from lmwarden.types import EngineEndpoint, Home, Outcome, ReplicaId, RoutingSettings

TWO = {"m": {"e0": 1, "e1": 1}}
COUNTED_PATHS = ("/v1/messages", "/v1/responses", "/v1/completions", "/v1/messages/count_tokens", "/v1/embeddings")


@pytest.mark.parametrize("path", COUNTED_PATHS)
async def test_d06_requests_in_flight_count_and_not_those_that_were_answered(path: str) -> None:
    """Six long requests at one replica against a hundred short ones at the other, whatever their path."""
    async with house(TWO) as made:
        go_on = asyncio.Event()
        made.engines["e0"].default = held(go_on)
        pin = "X-LMWarden-Replica: e0/0"
        waiting = [asyncio.ensure_future(made.ask(path, turn(f"long {number}"), pin)) for number in range(6)]
        await made.engines["e0"].requests(6)
        client = await made.connect()
        for number in range(100):
            body = turn(f"short {number}")
            await client.send(post("/v1/chat/completions", body, "X-LMWarden-Replica: e1/0"))
            assert (await client.response()).status == 200
        for number in range(6):
            response = await made.ask("/v1/messages", turn(), f"X-Claude-Code-Session-Id: {S1[:-1]}{number}")
            assert response.header("X-LMWarden-Replica") == "e1/0"
        go_on.set()
        await asyncio.gather(*waiting)


ENDINGS: dict[str, Act] = {
    "answer": answer_as_asked,
    "client error": whole({"error": {"message": "no"}}, 400),
    "engine error": whole({"error": {"message": "no"}}, 500),
    "unavailable": whole({"error": {"message": "no"}}, 503),
    "reset before a byte": raw(b"", then="reset"),
    "reset in the head": raw(b"HTTP/1.1 200 OK\r\nContent-", then="reset"),
    "reset in a stream": raw(STREAM_HEAD + chunk(b"data: {}\n\n"), then="reset"),
    "end in a stream": raw(STREAM_HEAD + chunk(b"data: {}\n\n") + b"0\r\n\r\n"),
    "silence": silence(),
    "silence in a stream": silence(STREAM_HEAD + chunk(b"data: {}\n\n")),
    "no HTTP": raw(b"?????\r\n\r\n", then="close"),
}


@FEW
@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from([*COUNTED_PATHS, "/v1/chat/completions"]),
            st.sampled_from(sorted(ENDINGS)),
            st.booleans(),
            st.sampled_from(["stays", "stays", "leaves at once", "leaves at the first byte"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_d06_every_request_counts_up_once_and_down_once_however_it_ends(
    requests: list[tuple[str, str, bool, str]],
) -> None:
    async def one(made: House, path: str, streamed: bool, client_does: str, number: int) -> None:
        client = await made.connect()
        lines = (f"X-Session-Id: session-{number % 3}-of-somebody",)
        await client.send(post(path, turn(stream=streamed), *lines))
        if client_does == "stays":
            await client.response()
        elif client_does == "leaves at the first byte":
            await until(lambda: bool(client.received) or not made.gateway.exchanges or bool(made.rows))
        client.leave()

    async def scenario() -> None:
        limits: dict[str, Any] = {
            "sweep_s": 0.01,
            "stream_silence_s": 0.05,
            "answer_silence_s": 0.05,
            "verdict_s": 0.03,
        }
        async with house(TWO, **limits) as made:
            for engine in made.engines.values():
                engine.script.extend(ENDINGS[ending] for _, ending, _, _ in requests)
            await asyncio.gather(
                *(one(made, path, streamed, does, at) for at, (path, _, streamed, does) in enumerate(requests))
            )
            await made.at_rest()
            view = made.view()
            assert len(made.rows) == sum(view.decisions.values()) + view.refused

    run(scenario())


# -- D07 -----------------------------------------------------------------------------------------------------------


async def _session(made: House, session: str, path: str = "/v1/messages", **members: Any) -> Response:
    return await made.ask(path, turn(session, **members), f"X-Session-Id: {session}-0123456789")


@pytest.mark.parametrize("how", ["refuses", "503", "silent"])
@pytest.mark.parametrize("path", PATHS)
async def test_d07_a_session_whose_replica_goes_is_served_and_others_do_not_notice(how: str, path: str) -> None:
    async with house(TWO, sweep_s=0.01, stream_silence_s=0.2, answer_silence_s=0.2) as made:
        first = await _session(made, "one", path)
        home = first.header("X-LMWarden-Replica") or ""
        engine = made.engines[home[:2]]
        other_engine = next(stub for name, stub in made.engines.items() if name != home[:2])
        await _session(made, "two", path)
        other = (await _session(made, "two", path)).header("X-LMWarden-Replica") or ""
        assert other != home
        answered = len(engine.seen)
        if how == "refuses":
            await engine.stop()
        else:
            engine.default = whole({"error": {"message": "loading"}}, 503) if how == "503" else silence()
        asked = asyncio.ensure_future(_session(made, "one", path))
        meanwhile = await _session(made, "two", path)
        assert (meanwhile.status, meanwhile.header("X-LMWarden-Replica")) == (200, other)
        response = await asked
        if how == "silent":
            assert response.status == 504, "a clear answer in bounded time, and never a second generation"
            assert len(engine.seen) == answered + 1
            assert sum(len(stub.seen) for stub in made.engines.values()) == len(made.rows)
            return
        assert (response.status, response.header("X-LMWarden-Replica")) == (200, other)
        assert (await _session(made, "one", path)).header("X-LMWarden-Replica") == other
        if how == "refuses":
            await engine.listen()
        engine.default = answer_as_asked
        back = {(await _session(made, "one", path)).header("X-LMWarden-Replica") for _ in range(4)}
        assert back == {other}, "it does not flap"
        assert len(other_engine.seen) >= 7


# -- D08 -----------------------------------------------------------------------------------------------------------


async def _turns(gateway: Gateway, sessions: Sequence[int]) -> dict[int, str]:
    """One turn of each, on connections of their own."""
    made = House(gateway, {}, {}, Rows())
    found = {}
    for number in sessions:
        response = await made.ask("/v1/messages", turn(f"s{number}"), f"X-Session-Id: session-{number}-0123456789")
        assert response.status == 200
        found[number] = response.header("X-LMWarden-Replica") or ""
    for client in made.clients:
        await client.closed()
    return found


async def _life(
    endpoints: Mapping[str, EngineEndpoint], homes: Sequence[Home], *rounds: Sequence[int]
) -> tuple[dict[int, str], Sequence[Home]]:
    """A gateway from its start to its end: where the last round's sessions went, and the homes that it leaves."""
    ranks = dict.fromkeys(endpoints, 1)
    router = Router(RoutingSettings(), engines=ranks)
    served = ServedModel(name="m", router=router, engines=endpoints, identity_secret=b"s" * 32)
    gateway = Gateway([served], Keys(True), Rows())
    await gateway.start("127.0.0.1", 0)
    try:
        boot_ids = {ReplicaId(name, 0): "boot" for name in ranks}
        router.restore_homes(homes, boot_ids, gateway.clock())
        bring_up(router, ranks, gateway)
        found = {}
        for sessions in rounds:
            found = await _turns(gateway, sessions)
        return found, router.export_homes()
    finally:
        await gateway.stop(0)


async def test_d08_after_a_restart_forty_sessions_go_home() -> None:
    async with AsyncExitStack() as stack:
        endpoints = {}
        for name in ("e0", "e1", "e2", "e3"):
            engine = await stack.enter_async_context(StubEngine())
            engine.default = answer_as_asked
            endpoints[name] = EngineEndpoint(engine=name, host="127.0.0.1", port=engine.port, model="m")
        before, homes = await _life(endpoints, (), range(40), range(40))
        assert set(Counter(before.values()).values()) == {10}, "spread evenly at first"
        another_order = [number * 7 % 40 for number in range(40)]
        after, _ = await _life(endpoints, homes, another_order)
        assert after == before


# -- D09 -----------------------------------------------------------------------------------------------------------


async def test_d09_nobody_is_sent_to_a_replica_that_was_never_ready() -> None:
    """Its port is open all the while: what counts is what the watch has said."""
    async with house(TWO) as made:
        router = made.routers["m"]
        router.replica_down(ReplicaId("e1", 0), made.gateway.clock())
        for number in range(6):
            assert (await _session(made, f"s{number}")).header("X-LMWarden-Replica") == "e0/0"
        assert made.engines["e1"].seen == []


async def test_d09_a_probe_that_fails_cuts_no_stream() -> None:
    async with house(TWO) as made:
        events, end = STREAMS["/v1/messages"]
        go_on = asyncio.Event()

        async def act(peer: Peer, seen: Seen) -> None:
            await peer.send(STREAM_HEAD + chunk(events[0]))
            await go_on.wait()
            await peer.send(b"".join(map(chunk, [*events[1:], end])) + b"0\r\n\r\n")

        made.engines["e0"].default = act
        client = await made.connect()
        await client.send(post("/v1/messages", turn(stream=True), "X-LMWarden-Replica: e0/0"))
        await client.until(b"message_start")
        made.routers["m"].replica_down(ReplicaId("e0", 0), made.gateway.clock())
        assert (await _session(made, "another")).header("X-LMWarden-Replica") == "e1/0"
        go_on.set()
        response = await client.response()
        assert response.complete
        await made.at_rest()
        assert {row.outcome for row in made.rows} == {Outcome.OK}
