"""What all tests share: how hypothesis runs, and that logging is left as it was found."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings
from tests.listening import let_no_server_forget

from lmwarden.daemon import raise_file_limit
from lmwarden.log import forget_libraries

# No time limits: a busy machine is no failure. In CI the same examples every time: a red run is about the change.
settings.register_profile(
    "lmwarden",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("lmwarden")
# Everything is on the loopback: whatever proxy this machine uses is asked for nothing, by children neither.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost", "::1"]))

let_no_server_forget()
raise_file_limit()  # some tests hold more streams than a login shell allows files


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    """What a test forgot to close warns in that test, and not in the one that happens to run at the next collection.

    First of all fixtures, so that it ends after the event loop. What survives is not looked at again: it would cost
    10 ms a test.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process may set up logging: what it did ends with the test."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        forget_libraries()


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port of the loopback that refuses: it is held, so nobody else comes to listen there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
