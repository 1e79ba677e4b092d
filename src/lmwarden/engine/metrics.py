"""Reading a vLLM server's ``/metrics``: a few figures per rank out of some three thousand lines.

A full parse of the page costs over 100 ms and would stop every stream for as long, so a regular expression over the
bytes first picks the lines that carry a figure we use; only those go through prometheus-client's parser.

Traps that this module knows (each has a test):

* names changed over time (``gpu_cache_usage_perc`` became ``kv_cache_usage_perc``, and so on). A page may
  carry both at once; the new name then wins and nothing is counted twice;
* ``cache_config_info`` repeats ``num_gpu_blocks`` under each engine label, and it is the *sum* over ranks;
  ``kv_cache_size_tokens`` is per rank;
* ``NaN`` and infinities are "not reported";
* a page without a single ``vllm:`` line (a proxy's HTML, say) is no metrics page at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

MAX_PAGE_BYTES = 16 * 1024 * 1024
"""A page of 1,024 ranks stays below this; whatever is larger is not read further."""

_FIGURES: dict[str, tuple[str, int]] = {
    # metric name -> (figure, precedence: the highest present wins)
    "vllm:num_requests_running": ("running", 0),
    "vllm:num_requests_waiting": ("waiting", 0),
    "vllm:gpu_cache_usage_perc": ("kv_used_ratio", 0),
    "vllm:kv_cache_usage_perc": ("kv_used_ratio", 1),
    "vllm:gpu_prefix_cache_queries_total": ("prefix_cache_queries_tokens", 0),
    "vllm:prefix_cache_queries_total": ("prefix_cache_queries_tokens", 1),
    "vllm:gpu_prefix_cache_hits_total": ("prefix_cache_hits_tokens", 0),
    "vllm:prefix_cache_hits_total": ("prefix_cache_hits_tokens", 1),
    "vllm:prompt_tokens_total": ("prompt_tokens", 0),
    "vllm:generation_tokens_total": ("generation_tokens", 0),
}
_CACHE_INFO = "vllm:cache_config_info"
_CREATED = "vllm:prompt_tokens_created"
_STARTED = "process_start_time_seconds"

_PREFIX = "vllm:"
_WANTED = "|".join(re.escape(name.removeprefix(_PREFIX)) for name in (*_FIGURES, _CACHE_INFO, _CREATED))
# Literal first bytes, so that the search skips from one to the next instead of trying every byte.
_LINE = re.compile(rb"\n(vllm:(?:%s)[ {][^\r\n]*)" % _WANTED.encode())
_STARTED_LINE = re.compile(rb"\n(%s[ {][^\r\n]*)" % _STARTED.encode())


class MetricsError(Exception):
    """The page is not a vLLM metrics page. One line for a person."""


class RankMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's figures at one moment; None: not reported. Counters are cumulative."""

    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    prefix_cache_queries_tokens: int | None = None
    prefix_cache_hits_tokens: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    kv_cache_tokens: int | None = None
    """Capacity of this rank's KV cache."""


class EngineMetrics(NamedTuple):
    """One page."""

    ranks: tuple[RankMetrics, ...]
    """In the order of the engine labels: rank 0 first."""
    boot_id: str | None
    """One run of the server: the start time of its process, else the birth of its counters."""


def parse(page: bytes) -> EngineMetrics:
    """Read one metrics page.

    Raises:
        MetricsError: no vLLM figure in it.
    """
    figures: dict[str, dict[str, tuple[int, float]]] = {}
    capacity: dict[str, int | None] = {}
    cache_infos: dict[str, Mapping[str, str]] = {}
    born: list[float] = []
    started: float | None = None
    try:
        samples = [sample for family in text_string_to_metric_families(_pick_lines(page)) for sample in family.samples]
    except ValueError:
        raise MetricsError("the page at /metrics is not in the Prometheus text format") from None
    for sample in samples:
        engine = sample.labels.get("engine", "0")
        if sample.name == _STARTED:
            started = sample.value
        elif sample.name == _CREATED:
            born.append(sample.value)
        elif sample.name == _CACHE_INFO:
            cache_infos[engine] = sample.labels
        elif sample.name in _FIGURES and math.isfinite(sample.value) and sample.value >= 0:
            figure, precedence = _FIGURES[sample.name]
            of_engine = figures.setdefault(engine, {})
            if figure not in of_engine or of_engine[figure][0] <= precedence:
                of_engine[figure] = (precedence, sample.value)
    if not figures:
        raise MetricsError("the page at /metrics holds no vLLM figures")
    for engine, info in cache_infos.items():
        capacity[engine] = _capacity(info, ranks=len(figures))
    ranks = tuple(
        _rank({name: value for name, (_, value) in figures[label].items()}, capacity.get(label))
        for label in sorted(figures, key=_rank_order)
    )
    return EngineMetrics(ranks, _boot_id(started, born))


def _pick_lines(page: bytes) -> str:
    """The lines that carry a wanted sample."""
    page = b"\n" + page
    lines: list[bytes] = _LINE.findall(page) + _STARTED_LINE.findall(page)
    return b"\n".join([*lines, b""]).decode("utf-8", "replace")


def _rank(values: Mapping[str, float], kv_cache_tokens: int | None) -> RankMetrics:
    def whole(name: str) -> int | None:
        return int(values[name]) if name in values else None

    return RankMetrics(
        running=whole("running"),
        waiting=whole("waiting"),
        kv_used_ratio=values.get("kv_used_ratio"),
        prefix_cache_queries_tokens=whole("prefix_cache_queries_tokens"),
        prefix_cache_hits_tokens=whole("prefix_cache_hits_tokens"),
        prompt_tokens=whole("prompt_tokens"),
        generation_tokens=whole("generation_tokens"),
        kv_cache_tokens=kv_cache_tokens,
    )


def _capacity(info: Mapping[str, str], ranks: int) -> int | None:
    """Tokens per rank. Without the direct figure, blocks tell it only where there is one rank."""
    direct = info.get("kv_cache_size_tokens", "")
    if direct.isdecimal():
        return int(direct)
    blocks, block_tokens = info.get("num_gpu_blocks", ""), info.get("block_size", "")
    if ranks == 1 and blocks.isdecimal() and block_tokens.isdecimal():
        return int(blocks) * int(block_tokens)
    return None


def _boot_id(started: float | None, born: list[float]) -> str | None:
    if started is not None and math.isfinite(started):
        return f"process-{started:.3f}"
    finite = [value for value in born if math.isfinite(value)]
    return f"counters-{min(finite):.3f}" if finite else None


def _rank_order(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdecimal() else (1 << 30, label)
