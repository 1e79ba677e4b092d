"""Tokens per second over the last minute, from the gateway's counters.

Tokens are counted when a request ends, so a shorter window would show mostly which request ended just now. Seconds are
the router's: with a simulated engine at ``--speed X`` a rate is per modelled second, as everywhere.
"""

from __future__ import annotations

from collections import deque

import msgspec

from lmwarden.gateway.counters import GatewaySnapshot

WINDOW_S = 60.0
_LEAST_S = 2.0
"""Between the two ends of what is compared."""
_STEP_S = 0.5
"""Between two points that are kept: commands take snapshots too."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of requests that ended in the last minute, per second. None: not known yet."""

    prompt_tokens_per_s: float | None = None
    """Whole prompts, cached parts included."""
    cached_tokens_per_s: float | None = None
    unknown_tokens_per_s: float = 0.0
    """Of the prompts those of which the engine did not tell what was cached."""
    completion_tokens_per_s: float | None = None


class RateMeter:
    """One model's counters over the last minute: about 60 points."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int, int, int]] = deque()

    def note(self, counters: GatewaySnapshot, now: float) -> Rates:
        """Take the counters as of now and say how fast they grew."""
        cached = counters.prompt_tokens_cached
        prompt = cached + counters.prompt_tokens_computed
        here = (prompt, cached, counters.prompt_tokens_unknown, counters.completion_tokens)
        points = self._points
        if not points or now - points[-1][0] >= _STEP_S:
            points.append((now, *here))
        # The oldest is the last one outside the window, so that the window is covered whole.
        while len(points) > 1 and now - points[1][0] >= WINDOW_S:
            points.popleft()
        began, *before = points[0]
        if now - began < _LEAST_S:
            return Rates()
        rates = [(after - earlier) / (now - began) for after, earlier in zip(here, before, strict=True)]
        return Rates(
            prompt_tokens_per_s=rates[0],
            cached_tokens_per_s=rates[1],
            unknown_tokens_per_s=rates[2],
            completion_tokens_per_s=rates[3],
        )
