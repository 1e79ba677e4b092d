"""Heads that repeat: recognised only if they are the same but for their length, and with the same result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import KEY, SceneMaker, chat, post
from tests.stub_engine import CHAT, Peer, Seen, head, whole

from lmwarden.gateway.known_heads import remember

HEAD = b"POST /x HTTP/1.1\r\nHost: g\r\ncontent-LENGTH:  %b\r\nX-A: b\r\n\r\n"


@given(first=st.integers(0, 10**9), second=st.integers(0, 10**11), rest=st.binary(max_size=20))
def test_another_length_is_the_same_head(first: int, second: int, rest: bytes) -> None:
    known = remember(HEAD % str(first).encode() + b"body")
    assert known is not None
    text = HEAD % str(second).encode()
    assert known.match(text + rest) == (second, len(text))
    for cut in range(len(text)):
        assert known.match(text[:cut]) is None


@pytest.mark.parametrize(
    "digits", [b"", b"-1", b"+1", b"1 ", b" 1", b"1x", b"0x1", b"1,1", b"1\r\n", b"9" * 14, b"\xb2", b"1_0"]
)
def test_what_is_no_plain_length(digits: bytes) -> None:
    known = remember(HEAD % b"5")
    assert known is not None
    assert known.match(HEAD % digits) is None


def test_any_other_difference_is_another_head() -> None:
    text = HEAD % b"5"
    known = remember(text)
    assert known is not None
    at_digits = text.index(b"5")
    for at in range(len(text)):
        changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
        assert (known.match(changed) is None) == (at != at_digits)


def test_heads_that_are_not_remembered() -> None:
    assert remember(b"GET / HTTP/1.1\r\nHost: g\r\n\r\n") is None
    assert remember(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\ncontent-length: 5\r\n\r\n") is None
    assert remember(b"POST / HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\nContent-Length: 5\r\n\r\n") is None
    assert remember(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n") is None


def test_only_the_header_counts_and_not_a_text_like_it() -> None:
    known = remember(
        b"POST / HTTP/1.1\r\nX-Content-Length: 3\r\nContent-Length: 5\r\n\r\n\r\ncontent-length: 7\r\n\r\n"
    )
    assert known is not None
    assert known.before == b"POST / HTTP/1.1\r\nX-Content-Length: 3\r\nContent-Length: "
    assert known.after == b"\r\n\r\n"


async def test_repeated_requests_arrive_as_single_ones_do(make_scene: SceneMaker) -> None:
    sizes = [0, 10, 3000, 70_000, 9, 200_000, 0, 1, 2, 66_000, 5]
    async with make_scene() as scene:

        async def echo(peer: Peer, seen: Seen) -> None:
            await whole(b'{"n":%d}' % len(seen.body), 200, "X-Id: same")(peer, seen)

        scene.engine.default = echo
        bodies = [b'{"model":"m","pad":"%b"}' % (b"x" * size) for size in sizes]
        client = await scene.connect()
        for body in bodies:
            await client.send(post("/v1/chat/completions", body, "X-Session-Id: session-0001"))
            response = await client.response()
            assert response.json() == {"n": len(body)}
            assert response.header("X-Id") == "same"
        assert [seen.body for seen in scene.engine.seen] == bodies
        assert len({seen.head.replace(b"Length: %d" % len(seen.body), b"") for seen in scene.engine.seen}) == 1
        assert len({offer.conversation for offer in scene.router.offered}) == 1


async def test_a_known_head_with_more_behind_it(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        request = post("/v1/chat/completions", chat())
        await client.send(request)
        assert (await client.response()).status == 200
        await client.send(request * 3 + post("/v1/nothing", b"{}") + request[:50])
        assert [(await client.response()).status for _ in range(4)] == [200, 200, 200, 404]
        await client.send(request[50:])
        assert (await client.response()).status == 200


async def test_a_key_is_checked_for_every_request(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        request = post("/v1/chat/completions", chat())
        for _ in range(2):
            await client.send(request)
            assert (await client.response()).status == 200
        scene.gateway._authenticator.revoked = True
        await client.send(request)
        assert (await client.response()).status == 401
        assert len(scene.engine.seen) == 2


async def test_a_repeated_head_names_another_conversation_where_its_body_does(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        named = b'{"model":"m","metadata":{"user_id":"{\\"session_id\\":\\"in-the-body\\"}"}}'
        for body in (chat(), named, chat(), named):
            await client.send(post("/v1/chat/completions", body, "X-Session-Id: session-0001"))
            assert (await client.response()).status == 200
        first, second, *again = (offer.conversation for offer in scene.router.offered)
        assert first != second
        assert again == [first, second]


async def test_the_body_limit_holds_for_known_heads(make_scene: SceneMaker) -> None:
    async with make_scene(max_body_bytes=2_000_000) as scene:
        client = await scene.connect()
        await client.send(post("/v1/chat/completions", chat()))
        assert (await client.response()).status == 200
        request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: 2000001\r\n"
        await client.send(request + b"Authorization: Bearer %b\r\n\r\n" % KEY)
        assert (await client.response()).status == 413


async def test_known_answers_of_other_lengths_and_broken_ones(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        request = post("/v1/chat/completions", chat())
        abort = b'{"choices":[{"finish_reason":"abort"}]}'
        for body, status in ((b"{}", 200), (b'{"usage":{"prompt_tokens":3}}', 200), (abort, 502), (b"{}", 200)):
            scene.engine.script.append(whole(body))
            response = await scene.ask(request)
            assert response.status == status
            if status == 200:
                assert response.body == body
        busy = whole(CHAT, 503)
        scene.engine.script.extend([busy, busy])
        assert [(await scene.ask(request)).status for _ in range(2)] == [503, 503]
        surplus = head() + b"Content-Length: 2\r\n\r\n{}{}"

        async def two(peer: Peer, seen: Seen) -> None:
            await peer.send(surplus)

        scene.engine.script.extend([whole(b"{}"), two])
        assert [(await scene.ask(request)).status for _ in range(2)] == [200, 502]
        await scene.at_rest()
        assert [row.prompt_tokens for row in scene.rows][:2] == [None, 3]
