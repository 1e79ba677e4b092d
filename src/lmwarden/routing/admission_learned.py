"""What the waiting room learns from traffic: sizes of requests, pauses between turns, and what reading again costs.

Nothing of it is configured. Everything is a running mean or a quantile of a short window, so that it follows the
traffic and a router that was just made knows little: until then the defaults below stand.

* *tokens per byte*: prompt tokens that the engine counted over the bytes of the body, for the part of a prompt that is
  new; the rest of it is known from the last usage. The median, and of text only: a picture has thousands of bytes for
  each of its tokens. What by its bytes would be far larger than all that was seen is taken for such a thing.
* *output*: what an answer really has. A client's limit is usually far above that (Claude Code asks for 32,000).
* *shared*: cached tokens of first turns. What all conversations begin with stands once in a replica, however many
  conversations it holds.
* *ends*: a tool call means that the next turn is about to come. Where clients do without, it shows in what follows.
* *gaps*: from the end of a turn to the next one. They say how long an idle conversation's place is worth keeping.
* *reading*: seconds per computed prompt token, and seconds per turn; together they price a place that is given up.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TypeAlias

from lmwarden.routing.conversations import Conversation
from lmwarden.types import RoutingRequest, Usage

TOKENS_PER_BYTE = 0.25
"""Before the first usage."""
TEXT_TOKENS_PER_BYTE = 0.05
"""With fewer the bytes are no text."""
RATIOS = 31
BEYOND_SEEN_RATIO = 2.0
"""No prompt, and no new part of one, is taken for so many times the largest that was seen ..."""
SIZES, SIZES_MIN = 100, 20
"""... among so many, and at least so many."""
OUTPUT_TOKENS = 256
"""Before the first usage."""
LEARN_RATIO = 0.1
"""Weight of the newest value in a running mean."""
_OPEN_ENDS_KEPT = 1.0 - LEARN_RATIO / 2
"""Of what was counted of such ends, at the next one."""
LULL_RATIO = 4.0
"""So many times the usual time between two ends, or a turn's time, is the most that one counts for."""
FIRST_TURNS = 15
"""So many first turns are looked at for what all share."""
GAPS = 200
READS = 32
READ_TOKENS = 1000
"""Turns that computed fewer tokens say little about the speed of reading."""


Before: TypeAlias = tuple[int, int]
"""What was known of a conversation when its turn ended: (context in tokens, bytes of its last body); 0: nothing."""


