"""Signing in to the console, where ``console.password_file`` names a password.

Two ways in. The page posts the password to ``/api/session`` and gets a session: a random token in a cookie that scripts
cannot read and other sites cannot make a browser send (``HttpOnly``, ``SameSite=Strict``; ``Secure`` where the
page came over TLS, which a proxy in front does). Its changes carry a second token, which only a page of this origin
can have read. Scripts send the password with each request as HTTP's basic sign-in (user ``lmwarden``); they are no
browsers, so there is nothing to forge: what a browser adds by itself (``Origin``, ``Sec-Fetch-Site``) is looked at
all the same (``guard``).

The cookies' names hold the port, because a browser sends a host's cookies to all of its ports. So other programs'
cookies come too, with anything in them, from whoever likes; of all that only ours are looked for. ``WWW-Authenticate``
names no scheme that browsers know: none of them shall open a window of its own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import re
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from lmwarden import __version__
from lmwarden.access.password import PasswordFile
from lmwarden.access.sessions import LIFE_S, MARK_LIFE_S, Sessions
from lmwarden.access.throttle import Throttle, source_of
from lmwarden.config import is_loopback
from lmwarden.console.answers import encode, error_answer, json_answer, read_object, text_of
from lmwarden.types import Clock

log = structlog.get_logger("lmwarden.console")

PATH = "/api/session"
USER = "lmwarden"
CHANGE_HEADER = "x-csrf-token"
CHALLENGE = {"WWW-Authenticate": 'Session realm="LM Warden"'}
_VIEWER = "lmwarden.viewer"
_REFRESH_S = 1.0
_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
_CHECKS_AT_ONCE = 2
"""Each takes 16 MiB."""


class TooManyTriesError(Exception):
    """Somebody guesses; nothing was looked at."""

    def __init__(self, wait_s: float) -> None:
        self.retry_after_s = max(1, math.ceil(wait_s))
        super().__init__(f"too many wrong passwords came from here; try again in {self.retry_after_s} s")


class Viewer(NamedTuple):
    """Who asks, and has shown the password."""

    token: str | None
    """Of the session; None: the password came with the request."""
    is_in: Callable[[], bool]
    """Whether that still holds; a stream asks now and then."""


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /api/session``."""

    sign_in: bool
    """A password is set."""
    signed_in: bool
    may_change: bool
    csrf: str | None
    """What the header ``X-CSRF-Token`` of a change must hold; null: it needs none."""
    version: str
    speed: float
    """Modelled seconds per second. Above 1 the engine is a simulated one, and durations and rates are modelled."""


class SignIn:
    """The password, the sessions and who tries. Lives on the console's loop."""

    def __init__(self, password: PasswordFile, clock: Clock = time.monotonic) -> None:
        self.sessions = Sessions(clock)
        self._password = password
        self._throttle = Throttle(clock)
        self._clock = clock
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._refreshed_at = clock()
        self._era = 0
        """Counts the passwords that were valid."""

    async def identify(self, scope: Scope) -> Viewer | None:
        """Who asks; None: nobody that we know.

        Raises:
            TooManyTriesError: a password came with it, and too many wrong ones came before.
        """
        self.refresh()
        headers = Headers(scope=scope)
        token = _cookie(headers, _session_cookie(scope))
        if token is not None and self.sessions.use(token):
            return Viewer(token, lambda: self._is_open(token))
        password = _basic_password(headers.get("authorization", ""))
        if password is not None and await self.is_right(password, scope):
            era = self._era
            return Viewer(None, lambda: self._is_era(era))
        return None

    def refresh(self) -> None:
        """Look, at most once a second, whether the file has another password; then everybody is out."""
        now = self._clock()
        if now - self._refreshed_at >= _REFRESH_S:
            self._refreshed_at = now
            if self._password.refresh():
                self._era += 1
                self.sessions.end_all()

    async def is_right(self, password: str, scope: Scope) -> bool:
        """Whether this is the password.

        Raises:
            TooManyTriesError: too many wrong ones came from there.
        """
        mark = _cookie(Headers(scope=scope), _mark_cookie(scope)) or ""
        marked = self.sessions.is_mark(mark)
        source = mark if marked else source_of(_address(scope))
        wait_s = self._throttle.begin(source, marked=marked)
        if wait_s > 0:
            raise TooManyTriesError(wait_s)
        right = self._password.is_known(password)
        if not right:
            async with self._checks:
                right = await asyncio.to_thread(self._password.matches, password)
        if right:
            self._throttle.succeeded(source, marked=marked)
        else:
            log.warning("a wrong password was given to the console", address=_address(scope))
        return right

    def allows_change(self, viewer: Viewer, scope: Scope) -> bool:
        """Whether a change carries what it must."""
        if viewer.token is None:
            return True
        return self.sessions.may_change(viewer.token, Headers(scope=scope).get(CHANGE_HEADER, ""))

    def _is_open(self, token: str) -> bool:
        self.refresh()
        return self.sessions.use(token)

    def _is_era(self, era: int) -> bool:
        self.refresh()
        return era == self._era


