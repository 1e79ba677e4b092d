"""The engine's side of a measurement: its own counters, and its caches.

Both need the engine's own address (``--engine``). The counters stand beside what the clients saw; where the two differ,
somebody else used the engine, or it counts differently (vLLM 0.26 counts a waiting request's prefix look-up at every
scheduling attempt).
"""

from __future__ import annotations

import re
from types import TracebackType

import aiohttp
import msgspec

from lmwarden.bench.errors import BenchError

_TIMEOUT_S = 10.0
_METRICS_BYTES = 8 << 20
_COUNTED = {
    b"prefix_cache_queries": "prefix_queries_tokens",
    b"prefix_cache_hits": "prefix_hits_tokens",
    b"prompt_tokens": "prompt_tokens",
    b"generation_tokens": "generation_tokens",
    b"request_success": "requests",
}
_LINE = re.compile(
    rb"^vllm:(" + b"|".join(_COUNTED) + rb")_total(?:\{([^}\n]*)\})? ([0-9.eE+-]+)$",
    re.MULTILINE,
)
_RANK = re.compile(rb'(?:^|,)engine="(\d+)"')


class EngineCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine's start, or their growth over a window; summed over its ranks.

    None: the engine does not report it.
    """

    requests: float | None = None
    """That ended well."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries_tokens: float | None = None
    prefix_hits_tokens: float | None = None
    requests_by_rank: dict[str, float] | None = None
    """``requests`` by data-parallel rank."""

    def since(self, before: EngineCounters) -> EngineCounters | None:
        """Growth since an earlier reading; None if a counter fell: the engine was restarted."""
        grown: dict[str, float] = {}
        for name in _COUNTED.values():
            now, then = getattr(self, name), getattr(before, name)
            if now is not None and then is not None:
                grown[name] = now - then
        if any(value < 0 for value in grown.values()):
            return None
        earlier = before.requests_by_rank or {}
        ranks = {rank: count - earlier.get(rank, 0.0) for rank, count in (self.requests_by_rank or {}).items()}
        return EngineCounters(**grown, requests_by_rank=ranks or None)

    @property
    def hit_ratio(self) -> float | None:
        """Hits over queries; None where nothing was queried."""
        queries, hits = self.prefix_queries_tokens, self.prefix_hits_tokens
        return hits / queries if queries and hits is not None else None


def parse_counters(page: bytes) -> EngineCounters:
    """Sum the counters of a metrics page over ranks and other labels."""
    sums: dict[str, float] = {}
    ranks: dict[str, float] = {}
    for kind, labels, value in _LINE.findall(page):
        name = _COUNTED[kind]
        sums[name] = sums.get(name, 0.0) + float(value)
        rank = _RANK.search(labels)
        if name == "requests" and rank is not None:
            number = rank[1].decode()
            ranks[number] = ranks.get(number, 0.0) + float(value)
    return EngineCounters(**sums, requests_by_rank=ranks or None)


class EngineUnderTest:
    """Reads one engine's counters and empties its caches; an async context manager.

    ``url`` None: its address is unknown, and nothing can be read.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url.rstrip("/") if url else None
        self._http: aiohttp.ClientSession | None = None
        self.knows_reset = self._url is not None
        """False once it has answered that there is no such endpoint."""

    async def __aenter__(self) -> EngineUnderTest:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def check(self) -> None:
        """Find out before a run that the counters can be read, if the engine's address was given.

        Raises:
            BenchError: they cannot.
        """
        if self._url is None:
            return
        counters = await self.counters()
        if counters is None or counters.prefix_queries_tokens is None:
            raise BenchError(f"--engine {self._url}: no prefix-cache counters of vLLM at /metrics there")

    async def counters(self) -> EngineCounters | None:
        """Read the counters; None where they cannot be read."""
        if self._url is None or self._http is None:
            return None
        try:
            async with self._http.get(f"{self._url}/metrics") as response:
                if response.status != 200:
                    return None
                page = await response.content.read(_METRICS_BYTES)
                while more := await response.content.read(_METRICS_BYTES):
                    page += more
                    if len(page) > _METRICS_BYTES:
                        return None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return parse_counters(page)

    async def empty_caches(self) -> bool:
        """Ask the engine to forget its prefix caches; False if it does not know how, or has requests in flight.

        vLLM has this only with ``VLLM_SERVER_DEV_MODE=1``.
        """
        if self._url is None or self._http is None:
            return False
        try:
            async with self._http.post(f"{self._url}/reset_prefix_cache") as response:
                answer = await response.content.read(_METRICS_BYTES)
                self.knows_reset = response.status != 404
                return response.status == 200 and b'"success":false' not in answer.replace(b" ", b"")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
