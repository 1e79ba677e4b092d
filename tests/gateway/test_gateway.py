"""The gateway from outside: its surface, its own answers, its life."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.conftest import KEY, SceneMaker, chat, post
from tests.stub_engine import MESSAGE, silence, whole
from tests.waiting import PATIENCE_S, turns, until

from lmwarden.gateway import Gateway, GatewaySettings, ServedModel
from lmwarden.types import Decision, Dispatch, Outcome, RefuseReason, ReplicaId


async def test_a_chat_completion_goes_through_with_our_headers(make_scene: SceneMaker) -> None:
    async with make_scene(ranks=2) as scene:
        response = await scene.ask(post("/v1/chat/completions", chat(), "X-Session-Id: session-0001", "X-Other: kept"))
        assert response.status == 200
        assert response.json()["usage"]["prompt_tokens"] == 100
        assert response.header("X-LMWarden-Replica") == "e0/0"
        assert response.header("X-LMWarden-Decision") == "placed"
        assert len(response.header("X-LMWarden-Conversation")) == 8
        assert response.header("X-LMWarden-Wait-Ms") == "0"
        (seen,) = scene.engine.seen
        assert seen.line == b"POST /v1/chat/completions HTTP/1.1"
        assert seen.values("x-data-parallel-rank") == [b"0"]
        assert seen.values("x-other") == [b"kept"]
        assert seen.values("authorization") == [b"Bearer engine-key"]
        assert seen.values("accept-encoding") == [b"identity"]
        await scene.at_rest()
        (row,) = scene.rows
        assert (row.outcome, row.status, row.decision) == (Outcome.OK, 200, Decision.PLACED)
        assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (100, 64, 7)
        assert row.finish_reason == "stop"
        assert row.key_name == "tester"


async def test_a_single_rank_engine_gets_no_rank(make_scene: SceneMaker) -> None:
    async with make_scene(ranks=1) as scene:
        await scene.ask(post("/v1/chat/completions", chat()))
        assert scene.engine.seen[0].values("x-data-parallel-rank") == []


async def test_the_query_goes_on_verbatim_and_slashes_are_forgiven(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.default = whole(MESSAGE)
        for path in ("/v1/messages?beta=true&x=%41", "/v1/messages/?beta=true&x=%41", "//v1//messages?beta=true&x=%41"):
            response = await scene.ask(post(path, chat()))
            assert response.status == 200
            assert scene.engine.seen[-1].line == b"POST /v1/messages?beta=true&x=%41 HTTP/1.1"


@pytest.mark.parametrize(
    "target",
    ["/sleep", "/reset_prefix_cache", "/v1/../sleep", "/v1/%2e%2e/sleep", "/v1/load_lora_adapter", "/v1/%6dessages"],
)
async def test_what_is_not_listed_is_404_and_reaches_no_engine(make_scene: SceneMaker, target: str) -> None:
    async with make_scene() as scene:
        response = await scene.ask(post(target, chat()))
        assert response.status == 404
        assert "error" in response.json()
        assert scene.engine.seen == []


async def test_errors_come_in_the_callers_envelope(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        openai = await scene.ask(post("/v1/nothing", b"{}"))
        assert openai.json()["error"]["code"] == "not_found"
        for response in (
            await scene.ask(post("/v1/messages/nothing", b"{}")),
            await scene.ask(post("/v1/messages", chat(model="none"))),
            await scene.ask(post("/v1/chat/completions", chat(model="none"), "anthropic-version: 2023-06-01")),
        ):
            assert response.status == 404
            assert response.json()["type"] == "error"
            assert response.json()["error"]["type"] == "not_found_error"


async def test_probes_need_no_key(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        for line, status in (
            ("HEAD /", 200),
            ("HEAD /api/hello", 200),
            ("GET /healthz", 200),
            ("GET /readyz", 503),
            ("GET /", 404),
            ("GET /metrics", 404),
            ("GET /docs", 404),
            ("OPTIONS /v1/messages", 403),
            ("GET /v1/messages", 404),
        ):
            response = await scene.ask(
                f"{line} HTTP/1.1\r\nHost: g\r\n\r\n".encode()
                if "HEAD" not in line
                else f"{line} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n".encode()
            )
            assert response.status == status, line
            assert response.header("Access-Control-Allow-Origin") is None


async def test_models_are_listed_with_exact_aliases(make_scene: SceneMaker) -> None:
    async with make_scene(aliases=["claude-haiku", "claude-*"]) as scene:
        response = await scene.ask(b"GET /v1/models?limit=1000 HTTP/1.1\r\nHost: g\r\nx-api-key: %b\r\n\r\n" % KEY)
        data = response.json()["data"]
        assert [entry["id"] for entry in data] == ["m", "claude-haiku"]
        assert {entry["max_model_len"] for entry in data} == {4096}
        assert (await scene.ask(b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n")).status == 401


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Authorization: Bearer sk-test"], 200),
        (["authorization: bearer sk-test"], 200),
        (["x-api-key: sk-test"], 200),
        (["x-api-key: sk-test", "Authorization: Bearer sk-test"], 200),
        (["x-api-key: sk-test", "Authorization: Bearer other"], 401),
        (["Authorization: Bearer sk-test", "Authorization: Bearer sk-test"], 401),
        (["Authorization: Bearer wrong"], 401),
        (["Authorization: Basic sk-test"], 401),
        (["Authorization: Bearer "], 401),
        (["x-api-key: \xe9"], 401),
        ([], 401),
    ],
)
async def test_keys(make_scene: SceneMaker, lines: list[str], status: int) -> None:
    async with make_scene() as scene:
        response = await scene.ask(post("/v1/messages", chat(), *lines, key=b""))
        scene.engine.default = whole(MESSAGE)
        assert response.status == status
        if status == 401:
            assert response.json()["error"]["type"] == "authentication_error"
            assert scene.engine.seen == []
        else:
            (seen,) = scene.engine.seen
            assert seen.values("authorization") == [b"Bearer engine-key"]
            assert seen.values("x-api-key") == []


async def test_without_required_keys_any_or_none_is_served(make_scene: SceneMaker) -> None:
    async with make_scene(required=False) as scene:
        assert (await scene.ask(post("/v1/chat/completions", chat(), key=b""))).status == 200
        assert (await scene.ask(post("/v1/chat/completions", chat(), key=b"dummy"))).status == 200
        assert [row.key_name for row in scene.rows] == [None, None]


@pytest.mark.parametrize(
    ("reason", "openai", "anthropic", "kind"),
    [
        (RefuseReason.NO_REPLICA, 503, 503, "api_error"),
        (RefuseReason.PINNED_REPLICA_DOWN, 503, 503, "api_error"),
        (RefuseReason.ROOM_FULL, 503, 529, "overloaded_error"),
    ],
)
async def test_a_refusal_carries_retry_after(
    make_scene: SceneMaker, reason: RefuseReason, openai: int, anthropic: int, kind: str
) -> None:
    async with make_scene() as scene:
        scene.router.choose = lambda request: reason
        first = await scene.ask(post("/v1/chat/completions", chat()))
        second = await scene.ask(post("/v1/messages", chat()))
        assert (first.status, second.status) == (openai, anthropic)
        assert second.json()["error"]["type"] == kind
        assert first.header("Retry-After") == second.header("Retry-After") == "7"
        assert [row.outcome for row in scene.rows] == [Outcome.REFUSED] * 2
        assert scene.engine.seen == []


async def test_counters_tell_what_happened(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        for _ in range(3):
            await scene.ask(post("/v1/chat/completions", chat()))
        scene.engine.default = whole(b"{}", 400)
        await scene.ask(post("/v1/chat/completions", chat()))
        await scene.at_rest()
        snapshot = scene.gateway.snapshot()["m"]
        assert snapshot.requests == {(Decision.PLACED, Outcome.OK): 3, (Decision.PLACED, Outcome.CLIENT_ERROR): 1}
        assert (snapshot.prompt_tokens_cached, snapshot.prompt_tokens_computed) == (192, 108)
        assert (snapshot.completion_tokens, snapshot.usage_rows) == (21, 3)
        assert sum(snapshot.first_byte_counts) == 4
        assert (snapshot.open_exchanges, snapshot.buffered_bytes) == (0, 0)


async def test_our_own_answers_are_counted_without_a_word_of_the_client(make_scene: SceneMaker) -> None:
    async with make_scene(max_body_bytes=1000) as scene:
        for request in (
            *(post("/v1/messages", chat(model=f"MARKER-{number}")) for number in range(5)),
            post("/v1/MARKER", b"{}"),
            post("/v1/messages", b"MARKER"),
            post("/v1/messages", b"{}", "Content-Encoding: MARKER"),
            post("/v1/messages", b"x" * 1001),
            post("/v1/messages", b"{}", key=b"MARKER"),
            post("/v1/messages", b"{}", "Expect: MARKER"),
            post("/v1/messages", b"{}", "X-LMWarden-Replica: MARKER"),
            post("/v1/messages", b"{}", version="9.9"),
            b"MARKER\r\n\r\n",
            b"OPTIONS / HTTP/1.1\r\nHost: g\r\n\r\n",
            *[b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n", post("/v1/chat/completions", chat())] * 2,
        ):
            assert (await scene.ask(request)).status
        assert scene.gateway.own_answers() == {
            (404, "model_not_found"): 5,
            (404, "not_found"): 1,
            (400, "invalid_json"): 1,
            (415, "unsupported_coding"): 1,
            (413, "request_too_large"): 1,
            (401, "invalid_api_key"): 1,
            (417, "unknown_expectation"): 1,
            (400, "invalid_replica"): 1,
            (400, "malformed"): 2,
            (403, "foreign_page"): 1,
        }
        assert len(scene.rows) == 2


async def test_session_ids_are_counted_by_where_they_came_from(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        await scene.ask(post("/v1/chat/completions", chat(), "X-Session-Id: session-0001"))
        await scene.ask(post("/v1/chat/completions", chat()))
        await scene.ask(post("/v1/completions", {"model": "m", "prompt": "hello"}))
        await scene.ask(post("/v1/embeddings", {"model": "m", "input": "hello"}))  # no generation
        await scene.ask(post("/v1/chat/completions", b"{"))
        snapshot = scene.gateway.snapshot()["m"]
        assert (snapshot.identity_sent, snapshot.identity_derived, snapshot.identity_none) == (1, 1, 1)


async def test_a_path_on_which_ranks_are_ignored_names_none(make_scene: SceneMaker) -> None:
    async with make_scene(engines=2, ranks=2) as scene:

        async def pinnable(path: str) -> bool:
            await scene.ask(post(path, chat()))
            return bool(scene.router.offered[-1].pinnable)

        messages, chats, texts = "/v1/messages", "/v1/chat/completions", "/v1/completions"
        scene.gateway.pin_honoured("m", "e0", messages, True)
        assert await pinnable(messages)
        scene.gateway.pin_honoured("m", "e0", messages, False)
        scene.gateway.pin_honoured("m", "e1", messages, False)
        assert not await pinnable(messages)
        assert await pinnable(chats)
        scene.gateway.pin_honoured("m", "e0", messages, True)
        assert not await pinnable(messages)
        scene.gateway.pin_honoured("m", "e1", messages, True)
        assert await pinnable(messages)
        scene.gateway.pin_honoured("m", "e1", chats, False)
        assert not await pinnable(chats)
        assert not await pinnable(texts), "it goes by the test of chats"
        scene.gateway.pin_honoured("m", "e1", chats, True)
        assert await pinnable(texts)
        with pytest.raises(KeyError):
            scene.gateway.pin_honoured("other", "e0", chats, False)


async def test_a_single_rank_engine_cannot_ignore_a_rank(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.gateway.pin_honoured("m", "e0", "/v1/messages", False)
        await scene.ask(post("/v1/messages", chat()))
        assert scene.router.offered[-1].pinnable


async def test_a_context_window_that_becomes_known_is_listed(make_scene: SceneMaker) -> None:
    async with make_scene(aliases=["other"]) as scene:

        async def lengths() -> list[int | None]:
            response = await scene.ask(b"GET /v1/models HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer %b\r\n\r\n" % KEY)
            return [entry.get("max_model_len") for entry in response.json()["data"]]

        assert await lengths() == [4096, 4096]
        scene.gateway.describe("m", 8192)
        assert await lengths() == [8192, 8192]
        scene.gateway.describe("m", None)
        assert await lengths() == [None, None]
        with pytest.raises(KeyError):
            scene.gateway.describe("other", 1)


async def test_stop_refuses_new_requests_and_lets_open_ones_end(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        go_on = asyncio.Event()

        async def slowly(peer: object, seen: object) -> None:
            await go_on.wait()
            await whole(b'{"usage":null}')(peer, seen)  # type: ignore[arg-type]

        scene.engine.script.append(slowly)
        first = await scene.connect()
        await first.send(post("/v1/chat/completions", chat()))
        await scene.engine.requests(1)
        second = await scene.connect()
        await second.send(b"GET /healthz HTTP/1.1\r\nHost: g\r\n")
        stopping = asyncio.create_task(scene.gateway.stop(PATIENCE_S))
        await asyncio.sleep(0)
        await second.send(b"\r\n")
        third = await scene.ask(post("/v1/chat/completions", chat()))
        assert third.status == 503
        assert third.header("Connection") == "close"
        go_on.set()
        response = await first.response()
        assert response.status == 200
        assert response.header("Connection") in (None, "close")
        await stopping
        assert len(scene.engine.seen) == 1


async def test_stop_cuts_what_is_still_open_at_its_limit(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.engine.script.append(silence())
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat()))
        (seen,) = await scene.engine.requests(1)
        await scene.gateway.stop(0)
        response = await client.response()
        assert response.status in (0, 503)
        await asyncio.wait_for(seen.dropped.wait(), PATIENCE_S)


async def test_stop_lets_nobody_out_of_the_waiting_room(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        router, here = scene.router, ReplicaId("e0", 0)
        router.choose = lambda request: here if len(router.offered) <= 3 else None
        let_out: list[int] = []

        def the_next() -> tuple[Dispatch, ...]:
            waiting = [ticket for ticket in router.open if ticket > 3 and ticket not in let_out]
            let_out.extend(waiting[:1])
            return tuple(router.dispatch(ticket, here) for ticket in waiting[:1])

        finished, cancelled = router.finished, router.cancelled
        router.finished = lambda *end: (*finished(*end), *the_next())
        router.cancelled = lambda *end: (*cancelled(*end), *the_next())
        scene.engine.default = silence()
        clients = []
        for _ in range(8):
            clients.append(await scene.connect())
            await clients[-1].send(post("/v1/chat/completions", chat()))
            await until(lambda: len(router.offered) == len(clients))
        await scene.engine.requests(3)
        taken = scene.engine.connections
        await scene.gateway.stop(0)
        assert not router.open
        assert [row.outcome for row in scene.rows] == [Outcome.REFUSED] * 5 + [Outcome.FAILED] * 3
        await turns()
        assert (len(scene.engine.seen), scene.engine.connections) == (3, taken)


async def test_a_waiting_request_is_sent_when_the_router_says_so(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        scene.router.choose = lambda request: None
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat()))
        await asyncio.wait_for(scene.router.asked.wait(), PATIENCE_S)
        assert scene.engine.seen == []
        scene.gateway.perform("m", (scene.router.dispatch(1, ReplicaId("e0", 0)),))
        assert (await client.response()).status == 200


def test_names_must_be_unique() -> None:
    served = ServedModel(name="m", router=None, engines={}, identity_secret=b"")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same name"):
        Gateway([served, served], None, None, GatewaySettings())  # type: ignore[arg-type]
