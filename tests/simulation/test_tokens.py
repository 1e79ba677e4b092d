"""The tokenizer's rule, and that an answer sent back is the answer that was generated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmwarden.simulation.tokens import (
    FIRST_MARKER,
    TokenChain,
    answer_tokens,
    chain_hashes,
    count_text_tokens,
    text_tokens,
    token_text,
)


@pytest.mark.parametrize(("text", "count"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ééé", 2), ("日本", 2)])
def test_four_bytes_are_one_token(text: str, count: int) -> None:
    assert len(text_tokens(text)) == count_text_tokens(text) == count


@given(st.text(), st.text())
def test_a_prefix_of_a_text_gives_a_prefix_of_its_tokens(start: str, rest: str) -> None:
    whole = len(start.encode()) // 4
    assert text_tokens(start + rest)[:whole] == text_tokens(start)[:whole]


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="\0")))
def test_ascii_survives_the_way_there_and_back(text: str) -> None:
    assert "".join(map(token_text, text_tokens(text))) == text


def test_markers_and_foreign_ids_have_no_text() -> None:
    assert token_text(FIRST_MARKER) == token_text(-1) == ""


@given(st.lists(st.integers(0, 1 << 70), min_size=1, max_size=20), st.integers(1, 300))
def test_an_answer_sent_back_is_cut_into_the_generated_tokens(prompt: list[int], count: int) -> None:
    tokens = answer_tokens(prompt, count)
    text = "".join(map(token_text, tokens))
    assert len(tokens) == count
    assert text_tokens(text) == tokens
    assert text == text.strip()
    assert tokens == answer_tokens(prompt, count)


def test_different_prompts_get_different_answers() -> None:
    assert answer_tokens([1, 2, 3], 8) != answer_tokens([1, 2, 4], 8)
    assert answer_tokens([1, 2, 3], 8) != answer_tokens([1, 1, 2, 3], 8)


def test_a_chain_hash_stands_for_the_whole_prefix() -> None:
    hashes = chain_hashes(list(range(12)), 4)
    assert len(hashes) == 3
    assert chain_hashes(list(range(10)), 4) == hashes[:2]
    other = chain_hashes([99, *range(1, 12)], 4)
    assert not set(hashes) & set(other)


def test_a_growing_chain_equals_one_computed_at_once() -> None:
    chain = TokenChain(4)
    for piece in ([1, 2, 3], [4], [5, 6, 7, 8, 9]):
        chain.extend(piece)
    assert chain.hashes == chain_hashes(list(range(1, 10)), 4)
    before = list(chain.tokens)
    chain.extend_with_answer(3)
    assert chain.tokens == [*before, *answer_tokens(before, 3)]
    assert len(chain) == 12
