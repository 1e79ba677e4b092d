"""The real clients, each test with engines, a warden and homes of its own.

The suite needs ``LMWARDEN_CLIENTS_ENV``, the environment that ``scripts/clients-env.sh`` makes; ``./run test-claude``
sets it. Without it every test here is skipped. Those that need a real vLLM too want ``LMWARDEN_REAL_ENV`` besides.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.clients.house import House, open_house
from tests.clients.programs import Clients
from tests.real.vllm_server import MAX_NUM_SEQS, MODEL, ROOM_FOR_AGENTS, VllmServer, start_vllm
from tests.real.warden_process import WardenProcess, start_warden


@pytest.fixture(scope="session")
def clients_environment() -> Path:
    """Where the clients are installed."""
    directory = os.environ.get("LMWARDEN_CLIENTS_ENV")
    if not directory:
        pytest.skip("needs the real clients: ./run test-claude")
    return Path(directory)


HouseMaker = Callable[..., Awaitable[House]]


@pytest.fixture
async def make_house(clients_environment: Path, tmp_path: Path) -> AsyncIterator[HouseMaker]:
    """Makes engines and a warden: ``await make_house(engines=1, ranks=4)``."""
    async with AsyncExitStack() as stack:

        async def make(**options: object) -> House:
            return await stack.enter_async_context(open_house(tmp_path, **options))  # type: ignore[arg-type]

        yield make


@pytest.fixture
def clients(clients_environment: Path, tmp_path: Path) -> Clients:
    """Makes programs with homes of their own."""
    return Clients(clients_environment, tmp_path)


@pytest.fixture(scope="session")
def roomy_vllm(clients_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A real vLLM with two ranks and room for an agent's prompts."""
    environment = os.environ.get("LMWARDEN_REAL_ENV")
    if not environment:
        pytest.skip("needs a real vLLM too: scripts/real-vllm-env.sh installs it, ./run test-claude runs it")
    server = start_vllm(Path(environment), tmp_path_factory.mktemp("vllm"), ROOM_FOR_AGENTS)
    yield server
    server.stop()


@pytest.fixture
def real_warden(roomy_vllm: VllmServer, tmp_path: Path) -> Iterator[WardenProcess]:
    """A warden in front of it that has tested its ranks."""
    data_dir = tmp_path / "warden"
    data_dir.mkdir()
    process = start_warden(roomy_vllm.url, MODEL, data_dir, max_num_seqs=MAX_NUM_SEQS)
    process.wait_for_pins()
    yield process
    assert process.stop() == 0, "the warden did not end cleanly on SIGTERM"
