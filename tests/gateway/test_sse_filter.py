"""The filter withholds exactly the usage-only event, however the stream is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.gateway.sse_filter import MAX_HELD_BYTES, UsageEventFilter, is_usage_only

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1}}'
KEPT = [
    b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}]}',
    b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}',
    b'data: {"choices":[],"usage":null}',
    b": a comment",
    b'event: x\ndata: {"usage":1}',
    b"data: [DONE]",
    b'data: {broken "usage"',
]


def run(pieces: list[bytes]) -> bytes:
    usage_filter = UsageEventFilter()
    return b"".join(usage_filter.feed(piece) for piece in pieces) + usage_filter.end()


@given(
    events=st.lists(st.sampled_from([USAGE, *KEPT]), min_size=1, max_size=8),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(min_value=0, max_value=500), max_size=30),
    terminated=st.booleans(),
)
def test_only_usage_events_are_missing(events: list[bytes], end: bytes, cuts: list[int], terminated: bool) -> None:
    blocks = [event.replace(b"\n", end) + end + end for event in events]
    if not terminated:
        blocks[-1] = events[-1].replace(b"\n", end)
    text = b"".join(blocks)
    expected = b"".join(block for event, block in zip(events, blocks, strict=True) if event != USAGE)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert run([text[a:b] for a, b in pairwise(edges)]) == expected
    assert run([text[at : at + 1] for at in range(len(text))]) == expected


def test_each_event_goes_on_when_it_is_complete() -> None:
    usage_filter = UsageEventFilter()
    assert usage_filter.feed(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert usage_filter.held == b"data: 2"
    assert usage_filter.feed(b"\n") == b""
    assert usage_filter.feed(b"\n") == b"data: 2\n\n"
    assert usage_filter.held == b""


def test_an_event_without_end_does_not_grow_without_bound() -> None:
    usage_filter = UsageEventFilter()
    piece = b'"usage"' + b"x" * 100_000
    out = b"".join(usage_filter.feed(piece) for _ in range(2 * MAX_HELD_BYTES // len(piece)))
    assert len(usage_filter.held) <= MAX_HELD_BYTES
    assert out + usage_filter.end() == piece * (2 * MAX_HELD_BYTES // len(piece))


@pytest.mark.parametrize("event", KEPT)
def test_what_is_not_usage_only(event: bytes) -> None:
    assert not is_usage_only(event)
    assert is_usage_only(USAGE)
