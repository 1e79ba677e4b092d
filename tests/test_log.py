"""Logs are one JSON line each on stderr where no person watches."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from lmwarden.log import configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_one_json_line_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    log = structlog.get_logger("test")
    log.debug("not shown")
    log.info("two\nlines", number=3)
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    output, errors = capsys.readouterr()
    assert output == ""
    first, second = (json.loads(line) for line in errors.splitlines())
    assert (first["event"], first["number"], first["level"]) == ("two\nlines", 3, "info")
    assert "ValueError: why" in second["exception"]
