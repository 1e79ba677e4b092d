"""``/metrics``: the control's snapshot in the Prometheus text format.

Every series is built from the snapshot at the moment of the scrape; no metric objects live in the data plane.
Labels hold names from the configuration, replica names and words of fixed lists: never an id, a key, or
anything a client sent. What was not measured is left out rather than shown as 0. ``docs/metrics.md`` has the
list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from lmwarden.control import ModelSnapshot, Snapshot
from lmwarden.types import ReplicaState

CONTENT_TYPE = CONTENT_TYPE_LATEST


def exposition(snapshot: Snapshot) -> bytes:
    """The whole page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        models = self._snapshot.models
        yield from _traffic(self._snapshot)
        yield from _routing(models)
        yield from _engines(models)
        dropped = CounterMetricFamily(
            "lmwarden_ledger_dropped_rows", "Request rows lost because the disk could not follow."
        )
        dropped.add_metric([], self._snapshot.ledger_dropped_rows)
        yield dropped


def _traffic(snapshot: Snapshot) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "lmwarden_requests", "Requests that ended, by final decision.", labels=["model", "decision", "outcome"]
    )
    first_byte = HistogramMetricFamily(
        "lmwarden_time_to_first_byte_seconds",
        "From the complete request to the engine's first response body byte.",
        labels=["model"],
    )
    prompt = CounterMetricFamily(
        "lmwarden_prompt_tokens",
        "Prompt tokens as the engine counted them per request.",
        labels=["model", "source"],
    )
    completion = CounterMetricFamily("lmwarden_completion_tokens", "Generated tokens.", labels=["model"])
    for model in snapshot.models:
        counters = model.counters
        for (decision, outcome), count in counters.requests.items():
            requests.add_metric([model.name, decision or "refused", outcome], count)
        buckets = _buckets(snapshot.first_byte_bounds_s, counters.first_byte_counts)
        first_byte.add_metric([model.name], buckets, counters.first_byte_sum_s)
        prompt.add_metric([model.name, "cached"], counters.prompt_tokens_cached)
        prompt.add_metric([model.name, "computed"], counters.prompt_tokens_computed)
        completion.add_metric([model.name], counters.completion_tokens)
    yield from (requests, first_byte, prompt, completion)


def _routing(models: Iterable[ModelSnapshot]) -> Iterator[Metric]:
    replica_labels = ["model", "replica"]
    in_flight = GaugeMetricFamily(
        "lmwarden_in_flight", "Requests forwarded and not finished, our count.", labels=replica_labels
    )
    conversations = GaugeMetricFamily(
        "lmwarden_conversations", "Live conversations homed on the replica.", labels=replica_labels
    )
    up = GaugeMetricFamily("lmwarden_replica_up", "1: takes requests; 0: does not.", labels=replica_labels)
    waiting = GaugeMetricFamily("lmwarden_waiting_room", "Requests in the waiting room.", labels=["model"])
    # Present from the start so that dashboards find the name; a series appears once a pin was tested.
    pins = GaugeMetricFamily("lmwarden_pin_verified", "1: the replica obeyed a test pin.", labels=replica_labels)
    for model in models:
        waiting.add_metric([model.name], model.view.waiting)
        for replica in model.view.replicas:
            labels = [model.name, str(replica.replica)]
            in_flight.add_metric(labels, replica.in_flight)
            conversations.add_metric(labels, replica.conversations)
            up.add_metric(labels, replica.state is ReplicaState.READY)
    yield from (in_flight, conversations, up, waiting, pins)


def _engines(models: Iterable[ModelSnapshot]) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "lmwarden_engine_scrape_age_seconds",
        "Age of the engine's last good scrape.",
        labels=["model", "engine"],
    )
    for model in models:
        for engine in model.engines:
            if engine.scrape_age_s is not None:
                age.add_metric([model.name, engine.engine], engine.scrape_age_s)
    yield age


def _buckets(bounds_s: tuple[float, ...], counts: tuple[int, ...]) -> list[tuple[str, float]]:
    """Prometheus's buckets are cumulative; ours are not."""
    total = 0
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, bounds_s), "+Inf"), counts, strict=True):
        total += count
        cumulative.append((bound, total))
    return cumulative
