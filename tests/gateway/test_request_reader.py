"""However a client's bytes are cut and strung together, each request is read as it would be alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.conftest import KEY, SceneMaker, chat, post

from lmwarden.gateway import GatewaySettings, request
from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.request_reader import RequestReader
from lmwarden.types import KeyIdentity


class TwoKeys:
    required = True

    def check(self, credential: bytes) -> KeyIdentity | None:
        return KeyIdentity(credential.decode(), b"d" * 16) if credential in (b"key-a", b"key-b") else None

    def still_good(self, key: KeyIdentity) -> KeyIdentity | None:
        return key


class OneJudge:
    def __init__(self, **limits: Any) -> None:
        self.settings = GatewaySettings(**limits)
        self.budget = BufferBudget(10**9)
        self.read_buffer = memoryview(bytearray(65536))

    def examine(self, client_request: ClientRequest) -> Problem | None:
        return request.examine(client_request, TwoKeys(), self.settings.max_body_bytes)

    def check_key(self, client_request: ClientRequest) -> Problem | None:
        return request.check_key(client_request, TwoKeys())


class Transport:
    def pause_reading(self) -> None: ...


class LoneReader(RequestReader):
    def __init__(self, judge: OneJudge) -> None:
        super().__init__(judge)
        self.transport = cast(Any, Transport())

    def queue_full(self) -> None: ...

    def continue_wanted(self) -> None: ...

    def give(self, data: bytes) -> None:
        while data:
            place = self.get_buffer(-1)
            size = min(len(place), len(data))
            place[:size] = data[:size]
            del place
            self.take(size)
            data = data[size:]


def outcome(read: ClientRequest) -> tuple[object, ...]:
    """All that a request says, but for the text of its length."""
    return (
        read.method,
        read.route.name if read.route is not None else None,
        read.query,
        {name: value for name, value in read.first.items() if name != b"content-length"},
        b"".join(read.onward),
        read.credential,
        read.key,
        bytes(read.body),
        read.problem,
        read.close,
        read.unread,
    )


def ask(target: bytes, body: bytes, *lines: bytes, method: bytes = b"POST", chunked: bool = False) -> bytes:
    if chunked:
        chunk = b"%x;ext=1\r\n%b\r\n" % (len(body), body) if body else b""
        body = chunk + b"0\r\nX-Trailer: t\r\n\r\n"
        lines = (b"Transfer-Encoding: chunked", *lines)
    elif body or method == b"POST":
        lines = (b"Content-Length: %d" % len(body), *lines)
    return b"\r\n".join((method + b" " + target + b" HTTP/1.1", b"Host: g", *lines, b"", b"")) + body


BODIES = [b"", b'{"a":1}', b'{"b":2}', b"x" * 300, b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n", b"y" * 70_000]
KEYS = [
    (),
    (b"Authorization: Bearer key-a",),
    (b"Authorization: Bearer key-b",),
    (b"Authorization: Bearer wrong",),
    (b"x-api-key: key-a",),
    (b"x-api-key: key-b", b"Authorization: Bearer key-a"),
]
TARGETS = [b"/v1/chat/completions", b"/v1/messages", b"/v1/messages?beta=true", b"/sleep", b"/healthz"]
UPGRADE = (b"Connection: upgrade", b"Upgrade: h2c")
REQUESTS = st.one_of(
    st.builds(
        lambda target, body, key, more, chunked: ask(target, body, *key, *more, chunked=chunked),
        st.sampled_from(TARGETS),
        st.sampled_from(BODIES),
        st.sampled_from(KEYS),
        st.sampled_from([(), (), (), UPGRADE, (b"X-Session-Id: s",), (b"Origin: http://g",), (b"Connection: close",)]),
        st.sampled_from([False, False, True]),
    ),
    st.sampled_from(
        [
            ask(b"/healthz", b"", method=b"GET"),
            ask(b"/healthz", b"", *UPGRADE, method=b"GET"),
            ask(b"/", b"", method=b"HEAD"),
            ask(b"/", b"abc", method=b"HEAD"),
            ask(b"g:80", b"", method=b"CONNECT"),
            ask(b"g:80", b"", b"Authorization: Bearer key-a", method=b"CONNECT"),
            b"\r\n" + ask(b"/v1/messages", b"{}", b"x-api-key: key-a"),
            b"\r\n\r\n" + ask(b"/v1/messages", b"{}", b"x-api-key: key-b"),
        ]
    ),
)


def alone(data: bytes) -> ClientRequest:
    reader = LoneReader(OneJudge())
    reader.give(data)
    (read,) = reader.requests
    return read


@settings(max_examples=400, deadline=None)
@given(
    sent=st.lists(REQUESTS, min_size=1, max_size=7),
    repeat=st.booleans(),
    anywhere=st.lists(st.integers(0, 10**6), max_size=6),
    between=st.sets(st.integers(0, 13), max_size=4),
)
def test_each_request_is_read_as_if_it_came_alone(
    sent: list[bytes], repeat: bool, anywhere: list[int], between: set[int]
) -> None:
    if repeat:
        sent = [one for one in sent for _ in range(2)]
    expected = []
    for one in sent:
        expected.append(outcome(alone(one)))
        if alone(one).close:
            break  # nothing behind it is read
    judge = OneJudge()
    reader = LoneReader(judge)
    text = b"".join(sent)
    joints = [sum(map(len, sent[:at])) for at in range(1, len(sent))]
    at_joints = {joint for at, joint in enumerate(joints) if at in between}
    cuts = sorted({0, len(text)} | at_joints | {at % len(text) for at in anywhere})
    for start, stop in pairwise(cuts):
        reader.give(text[start:stop])
    assert [outcome(read) for read in reader.requests] == expected
    reader.forget_input()
    assert judge.budget.held_bytes == 0


TINY_CHUNKS = ask(b"/v1/messages", b"", b"Transfer-Encoding: chunked", *KEYS[1]) + b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "first",
    [
        ask(b"/v1/messages", b"y" * 70_000),  # refused, and dropped
        ask(b"/v1/messages", b"y" * 70_000, *KEYS[1], chunked=True),
        TINY_CHUNKS.replace(b"Content-Length: 0\r\n", b""),
    ],
    ids=["refused", "chunked", "tiny-chunks"],
)
@pytest.mark.parametrize("part", [1, 20, 60])
def test_a_head_is_not_charged_for_the_body_before_it(first: bytes, part: int) -> None:
    second = ask(b"/v1/messages", b"{}", *KEYS[1])
    read_bytes = len(OneJudge().read_buffer)
    cut = len(first) + part
    reader = LoneReader(OneJudge())
    reader.give(first[: cut - read_bytes])
    reader.give((first + second)[cut - read_bytes : cut])  # the rest of a body and a part of a head, in one read
    reader.give(second[part:])
    assert [outcome(read) for read in reader.requests] == [outcome(alone(one)) for one in (first, second)]


async def test_an_offer_to_upgrade_between_two_heads_opens_nothing(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        good = post("/v1/chat/completions", chat())
        between = ask(b"/healthz", b"", *UPGRADE, method=b"GET")
        client = await scene.connect()
        await client.send(good + between)
        assert [(await client.response()).status for _ in range(2)] == [200, 200]
        for _ in range(3):
            await client.send(post("/v1/chat/completions", chat(), key=b"wrong"))
            assert (await client.response()).status == 401
            await client.send(post("/sleep", chat(), key=b""))
            assert (await client.response()).status == 404
        assert len(scene.engine.seen) == 1


@pytest.mark.parametrize("behind", [b"", ask(b"/healthz", b"", method=b"GET"), b"\x16\x03\x01\x02\x00"])
async def test_connect_ends_the_connection(make_scene: SceneMaker, behind: bytes) -> None:
    async with make_scene() as scene:
        client = await scene.connect()
        await client.send(ask(b"example.org:443", b"", method=b"CONNECT") + behind)
        text = bytes(await client.rest())
        assert text.startswith(b"HTTP/1.1 404 ")
        assert text.count(b"HTTP/1.1") == 1
        assert b"Connection: close" in text


@pytest.mark.parametrize("key", [KEY, b""])
@pytest.mark.parametrize("line", ["HEAD / ", "GET /healthz ", "GET /readyz ", "GET /v1/models ", "HEAD /api/hello "])
async def test_what_we_answer_ourselves_takes_no_large_body(make_scene: SceneMaker, line: str, key: bytes) -> None:
    head = f"{line}HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {key.decode()}\r\n".encode()
    async with make_scene() as scene:
        for framing in (b"Content-Length: 67108864\r\n\r\nx", b"Transfer-Encoding: chunked\r\n\r\n"):
            client = await scene.connect()
            await client.send(head + framing)
            if b"chunked" in framing and (key or b"models" not in head):
                await client.send(b"11000\r\n" + b"x" * 0x11000)
            await client.until(b"HTTP/1.1 4")
            assert scene.gateway.budget.held_bytes == 0
        assert (await scene.ask(head.replace(b"HEAD / ", b"GET /healthz ") + b"\r\n")).status in (200, 401, 404, 503)


@pytest.mark.parametrize("next_one", [b"", b"POST /v1/messages HTTP/1.1\r\nHo"])
def test_while_an_answer_streams_nothing_is_kept_that_can_be_made_anew(next_one: bytes) -> None:
    """What stands behind an open stream is kept thousands of times; the head of a next request is not lost by it."""
    text = ask(b"/v1/messages", b"{}", *KEYS[1])
    reader = LoneReader(OneJudge())
    reader.give(text + next_one)
    reader.stream_begins()
    assert (reader._parser is None and reader._memory is None) is not bool(next_one)
    reader.give(text[len(next_one) :])
    assert [outcome(read) for read in reader.requests] == [outcome(alone(text))] * 2
