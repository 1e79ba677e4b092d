"""The billing line goes, and nothing else does."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.asking import steps_of

from lmwarden.gateway.billing_line import without_billing_line
from lmwarden.gateway.splice import apply
from lmwarden.routing.fields import decode_fields

LINE = "x-anthropic-billing-header: cc_version=9.9.9.abc; cc_entrypoint=cli; cch=a1b2c;"


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def stripped(body: bytes) -> bytes:
    edit = without_billing_line(body, decode_fields(body))
    return b"".join(apply(body, [edit] if edit is not None else []))


@pytest.mark.parametrize(
    ("system", "kept"),
    [
        ([block(LINE), block("You are T.")], [block("You are T.")]),
        ([block(LINE)], []),
        ([block(f"{LINE}\nYou are 北京🙂.\n", cache_control={"type": "ephemeral"})],
         [block("You are 北京🙂.\n", cache_control={"type": "ephemeral"})]),
        (f"{LINE}\nYou are T.", "You are T."),
        (f"{LINE}\nx-anthropic-other: 1\nYou are T.", "You are T."),
        (LINE, ""),
    ],
)  # fmt: skip
def test_it_goes_in_all_its_forms(system: Any, kept: Any) -> None:
    body = {"model": "m", "system": system, "messages": [{"role": "user", "content": LINE}]}
    assert json.loads(stripped(json.dumps(body).encode())) == {**body, "system": kept}


@pytest.mark.parametrize(
    "system",
    [
        None,
        7,
        "You are T.",
        f"You are told of {LINE}",
        [],
        [block("You are T."), block(f"about {LINE}")],
        [{"type": "image", "source": LINE}],
        [block(LINE) | {"text": 7}],
        [LINE],
        {"text": LINE},
    ],
)
def test_what_only_looks_like_it_stays(system: Any) -> None:
    body = json.dumps({"model": "m", "system": system, "messages": [block(LINE)]}).encode()
    assert stripped(body) == body


def test_without_a_system_prompt_and_in_odd_bodies_nothing_changes() -> None:
    for body in (
        b'{"messages":[]}',
        b'{"system":"x-anthropic-a: \\ud83d"}',
        b'{"s\\u0079stem":"x-anthropic-a: b\\nT"}',
        b'{"system":[{"text":"x-anthropic-a","text":5}]}',
    ):
        assert stripped(body) == body


@pytest.mark.parametrize(("lines", "others", "stays"), [(16, 984, False), (17, 0, True), (1, 1000, True)])
def test_so_many_blocks_are_nobodys_system_prompt(lines: int, others: int, stays: bool) -> None:
    kept = [block("You are T.")] * others
    body = {"model": "m", "system": [block(LINE)] * lines + kept, "messages": []}
    result = json.loads(stripped(json.dumps(body).encode()))
    assert result == (body if stays else {**body, "system": kept})


def test_half_a_character_in_a_message_does_not_keep_it() -> None:
    body = json.dumps({"system": [block(LINE), block("You are T.")], "messages": [block("cut HALF")]})
    body = body.replace("HALF", "\\ud83d")
    kept = json.dumps([block("You are T.")])
    assert stripped(body.encode()).startswith(f'{{"system": {kept}, "messages"'.encode())
    assert b"cut \\ud83d" in stripped(body.encode())


def test_a_system_prompt_twice_as_long_takes_no_more_steps() -> None:
    unit = b'{"text":"x-anthropic-a: b\\nT","c":"y"},'
    few, many = (b'{"system":[' + unit * count + b"0]}" for count in (10_000, 20_000))
    assert steps_of(partial(without_billing_line, few, decode_fields(few))) == steps_of(
        partial(without_billing_line, many, decode_fields(many))
    )


@given(
    hashes=st.lists(st.text(alphabet="0123456789abcdef", min_size=5, max_size=5), min_size=2, max_size=2),
    texts=st.lists(st.text(max_size=60).filter(lambda text: not text.startswith("x-anthropic-")), max_size=4),
    message=st.text(max_size=30),
    escaped=st.booleans(),
)
def test_two_requests_that_differ_in_it_only_become_the_same(
    hashes: list[str], texts: list[str], message: str, escaped: bool
) -> None:
    bodies = [
        json.dumps(
            {
                "system": [block(f"x-anthropic-billing-header: cch={text};"), *map(block, texts)],
                "messages": [{"role": "user", "content": message}],
            },
            ensure_ascii=escaped,
        ).encode("utf-8", "replace")
        for text in hashes
    ]
    first, second = map(stripped, bodies)
    assert first == second
    assert json.loads(first)["system"] == json.loads(bodies[0])["system"][1:]
