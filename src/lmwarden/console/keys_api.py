"""``/api/keys``: make API keys, show each once, revoke them, and see how much they are used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmwarden.access.keys import KeyNameError, KeyStore, StoredKey
from lmwarden.access.secrets import StorageError
from lmwarden.console.answers import MAX_ITEMS, Page, encode, json_answer, number_of, read_object
from lmwarden.console.check_client import Keyless
from lmwarden.ledger.key_use import KeyUse, key_use
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.schema import LedgerError

WINDOW_S = 24 * 3600.0
_USE_KEPT_S = 5.0
"""A day's rows are counted for it, which takes a while where there are many."""


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """One key."""

    name: str
    created_at: float | None
    """Unix seconds, as is the next; null: not known."""
    last_used_at: float | None
    """End of its last request that is kept; null: none, or not known."""
    requests_24h: int | None
    """null: the history cannot be read, as are the next two."""
    prompt_tokens_24h: int | None
    completion_tokens_24h: int | None
    models: list[str] | None
    """Names of the served models that it may use; null: all."""


class KeyPage(Page, frozen=True):
    """One page of the keys."""

    keyless: Keyless
    """Whose requests are served without one."""


class MadeKey(msgspec.Struct, frozen=True):
    """Answer to the making of a key: the only time that it is shown."""

    name: str
    key: str
    models: list[str] | None = None

    def __repr__(self) -> str:
        return f"MadeKey({self.name!r}, ...)"


class KeysApi:
    """The handlers. The file is changed by one at a time."""

    def __init__(
        self,
        keys: KeyStore,
        ledger: Ledger | None,
        keyless: Keyless,
        served: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """Args:
        keys: the file.
        ledger: knows how they are used; None: nobody does.
        keyless: whose requests are served without a key.
        served: names of the models that are served, to which a key can be limited; None: any name will do.
        """
        self._keys = keys
        self._ledger = ledger
        self._keyless = keyless
        self._served = served
        self._one_at_a_time = asyncio.Lock()
        self._use: Mapping[str, KeyUse] | None = {}
        self._use_of: tuple[float, list[str]] = (float("-inf"), [])

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/api/keys", self.show),
            Route("/api/keys", self.create, methods=["POST"]),
            Route("/api/keys/{name}", self.revoke, methods=["DELETE"]),
        ]

    async def show(self, request: Request) -> Response:
        """Names and use, oldest first."""
        limit, begin = number_of(request, "limit", 1, MAX_ITEMS, MAX_ITEMS), number_of(request, "before", 0, 10**9, 0)
        async with self._one_at_a_time:
            try:
                stored = await asyncio.to_thread(self._keys.stored)
            except StorageError as error:
                raise HTTPException(503, str(error)) from None
            shown = stored[begin : begin + limit]
            use = await self._use_by_name([key.name for key in shown])
        end = begin + len(shown)
        lines = [_line(key, None if use is None else use.get(key.name, KeyUse())) for key in shown]
        return json_answer(encode(KeyPage(lines, str(end) if end < len(stored) else None, self._keyless)))

    async def create(self, request: Request) -> Response:
        """Make one; its text is in this answer and nowhere else."""
        body = await read_object(request)
        name, models = body.get("name"), body.get("models")
        if not isinstance(name, str) or not body.keys() <= {"name", "models"}:
            raise HTTPException(400, 'the body must be {"name": "…", "models": […]}, of which models may be left out')
        models = self._scope(models)
        async with self._one_at_a_time:
            try:
                key = await asyncio.to_thread(self._keys.create, name, models)
            except KeyNameError as error:
                raise HTTPException(400, str(error)) from None
            except StorageError as error:
                raise HTTPException(503, str(error)) from None
        return json_answer(encode(MadeKey(name, key, models)), 201)

    async def revoke(self, request: Request) -> Response:
        """Delete one; the gateway refuses it within a second."""
        async with self._one_at_a_time:
            try:
                await asyncio.to_thread(self._keys.revoke, request.path_params["name"])
            except KeyNameError as error:
                raise HTTPException(404, str(error)) from None
            except StorageError as error:
                raise HTTPException(503, str(error)) from None
        return Response(status_code=204)

    def _scope(self, models: object) -> list[str] | None:
        """The names that a key is to be limited to, each once; None: all."""
        if models is None:
            return None
        if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
            raise HTTPException(400, "models: must be a list of names of served models, or null for all")
        served = models if self._served is None else self._served()
        if not set(models) <= set(served):
            shown = ", ".join(sorted(served)) or "none"
            raise HTTPException(400, f"models: there is a name that is not served (an alias is none); served: {shown}")
        return sorted(set(models))

    async def _use_by_name(self, names: list[str]) -> Mapping[str, KeyUse] | None:
        if self._ledger is None:
            return None
        read_at, of = self._use_of
        if of != names or time.monotonic() - read_at > _USE_KEPT_S:
            question = key_use(names, time.time() - WINDOW_S)
            try:
                self._use = await asyncio.to_thread(self._ledger.slow_reader.ask, question)
            except LedgerError:
                self._use = None
            self._use_of = (time.monotonic(), names)
        return self._use


def _line(key: StoredKey, use: KeyUse | None) -> KeyLine:
    try:
        created_at = datetime.fromisoformat(key.created).timestamp()
    except ValueError:
        created_at = None
    return KeyLine(
        name=key.name,
        created_at=created_at,
        last_used_at=use.last_used_at if use is not None else None,
        requests_24h=use.requests if use is not None else None,
        prompt_tokens_24h=use.prompt_tokens if use is not None else None,
        completion_tokens_24h=use.completion_tokens if use is not None else None,
        models=key.models,
    )
