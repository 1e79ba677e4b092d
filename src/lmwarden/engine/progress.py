"""Does a rank that holds requests move? Told from what vLLM reports after each of its steps.

``prompt_tokens_total`` is no sign of life by itself: it moves when a prompt is *finished*, and reading 100,000
tokens takes a minute of many steps. ``iteration_tokens_total``, which sounds right, moves with it. But each step
reports the KV cache, and a prompt that is read in chunks takes up blocks with each of them. So a rank moves if any
of these changed: tokens of finished prompts, generated tokens, tokens looked up in the prefix cache (a request was
taken up), the share of the KV cache in use. The numbers of running and waiting requests do not count: a rank to
which requests only come has not moved.

(Seen on vLLM 0.32.0: KV share and look-ups change while a prompt is read and the other counters stand; with the
engine core stopped by SIGSTOP in the middle of an answer all of them stand, while ``/health`` says 200.)

A rank whose process hangs from its very first step is not seen here, because it never reported that it holds
something; there the gateway's own time limits speak.
"""

from __future__ import annotations

from typing import TypeAlias

from lmwarden.engine.metrics import RankMetrics

_Figures: TypeAlias = tuple[int | None, int | None, int | None, float | None]

LOOKS = 3
"""At least so many times the same must be seen: one late look is no proof of a standstill."""


class Progress:
    """One rank's standstill, over its scrapes."""

    def __init__(self, stalled_s: float) -> None:
        """Args:
        stalled_s: a standstill of so many seconds (the clock's) is a stall.
        """
        self._stalled_s = stalled_s
        self._figures: _Figures | None = None
        self._read_at = 0.0
        self._still_s = 0.0

    def read(self, rank: RankMetrics, at: float) -> bool:
        """Take one scrape, sent ``at`` (the clock's seconds); whether the rank is stalled."""
        figures = (rank.prompt_tokens, rank.generation_tokens, rank.prefix_cache_queries_tokens, rank.kv_used_ratio)
        reported = rank.prompt_tokens is not None and rank.generation_tokens is not None
        busy = bool(rank.running or rank.waiting)
        if figures == self._figures and busy and reported:
            self._still_s += min(at - self._read_at, self._stalled_s / LOOKS)
        else:
            self._still_s = 0.0
        self._figures, self._read_at = figures, at
        # A sum of thirds may stay a hair below the whole.
        return self._still_s >= self._stalled_s * (1 - 1e-9)
