"""What is read of a body, and what is no JSON."""

from __future__ import annotations

import json
import re
import tracemalloc
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.asking import steps_of

from lmwarden.routing.fields import RequestFields, decode_fields, readable, text_of
from lmwarden.routing.identity import Asker


def test_fields_that_are_no_object() -> None:
    for body in (b"", b"[]", b"17", b'"x"', b"{", b'{"a":}', b"\xff"):
        with pytest.raises(msgspec.DecodeError):
            decode_fields(body)


def test_text_of() -> None:
    fields = decode_fields(b'{"model":"m","stream":true}')
    assert text_of(fields.model) == "m"
    assert text_of(fields.stream) is None
    assert text_of(fields.messages) is None


@pytest.mark.parametrize("half", ["\\ud83d", "\\uD83D", "\\udc00"])
def test_half_a_character_is_no_broken_json(half: str) -> None:
    body = {"model": "m", "user": "HALF01234567890123456", "messages": [{"role": "user", "content": "cut HALF"}]}
    text = json.dumps(body).replace("HALF", half)
    fields = decode_fields(text.encode())
    assert text_of(fields.model) == "m"
    found = Asker({}, secret=b"s", model="m", key_digest=b"").identify(fields)
    assert found.derived
    assert found == Asker({}, secret=b"s", model="m", key_digest=b"").identify(decode_fields(text.encode()))


@pytest.mark.parametrize("body", [b'{"a":"\\ud83d"', b'["\\ud83d"]', b"[" * 100_000 + b"\\ud83d"])
def test_broken_json_with_half_a_character_is_broken(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_fields(body)


HALVES = re.compile("[\ud800-\udfff]")
PIECES = ["a", "\\\\", "\\n", "\\ud83d", "\\uDE00", "\\udBff", "\\uDc00", "\\u0041", "ud83d", "\\\\ud83d", "é", "🙂"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "tools", "x"]), TEXTS), max_size=4))
def test_whatever_is_escaped_reads_as_with_the_slow_decoder(members: list[tuple[str, str]]) -> None:
    body = ("{" + ",".join(f'"{name}":"{text}"' for name, text in members) + "}").encode()
    fields = decode_fields(body)
    slow = json.loads(body)
    for name in RequestFields.__struct_fields__:
        text = slow.get(name)
        assert text_of(getattr(fields, name)) == (text if text is None else HALVES.sub("\ufffd", text))


@given(TEXTS)
def test_what_is_made_readable_stays_where_it_was(text: str) -> None:
    body = f'{{"user":"{text}","model":"m"}}'.encode()
    made = readable(body)
    assert len(made) == len(body)
    changed = [at for at in range(len(body)) if made[at] != body[at]]
    assert all(body[at] in b"dDeEbBfFcC0389" for at in changed)
    assert readable(made) == made
    assert bytes(decode_fields(body).model) == b'"m"'


def test_a_body_without_halves_is_read_as_it_is() -> None:
    for body in (b"{}", bytearray(b'{"a":"\\u0041"}')):
        assert readable(body) is body


@pytest.mark.parametrize("escapes", ["\\ud83d\\ude00", "\\uD83D\\uDE00", "\\udc80\\udc81"])
def test_beyond_the_limit_halves_are_not_told_from_characters(escapes: str) -> None:
    """The body is read all the same, and what it says without such escapes is what it says with few of them."""
    few, many = (f'{{"model":"m","user":"{escapes}","x":"\\udc00{escapes * count}"}}'.encode() for count in (1, 5_001))
    assert text_of(decode_fields(few).user) == HALVES.sub("\ufffd", json.loads(f'"{escapes}"'))
    coarse = text_of(decode_fields(many).user)
    assert coarse is not None
    assert all("\ue800" <= character <= "\uefff" for character in coarse)
    assert text_of(decode_fields(many).model) == text_of(decode_fields(few).model) == "m"


@pytest.mark.parametrize("unit", ["[],", '{"a":1},', '"\\udc80",', '"a\\ud83d\\ude00",', '"\\\\",', '"\\n",', " "])
def test_half_a_character_makes_no_object_of_each_element(unit: str) -> None:
    """A reading into objects takes up to thirty times the body's size, and seconds for a large one."""
    body = ('{"user":"\\ud83d","messages":[' + unit * (2_000_000 // len(unit)) + "0]}").encode()
    tracemalloc.start()
    try:
        decode_fields(body)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3.5 * len(body)
    assert steps_of(partial(decode_fields, body)) < 40
