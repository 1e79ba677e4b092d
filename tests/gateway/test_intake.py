"""From a request to an offer: models, pins, conversations, calls that are no generations."""

from __future__ import annotations

import json

import pytest
from tests.gateway.conftest import Scene, SceneMaker, chat, post
from tests.stub_engine import MESSAGE, stream, whole

from lmwarden.gateway import intake
from lmwarden.types import Outcome, ReplicaId

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
SESSION = "X-Claude-Code-Session-Id: 3e0c1f6a-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b'{"model":"m"', 400),
        (b'{"a":' * 100_000, 400),
        (b"\xff\xfe", 400),
        (b'{"model":7}', 400),
        (b'{"model":"none"}', 404),
        (b'{"model":"http://169.254.169.254/"}', 404),
        (b'{"mod\\u0065l":"m2","stream":true}', 400),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens", "/tokenize"])
async def test_bodies_that_are_the_clients_mistake(make_scene: SceneMaker, path: str, body: bytes, status: int) -> None:
    async with make_scene(aliases=["m2"]) as scene:
        response = await scene.ask(post(path, body))
        assert response.status == status
        error = response.json()["error"]
        assert error["type"] in ("invalid_request_error", "not_found_error")
        assert "none" not in error["message"]
        assert "169" not in error["message"]
        assert scene.engine.seen == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("member", ["messages", "input", "system", "tools", "metadata", "previous_response_id"])
