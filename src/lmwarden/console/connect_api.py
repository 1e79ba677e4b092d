"""``/api/connect``: what to set in each client, with this warden's own addresses, and whether a request came."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from urllib.parse import urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmwarden.config import ClientConfig
from lmwarden.console.answers import encode, json_answer
from lmwarden.console.connect_texts import TEXTS, Client, Settings
from lmwarden.control import Control
from lmwarden.ledger.key_use import first_request_after
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.schema import LedgerError

_ANY_ADDRESS = ("0.0.0.0", "::", "")


class ClientText(msgspec.Struct, frozen=True):
    """What to set in one client."""

    client: Client
    text: str


class ConnectTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    model: str
    url: str
    """The client port, as the browser that asks would reach it."""
    clients: list[ClientText]
    key_needed: bool
    first_request_at: float | None
    """Unix seconds at which the first request of the model ended since the time that was asked for; null: none did."""


def routes(control: Control, client: ClientConfig, client_port: int, ledger: Ledger | None) -> list[Route]:
    """``/api/connect?model=NAME&since=SECONDS``.

    Args:
        control: knows the models.
        client: ``[client]``.
        client_port: where agents are served.
        ledger: knows the requests.
    """

    async def show(request: Request) -> Response:
        snapshot = control.snapshot
        name = request.query_params.get("model") or snapshot.models[0].name
        model = snapshot.model(name)
        since = _since(request.query_params.get("since"), snapshot.counting_since)
        url = _client_url(client, client_port, request.headers["host"])
        settings = Settings(
            url=url, model=name, key=None, key_needed=client.key_required, max_model_len=model.max_model_len
        )
        texts = ConnectTexts(
            model=name,
            url=url,
            clients=[ClientText(client, text(settings)) for client, text in TEXTS.items()],
            key_needed=client.key_required,
            first_request_at=await _first_request(ledger, name, since),
        )
        return json_answer(encode(texts))

    return [Route("/api/connect", show)]


async def _first_request(ledger: Ledger | None, model: str, since: float) -> float | None:
    if ledger is None:
        return None
    try:
        return await asyncio.to_thread(ledger.reader.ask, first_request_after(model, since))
    except LedgerError:
        return None


def _since(text: str | None, counting_since: str) -> float:
    """Unix seconds; the warden's start where nothing was said."""
    if text is None:
        return datetime.fromisoformat(counting_since).timestamp()
    try:
        since = float(text)
    except ValueError:
        since = math.nan
    if not math.isfinite(since):
        raise HTTPException(400, f"since: must be Unix seconds, not {text!r:.40}")
    return since


def _client_url(client: ClientConfig, port: int, console_host: str) -> str:
    """Where agents are served, by the name under which the console was reached if that port listens everywhere."""
    host = client.host
    if host in _ANY_ADDRESS:
        host = urlsplit(f"//{console_host}").hostname or "127.0.0.1"
    scheme = "https" if client.tls_cert else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
