"""What can go wrong in the load tester, as one hierarchy.

The text of each error is one plain sentence for a person: what, where, what is allowed. ``exit_status`` is
what the command line ends with.
"""

from __future__ import annotations

import os

import aiohttp
import msgspec


class BenchError(Exception):
    """The load tester cannot go on."""

    exit_status = 1


class PlanError(BenchError):
    """An argument, a workload file or an arm is unusable."""

    exit_status = 2


def plain_reason(error: Exception) -> str:
    """Say in words for a person why a request over HTTP failed; never the name of a class."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientSSLError):
        return "the TLS handshake failed"
    if isinstance(error, aiohttp.InvalidURL):
        return "the address is no URL"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no such host"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, aiohttp.ClientResponseError | msgspec.DecodeError | ValueError):
        return "the answer has another form"
    return "the connection broke"