async def test_nesting_at_the_limit_is_served_or_refused_and_nothing_of_it_stays(
    make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch, path: str, member: str
) -> None:
    """A later look at a body has less of the stack than the first one."""
    async with make_scene() as scene:
        monkeypatch.setattr(scene.router, "wants_opening", lambda conversation: True)
        for deep in range(850, 1000, 2):
            nested = b'[{"role":"user","content":[{"type":"text","text":"a","y":%b%b}]}]' % (b"[" * deep, b"]" * deep)
            if member == "previous_response_id":
                nested = b"[" * deep + b"]" * deep
            elif member == "metadata":
                nested = b'{"user_id":"{\\"session_id\\":\\"a\\",\\"y\\":%b"}' % (b"[" * deep * 4)
            for lines in ((), (SESSION,)):
                response = await scene.ask(post(path, b'{"model":"m","%b":%b}' % (member.encode(), nested), *lines))
                assert response.status in (200, 400, 404)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_fault_of_ours_leaves_nothing_of_its_request(
    make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    async with make_scene() as scene:

        def fail(request: object, *_: object) -> None:
            if begun:
                scene.router.offered.append(request)
                scene.router.ends[-len(scene.router.offered)] = (Outcome.CANCELLED, None)
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            if begun:
                patch.setattr(scene.router, "offer", fail)
            else:
                patch.setattr(intake, "routing_request", fail)
            for _ in range(2):
                response = await scene.ask(post("/v1/chat/completions", chat()))
                assert response.closed if begun else response.status == 500
        await scene.at_rest()
        assert (await scene.ask(post("/v1/chat/completions", chat()))).status == 200
    assert "a request met a fault" in caplog.text


async def test_text_of_a_prompt_is_in_no_error(make_scene: SceneMaker, caplog: pytest.LogCaptureFixture) -> None:
    async with make_scene() as scene:
        for body in (b'{"messages":"MARKER-7f3a"', b'{"model":"MARKER-7f3a"}', b"MARKER-7f3a"):
            response = await scene.ask(post("/v1/messages", body))
            assert b"MARKER" not in response.body
    assert "MARKER" not in caplog.text


@pytest.mark.parametrize(
    ("lines", "pin"),
    [
        (["X-data-parallel-rank: 1"], ReplicaId("e0", 1)),
        (["x-data-parallel-rank:  0 "], ReplicaId("e0", 0)),
        (["X-LMWarden-Replica: e0/1"], ReplicaId("e0", 1)),
        (["X-LMWarden-Replica: e0/1", "X-data-parallel-rank: 1"], ReplicaId("e0", 1)),
        *(
            (lines, None)
            for lines in (
                ["X-data-parallel-rank: 2"], ["X-data-parallel-rank: 999"], ["X-data-parallel-rank: -1"],
                ["X-data-parallel-rank: abc"], ["X-data-parallel-rank: 1.0"], ["X-data-parallel-rank: 01"],
                ["X-data-parallel-rank: \xb2"], ["X-data-parallel-rank: "], ["X-data-parallel-rank: 1, 1"],
                ["X-data-parallel-rank: 1", "X-data-parallel-rank: 1"], ["X-LMWarden-Replica: e1/0"],
                ["X-LMWarden-Replica: e0/1", "X-LMWarden-Replica: e0/1"], ["X-LMWarden-Replica: \xff"],
                ["X-LMWarden-Replica: e0/1", "X-data-parallel-rank: 0"],
                ["X-LMWarden-Replica: e0/1", "X-data-parallel-rank: 9"],
            )
        ),
    ],
)  # fmt: skip
async def test_client_pins(make_scene: SceneMaker, lines: list[str], pin: ReplicaId | None) -> None:
    async with make_scene(ranks=2) as scene:
        response = await scene.ask(post("/v1/chat/completions", chat(), *lines))
        if pin is None:
            assert response.status == 400
            assert "e0/0, e0/1" in response.json()["error"]["message"]
            assert scene.engine.seen == []
        else:
            assert response.status == 200
            assert scene.router.offered[0].pin == pin
            assert scene.engine.seen[0].values("x-data-parallel-rank") == [b"%d" % pin.rank]
            assert response.header("X-LMWarden-Decision") == "client_pinned"


async def test_of_many_replicas_some_are_named(make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_MAX_PINS_SHOWN", 2)
    for ranks, named in ((2, "one of: e0/0, e0/1"), (3, "one of: e0/0, e0/1, ...")):
        async with make_scene(ranks=ranks) as scene:
            response = await scene.ask(post("/v1/chat/completions", chat(), "X-LMWarden-Replica: e9/9"))
            message = response.json()["error"]["message"]
            assert named in message
            assert ("..." in message) is (ranks == 3)


async def test_a_rank_alone_names_no_replica_of_two_engines(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2, ranks=2) as scene:
        response = await scene.ask(post("/v1/chat/completions", chat(), "X-data-parallel-rank: 1"))
        assert response.status == 400
        response = await scene.ask(post("/v1/chat/completions", chat(), "X-LMWarden-Replica: e1/1"))
        assert response.header("X-LMWarden-Replica") == "e1/1"


async def test_an_unrouted_request_carries_no_rank(make_scene: SceneMaker) -> None:
    async with make_scene(ranks=4) as scene:
        scene.router.choose = lambda request: "e0"
        response = await scene.ask(post("/v1/responses", {"model": "m", "input": "hi"}))
        assert response.status == 200
        assert scene.engine.seen[0].values("x-data-parallel-rank") == []
        assert response.header("X-LMWarden-Replica") == "e0"
        assert response.header("X-LMWarden-Decision") == "unrouted"


@pytest.mark.parametrize(
    ("path", "ranks", "pinnable", "generation"),
    [
        ("/v1/chat/completions", 4, True, True),
        ("/v1/completions", 4, True, True),
        ("/v1/messages", 4, True, True),
        ("/v1/responses", 4, False, True),
        ("/v1/responses", 1, True, True),
        ("/v1/messages/count_tokens", 4, False, False),
        ("/tokenize", 1, True, False),
        ("/v1/embeddings", 4, False, False),
    ],
)
async def test_what_the_router_gets_to_know(
    make_scene: SceneMaker, path: str, ranks: int, pinnable: bool, generation: bool
) -> None:
    async with make_scene(ranks=ranks) as scene:
        body = chat(max_tokens=32000)
        await scene.ask(post(path, body, SESSION, "Accept-Encoding: gzip"))
        (offer,) = scene.router.offered
        assert offer.pinnable is pinnable
        assert (offer.conversation is not None) is generation
        assert offer.auxiliary is not generation
        assert offer.max_output_tokens == (32000 if generation else None)
        assert offer.body_bytes == len(scene.engine.seen[0].body)
        assert scene.engine.seen[0].values("accept-encoding") == [b"identity" if generation else b"gzip"]


async def _conversation(scene: Scene, *lines: str, **members: object) -> bytes | None:
    await scene.ask(post("/v1/messages", chat(**members), *lines))
    return scene.router.offered[-1].conversation


async def test_one_session_in_all_its_spellings(make_scene: SceneMaker) -> None:
    session = "3e0c1f6a-0000-4000-8000-000000000001"
    async with make_scene(aliases=["alias"]) as scene:
        scene.engine.default = whole(MESSAGE)
        user = f'{{"device_id":"d","account_uuid":"","session_id":"{session}"}}'
        spellings = {
            await _conversation(scene, SESSION),
            await _conversation(scene, SESSION.lower()),
            await _conversation(scene, metadata={"user_id": user}),
            await _conversation(scene, metadata={"user_id": f"user_aa11_account__session_{session}"}),
            await _conversation(scene, SESSION, model="alias"),
            await _conversation(scene, SESSION, model="m[1m]"),
        }
        assert len(spellings) == 1
        assert await _conversation(scene, SESSION, "x-claude-code-agent-id: a0123456789abcdef") not in spellings
        for broken in ('{"session_id":', 17, None):
            assert (await scene.ask(post("/v1/messages", chat(metadata={"user_id": broken})))).status == 200


async def test_without_a_model_the_only_one_is_meant(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        assert (await scene.ask(post("/tokenize", b'{"prompt":"x"}'))).status == 200
        assert scene.engine.seen[0].body == b'{"prompt":"x"}'


@pytest.mark.parametrize("asked", ["1", '"true"', '"on"', '"Y"', "1.0"])
@pytest.mark.parametrize("options", ["", ',"stream_options":{"include_usage":"no"}', ',"stream_options":null'])
async def test_usage_cannot_be_left_by_another_spelling(make_scene: SceneMaker, asked: str, options: str) -> None:
    last = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3}}\n\n'
    async with make_scene() as scene:
        scene.engine.default = stream([EVENT, last, b"data: [DONE]\n\n"])
        body = f'{{"model":"m","messages":[],"stream":{asked}{options}}}'.encode()
        response = await scene.ask(post("/v1/chat/completions", body))
        assert b'"usage"' not in response.body
        assert response.body.startswith(EVENT)
        await scene.at_rest()
        assert (scene.rows[0].streamed, scene.rows[0].prompt_tokens) == (True, 10)
        assert json.loads(scene.engine.seen[0].body)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("asked", ["true", "1", '"yes"'])
async def test_who_asks_for_usage_gets_it(make_scene: SceneMaker, asked: str) -> None:
    last = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3}}\n\n'
    async with make_scene() as scene:
        scene.engine.default = stream([EVENT, last, b"data: [DONE]\n\n"])
        body = f'{{"model":"m","messages":[],"stream":true,"stream_options":{{"include_usage":{asked}}}}}'.encode()
        assert last in (await scene.ask(post("/v1/chat/completions", body))).body
        assert scene.engine.seen[0].body == body
