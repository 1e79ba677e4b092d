"""Who may connect: counts the connections of all clients together and of each address.

Everybody who reaches the port can open connections, with no key, and each takes a descriptor (two while its request is
at an engine). So there is a limit to all of them and one to those of one address, an IPv6 address being counted by its
/64, because that is what one subscriber has. Connections beyond a limit are *surplus*: a health check on one is still
served, anything else is told to come back, and it is closed. Of these, too, only some are kept; what comes beyond them
is closed unheard.

The limits are generous: they are there so that no client can shut out the others, not to divide anything fairly.
Behind a reverse proxy all clients are one address.
"""

from __future__ import annotations

import resource
from enum import Enum
from ipaddress import IPv6Address

_MOST_SURPLUS = 256
_FILES_KEPT = 256
"""Descriptors for everything that is no client's: engines' metrics, files, the console."""


class Entry(Enum):
    """What becomes of a connection."""

    SERVED = "served"
    SURPLUS = "surplus"
    """Its first request is answered."""
    CLOSED = "closed"


class ConnectionLimit:
    """The open connections of one gateway."""

    __slots__ = ("_by_peer", "most", "most_per_peer", "served", "surplus")

    def __init__(self, most: int, most_per_peer: int) -> None:
        """
        Args:
            most: connections that are served, all together.
            most_per_peer: of one address.
        """
        self.most = most
        self.most_per_peer = most_per_peer
        self._by_peer: dict[str, int] = {}
        """By address; nobody without a connection has an entry."""
        self.served = 0
        self.surplus = 0

    def enter(self, peer: str) -> Entry:
        """A client of this address has connected. ``leave`` it with what this returns."""
        of_peer = self._by_peer.get(peer, 0)
        if self.served < self.most and of_peer < self.most_per_peer:
            self._by_peer[peer] = of_peer + 1
            self.served += 1
            return Entry.SERVED
        if self.surplus < _MOST_SURPLUS:
            self.surplus += 1
            return Entry.SURPLUS
        return Entry.CLOSED

    def leave(self, peer: str, entry: Entry) -> None:
        """Its connection is gone."""
        if entry is Entry.SERVED:
            self.served -= 1
            left = self._by_peer[peer] - 1
            if left:
                self._by_peer[peer] = left
            else:
                del self._by_peer[peer]
        elif entry is Entry.SURPLUS:
            self.surplus -= 1


def peer_of(peername: object) -> str:
    """The address that a connection is counted under, from what the socket says of its other end."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    host = str(peername[0])
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))


def limit_for(most: int, most_per_peer: int) -> ConnectionLimit:
    """These limits, both made smaller alike where there are not descriptors for all.

    A limit per address of less than half of all stays as it is.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = most if files == resource.RLIM_INFINITY else max(1, min(most, (files - _FILES_KEPT) // 2))
    return ConnectionLimit(possible, min(most_per_peer, max(1, most_per_peer * possible // most, possible // 2)))
