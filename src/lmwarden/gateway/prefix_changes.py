"""What became of a conversation's prefix: first from the two prompts alone, then with what the engine counted.

``compare`` looks at the first segment in which the new prompt differs from the previous one, and names the cause by
what stands there::

    nothing differs, the new one goes on       extends
    there was no previous prompt               first (or not known, where the new one carries answers already)
    it differs in its digits alone             timestamp
    a block of the system prompt               system_changed
    a tool                                     tools_changed
    a system turn within the history           system_turn_moved if it stands elsewhere or is new, else system_changed
    a turn, and much of the history is gone    compaction (also where the client says so)
    a turn                                     history_edited

``conclude`` is asked when the engine has counted. A prompt that extends the previous one and was cached is well; one
that was not is explained by where it went and what happened there: ``engine_restarted``, ``moved``, or a cause that
only the engine's template makes one (a billing line that it did not drop, a new system turn that it put first), else
``evicted``.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lmwarden.gateway.prefix_segments import SYSTEM, SYSTEM_TURN, TOOL, TURN, Segments
from lmwarden.types import Decision, PrefixChange, Usage

_SHRUNK_TO = 0.7
"""A history that is down to this share of its bytes was compacted, not edited."""
_SLACK_TOKENS = 64
_SLACK_RATIO = 0.05
"""So much of the previous prompt may be missing in the cache without a cause: blocks are cached whole, and templates
write the end of a prompt in another way than they repeat it."""

_PLACED = Decision.PLACED


class Finding(NamedTuple):
    """What two prompts say about each other."""

    change: PrefixChange | None
    """None: there was no previous prompt, and this one is not the conversation's first."""
    shared_ratio: float | None
    """Share of the previous prompt's bytes that the new one repeats from its start."""
    billing_changed: bool = False
    system_turn_added: bool = False
    """What the new prompt has beyond the previous one holds a system turn."""


class LastTurn(msgspec.Struct, frozen=True, gc=False):
    """Where a conversation's last counted turn was."""

    replica: str | None
    engine: str
    run: int
    """Of that engine."""
    prompt_tokens: int


def compare(before: Segments | None, after: Segments, *, compacted: bool) -> Finding:
    """Say what changed.

    Args:
        before: the conversation's previous prompt; None: not known.
        after: its new one.
        compacted: the client says that it has just replaced its history.
    """
    if before is None:
        return Finding(None if after.answered else PrefixChange.FIRST, None)
    common = before.common(after)
    total_bytes = sum(before.sizes)
    shared_ratio = sum(before.sizes[:common]) / total_bytes if total_bytes else None
    billing_changed = before.billing != after.billing
    if common == len(before):
        return Finding(PrefixChange.EXTENDS, shared_ratio, billing_changed, SYSTEM_TURN in after.kinds[common:])
    return Finding(_cause(before, after, common, compacted), shared_ratio, billing_changed)


def _cause(before: Segments, after: Segments, at: int, compacted: bool) -> PrefixChange:
    """Why they differ in segment ``at``; ``before`` has one there."""
    old = before.kinds[at : at + 1]
    new = after.kinds[at : at + 1]
    if old == new and before.masked_of(at) == after.masked_of(at) and any(before.masked_of(at)):
        return PrefixChange.TIMESTAMP
    if compacted:
        return PrefixChange.COMPACTION
    if SYSTEM in (old, new):
        return PrefixChange.SYSTEM_CHANGED
    if TOOL in (old, new):
        return PrefixChange.TOOLS_CHANGED
    shrunk = len(after) < len(before) and _history_bytes(after) < _SHRUNK_TO * _history_bytes(before)
    if shrunk and at < len(after):
        return PrefixChange.COMPACTION
    if SYSTEM_TURN in (old, new):
        stands_on = _stands_in(after, before.hash_of(at)) or _stands_in(before, after.hash_of(at))
        return PrefixChange.SYSTEM_CHANGED if old == new and not stands_on else PrefixChange.SYSTEM_TURN_MOVED
    return PrefixChange.HISTORY_EDITED


def _history_bytes(segments: Segments) -> int:
    kinds = TURN[0], SYSTEM_TURN[0]
    return sum(size for size, kind in zip(segments.sizes, segments.kinds, strict=True) if kind in kinds)


def _stands_in(segments: Segments, wanted: bytes) -> bool:
    return any(segments.hash_of(index) == wanted for index in range(len(segments)))


def conclude(
    finding: Finding | None,
    last: LastTurn | None,
    replica: str | None,
    decision: Decision | None,
    usage: Usage,
    *,
    restarted: bool,
) -> tuple[PrefixChange | None, int | None]:
    """What the turn's row says: the change, and the tokens of the previous prompt that had to be read again.

    Args:
        finding: of the prompts; None: nobody looked.
        last: the conversation's last counted turn; None: not known.
        replica: where this turn went; None: the engine chose it itself.
        decision: that sent it there.
        usage: what the engine counted.
        restarted: the engine of the last turn runs anew since then.
    """
    change = None if finding is None else finding.change
    if finding is not None and change is None and decision is _PLACED:
        change = PrefixChange.FIRST  # a fork: it carries answers, but this conversation is new
    if last is None or usage.cached_tokens is None or usage.prompt_tokens is None or change is PrefixChange.FIRST:
        return change, None
    prompt, before = usage.prompt_tokens, last.prompt_tokens
    repeatable = before if before < prompt else prompt  # no min and max: every request comes here
    recomputed = repeatable - usage.cached_tokens if repeatable > usage.cached_tokens else 0
    if finding is None or change is not PrefixChange.EXTENDS:
        return change, recomputed
    if recomputed <= max(_SLACK_TOKENS, _SLACK_RATIO * repeatable):
        return change, recomputed
    if restarted:
        return PrefixChange.ENGINE_RESTARTED, recomputed
    if replica is None:
        return None, recomputed
    return PrefixChange.MOVED if replica != last.replica else _loss(finding), recomputed


def _loss(finding: Finding) -> PrefixChange:
    """Why a prompt that extends the previous one was not in the same replica's cache."""
    if finding.billing_changed:
        return PrefixChange.BILLING_LINE
    if finding.system_turn_added:
        return PrefixChange.SYSTEM_TURN_MOVED
    return PrefixChange.EVICTED
