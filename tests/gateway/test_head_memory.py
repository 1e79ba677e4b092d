"""A head is recalled with its credential and whose it is, and forgotten when in doubt."""

from __future__ import annotations

import httptools
import pytest

from lmwarden.gateway.head_memory import HeadMemory
from lmwarden.gateway.known_heads import MAX_MISSES
from lmwarden.gateway.request import ClientRequest, examine, read_head
from lmwarden.types import KeyIdentity

HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: g\r\n%bContent-Length: %d\r\n%b\r\n"
KEY_A = b"Authorization: Bearer key-a\r\n"
KEY_B = b"x-api-key: key-b\r\n"
LIMIT = 1000


class AnyKey:
    required = False

    def check(self, credential: bytes) -> KeyIdentity | None:
        return KeyIdentity(credential.decode(), b"d" * 16)

    def still_good(self, key: KeyIdentity) -> KeyIdentity | None:
        return key


class Lines(list[tuple[bytes, bytes]]):
    def on_header(self, name: bytes, value: bytes) -> None:
        self.append((name, value))


def parsed(head: bytes) -> ClientRequest:
    lines = Lines()
    parser = httptools.HttpRequestParser(lines)
    parser.feed_data(head)
    request = read_head(parser.get_method(), head.split(b" ")[1], "1.1", lines, not parser.should_keep_alive())
    request.problem = examine(request, AnyKey(), LIMIT)
    return request


@pytest.mark.parametrize(("before", "after"), [(KEY_A, b""), (b"", KEY_A), (KEY_B, b"X: 1\r\n"), (b"X: 1\r\n", KEY_B)])
@pytest.mark.parametrize("length", [1, 9, 10, 1000])
def test_a_head_is_recalled_with_its_credential(before: bytes, after: bytes, length: int) -> None:
    memory = HeadMemory()
    head = HEAD % (before, 77, after)
    memory.keep(head, parsed(head))
    again = HEAD % (before, length, after)
    recalled = memory.recall(again + b"body", LIMIT)
    assert recalled is not None
    request, at = recalled
    assert (request.content_length, at) == (length, len(again))
    assert request.credential == parsed(again).credential
    assert request.key == parsed(again).key
    for other in (HEAD % (before, 1001, after), HEAD % (after, 77, before), again[:-1]):
        assert memory.recall(other, LIMIT) is None
    memory.forget()
    assert memory.recall(again, LIMIT) is None


def test_a_head_with_the_request_of_another_is_not_kept() -> None:
    memory = HeadMemory()
    wrong = HEAD % (b"Authorization: Bearer wrong\r\n", 7, b"")
    memory.keep(wrong, parsed(HEAD % (KEY_A, 7, b"")))
    assert memory.recall(wrong, LIMIT) is None


@pytest.mark.parametrize(
    "line", [b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"Origin: http://g\r\n"]
)
def test_heads_that_are_judged_each_time(line: bytes) -> None:
    memory = HeadMemory()
    head = HEAD % (KEY_A, 7, line)
    memory.keep(head, parsed(head))
    assert memory.recall(head, LIMIT) is None


def test_who_never_repeats_is_not_remembered_for_ever() -> None:
    memory = HeadMemory()
    for number in range(MAX_MISSES):
        assert memory.useful
        head = HEAD % (KEY_A, 7, b"X: %d\r\n" % number)
        memory.keep(head, parsed(head))
    assert not memory.useful
    assert memory.recall(head, LIMIT) is not None
    assert memory.useful