class Learned:
    """Of one model. ``now`` and durations in seconds."""

    def __init__(self) -> None:
        self._tokens_per_byte: float | None = TOKENS_PER_BYTE
        """None: to be found anew, when somebody asks: turns end far more often than that."""
        self.most_tokens = math.inf
        """No footprint is larger: what the largest replica holds."""
        self.output_tokens = float(OUTPUT_TOKENS)
        self.output_spread_tokens = 0.0
        """Mean distance from the mean."""
        self.shared_tokens = 0
        self.growth_tokens = 0.0
        """Of a conversation from one turn to the next."""
        self.turn_s = 0.0
        """Of a turn that kept its context: dispatch to end; 0: not known."""
        self.between_ends_s = 0.0
        """Between two ends of turns, anywhere, while something runs; 0: not known."""
        self._left_open = 0.0
        self._came_back = 0.0
        self.gaps: deque[float] = deque(maxlen=GAPS)
        self._firsts: deque[int] = deque(maxlen=FIRST_TURNS)
        self._reads: deque[float] = deque(maxlen=READS)
        self._last_end: float | None = None
        self._ratios: deque[float] = deque(maxlen=RATIOS)
        self._prompts = _Largest()
        self._news = _Largest()

    @property
    def tokens_per_byte(self) -> float:
        """Of text; the median of what was seen."""
        if self._tokens_per_byte is None:
            self._tokens_per_byte = sorted(self._ratios)[len(self._ratios) // 2]
        return self._tokens_per_byte

    def footprint(self, request: RoutingRequest, conversation: Conversation | None) -> int:
        """KV tokens that the turn will hold at its end beyond what all share, at least 1."""
        prompt = self.prompt_tokens(request, conversation)
        output = self.output_tokens + 2 * self.output_spread_tokens
        if request.max_output_tokens is not None:
            output = min(output, request.max_output_tokens)
        return max(1, int(min(self.most_tokens, prompt + output - self.shared_tokens)))

    def prompt_tokens(self, request: RoutingRequest, conversation: Conversation | None) -> float:
        """The prompt: the last usage plus the new part's size; by its size alone where that is not known."""
        if conversation is not None and conversation.context_tokens:
            new_bytes = request.body_bytes - conversation.body_bytes
            if conversation.body_bytes and new_bytes >= 0:
                # The answer before it is in the new part and in the last usage.
                new_tokens = new_bytes * self.tokens_per_byte - self.output_tokens
                return conversation.context_tokens + max(0.0, min(new_tokens, self._news.bound))
        return min(request.body_bytes * self.tokens_per_byte, self._prompts.bound)

    def ended(
        self,
        request: RoutingRequest,
        usage: Usage,
        *,
        first: bool,
        now: float,
        before: Before | None = None,
        after_lull: bool = False,
    ) -> None:
        """A turn ended well.

        Args:
            request: What it was.
            usage: What the engine counted.
            first: Of its conversation, which does not go on from anything.
            now: Seconds.
            before: Of its conversation; None: it has none.
            after_lull: Nothing ran for a moment before, so that the time since the last end says nothing about ends.
        """
        last, self._last_end = self._last_end, now
        if last is not None and not after_lull:
            most_s = max(self.turn_s, LULL_RATIO * self.between_ends_s) or math.inf
            self.between_ends_s = _mean(self.between_ends_s, min(now - last, most_s))
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        if prompt:
            self._sized(request.body_bytes, prompt, first, before)
        if completion is not None:
            self.output_spread_tokens = _mean(self.output_spread_tokens, abs(completion - self.output_tokens))
            self.output_tokens = _mean(self.output_tokens, completion)
        if first and usage.cached_tokens is not None:
            self._firsts.append(usage.cached_tokens)
            self.shared_tokens = sorted(self._firsts)[len(self._firsts) // 2]

    def _sized(self, body_bytes: int, prompt: int, first: bool, before: Before | None) -> None:
        """A body was so many tokens."""
        self._prompts.seen(prompt)
        new_bytes, new_tokens = body_bytes, float(prompt)
        context_tokens, body_bytes_before = before or (0, 0)
        if context_tokens and body_bytes_before:
            new_bytes -= body_bytes_before
            new_tokens += self.output_tokens - context_tokens
            self._news.seen(new_tokens)
        elif not first:
            return  # of a history that is not known: what it consists of says little about what is new
        if new_bytes > 0 and new_tokens >= TEXT_TOKENS_PER_BYTE * new_bytes:
            self._ratios.append(new_tokens / new_bytes)
            self._tokens_per_byte = None

    def left_open(self) -> None:
        """A turn ended in another way than by a tool call: its conversation may be over."""
        self._left_open = _OPEN_ENDS_KEPT * self._left_open + 1.0
        self._came_back *= _OPEN_ENDS_KEPT

    def came_back(self) -> None:
        """After such an end the next turn came soon all the same."""
        self._came_back += 1.0

    @property
    def comes_back(self) -> bool:
        """Whether it does so more often than not: then every end is like a tool call's."""
        return self._came_back > 0.5 * self._left_open

    def grew(self, tokens: int) -> None:
        """A later turn's prompt and answer are so much larger than those of the turn before."""
        if tokens > 0:
            self.growth_tokens = _mean(self.growth_tokens, tokens)

    def served(self, computed_tokens: int, first_byte_s: float, turn_s: float, *, kept: bool) -> None:
        """How long a turn took from its dispatch on: to the first byte, and to its end."""
        if computed_tokens >= READ_TOKENS:
            self._reads.append(first_byte_s / computed_tokens)
        if kept:
            self.turn_s = _mean(self.turn_s, turn_s)

    def reading_s(self, tokens: float) -> float:
        """What reading so many tokens costs a replica; 0: not known. Time in the engine's queue is left out by the
        low quartile."""
        return tokens * sorted(self._reads)[len(self._reads) // 4] if self._reads else 0.0

    def idle_ratio(self, keep_s: float) -> float:
        """The part of its time for which a place stands idle between turns, where it is kept for at most ``keep_s``; 0:
        not known."""
        if not self.turn_s or not self.gaps:
            return 0.0
        idle_s = sum(min(gap, keep_s) for gap in self.gaps) / len(self.gaps)
        return idle_s / (idle_s + self.turn_s)

    def gap_quantile_s(self, share: float) -> float | None:
        """The gap that so large a share does not exceed; None: too few were seen."""
        if len(self.gaps) < 4:
            return None
        return sorted(self.gaps)[min(len(self.gaps) - 1, int(share * len(self.gaps)))]


class _Largest:
    """Of a window of sizes in tokens, and what is too large to be believed after them."""

    def __init__(self) -> None:
        self._sizes: deque[float] = deque(maxlen=SIZES)
        self._bound: float | None = math.inf
        """None: to be found anew, when somebody asks."""

    def seen(self, tokens: float) -> None:
        """One was so large."""
        self._sizes.append(tokens)
        if len(self._sizes) >= SIZES_MIN:
            self._bound = None

    @property
    def bound(self) -> float:
        """What is larger is not believed."""
        if self._bound is None:
            self._bound = BEYOND_SEEN_RATIO * max(self._sizes)
        return self._bound


def _mean(mean: float, value: float) -> float:
    return mean + LEARN_RATIO * (value - mean) if mean else value
