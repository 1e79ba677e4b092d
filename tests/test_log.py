"""Logs are one JSON line each on stderr where no person watches."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog
from tests.waiting import PATIENCE_S

from lmwarden.log import configure_logging, forget_libraries


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    forget_libraries()


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        return True


def fail(secret: str) -> None:
    raise ValueError("why")


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


def test_a_traceback_shows_no_values_on_a_terminal_either(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    configure_logging()
    log = structlog.get_logger("test")
    try:
        fail("MARKER" + "-7f3a")
    except ValueError:
        log.exception("failed")
        logging.getLogger("uvicorn.error").exception("failed too")
    shown = terminal.getvalue()
    assert shown.count("ValueError: why") == 2
    assert "MARKER-7f3a" not in shown


def test_what_libraries_say_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    configure_logging()  # and is said once
    library = logging.getLogger("some.library")
    library.info("not shown")
    library.warning("two\nlines of %s", "it")
    try:
        fail("")
    except ValueError:
        library.exception("failed")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["event"], first["level"]) == ("two\nlines of it", "warning")
    assert "ValueError: why" in second["exception"]


async def test_a_task_that_failed_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    asyncio.get_running_loop().call_exception_handler(
        {"message": "Task exception was never retrieved", "exception": ValueError("why\nnot")}
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["level"] == "error"


def test_whoever_says_something_does_not_wait_for_a_reader_nor_fail_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging()
        log = structlog.get_logger("test")

        def say_much() -> None:
            for number in range(200):
                log.info("much", number=number, text="x" * 1000)
                logging.getLogger("library").warning("more %s", "y" * 1000)

        speaking = threading.Thread(target=say_much, daemon=True)
        speaking.start()
        speaking.join(PATIENCE_S)
        assert not speaking.is_alive(), "it waits for a reader"
        os.close(reader)
        log.error("nobody is there")
        logging.getLogger("library").error("nobody is there")
