"""The simulated prefix cache against the real one: see ``benchmarks/sim_vs_real.py``."""

from __future__ import annotations

import pytest
from benchmarks.sim_vs_real import CALLS, TOLERANCE_RATIO, compare
from tests.real.vllm_server import VllmServer

pytestmark = pytest.mark.real


async def test_the_simulated_cache_is_the_real_one(vllm: VllmServer) -> None:
    comparison = await compare(vllm.url)

    assert comparison.mismatches == []
    assert len(comparison.real) == CALLS
    assert abs(comparison.difference_ratio) <= TOLERANCE_RATIO
