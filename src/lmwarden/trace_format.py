"""Recorded traffic without its text: the format of a trace, and how one is written.

A trace is a file of JSON lines. The first line says what it is::

    {"lmwarden_trace": 1, "unit": "tokens", "block": 16}

and each other line is one request, in the order in which they *ended*, because only then it is known what they were::

    {"t_s": 12.5, "ended_s": 17.1, "conversation": "3f9c01d2", "parent": null, "prompt": 11234, "same": 680,
     "blocks": ["9d1c…", …], "prompt_tokens": 11234, "cached_tokens": 10880, "output_tokens": 256,
     "finish_reason": "tool_calls"}

The prompt is cut into blocks of ``block`` units (tokens, or bytes where nobody counted tokens). Each whole block has a
hash that is *chained*: it covers everything from the beginning of the prompt to the block's end, so two prompts share
exactly as much as their lists of hashes begin alike. The hash is *keyed* with a secret that stays with whoever
recorded, so a text cannot be tried against it. The first ``same`` blocks are those of the same conversation's previous
line and are not written again. Conversations have short ids of their own. There is no text anywhere.

What was not known is null: ``prompt_tokens`` (the engine's count), ``output_tokens`` and ``cached_tokens`` of an answer
that did not end, ``ended_s``.

Two rooms need this: the gateway records, the load tester replays.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import BinaryIO, Literal

import msgspec

VERSION = 1
_HASH_BYTES = 8
_MOST_REMEMBERED_BYTES = 64 * 1024 * 1024
"""Of hashes of the conversations' latest lines; a conversation that is forgotten is written whole again."""


class TraceHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    lmwarden_trace: int = VERSION
    unit: Literal["tokens", "bytes"]
    """What ``prompt`` and ``block`` count."""
    block: int
    """Units of one block."""

    def __post_init__(self) -> None:
        if self.lmwarden_trace != VERSION:
            raise ValueError(f"lmwarden_trace must be {VERSION}")
        if self.block < 1:
            raise ValueError("block must be at least 1")


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request."""

    t_s: float
    """When it was sent, in seconds since the trace began."""
    ended_s: float | None = None
    conversation: str
    parent: str | None = None
    """The conversation whose subagent this one is."""
    prompt: int
    """Length of the prompt, in units."""
    same: int = 0
    blocks: tuple[str, ...] = ()
    """Hashes of the blocks after the first ``same``."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        if self.prompt < 0 or self.same < 0 or self.t_s < 0:
            raise ValueError("t_s, prompt and same must be 0 or more")


class BlockHasher:
    """Cuts one prompt, which comes in pieces, into blocks and hashes them.

    Args:
        key: secret of the recording.
        block: units, here bytes, of a block.
    """

    def __init__(self, key: bytes, block: int) -> None:
        self._key = key
        self._block = block
        self._rest = b""
        self._chained = b""
        self._hashes = bytearray()
        self.length = 0
        """Bytes of the prompt so far."""

    def take(self, piece: bytes) -> None:
        """The next piece."""
        self.length += len(piece)
        data = self._rest + piece
        whole = len(data) // self._block * self._block
        for start in range(0, whole, self._block):
            self._chained = chain(self._key, self._chained, data[start : start + self._block])
            self._hashes += self._chained
        self._rest = data[whole:]

    @property
    def hashes(self) -> tuple[str, ...]:
        """Of the whole blocks so far, as they are written."""
        hashes = self._hashes.hex()
        return tuple(hashes[at : at + 2 * _HASH_BYTES] for at in range(0, len(hashes), 2 * _HASH_BYTES))


def chain(key: bytes, before: bytes, block: bytes) -> bytes:
    """The hash of a block, which covers what is ``before`` it."""
    return blake2b(before + block, digest_size=_HASH_BYTES, key=key).digest()


class TraceWriter:
    """Writes a trace, one request at a time.

    Args:
        file: opened for writing; stays open.
        head: what the lines mean.
        key: secret of this recording; None: a new one, which is forgotten with the writer.
    """

    def __init__(self, file: BinaryIO, head: TraceHead, key: bytes | None = None) -> None:
        self._file = file
        self._key = key if key is not None else os.urandom(32)
        self._last: OrderedDict[str, bytes] = OrderedDict()
        """By conversation: the hashes of its latest line."""
        self._remembered_bytes = 0
        self.written_bytes = 0
        self._line(head)

    def hashes(self, blocks: Iterable[bytes]) -> tuple[str, ...]:
        """Return the chained, keyed hashes of a prompt's whole blocks."""
        chained, found = b"", []
        for block in blocks:
            chained = chain(self._key, chained, block)
            found.append(chained.hex())
        return tuple(found)

    def add(self, request: TraceRequest, hashes: Sequence[str]) -> None:
        """Write one request; ``hashes`` are all of its prompt's, and what its conversation had before is left out.

        Raises:
            OSError: the file cannot be written.
        """
        before, after = self._last.pop(request.conversation, b""), bytes.fromhex("".join(hashes))
        same = 0
        for at in range(0, min(len(before), len(after)), _HASH_BYTES):
            if before[at : at + _HASH_BYTES] != after[at : at + _HASH_BYTES]:
                break
            same += 1
        self._last[request.conversation] = after
        self._remembered_bytes += len(after) - len(before)
        while self._remembered_bytes > _MOST_REMEMBERED_BYTES:
            self._remembered_bytes -= len(self._last.popitem(last=False)[1])
        self._line(msgspec.structs.replace(request, same=same, blocks=tuple(hashes[same:])))

    def _line(self, value: TraceHead | TraceRequest) -> None:
        self.written_bytes += self._file.write(msgspec.json.encode(value) + b"\n")
