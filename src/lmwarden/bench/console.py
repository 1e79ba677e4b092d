"""The load tester's view of a warden: its routing settings, its replicas, and the engine's counters.

The console's answer names for each replica the engine's own ``running``; that is polled for *replicas
busy*. Raw cache counters are not on the console: they are read from the engine's ``/metrics`` where its
address is known.
"""

from __future__ import annotations

import re
from types import TracebackType

import aiohttp
import msgspec

from lmwarden.bench.arms import console_patch
from lmwarden.bench.errors import BenchError, plain_reason
from lmwarden.bench.results import Balancer

_TIMEOUT_S = 10.0
_METRICS_BYTES = 8 << 20
_CACHE_LINE = re.compile(rb"^vllm:(prefix_cache_(?:queries|hits))_total(?:\{[^}\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


class ReplicaRow(msgspec.Struct, frozen=True):
    """One replica in the console's answer; only what is used here."""

    replica: str
    running: int | None = None
    """By the engine's last scrape, which a dead engine leaves behind."""
    state: str = "ready"


class RoutingState(msgspec.Struct, frozen=True):
    """``GET /api/models/{name}/routing``; only what is used here."""

    affinity: bool
    in_flight: int
    replicas: list[ReplicaRow]
    placement: str = "least-loaded"
    decisions: dict[str, int] = {}
    """Requests by their final decision, since the warden's start."""

    def balancer(self) -> Balancer:
        """Who balances while affinity is off: the engine where there is only one, else an imitation."""
        engines = {row.replica.rpartition("/")[0] for row in self.replicas}
        return "engine" if len(engines) <= 1 else "emulated"

    def busy(self) -> int | None:
        """Replicas with a request running by the engine's own count; None if one does not report it."""
        running = [0 if row.state == "down" else row.running for row in self.replicas]
        if not running or None in running:
            return None
        return sum(count is not None and count > 0 for count in running)


class CacheCounters(msgspec.Struct, frozen=True):
    """The engine's prefix-cache counters in tokens, summed over its ranks."""

    queries_tokens: float
    hits_tokens: float

    def ratio_since(self, before: CacheCounters) -> float | None:
        """Hits over queries since an earlier reading; None if nothing was queried or a counter fell."""
        queries = self.queries_tokens - before.queries_tokens
        hits = self.hits_tokens - before.hits_tokens
        return hits / queries if queries > 0 and hits >= 0 else None


def parse_cache_counters(page: bytes) -> CacheCounters | None:
    """Sum the counters of a metrics page over ranks; None if the page has none."""
    sums: dict[bytes, float] = {}
    for kind, value in _CACHE_LINE.findall(page):
        sums[kind] = sums.get(kind, 0.0) + float(value)
    queries, hits = sums.get(b"prefix_cache_queries"), sums.get(b"prefix_cache_hits")
    return CacheCounters(queries, hits) if queries is not None and hits is not None else None


class Console:
    """Reads and switches one model's routing; an async context manager.

    ``url`` None: there is no console, and nothing is switched.
    """

    def __init__(self, url: str | None, model: str, *, engine_url: str | None = None) -> None:
        self.url = url
        self._model = model
        self._engine_url = engine_url
        self._routing_url = f"{url.rstrip('/')}/api/models/{model}/routing" if url else None
        self._metrics_url = f"{engine_url.rstrip('/')}/metrics" if engine_url else None
        self._http: aiohttp.ClientSession | None = None

    @property
    def known(self) -> bool:
        """Whether there is a console."""
        return self._routing_url is not None

    async def __aenter__(self) -> Console:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def state(self) -> RoutingState:
        """Read the routing's state.

        Raises:
            BenchError: the console does not answer, or not in this form.
        """
        return await self._routing("GET", None)

    async def apply(self, arm: str) -> None:
        """Switch to an arm.

        Raises:
            BenchError: the console does not answer, or refuses.
        """
        patch = console_patch(arm)
        if patch:
            await self._routing("PATCH", patch)

    async def restore(self, before: RoutingState) -> None:
        """Set back what ``apply`` may have changed.

        Raises:
            BenchError: the console does not answer, or refuses.
        """
        await self._routing("PATCH", {"affinity": before.affinity, "placement": before.placement})

    async def check_engine(self) -> None:
        """Find out before a run that the engine's counters can be read, if its address was given.

        Raises:
            BenchError: they cannot.
        """
        if self._engine_url is not None and await self.cache_counters() is None:
            raise BenchError(f"--engine {self._engine_url}: no prefix-cache counters of vLLM at /metrics there")

    async def cache_counters(self) -> CacheCounters | None:
        """Read the engine's counters; None where its address is unknown or it does not report them."""
        if self._metrics_url is None or self._http is None:
            return None
        try:
            async with self._http.get(self._metrics_url) as response:
                if response.status != 200:
                    return None
                page = await response.content.read(_METRICS_BYTES)
                while more := await response.content.read(_METRICS_BYTES):
                    page += more
                    if len(page) > _METRICS_BYTES:
                        return None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return parse_cache_counters(page)

    async def _routing(self, method: str, patch: dict[str, bool | str] | None) -> RoutingState:
        if self._http is None or self._routing_url is None:
            raise BenchError("the console's address is unknown: give --console URL")
        where = f"--console {self.url}"
        try:
            async with self._http.request(method, self._routing_url, json=patch) as response:
                answer = await response.read()
                if response.status == 404:
                    raise BenchError(f"{where}: serves no model {self._model}: {_sentence(answer)}")
                if response.status != 200:
                    raise BenchError(f"{where}: {method} answered {response.status}: {_sentence(answer)}")
                return msgspec.json.decode(answer, type=RoutingState)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BenchError(
                f"{where}: {plain_reason(error)}; --console names the warden's console, --arms as-is needs none"
            ) from error
        except msgspec.DecodeError as error:
            raise BenchError(f"{where}: the answer has another form: {error}") from error


def _sentence(answer: bytes) -> str:
    """A server's error text, short and on one line."""
    return " ".join(answer[:300].decode(errors="replace").split())
