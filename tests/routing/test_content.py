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


@pytest.mark.parametrize("element", [0, "", [], [1, 2], {"a": [",", None]}])
@pytest.mark.parametrize("count", [0, 1, 3, 999, 1000, 1001, 1002, 3000])
def test_the_first_elements_are_the_first_elements(element: object, count: int) -> None:
    array = [element] * count
    assert [json.loads(bytes(one)) for one in content.first_elements(raw(array))] == array[:1001]


def test_malformed_content_is_an_error() -> None:
    for malformed in (b"[{", b"[" + b"1," * 2000, b"[" + b"1," * 2000 + b"]"):
        with pytest.raises(msgspec.DecodeError):
            content.parts(Raw(malformed))


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


@given(st.lists(st.tuples(members, st.sampled_from([",", ", ", " , ", ",\n\t"])), max_size=6))
def test_marks_are_taken_out_as_a_search_through_all_of_it_would(parts: list[tuple[str, str]]) -> None:
    written = ("{ " + "".join(member + comma for member, comma in parts) + '"z":0 }').encode()
    assert content.as_written(Raw(written)) == MARK.sub(b"", written)


def test_a_value_with_very_many_marks_is_taken_as_it_is_written() -> None:
    few, many = (b"[" + b'{"cache_control":{}},' * count + b"0]" for count in (10_000, 10_001))
    assert content.as_written(Raw(few)) == MARK.sub(b"", few)
    assert content.as_written(Raw(many)) == many


def test_harness_lines_go_and_the_rest_stays() -> None:
    text = b"x-anthropic-billing-header: a\nx-anthropic-b: c\nYou are\nx-anthropic-d"
    assert content.without_harness_lines(text) == b"You are\nx-anthropic-d"
    assert content.without_harness_lines(b"x-anthropic-billing-header: a") == b""


LINES = st.lists(st.sampled_from(["x-anthropic-", "x-anthropic-a: b", "x-anthropi", "", "You", "\r"]), max_size=6)


@given(LINES)
def test_harness_lines_go_as_one_by_one(lines: list[str]) -> None:
    kept = list(lines)
    while kept and kept[0].startswith("x-anthropic-"):
        del kept[0]
    assert content.without_harness_lines("\n".join(lines).encode()) == "\n".join(kept).encode()
