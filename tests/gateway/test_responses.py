"""A response is continued on the engine that made it, by the key that asked for it, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.gateway.conftest import KEY, Client, Keys, Response, Rows, Scene, SceneMaker, post
from tests.stub_engine import STREAM_HEAD, Act, Peer, Seen, StubEngine, chunk, stream, whole

from lmwarden.gateway import Gateway, ServedModel
from lmwarden.gateway.responses import Origin, ResponseOrigins, continued_response
from lmwarden.routing.fields import decode_fields
from lmwarden.routing.router import Router
from lmwarden.types import (
    EngineEndpoint,
    KeyIdentity,
    Outcome,
    RefuseReason,
    ReplicaCapacity,
    ReplicaId,
    RoutingRequest,
    RoutingSettings,
)

NOT_FOUND = "previous_response_not_found"


def response(response_id: str, status: str = "completed") -> dict[str, Any]:
    return {"id": response_id, "object": "response", "status": status, "usage": None, "output": []}


def events(response_id: str, status: str = "completed") -> list[bytes]:
    """A streamed response, as vLLM sends it."""
    parts: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": response(response_id, "in_progress")}),
        ("response.in_progress", {"response": response(response_id, "in_progress")}),
        ("response.output_text.delta", {"delta": '"response":{"id":"no"}'}),
        ("response.completed", {"response": response(response_id, status)}),
    ]
    return [
        b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **more}))
        for kind, more in parts
    ]


def asking(previous: object = None, **members: Any) -> dict[str, Any]:
    body = {"model": "m", "input": "hello", **members}
    return body if previous is None else {**body, "previous_response_id": previous}


async def ask(scene: Scene, engine: int, act: Act, body: dict[str, Any], *lines: str, key: bytes = KEY) -> Response:
    """Ask; a request that no engine is named for goes to this one."""

    def choose(request: RoutingRequest) -> ReplicaId:
        return ReplicaId(request.engine if request.engine is not None else f"e{engine}", 0)

    scene.router.choose = choose
    for stub in scene.engines:
        stub.default = act
    answer: Response = await scene.ask(post("/v1/responses", body, *lines, key=key))
    return answer


class TwoKeys:
    """Two people."""

    required = True

    def check(self, credential: bytes) -> KeyIdentity | None:
        return KeyIdentity(credential.decode(), credential.rjust(16))

    def still_good(self, key: KeyIdentity) -> KeyIdentity | None:
        return key


def is_not_found(answer: Response) -> bool:
    error = answer.json()["error"]
    return (answer.status, error["code"], error["param"]) == (404, NOT_FOUND, "previous_response_id")


# -- through the gateway ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        whole(response("resp_1")),
        stream(events("resp_1")),
        stream(events("resp_1"), apart=True),
        stream(events("resp_1", "in_progress")[:2], end=b""),  # cut: but in the background it goes on
    ],
)
async def test_a_response_is_continued_where_it_was_made(make_scene: SceneMaker, act: Act) -> None:
    async with make_scene(engines=3) as scene:
        if act.__qualname__.startswith("stream"):
            client = await scene.connect()
            scene.router.choose = lambda request: ReplicaId("e2", 0)
            scene.engines[2].default = act
            await client.send(post("/v1/responses", asking(stream=True)))
            await client.until(b"response.in_progress")
        else:
            await ask(scene, 2, act, asking())
        answer = await ask(scene, 0, whole(response("resp_2")), asking("resp_1"))
        assert answer.header("X-LMWarden-Replica") == "e2/0"
        assert scene.router.offered[-1].engine == "e2"
        assert b'"previous_response_id":"resp_1"' in scene.engines[2].seen[-1].body
        answer = await ask(scene, 0, whole(response("resp_3")), asking("resp_2"))
        assert answer.header("X-LMWarden-Replica") == "e2/0"
        for client in scene.clients:
            client.leave()


async def test_a_streamed_response_can_be_continued_before_its_stream_has_ended(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        go_on = asyncio.Event()

        async def act(peer: Peer, seen: Seen) -> None:
            await peer.send(STREAM_HEAD + b"".join(map(chunk, events("resp_1"))))
            await go_on.wait()
            await peer.send(b"0\r\n\r\n")

        scene.router.choose = lambda request: ReplicaId(request.engine or "e1", 0)
        scene.engines[1].script.append(act)
        client = await scene.connect()
        await client.send(post("/v1/responses", asking(stream=True)))
        await client.until(b"response.completed")
        answer = await ask(scene, 0, whole(response("resp_2")), asking("resp_1"))
        assert answer.header("X-LMWarden-Replica") == "e1/0"
        go_on.set()
        assert (await client.response()).complete


async def test_an_unknown_response_is_404_where_there_is_a_choice(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        answer = await ask(scene, 0, whole(response("resp_1")), asking("resp_0"))
        assert is_not_found(answer)
        assert answer.header("Retry-After") is None
        assert "resp_0" not in answer.json()["error"]["message"]
        assert scene.router.offered == []
        for absent in (None, "", 7, ["resp_1"]):
            assert (await ask(scene, 0, whole(response("resp_1")), asking(absent))).status == 200


async def test_an_only_engine_knows_best(make_scene: SceneMaker) -> None:
    theirs = {"error": {"message": "Response with id 'resp_0' not found.", "param": "response_id", "code": 404}}
    async with make_scene() as scene:
        answer = await ask(scene, 0, whole(theirs, 404), asking("resp_0"))
        assert (answer.status, answer.json()) == (404, theirs)
        await ask(scene, 0, whole(response("resp_1")), asking())
        assert (await ask(scene, 0, whole(response("resp_2")), asking("resp_1"))).status == 200
        assert scene.router.offered[-1].engine is None, "a 503 while it is down, and no 404"


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("engines", [1, 2])
async def test_an_engine_that_ends_takes_its_responses_along(make_scene: SceneMaker, lost: bool, engines: int) -> None:
    async with make_scene(engines=engines) as scene:
        await ask(scene, 0, whole(response("resp_1")), asking())
        if engines == 2:
            await ask(scene, 1, whole(response("resp_2")), asking())
        (scene.gateway.engine_lost if lost else scene.gateway.engine_restarted)("m", "e0")
        assert is_not_found(await ask(scene, 0, whole(response("resp_3")), asking("resp_1")))
        if engines == 2:
            answer = await ask(scene, 0, whole(response("resp_4")), asking("resp_2"))
            assert answer.header("X-LMWarden-Replica") == "e1/0"
        await ask(scene, 0, whole(response("resp_1")), asking())  # the new run may choose the same id
        assert (await ask(scene, 0, whole(response("resp_5")), asking("resp_1"))).status == 200


@pytest.mark.parametrize("engines", [1, 2])
async def test_only_the_key_that_made_it_can_continue_it(make_scene: SceneMaker, engines: int) -> None:
    async with make_scene(engines=engines) as scene:
        scene.gateway._authenticator = TwoKeys()
        await ask(scene, 0, whole(response("resp_1")), asking(), key=b"alice")
        stolen = await ask(scene, 0, whole(response("resp_2")), asking("resp_1"), key=b"mallory")
        assert is_not_found(stolen)
        assert stolen.body == (await ask(scene, 0, whole({}), asking("resp_1"), key=b"mallory")).body
        assert (await ask(scene, 0, whole(response("resp_3")), asking("resp_1"), key=b"alice")).status == 200


async def test_a_pin_to_another_engine_is_refused(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2) as scene:
        await ask(scene, 1, whole(response("resp_1")), asking())
        answer = await ask(scene, 0, whole({}), asking("resp_1"), "X-LMWarden-Replica: e0/0")
        assert answer.status == 400
        answer = await ask(scene, 0, whole({}), asking("resp_1"), "X-LMWarden-Replica: e1/0")
        assert (answer.status, answer.header("X-LMWarden-Replica")) == (200, "e1/0")


async def test_an_engine_that_is_down_is_a_404_of_the_same_form(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.router.choose = lambda request: RefuseReason.RESPONSE_LOST
        answer = await scene.ask(post("/v1/responses", asking()))
        assert is_not_found(answer)
        assert answer.header("Retry-After") is None
        await scene.at_rest()
        assert [(row.outcome, row.status) for row in scene.rows] == [(Outcome.REFUSED, 404)]


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_makes_no_response(make_scene: SceneMaker, status: int) -> None:
    async with make_scene(engines=2) as scene:
        await ask(scene, 0, whole(response("resp_1"), status), asking())
        assert is_not_found(await ask(scene, 0, whole({}), asking("resp_1")))


async def test_with_the_real_router() -> None:
    async with StubEngine() as first, StubEngine() as second:
        engines = {"e0": first, "e1": second}
        router = Router(RoutingSettings(), engines=dict.fromkeys(engines, 1))
        served = ServedModel(
            name="m",
            router=router,
            engines={
                name: EngineEndpoint(engine=name, host="127.0.0.1", port=stub.port, model="m")
                for name, stub in engines.items()
            },
            identity_secret=b"s",
        )
        gateway = Gateway([served], Keys(True), Rows())
        await gateway.start("127.0.0.1", 0)
        for name, stub in engines.items():
            stub.default = whole(response(f"resp_{name}"))
            router.replica_up(ReplicaId(name, 0), ReplicaCapacity(), "boot", gateway.clock())
        client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))

        async def send(body: dict[str, Any], session: str) -> Response:
            await client.send(post("/v1/responses", body, f"X-Session-Id: session-{session}"))
            return await client.response()

        made_by = {(await send(asking(), str(number))).json()["id"] for number in range(4)}
        assert made_by == {"resp_e0", "resp_e1"}
        for number in range(8):
            answer = await send(asking("resp_e1"), f"other-{number}")
            assert answer.header("X-LMWarden-Replica") == "e1/0"
        router.replica_down(ReplicaId("e1", 0), gateway.clock())
        assert is_not_found(await send(asking("resp_e1"), "0"))
        assert (await send(asking("resp_e0"), "0")).header("X-LMWarden-Replica") == "e0/0"
        assert router.view(gateway.clock()).in_flight == 0
        await client.closed()
        await gateway.stop(0)


# -- the table ----------------------------------------------------------------------------------------------------


def test_the_table_is_bounded_and_forgets_what_was_not_used_for_longest() -> None:
    origins = ResponseOrigins(b"s", most=3)
    for number in range(3):
        origins.learner(b"k", "e0")(f"r{number}")
    assert origins.find(b"k", "r0") == "e0"  # used
    origins.learner(b"k", "e0")("r3")
    assert [origins.find(b"k", f"r{number}") for number in range(4)] == ["e0", Origin.UNKNOWN, "e0", "e0"]
    assert len(origins._made) == 3


def test_an_id_that_several_keys_chose_belongs_to_each() -> None:
    origins = ResponseOrigins(b"s")
    origins.learner(b"alice", "e0")("r")
    origins.learner(b"bob", "e1")("r")
    assert [origins.find(key, "r") for key in (b"alice", b"bob", b"eve")] == ["e0", "e1", Origin.ANOTHERS]
    for number in range(1000):
        origins.learner(b"%d" % number, "e1")("r")
    assert sum(map(len, origins._made.values())) < 10


def test_a_response_of_an_earlier_run_is_lost_also_if_it_is_learned_late() -> None:
    origins = ResponseOrigins(b"s")
    learn = origins.learner(b"k", "e0")
    origins.forget("e0")
    learn("r")
    assert origins.find(b"k", "r") is Origin.LOST
    origins.learner(b"k", "e0")("r")
    assert origins.find(b"k", "r") == "e0"


def test_ids_are_not_kept() -> None:
    origins = ResponseOrigins(b"s")
    origins.learner(b"k", "e0")("resp_MARKER")
    assert b"MARKER" not in repr(origins._made).encode()
    assert ResponseOrigins(b"other")._hash("r") != origins._hash("r")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"previous_response_id":"r1","input":"x"}', "r1"),
        (b'{"input":[{"previous_response_id":"r1"}]}', None),
        (b'{"input":"previous_response_id"}', None),
        (b'{"previous_response_id":null}', None),
        (b'{"previous_response_id":""}', None),
        (b'{"previous_response_id":7}', None),
        (b'{"previous_response_id":"\\u0072\\u0031"}', "r1"),
        (b'{"input":"\\ud83d","previous_response_id":"r1"}', "r1"),
        (b'{"previous_response_id":"\\ud83d"}', "\ufffd"),
        (bytearray(b'{"previous_response_id":"r1"}'), "r1"),
    ],
)
def test_the_response_that_a_body_continues(body: bytes, found: str | None) -> None:
    assert continued_response(decode_fields(body)) == found
    if found is not None:
        assert ResponseOrigins(b"s").find(b"k", found) is Origin.UNKNOWN
