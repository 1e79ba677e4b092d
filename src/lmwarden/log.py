"""Logs: one line each on stderr, readable on a terminal, JSON elsewhere.

No line ever holds prompt text, a credential or a session id; there is no line per request. A traceback is one line too
where no person watches: its text stands in ``exception`` with its line ends escaped. It names functions and lines and
the exception, never the values of variables.

What libraries say through Python's own ``logging`` (asyncio of a task that failed, uvicorn of a handler that did) takes
the same way from warnings on, so that nothing that they say is several lines either.

Nobody who says something waits for whoever reads it, or fails for want of a reader: see ``log_stream``.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO, cast

import structlog

from lmwarden.log_stream import LogStream

_SHARED: tuple[structlog.typing.Processor, ...] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


def configure_logging() -> None:
    """Set logging up for this process. Called once, by the command that runs a daemon."""
    to_terminal = sys.stderr.isatty()
    # Without locals: the other formatters that structlog has for terminals show them, prompts among them.
    plain = structlog.dev.plain_traceback
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=plain) if to_terminal else structlog.processors.JSONRenderer()
    )
    stream = cast(TextIO, LogStream(sys.stderr))  # as the type stubs call it
    structlog.configure(
        processors=[*_SHARED, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    forget_libraries()
    libraries = _OfLibraries(stream)
    libraries.setLevel(logging.WARNING)
    libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.getLogger().addHandler(libraries)


def forget_libraries() -> None:
    """Undo what ``configure_logging`` did to Python's own ``logging``."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _OfLibraries)]:
        root.removeHandler(handler)


class _OfLibraries(logging.StreamHandler[TextIO]):
    """Ours, to be found again."""
