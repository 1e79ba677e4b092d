"""One vLLM for the whole suite, a fresh warden for each test.

The suite needs ``LMWARDEN_REAL_ENV``, the environment that ``scripts/real-vllm-env.sh`` makes; ``./run test-real``
sets it. Without it every test here is skipped. With it, a vLLM that does not start is a failure.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.real.vllm_server import MAX_NUM_SEQS, MODEL, VllmServer, start_vllm
from tests.real.warden_process import WardenProcess, start_warden


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A real vLLM with two ranks."""
    environment = os.environ.get("LMWARDEN_REAL_ENV")
    if not environment:
        pytest.skip("needs a real vLLM: ./run test-real")
    server = start_vllm(Path(environment), tmp_path_factory.mktemp("vllm"))
    yield server
    server.stop()


@pytest.fixture
def cold_vllm(vllm: VllmServer) -> VllmServer:
    """The same, with empty prefix caches on both ranks."""
    request = urllib.request.Request(f"{vllm.url}/reset_prefix_cache", method="POST")
    urllib.request.urlopen(request, timeout=30).close()
    return vllm


@pytest.fixture
def doomed_vllm(cold_vllm: VllmServer) -> VllmServer:
    """The same once more, for a test that kills it: such tests are put last."""
    return cold_vllm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the order, but: first what launches vLLM itself, for a server beside it is busy even when it idles; last
    the tests after which there is no vLLM any more."""

    def place(item: pytest.Item) -> tuple[bool, bool]:
        fixtures = getattr(item, "fixturenames", ())
        return "doomed_vllm" in fixtures, "vllm" in fixtures

    items.sort(key=place)


@pytest.fixture
def warden(cold_vllm: VllmServer, tmp_path: Path) -> Iterator[WardenProcess]:
    """A warden in front of it, started as a user starts one."""
    process = start_warden(cold_vllm.url, MODEL, tmp_path, max_num_seqs=MAX_NUM_SEQS)
    process.wait_for_pins()  # their requests are in vLLM's counters, and would come between a test's two looks
    yield process
    assert process.stop() == 0, "the warden did not end cleanly on SIGTERM"
