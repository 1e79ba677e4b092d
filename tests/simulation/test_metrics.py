"""The metrics page, read by Prometheus' own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmwarden.simulation.engine import ApiServers, SimulatedEngine
from lmwarden.simulation.hardware import load_profile
from lmwarden.simulation.metrics import EngineMetrics, Histogram
from lmwarden.simulation.scheduler import EngineRequest, SchedulerLimits

HEADLINE = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:e2e_request_latency_seconds_sum",
]


def samples(page: str) -> dict[tuple[str, str, str], float]:
    """(name, rank, the other labels' values) to value."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = dict(sample.labels)
            rank = labels.pop("engine")
            if not sample.name.endswith("_info"):
                assert labels.pop("model_name") == 'a "model"'
            found[sample.name, rank, ",".join(labels.values())] = sample.value
    return found


def played(*, ranks: int = 2) -> tuple[SimulatedEngine, EngineMetrics]:
    """An engine whose rank 1 answered the same 40-token prompt twice, 3 tokens each."""
    engine = SimulatedEngine(
        load_profile("tiny-cpu"), SchedulerLimits(num_blocks=50), ranks, ApiServers("0.26", 1, ranks)
    )
    metrics = EngineMetrics(engine, 'a "model"')
    for start in (0.0, 10.0):
        engine.submit(EngineRequest(range(50), 40, 3, start), start, 1)
        for progress in engine.advance(start + 5.0):
            metrics.observe_token(progress)
            if progress.finished:
                metrics.observe_finished(progress, "length")
    return engine, metrics


def test_every_rank_has_every_headline_metric() -> None:
    found = samples(played()[1].render())
    for name in HEADLINE:
        assert {rank for metric, rank, _rest in found if metric == name} == {"0", "1"}, name


def test_counters_are_the_schedulers() -> None:
    found = samples(played()[1].render())
    assert found["vllm:prompt_tokens_total", "1", ""] == 80
    assert found["vllm:prompt_tokens_cached_total", "1", ""] == 32
    assert found["vllm:prefix_cache_queries_total", "1", ""] == 80
    assert found["vllm:prefix_cache_hits_total", "1", ""] == 32
    assert found["vllm:generation_tokens_total", "1", ""] == 6
    assert found["vllm:prompt_tokens_by_source_total", "1", "local_compute"] == 48
    assert found["vllm:prompt_tokens_by_source_total", "1", "local_cache_hit"] == 32
    assert found["vllm:request_success_total", "1", "length"] == 2
    assert found["vllm:prompt_tokens_total", "0", ""] == 0


def test_gauges_are_the_present() -> None:
    engine, metrics = played()
    assert samples(metrics.render())["vllm:kv_cache_usage_perc", "1", ""] == 0.0
    engine.submit(EngineRequest(range(100, 150), 40, 3, 20.0), 20.0, 1)
    found = samples(metrics.render())
    assert found["vllm:num_requests_running", "1", ""] == 1
    assert found["vllm:kv_cache_usage_perc", "1", ""] == pytest.approx(3 / 49)
    engine.submit(EngineRequest(range(200, 250), 40, 3, 20.0), 20.0, 1)
    found = samples(metrics.render())
    assert found["vllm:num_requests_waiting", "1", ""] == 1
    assert found["vllm:num_requests_waiting_by_reason", "1", "capacity"] == 1
    assert found["vllm:engine_sleep_state", "1", "awake"] == 1


def test_histograms_count_requests_and_tokens() -> None:
    found = samples(played()[1].render())
    assert found["vllm:request_prompt_tokens_sum", "1", ""] == 80
    assert found["vllm:request_prefill_kv_computed_tokens_sum", "1", ""] == 48
    assert found["vllm:time_to_first_token_seconds_count", "1", ""] == 2
    assert found["vllm:inter_token_latency_seconds_count", "1", ""] == 4
    assert found["vllm:request_generation_tokens_bucket", "1", "2.0"] == 0
    assert found["vllm:request_generation_tokens_bucket", "1", "5.0"] == 2
    assert found["vllm:request_generation_tokens_bucket", "1", "+Inf"] == 2
    whole = found["vllm:e2e_request_latency_seconds_sum", "1", ""]
    parts = ("queue_time", "prefill_time", "decode_time")
    assert sum(found[f"vllm:request_{part}_seconds_sum", "1", ""] for part in parts) == pytest.approx(whole)


def test_the_cache_config_sums_blocks_over_ranks_but_not_tokens() -> None:
    page = played(ranks=3)[1].render()
    configs = [
        sample.labels
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    ]
    assert [config["engine"] for config in configs] == ["0", "1", "2"]
    assert {config["num_gpu_blocks"] for config in configs} == {"150"}
    assert {config["kv_cache_size_tokens"] for config in configs} == {"800"}
    assert {config["block_size"] for config in configs} == {"16"}


def test_a_bucket_holds_its_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 14.0


def test_each_metric_says_what_it_is() -> None:
    """As vLLM's page does: without it a scraper takes a counter for a number without a type."""
    families = list(text_string_to_metric_families(played()[1].render()))
    assert {family.name for family in families if family.type == "unknown" or not family.documentation} == set()
    types = {family.name: family.type for family in families}
    assert types["vllm:num_requests_running"] == "gauge"
    assert types["vllm:request_success"] == types["vllm:num_preemptions"] == "counter"
    assert types["vllm:time_to_first_token_seconds"] == "histogram"
