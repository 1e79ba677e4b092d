"""How a command asks a running warden: by ``urllib``, which starts in no time, and never by way of a proxy to this very
machine. A proxy that the environment names (``HTTP_PROXY``) would ask its own loopback, and be told the password.
"""

from __future__ import annotations

import contextlib
import urllib.request
from http.client import HTTPResponse
from typing import cast
from urllib.parse import urlsplit

from lmwarden.config import is_loopback


def ask(request: urllib.request.Request, timeout_s: float) -> contextlib.closing[HTTPResponse]:
    """The answer, to be read in a ``with`` block.

    Raises:
        urllib.error.HTTPError: it is none of success.
        OSError, ValueError, http.client.HTTPException: there is none.
    """
    straight = is_loopback(urlsplit(request.full_url).hostname or "")
    handlers = [urllib.request.ProxyHandler({})] if straight else []
    answer = urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)
    return contextlib.closing(cast(HTTPResponse, answer))


def trouble(error: Exception, timeout_s: float) -> str:
    """What the system says of a question that failed, in a few words."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    return (cause.strerror if isinstance(cause, OSError) else None) or "no valid answer"
