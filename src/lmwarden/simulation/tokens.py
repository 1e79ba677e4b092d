"""Text to tokens and back, by one fixed cheap rule, and the chain hashes of blocks.

The rule
--------
* A *segment* of text (the content of one message, one text block, one system block, one tool, one prompt
  string) is cut into pieces of 4 bytes of its UTF-8, from its start. Each piece is one token; its id is
  the piece read as a little-endian number, the last piece filled up with zero bytes. So a text of
  ``n`` bytes has ``ceil(n / 4)`` tokens, and a prefix of a text gives a prefix of its tokens up to the
  last whole piece.
* Roles and ends of messages are single tokens of their own, above every id that text can have.
* A generated token is a word of three letters and a blank, or a full stop at the end of the answer: 4 bytes. An
  answer that the client sends back as one assistant text is therefore cut into exactly the tokens that
  were generated, and the next turn hits the blocks that hold them.

Generated tokens depend only on the prompt, so the same prompt always gets the same answer.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import shake_256

from lmwarden.simulation.blocks import ChainHash

BYTES_PER_TOKEN = 4
FIRST_MARKER = 1 << 32
"""Ids from here on are markers: text cannot produce them."""

_ROOT: ChainHash = 0x6C6D77
_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
_SEED_TOKENS = 256
"""Answers depend on so many tokens from the end of the prompt, and on its length."""


def text_tokens(text: str) -> list[int]:
    """Token ids of one segment."""
    data = text.encode("utf-8", "surrogatepass")
    if missing := -len(data) % BYTES_PER_TOKEN:
        data += bytes(missing)
    pieces = array("I")
    pieces.frombytes(data)
    if sys.byteorder == "big":
        pieces.byteswap()
    return pieces.tolist()


def count_text_tokens(text: str) -> int:
    """Length of ``text_tokens(text)``."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def token_text(token: int) -> str:
    """The text of one token; markers and ids from elsewhere have none."""
    if not 0 <= token < FIRST_MARKER:
        return ""
    return token.to_bytes(BYTES_PER_TOKEN, "little").rstrip(b"\0").decode("utf-8", "replace")


_WORD_TOKENS = tuple(
    text_tokens(first + vowel + last + " ")[0] for first in _CONSONANTS for vowel in _VOWELS for last in _CONSONANTS
)


def chain_hashes(tokens: Sequence[int], block_size: int, hashes: list[ChainHash] | None = None) -> list[ChainHash]:
    """Chain hash of each full block of ``tokens``.

    Args:
        tokens: the whole sequence.
        block_size: tokens of one block.
        hashes: the hashes of the first blocks, if known; they are extended in place and returned.
    """
    known = [] if hashes is None else hashes
    parent = known[-1] if known else _ROOT
    for start in range(len(known) * block_size, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, tuple(tokens[start : start + block_size])))
        known.append(parent)
    return known


def answer_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """Ids of the ``count`` tokens that the model answers to ``prompt``; at least one."""
    seed = hash((len(prompt), tuple(prompt[-_SEED_TOKENS:])))
    draws = array("H")
    draws.frombytes(shake_256(seed.to_bytes(8, "little", signed=True)).digest(2 * count))
    tokens = [_WORD_TOKENS[draw % len(_WORD_TOKENS)] for draw in draws]
    tokens[-1] = text_tokens(token_text(tokens[-1])[:-1] + ".")[0]
    return tokens


class TokenChain:
    """A context that grows, with the chain hashes of its full blocks.

    Several requests may share ``hashes``: it only ever gets longer, and each request looks no further
    than its own length.
    """

    __slots__ = ("block_size", "hashes", "tokens")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: list[int] = []
        self.hashes: list[ChainHash] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def copy(self) -> TokenChain:
        """An independent chain with the same tokens."""
        chain = TokenChain(self.block_size)
        chain.tokens, chain.hashes = list(self.tokens), list(self.hashes)
        return chain

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens``."""
        self.tokens.extend(tokens)
        chain_hashes(self.tokens, self.block_size, self.hashes)

    def extend_with_answer(self, count: int) -> None:
        """Append the ``count`` tokens that the model generates here."""
        self.extend(answer_tokens(self.tokens, count))
