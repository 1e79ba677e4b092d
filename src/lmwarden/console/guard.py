"""Who may reach the console, decided before any handler runs.

* **Host** must be a loopback name, the address that the connection came in on, or listed in
  ``console.allowed_hosts``. Otherwise a foreign page could re-point its own name at this machine (DNS
  rebinding) and read the console as if it were its own origin.
* **With a password** everything but the page's own files and ``/api/session`` needs it (``session``), from this
  machine too; ``/metrics`` does not where ``console.open_metrics`` says so. The guard asks, not
  the handlers, so a route that somebody adds is closed.
* **Changes** (anything but GET, HEAD) additionally need a JSON content type, which a plain HTML form cannot send, and
  no sign of another site: ``Origin``, where sent, must be the console's own, and ``Sec-Fetch-Site`` must not say
  ``cross-site`` or ``same-site``. Under a session they carry its second token. Without a password they are taken from
  this machine only.

Every answer forbids framing, sniffing and to load anything but the console's own files; none ever carries an
``Access-Control-Allow-Origin``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmwarden.config import address_of, is_loopback
from lmwarden.console import session
from lmwarden.console.answers import error_answer
from lmwarden.console.session import SignIn, TooManyTriesError
from lmwarden.console.static_files import CONTENT_SECURITY_POLICY

_READING = ("GET", "HEAD")
_SECURITY_HEADERS = {
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z_.-]+)(?::[0-9]{1,5})?")
"""What browsers send. Nothing else is taken for a name that happens to stand in it."""
_CACHE_CONTROL = "no-store"
"""Unless the handler says something else: the page's files do."""


class Guard:
    """ASGI middleware that refuses what the module's text forbids (401, 403, 415, 429) and adds the headers."""

    def __init__(
        self,
        app: ASGIApp,
        allowed_hosts: Sequence[str],
        sign_in: SignIn | None = None,
        open_paths: Sequence[str] = (),
    ) -> None:
        """Args:
        app: the console.
        allowed_hosts: names under which a browser may reach it.
        sign_in: asks for a password; None: there is none.
        open_paths: what is shown without it, besides ``/api/session``.
        """
        self._app = app
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)
        self._sign_in = sign_in
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", _CACHE_CONTROL)
            await send(message)

        refusal = self._refusal(scope) or await self._unknown(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is refused whoever asks."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._host_allowed(host, scope):
            return error_answer(403, "this Host is not allowed here; console.allowed_hosts lists names")
        if scope["method"] in _READING:
            return None
        if self._sign_in is None and not session.is_local(scope):
            sentence = "changes are accepted from this machine only, as long as console.password_file sets no password"
            return error_answer(403, sentence)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return error_answer(403, "changes are not accepted from another site's page")
        if any(_authority(origin) != host.lower() for origin in headers.getlist("origin")):
            return error_answer(403, "changes are not accepted from another site's page")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return error_answer(415, "changes need the content type application/json")
        return None

    async def _unknown(self, scope: Scope) -> Response | None:
        """What is refused to those who have not shown the password."""
        if self._sign_in is None or scope["path"] in self._open_paths:
            return None
        try:
            viewer = await self._sign_in.identify(scope)
        except TooManyTriesError as error:
            return too_many(error)
        session.keep_viewer(scope, viewer)
        path, changes = scope["path"], scope["method"] not in _READING
        if path == session.PATH and (viewer is None or scope["method"] == "POST"):
            return None
        if viewer is None:
            return error_answer(401, "sign in first: this console has a password", session.CHALLENGE)
        if changes and not self._sign_in.allows_change(viewer, scope):
            return error_answer(403, "the header X-CSRF-Token is missing or of another session; load the page anew")
        return None

    def _host_allowed(self, host: str, scope: Scope) -> bool:
        parts = _HOST_AND_PORT.fullmatch(host)
        if parts is None:
            return False
        name = parts[1].strip("[]").lower()
        if is_loopback(name) or name in self._allowed_hosts:
            return True
        server = scope.get("server")
        return server is not None and _same_address(name, str(server[0]))


def too_many(error: TooManyTriesError) -> Response:
    """The answer to who guesses."""
    return error_answer(429, str(error), {"Retry-After": str(error.retry_after_s)})


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _same_address(one: str, other: str) -> bool:
    address = address_of(one)
    return address is not None and address == address_of(other)
