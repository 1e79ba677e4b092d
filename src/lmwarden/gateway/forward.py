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
_NO_WAIT = b"X-LMWarden-Wait-Ms: 0\r\n"


def upstream_request(
    request: ClientRequest, route: Route, pool: EnginePool, action: Dispatch, edits: Sequence[Edit]
) -> list[BodyPart]:
    """The request for the engine that was chosen, in parts: its head, then its body with the edits."""
    length = len(request.body)
    for edit in edits:
        length += len(edit.new) - (edit.end - edit.start)
    rank_line = b""
    if action.replica is not None and pool.rank_lines:
        rank_line = pool.rank_lines[action.replica.rank]
    notes = request.notes
    if notes is None:
        head = _head(request, route, pool, rank_line)
    elif notes.pool is pool and notes.rank_line == rank_line:
        head = notes.engine_head
    else:
        head = notes.engine_head = _head(request, route, pool, rank_line)
        notes.pool, notes.rank_line = pool, rank_line
    if length <= _JOIN_BELOW_BYTES:
        return [b"".join((head, b"%d\r\n\r\n" % length, *apply(request.body, edits)))]
    return [b"%b%d\r\n\r\n" % (head, length), *apply(request.body, edits)]


def _head(request: ClientRequest, route: Route, pool: EnginePool, rank_line: bytes) -> bytes:
    """The head for the engine, up to the digits of its Content-Length.

    A rank goes along only to an engine with several, and only if one was chosen. A generation asks for an answer that
    is not compressed, because it is looked into.
    """
    coding: Sequence[bytes] = ()
    if route.tap is not None:
        coding = (b"Accept-Encoding: identity\r\n",)
    elif b"accept-encoding" in request.first:
        coding = (b"Accept-Encoding: ", request.first[b"accept-encoding"], b"\r\n")
    begin = (b"POST ", pool.base_path, route.path, request.query, pool.fixed_lines)
    return b"".join((*begin, *request.onward, *coding, rank_line, b"Content-Length: "))


def our_lines(destination: bytes, conversation: bytes | None, waited_s: float) -> Sequence[bytes]:
    """The response header lines that are ours, in fragments. ``destination`` is the lines that say where the request
    went."""
    wait = _NO_WAIT if waited_s == 0.0 else b"X-LMWarden-Wait-Ms: %d\r\n" % int(waited_s * 1000)
    if conversation is None:
        return destination, wait
    return destination, b"X-LMWarden-Conversation: ", b2a_hex(conversation[:4]), b"\r\n", wait
