"""Standing still with requests in hand: what is a stall, and what only looks like one."""

from __future__ import annotations

import msgspec
import pytest

from lmwarden.engine.metrics import RankMetrics
from lmwarden.engine.progress import Progress

BUSY = RankMetrics(
    running=1, waiting=2, prompt_tokens=100, generation_tokens=50, prefix_cache_queries_tokens=100, kv_used_ratio=0.5
)


def still(rank: RankMetrics, seconds: int, progress: Progress | None = None, start: int = 0) -> list[int]:
    """The seconds at which a rank that reports the same each second counts as stalled."""
    progress = progress if progress is not None else Progress(stalled_s=60.0)
    return [second for second in range(start, start + seconds) if progress.read(rank, float(second))]


def test_a_minute_without_any_movement_is_a_stall() -> None:
    assert still(BUSY, 65) == [60, 61, 62, 63, 64]


@pytest.mark.parametrize(
    "change",
    [{"prompt_tokens": 101}, {"generation_tokens": 51}, {"prefix_cache_queries_tokens": 101}, {"kv_used_ratio": 0.51}],
)
def test_each_figure_of_a_step_is_a_sign_of_life(change: dict[str, float]) -> None:
    progress = Progress(stalled_s=60.0)
    still(BUSY, 62, progress)
    moved = msgspec.structs.replace(BUSY, **change)
    assert not progress.read(moved, 62.0)
    assert still(moved, 65, progress, start=63) == [122, 123, 124, 125, 126, 127]


def test_a_long_prompt_takes_blocks_with_each_step_and_is_no_stall() -> None:
    progress = Progress(stalled_s=60.0)
    for second in range(300):
        rank = msgspec.structs.replace(BUSY, kv_used_ratio=round(0.1 + (second // 30) * 0.05, 3))
        assert not progress.read(rank, float(second))


@pytest.mark.parametrize("change", [{"running": 2}, {"waiting": 30}])
def test_requests_that_only_come_are_no_movement(change: dict[str, int]) -> None:
    progress = Progress(stalled_s=60.0)
    still(BUSY, 50, progress)
    assert still(msgspec.structs.replace(BUSY, **change), 15, progress, start=50) == [60, 61, 62, 63, 64]


def test_an_idle_rank_never_stalls_and_nor_does_one_without_counters() -> None:
    assert still(msgspec.structs.replace(BUSY, running=0, waiting=0), 200) == []
    assert still(msgspec.structs.replace(BUSY, prompt_tokens=None), 200) == []
    assert still(RankMetrics(running=1), 200) == []


def test_waiting_alone_is_enough() -> None:
    assert still(msgspec.structs.replace(BUSY, running=0, waiting=1), 62) == [60, 61]


def test_a_gap_between_two_looks_is_no_proof() -> None:
    progress = Progress(stalled_s=60.0)
    assert [progress.read(BUSY, at) for at in (0.0, 1000.0, 2000.0)] == [False, False, False]
    assert progress.read(BUSY, 3000.0)
