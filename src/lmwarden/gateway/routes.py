"""The client port's surface: which paths there are, and what each needs.

A request's path is matched byte for byte; only doubled and trailing slashes are forgiven, so that a base URL
written with a slash works. Nothing is percent-decoded: ``/v1/%2e%2e/sleep`` is simply not in the table, and the
engine's administration is never reachable. The query goes on as it came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum


class Api(Enum):
    """Whose error envelopes a caller expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Tap(Enum):
    """In which shape an answer reports its usage."""

    CHAT = "chat"
    """Chat and text completions."""
    MESSAGES = "messages"
    RESPONSES = "responses"


class Local(Enum):
    """Answered by the gateway itself."""

    HELLO = "hello"
    MODELS = "models"
    HEALTH = "health"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Route:
    """One (method, path) that is served."""

    method: bytes
    path: bytes
    api: Api = Api.OPENAI
    local: Local | None = None
    tap: Tap | None = None
    """None: not a generation, so no usage, no conversation and no identity encoding."""
    adds_include_usage: bool = False
    """The engine reports a stream's usage only if asked to, and we ask."""
    honours_rank: bool = False
    """vLLM obeys X-data-parallel-rank here."""
    needs_key: bool = True
    name: str = field(init=False)
    """The path as text, for the ledger."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.path.decode("ascii"))


_ROUTES = (
    Route(b"POST", b"/v1/chat/completions", tap=Tap.CHAT, adds_include_usage=True, honours_rank=True),
    Route(b"POST", b"/v1/completions", tap=Tap.CHAT, adds_include_usage=True, honours_rank=True),
    Route(b"POST", b"/v1/messages", Api.ANTHROPIC, tap=Tap.MESSAGES, honours_rank=True),
    Route(b"POST", b"/v1/messages/count_tokens", Api.ANTHROPIC),
    Route(b"POST", b"/v1/responses", tap=Tap.RESPONSES),
    Route(b"POST", b"/v1/embeddings"),
    Route(b"POST", b"/tokenize"),
    Route(b"GET", b"/v1/models", local=Local.MODELS),
    Route(b"HEAD", b"/", local=Local.HELLO, needs_key=False),
    Route(b"HEAD", b"/api/hello", local=Local.HELLO, needs_key=False),
    Route(b"GET", b"/healthz", local=Local.HEALTH, needs_key=False),
    Route(b"GET", b"/readyz", local=Local.READY, needs_key=False),
)

FOLLOWS_PINS_OF = {"/v1/completions": "/v1/chat/completions"}
"""Paths on which nobody tests whether ranks are obeyed, to the ones whose tests count for them."""

ROUTES: dict[bytes, Route] = {route.path: route for route in _ROUTES}
"""By exact path."""

_SLASHES = re.compile(rb"/{2,}")


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Split a request target into its path and ``?query`` (with the question mark; empty: none).

    The absolute form that proxies use (``http://host/path``) loses its scheme and authority.
    """
    if not target.startswith(b"/") and b"://" in target:
        slash = target.find(b"/", target.index(b"://") + 3)
        target = target[slash:] if slash >= 0 else b"/"
    path, mark, query = target.partition(b"?")
    return path, mark + query


def authority_of(target: bytes) -> bytes | None:
    """The authority of a request target in absolute form, which counts and not the Host line; None: another form."""
    if target.startswith(b"/"):
        return None
    _, found, rest = target.partition(b"://")
    return re.split(rb"[/?]", rest, maxsplit=1)[0] if found else None


def find_route(path: bytes) -> Route | None:
    """The route of a path, or None. The caller checks the method."""
    route = ROUTES.get(path)
    if route is None and path.startswith(b"/"):
        path = _SLASHES.sub(b"/", path)
        route = ROUTES.get(path if path == b"/" else path.rstrip(b"/"))
    return route


def api_of(path: bytes) -> Api:
    """Whose envelope an error about a path that is not served gets: Anthropic's under /v1/messages."""
    if _SLASHES.sub(b"/", path).startswith(b"/v1/messages"):
        return Api.ANTHROPIC
    return Api.OPENAI
