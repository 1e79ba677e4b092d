"""Takes Claude Code's billing line out of a request, for an engine that does not do it itself.

Claude Code puts a line ``x-anthropic-billing-header: ...`` in front of its system prompt: a block of its own in the
clients that we know, or the head of one text. It differs between conversations, after a compaction, and in old clients
with every request, and it is the first thing of the prompt: where it reaches the chat template, nothing behind it is
found in a prefix cache. Newer vLLMs drop it themselves; for others it is a switch of the model (``drop_billing_line``).
Setting CLAUDE_CODE_ATTRIBUTION_HEADER=0 at the client does the same.

Only ``system`` is looked at: the same words in a message are somebody's text. Blocks that stay keep their bytes.
"""

from __future__ import annotations

import msgspec

from lmwarden.gateway.splice import Body, CannotSpliceError, Edit, replace
from lmwarden.routing.content import MAX_BLOCKS, first_elements, without_harness_lines
from lmwarden.routing.fields import RequestFields, text_of

_HEADER = b"x-anthropic-"
_MAX_LINES = 16
"""A system prompt with more blocks like this is left as it is; so is one of more than ``MAX_BLOCKS``."""


class _Block(msgspec.Struct, gc=False):
    text: msgspec.Raw = msgspec.Raw(b"")


_block_decoder = msgspec.json.Decoder(_Block)


def without_billing_line(body: Body, fields: RequestFields) -> Edit | None:
    """The edit that takes the line out; None: there is none, or it is written in a way that nobody writes.

    Args:
        body: The request's body.
        fields: What was read of it.
    """
    system = bytes(fields.system)
    if _HEADER not in system:
        return None
    try:
        kept = _text_without(fields.system) if system.startswith(b'"') else _blocks_without(fields.system)
        return None if kept is None else replace(body, "system", system, kept)
    except (CannotSpliceError, msgspec.DecodeError, RecursionError):
        return None


def _text_without(raw: msgspec.Raw) -> bytes | None:
    """A JSON string without the line; None: it has none."""
    text = text_of(raw)
    if text is None:
        return None
    whole = text.encode()
    kept = without_harness_lines(whole)
    return None if kept == whole else msgspec.json.encode(kept.decode())


def _blocks_without(raw: msgspec.Raw) -> bytes | None:
    """A JSON array of blocks without the line; None: it has none."""
    blocks = [bytes(block) for block in first_elements(raw)]
    if len(blocks) > MAX_BLOCKS or sum(_HEADER in block for block in blocks) > _MAX_LINES:
        return None
    kept = []
    for block in blocks:
        if not block.startswith(b"{") or _HEADER not in block:
            kept.append(block)
            continue
        old = _block_decoder.decode(block).text
        new = _text_without(old)
        if new is None:
            kept.append(block)
        elif new != b'""':
            edit = replace(block, "text", bytes(old), new)
            kept.append(block[: edit.start] + edit.new + block[edit.end :])
    return b"[%b]" % b",".join(kept) if kept != blocks else None
