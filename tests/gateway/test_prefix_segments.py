"""Prompts as lists of segments: equal content gives equal segments, and there is no text in them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lmwarden.gateway import prefix_segments
from lmwarden.gateway.prefix_segments import (
    MOST_SEGMENTS,
    REST,
    SYSTEM,
    SYSTEM_TURN,
    TOOL,
    TURN,
    SegmentReader,
    Segments,
    TooManySegmentsError,
)
from lmwarden.routing.fields import RequestFields, decode_fields

MARK = {"cache_control": {"type": "ephemeral"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.abc;"


def read(secret: bytes = b"s" * 32, **members: Any) -> Segments:
    reader = SegmentReader(secret)
    for piece in reader.pieces(decode_fields(json.dumps(members).encode())):
        reader.take(piece)
    return reader.segments()


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_the_order_is_that_of_a_chat_template() -> None:
    anthropic = read(
        messages=[user("u"), {"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}],
        tools=[{"name": "t"}],
        system=[{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
    )
    assert anthropic.kinds == SYSTEM * 2 + TOOL + TURN + SYSTEM_TURN + TURN
    chat = read(messages=[{"role": "system", "content": "x"}, user("u")], tools=[{"name": "t"}])
    assert chat.kinds == SYSTEM + TOOL + TURN
    responses = read(instructions="x", tools=[{"name": "t"}], input="u")
    assert responses.kinds == SYSTEM + TOOL + TURN
    assert chat.hashes == responses.hashes


def test_marks_and_spellings_make_no_difference() -> None:
    plain = read(system="x", messages=[user("u"), user("v")])
    marked = read(
        system=[{"type": "text", "text": "x"} | MARK],
        messages=[user([{"type": "text", "text": "u"}]), user([{"type": "text", "text": "v"} | MARK])],
    )
    assert plain == marked


def test_the_billing_line_is_kept_apart() -> None:
    with_line, without = read(system=f"{BILLING}\nx"), read(system="x")
    assert with_line.hashes == without.hashes
    assert with_line.billing != without.billing
    alone = read(system=[{"type": "text", "text": BILLING}, {"type": "text", "text": "x"}])
    assert alone.kinds == SYSTEM
    assert alone.hashes == without.hashes


def test_who_says_it_and_where_it_stands_matters() -> None:
    spoken = [read(messages=[{"role": role, "content": "x"}]).hashes for role in ("user", "assistant", "tool")]
    assert len({*spoken, read(system="x").hashes}) == 4


def test_calls_of_tools_are_segments() -> None:
    answer = {"role": "assistant", "content": "a"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    assert read(messages=[user("u"), call]).kinds == TURN * 2
    assert read(messages=[user("u"), answer | {"tool_calls": None}]) == read(messages=[user("u"), answer])
    items = [user("u"), {"type": "function_call", "name": "f"}, {"type": "function_call_output", "output": "o"}]
    assert read(input=items).kinds == TURN * 3


@pytest.mark.parametrize(
    ("messages", "answered"),
    [
        ([user("u")], False),
        ([{"role": "system", "content": "s"}, user("u"), {"role": "system", "content": "s"}], False),
        ([user("u"), {"role": "assistant", "content": "a"}], True),
    ],
)
def test_an_answer_is_seen(messages: list[Any], answered: bool) -> None:
    assert read(messages=messages).answered is answered


def test_the_hash_without_digits_tells_a_time_stamp() -> None:
    nine, ten, other = (read(system=f"It is {time} now") for time in ("9:59:59", "10:00:01", "late"))
    assert nine.hashes != ten.hashes
    assert nine.masked == ten.masked != other.masked
    late_turns = read(messages=[user(f"turn {number}") for number in range(40)])
    assert any(late_turns.masked_of(0))
    assert not any(late_turns.masked_of(39))


def test_a_plain_prompt_is_cut_into_pieces_and_its_rest_is_no_segment() -> None:
    short, longer = read(prompt="a" * 2500), read(prompt="a" * 2500 + "b" * 2500)
    assert (len(short), len(longer)) == (2, 4)
    assert short.common(longer) == 2
    pieces = list(SegmentReader(b"s").pieces(RequestFields(prompt=msgspec.Raw(b'"' + b"a" * 1030 + b'"'))))
    assert [(piece.kind, len(piece.text)) for piece in pieces] == [(TURN, 1024), (REST, 6)]


def test_prompts_share_what_they_begin_with() -> None:
    turns = [user(f"turn {number}") for number in range(50)]
    whole = read(messages=turns)
    for count in range(51):
        other = [*turns[:count], *(user(f"other {number}") for number in range(count, 50))]
        assert whole.common(read(messages=other)) == count
    assert whole.common(read(messages=turns[:7])) == 7


def test_hashes_are_keyed() -> None:
    one, other = read(b"a" * 32, system="x"), read(b"b" * 32, system="x")
    assert one.hashes != other.hashes
    assert one.masked != other.masked


def test_nothing_of_the_text_is_in_them() -> None:
    segments = read(system="MARKER-7", tools=[{"name": "MARKER-7"}], messages=[user("MARKER-7 " * 100)])
    kept = b"".join((segments.kinds, segments.hashes, segments.masked, segments.sizes.tobytes(), segments.billing))
    assert b"MARKER" not in kept


@pytest.mark.parametrize("members", [{"messages": "text"}, {"messages": 3}, {"messages": [1, "x", None]}, {}])
def test_odd_bodies_are_read_or_refused(members: dict[str, Any]) -> None:
    try:
        read(**members)
    except prefix_segments.UNREADABLE:
        pass


def test_a_prompt_of_too_many_segments_is_refused() -> None:
    with pytest.raises(TooManySegmentsError):
        read(messages=[user("u")] * (MOST_SEGMENTS + 1))
