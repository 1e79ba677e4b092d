"""``/metrics`` of the simulated engine: vLLM's names, labels and buckets.

Label ``engine`` is the rank. As in vLLM, ``cache_config_info`` repeats the *sum* over the ranks as ``num_gpu_blocks``
under each of them while ``kv_cache_size_tokens`` is one rank's, prompt tokens count once even when cached, and the
two KV gauges count referenced blocks only. Times are modelled seconds.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate

from lmwarden.simulation.engine import Progress, SimulatedEngine
from lmwarden.simulation.scheduler import Scheduler, SchedulerCounters

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)
_REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _FIRST_TOKEN_S),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _TOKEN_S),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _TOKEN_S,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _REQUEST_S),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _REQUEST_S),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _REQUEST_S),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _REQUEST_S),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _REQUEST_S),
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        _TOKENS,
    ),
}

_COUNTERS: dict[str, tuple[str, Callable[[SchedulerCounters], int]]] = {
    "prefix_cache_queries_total": (
        "Prefix cache queries, in terms of number of queried tokens.",
        lambda c: c.prefix_queries_tokens,
    ),
    "prefix_cache_hits_total": (
        "Prefix cache hits, in terms of number of cached tokens.",
        lambda c: c.prefix_hits_tokens,
    ),
    "external_prefix_cache_queries_total": (
        "External prefix cache queries from KV connector cross-instance cache sharing,"
        " in terms of number of queried tokens.",
        lambda c: c.external_queries_tokens,
    ),
    "external_prefix_cache_hits_total": (
        "External prefix cache hits from KV connector cross-instance cache sharing,"
        " in terms of number of cached tokens.",
        lambda c: c.external_hits_tokens,
    ),
    "num_preemptions_total": (
        "Cumulative number of preemption from the engine.",
        lambda c: c.preemptions,
    ),
    "prompt_tokens_total": ("Number of prefill tokens processed.", lambda c: c.prompt_tokens),
    "prompt_tokens_cached_total": (
        "Number of cached prompt tokens (local + external).",
        lambda c: c.cached_prompt_tokens,
    ),
    "generation_tokens_total": (
        "Number of generation tokens processed.",
        lambda c: c.generation_tokens,
    ),
}

_GAUGES: dict[str, tuple[str, Callable[[Scheduler], float]]] = {
    "num_requests_running": (
        "Number of requests in model execution batches.",
        lambda s: len(s.running),
    ),
    "num_requests_waiting": ("Number of requests waiting to be processed.", lambda s: len(s.waiting)),
    "kv_cache_usage_perc": ("KV-cache usage. 1 means 100 percent usage.", lambda s: s.pool.used_ratio),
}


_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts per bucket, as Prometheus wants them: upper bounds inclusive."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def values(self) -> list[float]:
        """Cumulated count of each bucket, count and sum: the order of the lines on the page."""
        cumulated = [float(count) for count in accumulate(self.counts)]
        return [*cumulated, cumulated[-1], self.total]


class EngineMetrics:
    """What the engine's own counters do not hold (histograms, finish reasons), and the page itself."""

    def __init__(self, engine: SimulatedEngine, model: str) -> None:
        self._engine = engine
        self._model = model
        self._born = time.time()
        """When the counters began, Unix seconds: by it a client tells one run of the engine from the next."""
        self._histograms = [
            {name: Histogram(bounds) for name, (_help, bounds) in _HISTOGRAMS.items()} for _ in range(engine.ranks)
        ]
        # Most of the page is histograms, and it is read ten times a second at speed 10: their names are made once.
        self._series = [{name: self._series_of(name, rank) for name in _HISTOGRAMS} for rank in range(engine.ranks)]
        self._finished = [dict.fromkeys(_FINISH_REASONS, 0) for _ in range(engine.ranks)]

    def observe_token(self, progress: Progress) -> None:
        """A token came out."""
        request = progress.request
        histograms = self._histograms[request.rank]
        if progress.since_last_s is None:
            histograms["time_to_first_token_seconds"].observe(progress.at_s - request.arrival_s)
        else:
            histograms["inter_token_latency_seconds"].observe(progress.since_last_s)

    def observe_finished(self, progress: Progress, finish_reason: str) -> None:
        """A request has all its tokens. Aborted ones are not counted, as in vLLM after a client's disconnect."""
        request, at_s = progress.request, progress.at_s
        # A tool call is found by the API server; to the engine such an answer stopped by itself.
        self._finished[request.rank]["stop" if finish_reason == "tool_calls" else finish_reason] += 1
        scheduled_s = request.arrival_s if request.scheduled_s is None else request.scheduled_s
        first_s = at_s if request.first_token_s is None else request.first_token_s
        values: dict[str, float] = {
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.generated_tokens,
            "request_time_per_output_token_seconds": (at_s - first_s) / max(1, request.generated_tokens - 1),
            "e2e_request_latency_seconds": at_s - request.arrival_s,
            "request_queue_time_seconds": scheduled_s - request.arrival_s,
            "request_inference_time_seconds": at_s - scheduled_s,
            "request_prefill_time_seconds": first_s - scheduled_s,
            "request_decode_time_seconds": at_s - first_s,
            "request_prefill_kv_computed_tokens": request.prompt_tokens - request.cached_tokens,
        }
        histograms = self._histograms[request.rank]
        for name, value in values.items():
            histograms[name].observe(value)

    def render(self) -> str:
        """The page in Prometheus' text format."""
        lines: list[str] = []
        self._render_gauges(lines)
        self._render_counters(lines)
        for name, (text, _bounds) in _HISTOGRAMS.items():
            _head(lines, name, "histogram", text)
            for histograms, series in zip(self._histograms, self._series, strict=True):
                values = histograms[name].values()
                lines += [f"{line} {value!r}" for line, value in zip(series[name], values, strict=True)]
        self._render_cache_config(lines)
        return "\n".join(lines) + "\n"

    def _render_gauges(self, lines: list[str]) -> None:
        for name, (text, gauge) in _GAUGES.items():
            _head(lines, name, "gauge", text)
            lines += [
                _sample(name, self._labels(rank), gauge(self._engine.scheduler(rank)))
                for rank in range(self._engine.ranks)
            ]
        _head(lines, "num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
        for rank in range(self._engine.ranks):
            waiting = len(self._engine.scheduler(rank).waiting)
            for reason, value in (("capacity", waiting), ("deferred", 0)):
                labels = self._labels(rank, reason=reason)
                lines.append(_sample("num_requests_waiting_by_reason", labels, value))
        _head(lines, "engine_sleep_state", "gauge", "Engine sleep state; awake = 0 means engine is sleeping.")
        for rank in range(self._engine.ranks):
            for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
                labels = self._labels(rank, sleep_state=state)
                lines.append(_sample("engine_sleep_state", labels, value))

    def _render_counters(self, lines: list[str]) -> None:
        for name, (text, counter) in _COUNTERS.items():
            _head(lines, name, "counter", text)
            for rank in range(self._engine.ranks):
                value = counter(self._engine.scheduler(rank).counters)
                lines.append(_sample(name, self._labels(rank), value))
            created = name.removesuffix("_total") + "_created"
            _head(lines, created, "gauge", text)
            lines += [_sample(created, self._labels(rank), self._born) for rank in range(self._engine.ranks)]
        _head(lines, "prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.")
        for rank in range(self._engine.ranks):
            counters = self._engine.scheduler(rank).counters
            external = min(counters.external_hits_tokens, counters.cached_prompt_tokens)
            sources = {
                "local_compute": counters.prompt_tokens - counters.cached_prompt_tokens,
                "local_cache_hit": counters.cached_prompt_tokens - external,
                "external_kv_transfer": external,
            }
            for source, value in sources.items():
                labels = self._labels(rank, source=source)
                lines.append(_sample("prompt_tokens_by_source_total", labels, value))
        _head(lines, "request_success_total", "counter", "Count of successfully processed requests.")
        for rank, finished in enumerate(self._finished):
            for reason, value in finished.items():
                labels = self._labels(rank, finished_reason=reason)
                lines.append(_sample("request_success_total", labels, value))

    def _series_of(self, name: str, rank: int) -> list[str]:
        """Name and labels of each line of one histogram: buckets, count, sum."""
        bounds = (*_HISTOGRAMS[name][1], float("inf"))
        labels = [self._labels(rank, le="+Inf" if bound == float("inf") else str(float(bound))) for bound in bounds]
        return [
            *(_series(f"{name}_bucket", bucket) for bucket in labels),
            _series(f"{name}_count", self._labels(rank)),
            _series(f"{name}_sum", self._labels(rank)),
        ]

    def _render_cache_config(self, lines: list[str]) -> None:
        limits = self._engine.limits
        _head(lines, "cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        for rank in range(self._engine.ranks):
            labels = {
                "block_size": str(limits.block_size),
                "cache_dtype": "auto",
                "enable_prefix_caching": "True",
                "engine": str(rank),
                "gpu_memory_utilization": "0.92",
                "kv_cache_size_tokens": str(limits.num_blocks * limits.block_size),
                "num_cpu_blocks": str(limits.host_blocks or None),
                "num_gpu_blocks": str(limits.num_blocks * self._engine.ranks),
                "num_gpu_blocks_override": "None",
                "prefix_caching_hash_algo": "sha256",
                "sliding_window": "None",
            }
            lines.append(_sample("cache_config_info", labels, 1))

    def _labels(self, rank: int, **more: str) -> dict[str, str]:
        return {"engine": str(rank), "model_name": self._model, **more}


def _head(lines: list[str], name: str, kind: str, text: str) -> None:
    lines.append(f"# HELP vllm:{name} {text}")
    lines.append(f"# TYPE vllm:{name} {kind}")


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{_series(name, labels)} {float(value)!r}"


def _series(name: str, labels: Mapping[str, str]) -> str:
    body = ",".join(f'{key}="{_escape(text)}"' for key, text in sorted(labels.items()))
    return f"vllm:{name}{{{body}}}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
