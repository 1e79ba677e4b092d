"""Reading vLLM's metrics: names of all ages, and pages that are none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fake_vllm import page

from lmwarden.engine.metrics import MOST_LINES, MetricsError, parse

OLD = """\
vllm:num_requests_running{model_name="m"} 3.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 40.0
"""
NEW = """\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 40.0
"""


def test_ranks_and_capacity_per_rank() -> None:
    metrics = parse(page(ranks=3, kv_cache_tokens=4096, queries=10, hits=4, prompt_tokens=12).encode())
    assert [rank.running for rank in metrics.ranks] == [1, 2, 3]
    # num_gpu_blocks in the page is the sum over ranks; the capacity must not be.
    assert [rank.kv_cache_tokens for rank in metrics.ranks] == [4096] * 3
    first = metrics.ranks[0]
    assert (first.waiting, first.kv_used_ratio, first.prompt_tokens, first.generation_tokens) == (0, 0.25, 12, 7)
    assert (first.prefix_cache_queries_tokens, first.prefix_cache_hits_tokens) == (10, 4)


def test_ranks_are_in_numeric_order() -> None:
    lines = [f'vllm:num_requests_running{{engine="{rank}"}} {rank}' for rank in (10, 9, 0)]
    assert [rank.running for rank in parse("\n".join(lines).encode()).ranks] == [0, 9, 10]


@pytest.mark.parametrize("text", [OLD, NEW, OLD.replace("{model", '{engine="0",model') + NEW, NEW + OLD])
def test_old_names_new_names_and_both_give_the_same_figures(text: str) -> None:
    (rank,) = parse(text.encode()).ranks
    assert (rank.running, rank.kv_used_ratio) == (3, 0.5)
    assert (rank.prefix_cache_queries_tokens, rank.prefix_cache_hits_tokens) == (100, 40)


def test_the_new_name_wins_whatever_the_order() -> None:
    old = 'vllm:gpu_cache_usage_perc{engine="0"} 0.9\n'
    new = 'vllm:kv_cache_usage_perc{engine="0"} 0.1\n'
    assert parse((old + new).encode()).ranks[0].kv_used_ratio == 0.1
    assert parse((new + old).encode()).ranks[0].kv_used_ratio == 0.1


def test_created_lines_are_no_figures_but_can_tell_the_run() -> None:
    text = NEW + 'vllm:prompt_tokens_created{engine="0"} 1.75e+09\nvllm:prefix_cache_hits_created{engine="0"} 5\n'
    (rank,) = parse(text.encode()).ranks
    assert rank.prefix_cache_hits_tokens == 40
    assert rank.boot_id == "counters-1750000000.000"
    assert parse((text + "process_start_time_seconds 12.25\n").encode()).ranks[0].boot_id == "counters-1750000000.000"
    assert parse((NEW + "process_start_time_seconds 12.25\n").encode()).boot_ids == ("process-12.250",)
    assert parse(NEW.encode()).boot_ids == (None,)


def test_each_rank_has_a_boot_id_of_its_own() -> None:
    lines = [
        f'vllm:prompt_tokens_total{{engine="{rank}"}} 0\nvllm:prompt_tokens_created{{engine="{rank}"}} {100 + rank}.5'
        for rank in (0, 1)
    ]
    assert parse("\n".join(lines).encode()).boot_ids == ("counters-100.500", "counters-101.500")


def test_a_child_that_is_born_late_does_not_make_another_run() -> None:
    """Families with further labels get children with the first request that needs them."""
    late = 'vllm:request_success_created{engine="0",finished_reason="abort"} 900\n'
    born = 'vllm:prompt_tokens_created{engine="0"} 100\n'
    assert parse((NEW + born).encode()).boot_ids == parse((NEW + born + late).encode()).boot_ids


def test_several_api_processes_are_added_up_and_a_share_is_not() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="0",pid="{pid}"}} {running}\n'
        f'vllm:prompt_tokens_total{{engine="0",pid="{pid}"}} {tokens}\n'
        f'vllm:kv_cache_usage_perc{{engine="0",pid="{pid}"}} {used}\n'
        for pid, running, tokens, used in ((7, 2, 100, 0.25), (8, 1, "NaN", 0.5), (9, 0, 50, "NaN"))
    )
    (rank,) = parse(text.encode()).ranks
    assert (rank.running, rank.prompt_tokens, rank.kv_used_ratio) == (3, 150, 0.5)


def test_a_series_that_stands_twice_counts_once() -> None:
    assert parse((NEW + NEW).encode()).ranks == parse(NEW.encode()).ranks


def test_of_the_histogram_only_the_bucket_of_one_token_is_read() -> None:
    name = "vllm:request_params_max_tokens_bucket"
    buckets = "".join(f'{name}{{engine="0",le="{le}",model_name="m"}} {n}\n' for le, n in (("1.0", 4), ("10.0", 9)))
    assert parse((NEW + buckets).encode()).ranks[0].one_token_requests == 4
    assert parse(NEW.encode()).ranks[0].one_token_requests is None


def test_nan_and_infinity_are_not_reported() -> None:
    text = 'vllm:num_requests_running{engine="0"} 2\nvllm:kv_cache_usage_perc{engine="0"} NaN\n'
    assert parse(text.encode()).ranks[0].kv_used_ratio is None
    (rank,) = parse(text.replace("NaN", "+Inf").encode()).ranks
    assert rank.kv_used_ratio is None


def test_capacity_from_blocks_only_where_it_cannot_be_a_sum() -> None:
    info = 'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="100"} 1\n'
    running = 'vllm:num_requests_running{engine="%d"} 0\n'
    assert parse((running % 0 + info % 0).encode()).ranks[0].kv_cache_tokens == 1600
    both = "".join(running % rank + info % rank for rank in (0, 1))
    assert [rank.kv_cache_tokens for rank in parse(both.encode()).ranks] == [None, None]


@pytest.mark.parametrize(
    "text",
    ["", "<html><body>vllm:num_requests_running</body></html>", "process_start_time_seconds 5\n", "other 1\n"],
)
def test_other_pages_are_refused(text: str) -> None:
    with pytest.raises(MetricsError, match="no vLLM figures"):
        parse(text.encode())


def test_a_broken_line_is_an_error_of_ours_and_not_a_crash() -> None:
    with pytest.raises(MetricsError, match="text format"):
        parse(b'vllm:num_requests_running{engine="0"} many\n')


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{engine="0',
        'vllm:num_requests_running{engine="\\"} 1',
        "vllm:num_requests_running 1e300",
        "vllm:num_requests_running -1",
        'vllm:num_requests_running{engine="0"} 1_0',
    ],
)
def test_a_line_that_no_engine_can_mean_is_an_error_or_nothing(line: str) -> None:
    with pytest.raises(MetricsError):
        parse(line.encode())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_page_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(page(ranks=2).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(whole) - 1))
        length = data.draw(st.integers(0, 9))
        whole[at : at + length] = data.draw(st.sampled_from([b"", b'"', b"{", b"}", b",", b"=", b"\\", b"\n", b"\xff"]))
    try:
        metrics = parse(bytes(whole))
    except MetricsError:
        return
    assert all(rank.running is None or 0 <= rank.running <= 2**53 for rank in metrics.ranks)


def test_numbers_without_end_are_not_taken_for_numbers() -> None:
    nines = "9" * 5000
    info = f'vllm:cache_config_info{{engine="{nines}",kv_cache_size_tokens="{nines}"}} 1'
    labelled = f'vllm:num_requests_running{{engine="{nines}"}} 2'
    first = 'vllm:num_requests_running{engine="0"} 1'
    metrics = parse("\n".join([info, labelled, first]).encode())
    assert [rank.running for rank in metrics.ranks] == [1, 2]
    assert metrics.ranks[1].kv_cache_tokens is None


def test_a_flood_of_figures_is_refused_before_it_is_parsed() -> None:
    line = 'vllm:num_requests_running{engine="0"} 1\n'
    with pytest.raises(MetricsError, match="more than 32768 lines"):
        parse((line * (MOST_LINES + 1)).encode())
