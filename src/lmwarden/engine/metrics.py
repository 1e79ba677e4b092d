"""Reading a vLLM server's ``/metrics``: a few figures per rank out of some three thousand lines.

A full parse of the page costs over 100 ms and would stop every stream for as long, so a regular expression over the
bytes first picks the lines that carry a figure we use; only those go through prometheus-client's parser.

Traps that this module knows (each has a test):

* names changed over time (``gpu_cache_usage_perc`` became ``kv_cache_usage_perc``, and so on). A page may
  carry both at once; the new name then wins and nothing is counted twice;
* ``cache_config_info`` repeats ``num_gpu_blocks`` under each engine label, and it is the *sum* over ranks;
  ``kv_cache_size_tokens`` is per rank;
* a server with several API processes may label a figure with the ``pid`` of each: counts of one rank add up, a
  share is not a share of the sum, so the largest counts;
* ``NaN``, infinities and numbers that no counter reaches are "not reported";
* a page without a single ``vllm:`` line (a proxy's HTML, say) is no metrics page at all.

**Which run of the engine is this?** Each rank's counters say when they were born (``..._created``). We read the
birth of *one* family, ``prompt_tokens``: vLLM makes it for each rank before the first request, so it never
changes during a run, while a family with further labels may get children later. (Measured on vLLM 0.32.0: none of
a rank's 42 births changed under chat, messages, completions, responses and an abort.) It is preferred to the
start of the process because an engine may make its ranks anew in the same process. Several API processes report
neither.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from lmwarden.types import ReplicaSample

MAX_PAGE_BYTES = 16 * 1024 * 1024
"""A page of 1,024 ranks stays below this; whatever is larger is not read further."""
LARGE_PAGE_BYTES = 1024 * 1024
"""From here on a page is worth a thread: parsing the figures of 64 ranks takes 12 ms, of 1,024 some 200 ms."""
MOST_LINES = 32_768
"""With figures: three times those of 1,024 ranks. More are not parsed: 16 MB of them would take seven seconds."""
_MOST = 2.0**53
"""No count of anything is larger."""
_MOST_DIGITS = 15


class _Source(NamedTuple):
    """Where a figure comes from."""

    figure: str
    precedence: int = 0
    """The highest that the page has wins."""
    combine: Callable[[Iterable[float]], float] = sum
    """Several series of one rank make one figure."""


_FIGURES: dict[str, _Source] = {
    "vllm:num_requests_running": _Source("running"),
    "vllm:num_requests_waiting": _Source("waiting"),
    "vllm:gpu_cache_usage_perc": _Source("kv_used_ratio", 0, max),
    "vllm:kv_cache_usage_perc": _Source("kv_used_ratio", 1, max),
    "vllm:gpu_prefix_cache_queries_total": _Source("prefix_cache_queries_tokens", 0),
    "vllm:prefix_cache_queries_total": _Source("prefix_cache_queries_tokens", 1),
    "vllm:gpu_prefix_cache_hits_total": _Source("prefix_cache_hits_tokens", 0),
    "vllm:prefix_cache_hits_total": _Source("prefix_cache_hits_tokens", 1),
    "vllm:prompt_tokens_total": _Source("prompt_tokens"),
    "vllm:generation_tokens_total": _Source("generation_tokens"),
    "vllm:request_params_max_tokens_bucket": _Source("one_token_requests"),
}
_CACHE_INFO = "vllm:cache_config_info"
_CREATED = "vllm:prompt_tokens_created"
_STARTED = "process_start_time_seconds"

_PREFIX = "vllm:"
_BUCKETS = "_bucket"
_WANTED = "|".join(
    re.escape(name.removeprefix(_PREFIX)) for name in (*_FIGURES, _CACHE_INFO, _CREATED) if not name.endswith(_BUCKETS)
)
# Literal first bytes, so that the search skips from one to the next instead of trying every byte.
_LINE = re.compile(rb"\n(vllm:(?:%s)[ {][^\r\n]*)" % _WANTED.encode())
# Of a histogram only the bucket of one token is read: requests that may produce one.
_BUCKET_LINE = re.compile(rb"\n(vllm:request_params_max_tokens_bucket\{[^\r\n]*\ble=\"1(?:\.0)?\"[^\r\n]*)")
_STARTED_LINE = re.compile(rb"\n(%s[ {][^\r\n]*)" % _STARTED.encode())


class MetricsError(Exception):
    """The page is not a vLLM metrics page. One line for a person."""


class NoFiguresError(MetricsError):
    """It is another program's page, or none."""


class RankMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's figures at one moment; None: not reported. Counters are cumulative."""

    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    prefix_cache_queries_tokens: int | None = None
    prefix_cache_hits_tokens: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    one_token_requests: int | None = None
    """Finished requests that were allowed at most one token of output: almost nobody's but our own tests."""
    kv_cache_tokens: int | None = None
    """Capacity of this rank's KV cache."""
    boot_id: str | None = None
    """One run of this rank: the birth of its counters, else the start of the server's process."""

    def sample(self, taken_at: float, stalled: bool) -> ReplicaSample:
        """As the router takes it."""
        return ReplicaSample(
            taken_at=taken_at,
            running=self.running,
            waiting=self.waiting,
            kv_used_ratio=self.kv_used_ratio,
            prefix_cache_queries_tokens=self.prefix_cache_queries_tokens,
            prefix_cache_hits_tokens=self.prefix_cache_hits_tokens,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            stalled=stalled,
        )


class EngineMetrics(NamedTuple):
    """One page."""

    ranks: tuple[RankMetrics, ...]
    """In the order of the engine labels: rank 0 first."""

    @property
    def boot_ids(self) -> tuple[str | None, ...]:
        """One run of each rank; None: the page does not tell."""
        return tuple(rank.boot_id for rank in self.ranks)


def parse(page: bytes) -> EngineMetrics:
    """Read one metrics page.

    Raises:
        NoFiguresError: no vLLM figure in it.
        MetricsError: it cannot be read.
    """
    try:
        samples = [sample for family in text_string_to_metric_families(_pick_lines(page)) for sample in family.samples]
    except (ValueError, IndexError):  # the parser runs off the end of a label that is not closed
        raise MetricsError("the page at /metrics is not in the Prometheus text format") from None
    series: dict[str, dict[str, dict[frozenset[tuple[str, str]], float]]] = {}
    cache_infos: dict[str, Mapping[str, str]] = {}
    born: dict[str, float] = {}
    started: float | None = None
    for sample in samples:
        if not 0 <= sample.value <= _MOST:  # which NaN is not, either
            continue
        engine = sample.labels.get("engine", "0")
        if sample.name == _STARTED:
            started = sample.value
        elif sample.name == _CREATED:
            born[engine] = min(sample.value, born.get(engine, math.inf))
        elif sample.name == _CACHE_INFO:
            cache_infos[engine] = sample.labels
        elif sample.name in _FIGURES:
            one = series.setdefault(engine, {}).setdefault(sample.name, {})
            one[frozenset((sample.labels | {"engine": engine}).items())] = sample.value
    if not series:
        raise NoFiguresError("the page at /metrics holds no vLLM figures")
    ranks = tuple(
        _rank(
            _figures(series[engine]),
            kv_cache_tokens=_capacity(cache_infos.get(engine, {}), ranks=len(series)),
            boot_id=_boot_id(started, born.get(engine)),
        )
        for engine in sorted(series, key=_rank_order)
    )
    return EngineMetrics(ranks)


def _figures(series: Mapping[str, Mapping[frozenset[tuple[str, str]], float]]) -> dict[str, float]:
    """One rank's figures, from all series of all names they ever had."""
    # The lowest precedence first, so that the highest is written last.
    names = sorted(series, key=lambda name: _FIGURES[name].precedence)
    return {_FIGURES[name].figure: _FIGURES[name].combine(series[name].values()) for name in names}


def _pick_lines(page: bytes) -> str:
    """The lines that carry a wanted sample.

    Raises:
        MetricsError: there are too many.
    """
    page = b"\n" + page
    lines: list[bytes] = _LINE.findall(page) + _BUCKET_LINE.findall(page) + _STARTED_LINE.findall(page)
    if len(lines) > MOST_LINES:
        raise MetricsError(f"the page at /metrics has more than {MOST_LINES} lines with figures")
    return b"\n".join([*lines, b""]).decode("utf-8", "replace")


def _rank(values: Mapping[str, float], *, kv_cache_tokens: int | None, boot_id: str | None) -> RankMetrics:
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
        one_token_requests=whole("one_token_requests"),
        kv_cache_tokens=kv_cache_tokens,
        boot_id=boot_id,
    )


def _capacity(info: Mapping[str, str], ranks: int) -> int | None:
    """Tokens per rank. Without the direct figure, blocks tell it only where there is one rank."""
    direct = _whole(info.get("kv_cache_size_tokens", ""))
    if direct is not None:
        return direct
    blocks, block_tokens = _whole(info.get("num_gpu_blocks", "")), _whole(info.get("block_size", ""))
    if ranks == 1 and blocks is not None and block_tokens is not None:
        return blocks * block_tokens
    return None


def _whole(text: str) -> int | None:
    """A number in digits; None: it is none, or none that can be meant."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _boot_id(started: float | None, born: float | None) -> str | None:
    if born is not None:
        return f"counters-{born:.3f}"
    return None if started is None else f"process-{started:.3f}"


def _rank_order(label: str) -> tuple[int, str]:
    number = _whole(label)
    return (number, "") if number is not None else (1 << 60, label)
