"""Who may reach the console, decided before any handler runs.

* **Host** must be a loopback name, the address that the connection came in on, or listed in
  ``console.allowed_hosts``. Otherwise a foreign page could re-point its own name at this machine (DNS
  rebinding) and read the console as if it were its own origin.
* **Changes** (anything but GET, HEAD) additionally need a peer on this machine, because this version has no
  sign-in; a JSON content type, which a plain HTML form cannot send; and no sign of another site: ``Origin``,
  where sent, must be the console's own, and ``Sec-Fetch-Site`` must not say ``cross-site`` or ``same-site``.

Every answer forbids framing and sniffing; no answer ever carries an ``Access-Control-Allow-Origin``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmwarden.config import is_loopback

_READING = ("GET", "HEAD")
_SECURITY_HEADERS = {
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware that refuses what the module's text forbids (403, 415) and adds the headers."""

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_guarded)
            return
        status, sentence = refusal
        await JSONResponse({"error": sentence}, status_code=status)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._host_allowed(host, scope):
            return 403, "this Host is not allowed here; console.allowed_hosts lists names"
        if scope["method"] in _READING:
            return None
        client = scope.get("client")
        if client is None or not is_loopback(client[0]):
            return 403, "changes are accepted from this machine only"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "changes are not accepted from another site's page"
        if any(_authority(origin) != host.lower() for origin in headers.getlist("origin")):
            return 403, "changes are not accepted from another site's page"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "changes need the content type application/json"
        return None

    def _host_allowed(self, host: str, scope: Scope) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(name) or name in self._allowed_hosts:
            return True
        server = scope.get("server")
        return server is not None and _same_address(name, str(server[0]))


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _same_address(one: str, other: str) -> bool:
    try:
        return ipaddress.ip_address(one) == ipaddress.ip_address(other)
    except ValueError:
        return False