def keep_viewer(scope: Scope, viewer: Viewer | None) -> None:
    """Note who asks."""
    scope[_VIEWER] = viewer


def viewer_of(scope: Scope) -> Viewer | None:
    """Who asks, as the guard found out; None: nobody, or there is no sign-in."""
    viewer = scope.get(_VIEWER)
    assert viewer is None or isinstance(viewer, Viewer)
    return viewer


def routes(sign_in: SignIn | None, speed: float = 1.0) -> list[Route]:
    """``/api/session``; ``speed``: modelled seconds per second."""

    async def show(request: Request) -> Response:
        return json_answer(encode(_state(sign_in, request.scope, speed)))

    async def enter(request: Request) -> Response:
        password = text_of(await read_object(request), "password")
        if sign_in is None:
            return error_answer(409, "this console has no password; console.password_file sets one")
        sign_in.refresh()
        if not await sign_in.is_right(password, request.scope):
            return error_answer(401, "this is not the password", CHALLENGE)
        answer = Response(status_code=204)
        secure = urlsplit(request.headers.get("origin", "")).scheme == "https"
        session, mark = (_session_cookie(request.scope), LIFE_S), (_mark_cookie(request.scope), MARK_LIFE_S)
        for (name, life_s), value in ((session, sign_in.sessions.begin()), (mark, sign_in.sessions.mark())):
            answer.set_cookie(name, value, max_age=int(life_s), httponly=True, samesite="strict", secure=secure)
        return answer

    async def leave(request: Request) -> Response:
        viewer = viewer_of(request.scope)
        if sign_in is not None and viewer is not None and viewer.token is not None:
            sign_in.sessions.end(viewer.token)
        answer = Response(status_code=204)
        answer.delete_cookie(_session_cookie(request.scope), httponly=True, samesite="strict")
        return answer

    return [
        Route(PATH, show),
        Route(PATH, enter, methods=["POST"]),
        Route(PATH, leave, methods=["DELETE"]),
    ]


def _state(sign_in: SignIn | None, scope: Scope, speed: float) -> SessionState:
    viewer = viewer_of(scope)
    token = viewer.token if viewer is not None else None
    return SessionState(
        sign_in=sign_in is not None,
        signed_in=viewer is not None,
        may_change=viewer is not None if sign_in is not None else is_local(scope),
        csrf=sign_in.sessions.change_token(token) if sign_in is not None and token is not None else None,
        version=__version__,
        speed=speed,
    )


def is_local(scope: Scope) -> bool:
    """Whether who asks is on this machine. Through a proxy, which says so, anybody may ask, wherever the proxy is."""
    address = _address(scope)
    headers = Headers(scope=scope)
    return address is not None and is_loopback(address) and not any(name in headers for name in _OF_PROXIES)


def _address(scope: Scope) -> str | None:
    client = scope.get("client")
    return None if client is None else str(client[0])


def _session_cookie(scope: Scope) -> str:
    return f"lmwarden-session-{_port(scope)}"


def _mark_cookie(scope: Scope) -> str:
    return f"lmwarden-known-{_port(scope)}"


def _port(scope: Scope) -> int:
    server = scope.get("server")
    return int(server[1] or 0) if server is not None else 0


def _cookie(headers: Headers, name: str) -> str | None:
    """The value of a cookie of ours; None: it was not sent.

    Anybody may ask, with a head as long as is allowed, so this takes linear time, which ``http.cookies`` does not; and
    that one stops at the first cookie that it does not understand.
    """
    found = re.search(f";[ \\t]*{re.escape(name)}=([^;]*)", ";" + ";".join(headers.getlist("cookie")))
    return None if found is None else found[1].strip()


def _basic_password(header: str) -> str | None:
    """The password of HTTP's basic sign-in; None: there is none, or another user's."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return password if colon and user == USER else None
