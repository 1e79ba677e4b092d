"""Made-up history: smooth waves with one gap, a function of the time alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

DECISIONS = ("placed", "sticky", "spilled", "client_pinned", "rehomed", "balanced", "unrouted")
STEP_S = {3600: 10, 21_600: 60, 86_400: 60, 604_800: 600}
GAP_S = (2400.0, 2040.0)
"""Seconds before now in which the warden was down."""


class History:
    """``/api/stats/…``."""

    replicas: int

    def now(self) -> float:
        """Unix seconds."""
        raise RuntimeError("the world has the time")

    def stats_tokens(self, window_s: float, to: float, model: str = "") -> Json:
        """``/api/stats/tokens``."""
        scale = {"": 1.0, "qwen3-4b": 0.35}.get(model, 0.65)

        def point(t: float) -> Json:
            wave = (1 + 0.5 * math.sin(t / 700) + 0.25 * math.sin(t / 97)) * scale
            prompt = max(0.0, 4200 * wave)
            share = 0.78 + 0.08 * math.sin(t / 300)
            return {"cached": prompt * share, "computed": prompt * (1 - share), "completion": 66 * max(0.0, wave)}

        answer = self._series(window_s, to, point)
        cached = sum(p["cached"] or 0 for p in answer["points"])
        prompt = cached + sum(p["computed"] or 0 for p in answer["points"])
        return {**answer, "cached_ratio": cached / prompt if prompt else None}

    def stats_latency(self, window_s: float, to: float) -> Json:
        """``/api/stats/latency``."""

        def point(t: float) -> Json:
            p50 = 0.32 + 0.1 * math.sin(t / 211)
            return {"p50": p50, "p95": p50 * 6 + math.sin(t / 31) * 0.4, "p99": p50 * 11 + math.sin(t / 17), "count": 5}

        answer = self._series(window_s, to, point)
        return {**answer, "totals": {"p50": 0.33, "p95": 2.1, "p99": 3.9, "count": 5 * len(answer["points"])}}

    def stats_requests(self, window_s: float, to: float) -> Json:
        """``/api/stats/requests``."""

        def point(t: float) -> Json:
            sticky = 0.8 + 0.3 * math.sin(t / 500)
            spilled = 0.1 if math.sin(t / 900) > 0.6 else 0.0
            return {
                **dict.fromkeys(DECISIONS, 0.0),
                "sticky": sticky,
                "placed": 0.2,
                "spilled": spilled,
                "balanced": 0.05,
                "refused": 0.0,
                "failed": 0.02 if math.sin(t / 333) > 0.97 else 0.0,
            }

        return self._series(window_s, to, point)

    def stats_replicas(self, window_s: float, to: float) -> Json:
        """``/api/stats/replicas``."""

        def point(t: float) -> Json:
            running = 9 + 5 * math.sin(t / 700)
            return {
                "busy": min(self.replicas, 2.9 + math.sin(t / 700)),
                "kv_used": 0.45 + 0.2 * math.sin(t / 700),
                "waiting": max(0.0, running - 12),
                "running": running,
                "in_flight": running + 0.4,
            }

        return {**self._series(window_s, to, point), "replicas": self.replicas}

    def _series(self, window_s: float, to: float, point: Callable[[float], Json]) -> Json:
        step = next((step for most, step in STEP_S.items() if window_s <= most), 600)
        first = math.floor((to - window_s) / step) * step
        gap = (self.now() - GAP_S[0], self.now() - GAP_S[1])
        points = []
        for index in range(int(window_s / step)):
            t = first + index * step
            values = point(t)
            if gap[0] <= t <= gap[1]:
                values = dict.fromkeys(values)
            points.append({"t": t, **values})
        return {"from": to - window_s, "to": to, "step_s": step, "points": points}
