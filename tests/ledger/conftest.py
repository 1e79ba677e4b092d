"""A running ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ledger.samples import settings

from lmwarden.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """It is running, with an empty file."""
    made = Ledger(tmp_path, settings())
    made.start()
    yield made
    made.stop()
