"""One answer for all who ask the same within a second.

Lists of conversations and requests are not part of the live stream, because each viewer looks at another page of them;
but viewers who look at the same one (twenty screens on a wall) shall cost what one costs. An answer is made by the
first who asks, given to those who ask meanwhile or within a second, and forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KEPT_S = 1.0
_MOST_KEPT = 100
"""Different questions within a second; beyond it each is answered for itself alone."""

Handler = Callable[[Request], Awaitable[Response]]


class _Answer(NamedTuple):
    begun_s: float
    response: asyncio.Future[Response]

    def is_old(self, now_s: float) -> bool:
        """Whether who asks now gets another one: not while it is made, however long that takes."""
        return self.response.done() and now_s - self.begun_s >= KEPT_S


class SharedAnswers:
    """What was answered just now. For handlers that only look at path and query, not at who asks."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], _Answer] = {}

    def over(self, routes: Iterable[Route]) -> list[Route]:
        """The same routes (of GET only), with their answers shared."""
        return [Route(route.path, self._sharing(route.endpoint)) for route in routes]

    def _sharing(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            key = (request.url.path, request.url.query)
            now_s = time.monotonic()
            found = self._kept.get(key)
            if found is None or found.is_old(now_s):
                self._kept = {k: kept for k, kept in self._kept.items() if not kept.is_old(now_s)}
                if len(self._kept) >= _MOST_KEPT:
                    return await handler(request)
                found = self._kept[key] = _Answer(now_s, asyncio.ensure_future(handler(request)))
            return await asyncio.shield(found.response)  # who gives up takes nothing from the others

        return answer
