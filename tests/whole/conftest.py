"""A warden that launches simulated engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.whole.launched import LaunchedWarden


@pytest.fixture
def speed() -> float:
    """Modelled seconds per second of the engines; a test names another by its parameter."""
    return 10.0


@pytest.fixture
def replicas() -> int:
    """Engines, each a process tree of its own; likewise."""
    return 4


@pytest.fixture
async def warden(tmp_path: Path, replicas: int, speed: float) -> AsyncIterator[LaunchedWarden]:
    """Ready: all replicas serve. Whatever is left of it is ended."""
    launched = LaunchedWarden(tmp_path, replicas=replicas, speed=speed)
    try:
        await launched.start()
        await launched.all_ready()
        yield launched
    finally:
        launched.stop()
