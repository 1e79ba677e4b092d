"""Logs: one line each on stderr, readable on a terminal, JSON elsewhere.

No line ever holds prompt text, a credential or a session id; there is no line per request.
"""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logging() -> None:
    """Set structlog up for this process. Called once, by the command that runs a daemon."""
    to_terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if to_terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
