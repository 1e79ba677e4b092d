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

from lmwarden import __version__
from lmwarden.control import EngineState, ModelSnapshot, Snapshot
from lmwarden.types import Outcome, PinVerdict, ReplicaState

CONTENT_TYPE = CONTENT_TYPE_LATEST

_UNDECIDED = {Outcome.REFUSED: "refused", Outcome.CANCELLED: "left"}
"""What stands for the decision where there was none: refused, or its client left before it was sent."""


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
        yield _build_info()
        yield from _traffic(self._snapshot)
        yield from _routing(models)
        yield from _waiting_room(self._snapshot)
        yield from _engines(models)
        yield from _own_answers(self._snapshot)
        yield from _ledger(self._snapshot)
        yield from _data_loop(self._snapshot)


def _build_info() -> Metric:
    info = GaugeMetricFamily("lmwarden_build_info", "1; the label says which version runs.", labels=["version"])
    info.add_metric([__version__], 1)
    return info


def _own_answers(snapshot: Snapshot) -> Iterator[Metric]:
    own = CounterMetricFamily(
        "lmwarden_own_answers",
        "Requests that were refused before any engine was asked: unknown model or path, key, malformed body.",
        labels=["status", "code"],
    )
    for (status, code), count in snapshot.own_answers.items():
        own.add_metric([str(status), code], count)
    yield own


def _ledger(snapshot: Snapshot) -> Iterator[Metric]:
    dropped = CounterMetricFamily(
        "lmwarden_ledger_dropped_rows", "Request rows lost because the disk could not follow."
    )
    dropped.add_metric([], snapshot.ledger_dropped_rows)
    trouble = GaugeMetricFamily("lmwarden_ledger_trouble", "1: history and homes are not written just now.")
    trouble.add_metric([], snapshot.ledger_trouble is not None)
    unread = CounterMetricFamily(
        "lmwarden_unread_prompts", "Prompts that were not compared with their conversation's previous one: too busy."
    )
    # All models share one reader, and each model's counters tell what it did.
    unread.add_metric([], max((model.counters.unread_prompts for model in snapshot.models), default=0))
    yield from (dropped, trouble, unread)


def _data_loop(snapshot: Snapshot) -> Iterator[Metric]:
    connections = GaugeMetricFamily("lmwarden_client_connections", "Open connections of clients.")
    buffered = GaugeMetricFamily("lmwarden_buffered_bytes", "Request bodies that are held.")
    # All models share one client port, and each model's counters tell of it.
    connections.add_metric([], max((model.counters.client_connections for model in snapshot.models), default=0))
    buffered.add_metric([], max((model.counters.buffered_bytes for model in snapshot.models), default=0))
    yield from (connections, buffered)
    if snapshot.loop_lag is None:
        return
    lag = HistogramMetricFamily(
        "lmwarden_event_loop_lag_seconds", "How late the loop that relays comes to a timer; 20 ticks a second."
    )
    lag.add_metric([], _buckets(snapshot.loop_lag_bounds_s, snapshot.loop_lag.counts), snapshot.loop_lag.sum_s)
    tasks = GaugeMetricFamily("lmwarden_event_loop_tasks", "Asyncio tasks of that loop; there is none per request.")
    tasks.add_metric([], snapshot.loop_lag.tasks)
    yield from (lag, tasks)


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
    identified = CounterMetricFamily(
        "lmwarden_requests_identified",
        "Generations by how their conversation was recognised: an id that was sent, its beginning, not at all.",
        labels=["model", "by"],
    )
    for model in snapshot.models:
        counters = model.counters
        for (decision, outcome), count in counters.requests.items():
            requests.add_metric([model.name, decision or _UNDECIDED.get(outcome, "none"), outcome], count)
        buckets = _buckets(snapshot.first_byte_bounds_s, counters.first_byte_counts)
        first_byte.add_metric([model.name], buckets, counters.first_byte_sum_s)
        prompt.add_metric([model.name, "cached"], counters.prompt_tokens_cached)
        prompt.add_metric([model.name, "computed"], counters.prompt_tokens_computed)
        completion.add_metric([model.name], counters.completion_tokens)
        identified.add_metric([model.name, "sent"], counters.identity_sent)
        identified.add_metric([model.name, "derived"], counters.identity_derived)
        identified.add_metric([model.name, "none"], counters.identity_none)
    yield from (requests, first_byte, prompt, completion, identified)


