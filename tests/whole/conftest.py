"""A warden that launches four simulated engines, each a process tree of its own."""

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
async def warden(tmp_path: Path, speed: float) -> AsyncIterator[LaunchedWarden]:
    """Ready: all four replicas serve. Whatever is left of it is ended."""
    launched = LaunchedWarden(tmp_path, speed=speed)
    try:
        await launched.start()
        await launched.all_ready()
        yield launched
    finally:
        launched.stop()
