"""What we write ourselves on both sides: the request for the engine, and our lines of the client's response head."""

from __future__ import annotations

from binascii import b2a_hex
from collections.abc import Sequence

from lmwarden.gateway.pool import EnginePool
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.routes import Route
from lmwarden.gateway.splice import BodyPart, Edit, apply
from lmwarden.types import Dispatch

_JOIN_BELOW_BYTES = 32 * 1024
"""Below this a copy into one buffer is cheaper than a list of buffers."""


def upstream_request(
    request: ClientRequest, route: Route, pool: EnginePool, action: Dispatch, edits: Sequence[Edit]
) -> list[BodyPart]:
    """The request for the engine that was chosen, in parts: its head, then its body with the edits.

    A rank goes along only to an engine with several, and only if one was chosen. A generation asks for an answer that
    is not compressed, because it is looked into.
    """
    length = len(request.body)
    for edit in edits:
        length += len(edit.new) - (edit.end - edit.start)
    fragments: list[BodyPart] = [b"POST ", pool.base_path, route.path, request.query, pool.fixed_lines, *request.onward]
    if route.tap is not None:
        fragments.append(b"Accept-Encoding: identity\r\n")
    elif b"accept-encoding" in request.first:
        fragments += (b"Accept-Encoding: ", request.first[b"accept-encoding"], b"\r\n")
    if action.replica is not None and pool.rank_lines:
        fragments.append(pool.rank_lines[action.replica.rank])
    fragments.append(b"Content-Length: %d\r\n\r\n" % length)
    if length <= _JOIN_BELOW_BYTES:
        fragments += apply(request.body, edits)
        return [b"".join(fragments)]
    return [b"".join(fragments), *apply(request.body, edits)]


def our_lines(destination: bytes, conversation: bytes | None, waited_s: float) -> bytes:
    """The response header lines that are ours. ``destination`` is the lines that say where the request went."""
    wait_ms = int(waited_s * 1000)
    if conversation is None:
        return b"%bX-LMWarden-Wait-Ms: %d\r\n" % (destination, wait_ms)
    return b"%bX-LMWarden-Conversation: %b\r\nX-LMWarden-Wait-Ms: %d\r\n" % (
        destination,
        b2a_hex(conversation[:4]),
        wait_ms,
    )
