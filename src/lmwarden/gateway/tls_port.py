"""The client port where it speaks TLS: a connection counts from the moment it is accepted.

An event loop's server tells of a TLS connection when its handshake is done, and a stranger may take his time for that.
Connections that were counted only then would not be counted at all while they do nothing but take descriptors, and one
peer could take all of them. So here each is counted first, and then the handshake begins.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from lmwarden.gateway.client_side import ClientConnection, DataPlane
from lmwarden.gateway.connection_limit import Entry, peer_of

_HANDSHAKE_S = 10.0
"""Real seconds that a handshake may take, where a head may take longer."""
_AT_ONCE = 64
"""Connections that are accepted before the others have their turn."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_AGAIN_S = 1.0
"""Until it is tried again where there was no descriptor."""


class Listening(Protocol):
    """What the gateway needs of a port."""

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The sockets that listen; none when it is closed."""
        ...

    async def start_serving(self) -> None:
        """Accept connections from now on."""
        ...

    def close(self) -> None:
        """Accept none any more."""
        ...


class TlsPort:
    """A ``Listening`` port."""

    def __init__(self, plane: DataPlane, context: ssl.SSLContext, sockets: list[socket.socket], backlog: int) -> None:
        """
        Args:
            plane: the gateway.
            context: the server's side of TLS.
            sockets: they are bound and do not block; closed by ``close``.
            backlog: connections that may wait to be accepted.
        """
        self._plane = plane
        self._context = context
        self.sockets = sockets
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start_serving(self) -> None:
        """See ``Listening``."""
        for listener in self.sockets:
            listener.listen(self._backlog)
        self._watch()

    def close(self) -> None:
        """See ``Listening``. Handshakes that are under way end."""
        for listener in self.sockets:
            self._loop.remove_reader(listener)
            listener.close()
        self.sockets = []
        for handshake in list(self._handshakes):
            handshake.cancel()

    def _watch(self) -> None:
        for listener in self.sockets:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                client, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                for each in self.sockets:
                    self._loop.remove_reader(each)
                self._loop.call_later(_AGAIN_S, self._watch)
                return
            peer = peer_of(address)
            entry = self._plane.connection_limit.enter(peer)
            if entry is Entry.CLOSED:
                client.close()
                continue
            client.setblocking(False)
            connection = ClientConnection(self._plane, peer, entry)
            handshake = self._loop.create_task(self._shake_hands(connection, client))
            self._handshakes.add(handshake)
            handshake.add_done_callback(partial(self._over, connection, client, peer, entry))

    async def _shake_hands(self, connection: ClientConnection, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=self._context,
                ssl_handshake_timeout=min(_HANDSHAKE_S, self._plane.settings.head_s),
            )
        except OSError:
            pass  # no TLS, or none that is strong enough, or it took too long

    def _over(
        self,
        connection: ClientConnection,
        client: socket.socket,
        peer: str,
        entry: Entry,
        handshake: asyncio.Task[None],
    ) -> None:
        """A handshake ended somehow, maybe before its first step."""
        self._handshakes.discard(handshake)
        if not connection.made:
            self._plane.connection_limit.leave(peer, entry)
            client.close()


async def open_tls_port(plane: DataPlane, context: ssl.SSLContext, host: str, port: int, backlog: int) -> TlsPort:
    """Bind every address of a host, as the loop's own server does.

    Raises:
        OSError: one cannot be bound.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listener = socket.socket(family, kind, protocol)
            except OSError as error:
                lacking = error  # the kernel has none of this family
                continue
            sockets.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    if not sockets and lacking is not None:
        raise lacking
    return TlsPort(plane, context, sockets, backlog)
