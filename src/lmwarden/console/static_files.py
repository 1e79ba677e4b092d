"""The built page: one document, one script, one style sheet, one icon.

They are read and compressed once, when the routes are made, and live in memory (about 0.3 MB). Names carry no hash, so
that a build is the same bytes everywhere; a browser therefore asks each time whether its copy is still the newest
(``ETag``, 304), which costs nothing on one host and means that a new warden is never shown by an old page.

The page's source is in ``console-ui/``; ``./run console`` builds it.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "static"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""For every answer of the console. No inline script or style, nothing from another host; the page needs no more."""
CACHE_CONTROL = "no-cache"
"""Of these files: keep them, but ask first. All other answers are ``no-store``."""

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/console.js": ("console.js", "text/javascript; charset=utf-8"),
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}


class StaticFile(NamedTuple):
    """One file in both forms."""

    media_type: str
    etag: str
    plain: bytes
    compressed: bytes


def load(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """The files by the paths that they are served under.

    Raises:
        FileNotFoundError: the page was not built.
    """
    return {path: _file((folder / name).read_bytes(), media_type) for path, (name, media_type) in _FILES.items()}


def routes(folder: Path = FOLDER) -> list[Route]:
    """Routes for the page and what it loads; nobody needs to be signed in for them.

    Raises:
        FileNotFoundError: the page was not built.
    """
    return [Route(path, _serve(file)) for path, file in load(folder).items()]


def _file(content: bytes, media_type: str) -> StaticFile:
    digest = hashlib.blake2b(content, digest_size=12).hexdigest()
    # Weak: the compressed and the plain form share it.
    return StaticFile(media_type, f'W/"{digest}"', content, gzip.compress(content, mtime=0))


def _serve(file: StaticFile) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        headers = {"ETag": file.etag, "Cache-Control": CACHE_CONTROL, "Vary": "Accept-Encoding"}
        if _names(request.headers.get("if-none-match", ""), file.etag):
            return Response(status_code=304, headers=headers)
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            return Response(file.compressed, media_type=file.media_type, headers=headers)
        return Response(file.plain, media_type=file.media_type, headers=headers)

    return serve


def _names(if_none_match: str, etag: str) -> bool:
    known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in known or etag.removeprefix("W/") in known


def _takes_gzip(accept_encoding: str) -> bool:
    for choice in accept_encoding.lower().split(","):
        coding, _, parameters = choice.partition(";")
        if coding.strip() in ("gzip", "*"):
            return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
