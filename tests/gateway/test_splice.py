"""One member changes, every other byte stays."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.asking import steps_of

from lmwarden.gateway import splice
from lmwarden.gateway.splice import CannotSpliceError, Edit, apply, include_usage, insert, is_true, replace
from lmwarden.routing.fields import decode_fields

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["model", "m", '"model":"m"']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", "m"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def edited(body: bytes, *edits: Edit) -> bytes:
    return b"".join(apply(body, edits))


@given(
    before=st.dictionaries(st.sampled_from(["a", "b", "x y"]), VALUES, max_size=3),
    after=st.dictionaries(st.sampled_from(["c", "d", "model "]), VALUES, max_size=3),
    indent=st.sampled_from([None, 0, 2]),
    large=st.booleans(),
)
def test_the_model_is_replaced_wherever_it_stands(
    before: dict[str, Any], after: dict[str, Any], indent: int | None, large: bool
) -> None:
    members = {**before, "model": "m", **after}
    body = json.dumps(members, indent=indent).encode()
    edit = replace(bytearray(body) if large else body, "model", b'"m"', b'"engine/model"')
    result = edited(body, edit)
    assert json.loads(result) == {**members, "model": "engine/model"}
    assert result[: edit.start] == body[: edit.start]
    assert result[edit.start + len(edit.new) :] == body[edit.end :]


def test_of_two_equal_keys_the_last_one_counts() -> None:
    body = b'{"model":"m","x":1,"model":"m"}'
    assert edited(body, replace(body, "model", b'"m"', b'"n"')) == b'{"model":"m","x":1,"model":"n"}'


def test_a_key_with_escapes_is_refused() -> None:
    with pytest.raises(CannotSpliceError, match="model"):
        replace(b'{"mod\\u0065l":"m","x":{"model":"m"}}', "model", b'"m"', b'"n"')


@given(st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2), st.sampled_from([None, 0, 2]), st.booleans())
def test_an_absent_member_is_added_behind_the_brace(members: dict[str, Any], indent: int | None, padded: bool) -> None:
    body = json.dumps(members, indent=indent).encode()
    body = b" \r\n\t" + body + b"\n" if padded else body
    result = edited(body, insert(body, b"stream_options", b"{}"))
    assert json.loads(result) == {**members, "stream_options": {}}
    assert result.replace(b'"stream_options":{},', b"").replace(b'"stream_options":{}', b"") == body


def test_a_brace_with_blanks_inside() -> None:
    body = b"{ \n }"
    assert json.loads(edited(body, insert(body, b"a", b"1"))) == {"a": 1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, {"include_usage": True}),
        ("null", {"include_usage": True}),
        ("{}", {"include_usage": True}),
        ('{"include_usage":false,"x":1.0e2}', {"include_usage": True, "x": 100.0}),
        ('{"continuous_usage_stats":true}', {"include_usage": True}),
        ('{"include_usage":null, "continuous_usage_stats":true}', {"include_usage": True}),
        ('{"include_usage":"no","continuous_usage_stats":true}', {"include_usage": True}),
        ('{"include_usage":0}', {"include_usage": True}),
        ('{"include_usage":2}', {"include_usage": True}),
        ('{"include_usage":[]}', {"include_usage": True}),
        ('{"include_usage":true,"include_usage":"odd"}', {"include_usage": True}),
    ],
)
def test_include_usage_is_added(options: str | None, expected: dict[str, Any]) -> None:
    body = b'{"stream":true%b,"n":1.50}' % (b"" if options is None else b',"stream_options": ' + options.encode())
    edit = include_usage(body, options.encode() if options is not None else b"")
    assert edit is not None
    result = edited(body, edit)
    assert json.loads(result)["stream_options"] == expected
    assert result.endswith(b',"n":1.50}')


@pytest.mark.parametrize(
    "options",
    [
        '{"include_usage":true}',
        '{"include_usage":true,"continuous_usage_stats":true}',
        '{"include_usage":1}',
        '{"include_usage":"Yes"}',
        '"x"',
        "7",
    ],
)
def test_what_the_client_asked_for_or_got_wrong_stays(options: str) -> None:
    assert include_usage(b'{"stream_options":%b}' % options.encode(), options.encode()) is None


def test_two_edits_and_none() -> None:
    body = b'{"model":"m","stream_options":null}'
    edits = (replace(body, "stream_options", b"null", b"{}"), replace(body, "model", b'"m"', b'"long/name"'))
    assert edited(body, *edits) == b'{"model":"long/name","stream_options":{}}'
    assert apply(body, ()) == [body]


def test_large_bodies_are_not_copied() -> None:
    body = bytearray(b'{"model":"m","pad":"' + b"x" * 100_000 + b'"}')
    parts = apply(body, (replace(body, "model", b'"m"', b'"n"'),))
    assert sum(isinstance(part, memoryview) and part.obj is body for part in parts) == 2
    assert msgspec.json.decode(b"".join(parts))["model"] == "n"


@pytest.mark.parametrize(
    ("raw", "truth"),
    [
        *((raw, True) for raw in ("true", "1", "1.0", "1e0", '"1"', '"true"', '"TRUE"', '"t"', '"Y"', '"yes"')),
        *((raw, False) for raw in ("", "false", "null", "0", "2", "1.5", '"no"', '"off"', '"f"', '"0"', '""')),
        *((raw, False) for raw in ('" true"', "-1", "1e400")),
        *((raw, False) for raw in ("[true]", '{"a":1}', '"truth"', "[" * 20_000, "x")),
        ('"\\u0074rue"', True),
    ],
)
def test_truth_as_vllm_reads_it(raw: str, truth: bool) -> None:
    assert is_true(raw.encode()) is truth


def test_many_members_of_the_same_name_cost_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[object] = []

    def value(*args: Any) -> Any:
        readings.append(args)
        return undisturbed(*args)

    undisturbed = splice._value
    monkeypatch.setattr(splice, "_value", value)
    inner = b",".join([b'{"model":"m"}'] * 900)
    for body in (b'{"x":[%b],"model":"m","y":[1]}' % inner, b'{"model":"m","x":[%b]}' % inner):
        result = edited(body, replace(body, "model", b'"m"', b'"n"'))
        assert json.loads(result) == {**json.loads(body), "model": "n"}
    assert len(readings) == 2


def test_too_many_members_of_the_same_name_are_refused() -> None:
    inner = b",".join([b'{"model":"m"}'] * 100_000)
    for body in (b'{"x":[%b],"model":"m"}' % inner, b'{"model":"m","x":[%b]}' % inner):
        with pytest.raises(CannotSpliceError):
            replace(body, "model", b'"m"', b'"n"')


def test_a_key_that_only_ends_like_it_is_another_key() -> None:
    body = b'{"a\\"model":"m","model":"m","b\\"model":"m"}'
    assert edited(body, replace(body, "model", b'"m"', b'"n"')) == b'{"a\\"model":"m","model":"n","b\\"model":"m"}'


def test_too_many_keys_of_the_name_are_refused_whatever_their_values_are() -> None:
    few, many = (b'{"model":"m","x":[%b0]}' % (b'{"model":1},' * count) for count in (4_999, 5_000))
    assert edited(few, replace(few, "model", b'"m"', b'"n"')).startswith(b'{"model":"n"')
    with pytest.raises(CannotSpliceError):
        replace(many, "model", b'"m"', b'"n"')


def test_a_large_value_is_compared_with_few_others() -> None:
    """Nested in itself it resembles itself at every depth: so many comparisons of so many bytes would never end."""
    value = b'{"pad":"' + b"x" * 1_000_000 + b'"}'
    for nested, refused in ((50, False), (100, True)):
        body = b'{"system":%b,"x":[%b]}' % (value, b",".join([b'{"system":1}'] * nested))
        if refused:
            with pytest.raises(CannotSpliceError):
                replace(body, "system", value, b"1")
        else:
            assert json.loads(edited(body, replace(body, "system", value, b"1")))["system"] == 1


def test_options_beyond_measure_are_refused() -> None:
    for size, refused in ((60_000, False), (70_000, True)):
        options = b'{"a":"' + b"x" * size + b'"}'
        body = b'{"stream_options":%b}' % options
        if refused:
            with pytest.raises(CannotSpliceError):
                include_usage(body, options)
        else:
            assert include_usage(body, options) is not None


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDC00", "\\\\\\ud83d"])
def test_half_a_character_elsewhere_hinders_no_edit(half: str) -> None:
    body = (
        '{"model":"m","stream_options":{"include_usage":false},"messages":["model","HALF",{"model":"m"}]}'
    ).replace("HALF", half).encode()  # fmt: skip
    fields = decode_fields(body)
    usage = include_usage(body, bytes(fields.stream_options))
    assert usage is not None
    result = edited(body, usage, replace(body, "model", bytes(fields.model), b'"n"'))
    assert result == body.replace(b"false", b"true").replace(b'{"model":"m",', b'{"model":"n",')


def simple_replace(body: bytes, name: str, old: bytes, new: bytes) -> bytes | None:
    """``replace`` as simply as it can be: of all places of the value, the one that changes the member."""
    key = re.compile(rb'"%b"\s*:\s*(?=%b)' % (name.encode(), re.escape(old)))
    for found in reversed(list(key.finditer(body))):
        result = body[: found.end()] + b"[[7]]" + body[found.end() + len(old) :]
        if json.loads(result).get(name) == [[7]]:
            return body[: found.end()] + new + body[found.end() + len(old) :]
    return None


@given(
    st.lists(st.tuples(st.sampled_from(["model", "a", 'a"model', "m"]), VALUES), max_size=6),
    st.sampled_from(["", " ", "\n\t "]),
    VALUES,
)
def test_whatever_the_body_the_same_place_is_found_as_by_trying_all(
    members: list[tuple[str, Any]], blank: str, value: Any
) -> None:
    written = f"{blank},{blank}".join(
        f"{json.dumps(name)}{blank}:{blank}{json.dumps(one)}" for name, one in [*members, ("model", value)]
    )
    body = ("{" + written + "}").encode()
    old = bytes(decode_fields(body).model)
    assert edited(body, replace(body, "model", old, b"[8]")) == simple_replace(body, "model", old, b"[8]")


@pytest.mark.parametrize("raw", [b"[[],[]]", b'{"a":{"b":1}}', b"[" * 20_000])
def test_what_is_no_scalar_is_not_true_and_not_read(raw: bytes) -> None:
    """The decoder stops at its first byte, so that what follows need not even be JSON."""
    assert not is_true(raw)
    assert not is_true(raw[:1] + b"?")


@pytest.mark.parametrize(
    ("before", "unit"),
    [
        (b"{", b" "),
        (b'{"model"', b" "),
        (b'{"model":', b"\n"),
        (b'{"x":[', b'"model",'),
        (b'{"x":[', b'{"model":1},'),
        (b'{"x":[', b'{"model":"m"},'),
    ],
)
def test_a_body_twice_as_long_takes_no_more_steps(before: bytes, unit: bytes) -> None:
    """Blanks and keys are found in C: Python takes a bounded number of steps, and none a blank."""

    def edits(count: int) -> int:
        body = before + unit * count
        body += {b"{": b'"model":"m"}', b'{"model"': b':"m"}', b'{"model":': b'"m"}'}.get(before, b'0],"model":"m"}')

        def both() -> None:
            insert(body, b"stream_options", b"{}")
            with contextlib.suppress(CannotSpliceError):
                replace(body, "model", b'"m"', b'"n"')

        return steps_of(both)

    assert edits(20_000) == edits(40_000)
