"""Content as byte strings: what changes although nothing was said is taken away, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from lmwarden.routing import content

MARK = re.compile(rb',\s*"cache_control"\s*:\s*(?:\{[^{}]*\}|null)|"cache_control"\s*:\s*(?:\{[^{}]*\}|null)\s*,?\s*')


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def test_a_string_equals_one_text_block_with_or_without_a_mark() -> None:
    block = {"type": "text", "text": "hé"}
    assert content.parts(raw("hé")) == content.parts(raw([block])) == ["hé".encode()]
    assert content.parts(raw([block | {"cache_control": {"type": "ephemeral"}}])) == ["hé".encode()]


@pytest.mark.parametrize("nothing", [b"", b"null"])
def test_no_content_has_no_parts(nothing: bytes) -> None:
    assert content.parts(Raw(nothing)) == []


def test_other_blocks_are_taken_as_they_are_written() -> None:
    assert content.parts(Raw(b'[{"type": "image", "cache_control": {}, "n": 1}]')) == [b'{"type": "image", "n": 1}']
    assert content.parts(Raw(b'{"a": 1}')) == [b'{"a": 1}']


def test_content_of_very_many_blocks_is_taken_as_it_is_written() -> None:
    many = raw([{"text": "x"}] * 1001)
    assert content.parts(many) == [bytes(many)]


def test_elements_of_a_list_with_unreasonably_many_commas_are_none() -> None:
    assert content.elements(Raw(b"[" + b"1," * 500_001 + b"1]")) == []
    assert [bytes(one) for one in content.elements(Raw(b"[1, [2, 3]]"))] == [b"1", b"[2, 3]"]


def test_malformed_content_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        content.parts(Raw(b"[{"))


members = st.sampled_from(
    [
        '"cache_control":{"type":"ephemeral"}',
        '"cache_control" : null',
        '"cache_control":{"a":{}}',
        '"cache_control":1',
        '"cache_control_x":{}',
        '"text":"\\"cache_control\\":{}"',
        '"n":1',
    ]
)


@given(st.lists(members, max_size=6), st.sampled_from([",", " , ", ",\n\t"]))
def test_marks_are_taken_out_as_a_search_through_all_of_it_would(parts: list[str], comma: str) -> None:
    written = ("{" + comma.join(parts) + "}").encode()
    assert content.as_written(Raw(written)) == MARK.sub(b"", written)


def test_harness_lines_go_and_the_rest_stays() -> None:
    text = b"x-anthropic-billing-header: a\nx-anthropic-b: c\nYou are\nx-anthropic-d"
    assert content.without_harness_lines(text) == b"You are\nx-anthropic-d"
    assert content.without_harness_lines(b"x-anthropic-billing-header: a") == b""
