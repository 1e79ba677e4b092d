"""What is read of a body, and what is no JSON."""

from __future__ import annotations

import json

import msgspec
import pytest

from lmwarden.routing.fields import decode_fields, text_of
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