def _routing(models: Iterable[ModelSnapshot]) -> Iterator[Metric]:
    replica_labels = ["model", "replica"]
    in_flight = GaugeMetricFamily(
        "lmwarden_in_flight", "Requests forwarded and not finished, our count.", labels=replica_labels
    )
    conversations = GaugeMetricFamily(
        "lmwarden_conversations", "Live conversations homed on the replica.", labels=replica_labels
    )
    up = GaugeMetricFamily("lmwarden_replica_up", "1: takes requests; 0: does not.", labels=replica_labels)
    stalled = GaugeMetricFamily(
        "lmwarden_replica_stalled", "1: it has requests and makes no progress.", labels=replica_labels
    )
    for model in models:
        for replica in model.view.replicas:
            labels = [model.name, str(replica.replica)]
            in_flight.add_metric(labels, replica.in_flight)
            conversations.add_metric(labels, replica.conversations)
            up.add_metric(labels, replica.state is ReplicaState.READY)
            if replica.sample is not None:
                stalled.add_metric(labels, replica.sample.stalled)
    yield from (in_flight, conversations, up, stalled)


def _waiting_room(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ["model"]
    waiting = GaugeMetricFamily("lmwarden_waiting_room", "Requests in the waiting room.", labels=labels)
    engaged = GaugeMetricFamily(
        "lmwarden_waiting_room_engaged", "1: conversations wait for a place; 0: nobody is held.", labels=labels
    )
    waits = HistogramMetricFamily(
        "lmwarden_waiting_room_seconds", "In the waiting room, of requests that waited there.", labels=labels
    )
    expired = CounterMetricFamily(
        "lmwarden_wait_expired", "Requests that went because they had waited for max_wait_s.", labels=labels
    )
    for model in snapshot.models:
        room, names = model.view.room, [model.name]
        waiting.add_metric(names, model.view.waiting)
        engaged.add_metric(names, room is not None and room.engaged)
        buckets = _buckets(snapshot.first_byte_bounds_s, model.counters.wait_counts)
        waits.add_metric(names, buckets, model.counters.wait_sum_s)
        expired.add_metric(names, model.view.wait_expired)
    yield from (waiting, engaged, waits, expired)


def _engines(models: Iterable[ModelSnapshot]) -> Iterator[Metric]:
    labels = ["model", "engine"]
    age = GaugeMetricFamily(
        "lmwarden_engine_scrape_age_seconds", "Age of the engine's last good scrape.", labels=labels
    )
    state = GaugeMetricFamily(
        "lmwarden_engine_state", "1 for the state that the engine is in, 0 for the others.", labels=[*labels, "state"]
    )
    restarts = CounterMetricFamily(
        "lmwarden_engine_restarts", "Starts of a launched engine after its first one.", labels=labels
    )
    pins = GaugeMetricFamily(
        "lmwarden_pin_verified",
        "1: the engine obeys the rank that we name on this endpoint; 0: it does not.",
        labels=[*labels, "endpoint"],
    )
    for model in models:
        for engine in model.engines:
            names = [model.name, engine.engine]
            if engine.scrape_age_s is not None:
                age.add_metric(names, engine.scrape_age_s)
            for word in EngineState:
                state.add_metric([*names, word], engine.state is word)
            if engine.launch is not None:
                restarts.add_metric(names, engine.launch.restarts)
            for path, report in engine.pins.items():
                if report.verdict is not PinVerdict.UNVERIFIED:
                    pins.add_metric([*names, path], report.verdict is PinVerdict.VERIFIED)
    yield from (age, state, restarts, pins)


def _buckets(bounds_s: tuple[float, ...], counts: tuple[int, ...]) -> list[tuple[str, float]]:
    """Prometheus's buckets are cumulative; ours are not."""
    total = 0
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, bounds_s), "+Inf"), counts, strict=True):
        total += count
        cumulative.append((bound, total))
    return cumulative
