"""Content codings: what was encoded comes out, whatever the pieces; what is wrong is said; nothing grows endlessly."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.coded import ENCODERS, zstd_of_window

from lmwarden.gateway.codings import CODINGS, CorruptError, Decoder, coding_of

CODED = st.sampled_from(sorted(ENCODERS))
TEXTS = st.binary(max_size=300) | st.builds(
    lambda text, times: text * times, st.binary(min_size=1, max_size=20), st.integers(1, 2000)
)


def decoded(coding: str, data: bytes, piece_bytes: int = 1 << 14, most_bytes: int = 1 << 16) -> tuple[bytes, bool]:
    """All that comes out, and whether it came to its end."""
    decoder = Decoder(coding)
    made = bytearray()
    at = 0
    while not (decoder.hungry and at >= len(data)):
        if decoder.hungry:
            decoder.feed(memoryview(data)[at : at + piece_bytes])
            at += piece_bytes
        made += decoder.decode(most_bytes)
    assert decoder.out_bytes == len(made)
    return bytes(made), decoder.finished


@given(
    kind=CODED, text=TEXTS, piece_bytes=st.sampled_from([1, 2, 3, 17, 200, 5000]), most_bytes=st.integers(1, 100_000)
)
def test_what_went_in_comes_out(kind: str, text: bytes, piece_bytes: int, most_bytes: int) -> None:
    coding, encode = ENCODERS[kind]
    assert decoded(coding, encode(text), piece_bytes, max(most_bytes, len(text) // 10)) == (text, True)


@pytest.mark.parametrize("most_bytes", [1, 3, 100, 258, 259, 1000])
@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_what_is_held_back_comes_out_although_all_input_was_taken(kind: str, most_bytes: int) -> None:
    """A few bytes that stand for many, asked for in portions that end anywhere in them."""
    coding, encode = ENCODERS[kind]
    for size in (258, 259, 1000, 2001):
        assert decoded(coding, encode(bytes(size)), 1 << 14, most_bytes) == (bytes(size), True)


@given(kind=CODED, text=TEXTS, data=st.data())
def test_a_part_of_it_is_not_finished(kind: str, text: bytes, data: st.DataObject) -> None:
    coding, encode = ENCODERS[kind]
    whole = encode(text)
    cut = data.draw(st.integers(0, len(whole) - 1))
    made, finished = decoded(coding, whole[:cut])
    assert not finished
    assert text.startswith(made)


@given(kind=CODED, text=TEXTS, data=st.data())
def test_a_changed_byte_is_an_error_or_harmless(kind: str, text: bytes, data: st.DataObject) -> None:
    coding, encode = ENCODERS[kind]
    whole = bytearray(encode(text))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        made, _ = decoded(coding, bytes(whole))
    except CorruptError as error:
        assert str(error) in ("invalid data", "invalid data, or a window of more than 8 MiB", "data behind the end")
    else:
        assert len(made) < 10**8


@given(data=st.binary(max_size=200), coding=st.sampled_from(CODINGS))
def test_any_bytes(data: bytes, coding: str) -> None:
    try:
        decoded(coding, data)
    except CorruptError:
        pass


@pytest.mark.parametrize("kind", ["zstd", "gzip"])
@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
def test_members_follow_one_another(kind: str, piece_bytes: int) -> None:
    coding, encode = ENCODERS[kind]
    data = encode(b"one") + encode(b"") + encode(b"two" * 1000)
    assert decoded(coding, data, piece_bytes, 100) == (b"one" + b"two" * 1000, True)
    assert decoded(coding, data[:-1], piece_bytes, 100)[1] is False


def test_a_frame_of_zstd_that_is_to_be_skipped() -> None:
    skipped = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"
    _, encode = ENCODERS["zstd"]
    assert decoded("zstd", skipped + encode(b"text") + skipped) == (b"text", True)


def test_members_without_end() -> None:
    with pytest.raises(CorruptError):
        decoded("gzip", gzip.compress(b"") * 1025)


@pytest.mark.parametrize("kind", ["deflate", "raw deflate", "br"])
@pytest.mark.parametrize("piece_bytes", [1, 10_000])
def test_nothing_may_follow_the_end(kind: str, piece_bytes: int) -> None:
    coding, encode = ENCODERS[kind]
    for behind in (b"x", encode(b"again")):
        with pytest.raises(CorruptError):
            decoded(coding, encode(b"text") + behind, piece_bytes)


@pytest.mark.parametrize("kind", ["zstd", "gzip", "deflate", "raw deflate", "br"])
def test_a_bomb_comes_out_in_bounded_portions(kind: str) -> None:
    coding, encode = ENCODERS[kind]
    bomb = encode(bytes(64 << 20))
    decoder = Decoder(coding)
    decoder.feed(bomb[: 1 << 14])
    tracemalloc.start()
    try:
        for _ in range(20):
            assert len(decoder.decode(100_000)) <= (400_000 if kind == "br" else 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_window_of_zstd_is_bounded() -> None:
    text = b"abc" * 5_000_000
    assert decoded("zstd", zstd_of_window(text, 23)) == (text, True)
    with pytest.raises(CorruptError, match="window"):
        decoded("zstd", zstd_of_window(text, 24))


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        (b"", ""),
        (b" Identity ", ""),
        (b"GZip", "gzip"),
        (b"x-gzip", "gzip"),
        (b"\tzstd ", "zstd"),
        (b"br", "br"),
        (b"deflate", "deflate"),
        (b"foo", None),
        (b"compress", None),
        (b"gzip, gzip", None),
        (b"gzip, identity", None),
        (b"gzip;q=1", None),
        (b"\xff", None),
    ],
)
def test_names(value: bytes, coding: str | None) -> None:
    assert coding_of(value) == coding
