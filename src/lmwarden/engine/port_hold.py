"""A port for each engine, without a race between choosing it and listening on it.

A port that was merely seen to be free can be taken by anybody before the engine, which imports for a minute, gets to
it. So the warden *holds* it for the engine's whole life: a socket bound to the port, never listening, with
``SO_REUSEADDR`` and ``SO_REUSEPORT``. The kernel gives a held port to nobody who asks for any free one, and refuses it
to a server that sets neither option. An engine that sets either one may bind and listen beside the hold (vLLM sets
``SO_REUSEADDR`` always and ``SO_REUSEPORT`` in some versions; asyncio's and uvloop's servers set the
first). A bound socket that does not listen gets no connections.

What that leaves: somebody who names this very port and sets the same option can still listen there before the engine
does. The engine then cannot listen and ends; and an engine that goes on without its port is not mistaken for
the stranger, because :func:`foreign_listener` compares the sockets that listen with those of the engine's processes.
The kernel's tables have a line for each connection of the machine, and a directory entry for each open file: whoever
asks here does so in a thread.

An engine that is taken over may have been started without ``SO_REUSEPORT``; beside its listening socket nothing can be
bound, so there is no hold until it ends, and none is needed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection
from pathlib import Path

import psutil

from lmwarden.engine.launch import HOST

_TCP_LISTEN = b"0A"


class PortHold:
    """Holds one port of the loopback address."""

    def __init__(self, port: int = 0) -> None:
        """Args:
        port: the one to hold; 0: a free one is chosen.

        Raises:
            OSError: somebody has it.
        """
        self._socket: socket.socket | None = _bound(port)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Let it go. May be called again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _bound(port: int) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((HOST, port))
    except OSError:
        held.close()
        raise
    return held


def listens_alone(port: int, pids: Collection[int]) -> bool:
    """Whether these processes, and nobody else, listen on a loopback port.

    Elsewhere than on Linux, strangers beside them are not seen. A process whose sockets we may not read is a stranger.
    """
    if sys.platform != "linux":
        return any(_listens(pid, port) for pid in pids)
    listeners = _listening_sockets(port)
    if not listeners:
        return False
    for pid in pids:
        listeners -= _sockets_of(pid)
        if not listeners:
            return True
    return False


def foreign_listener(port: int, pids: Collection[int]) -> str | None:
    """Who listens on a loopback port and is none of these, in words; None: nobody."""
    if sys.platform != "linux":
        return None
    foreign = _listening_sockets(port)
    for pid in pids:
        foreign -= _sockets_of(pid)
    if not foreign:
        return None
    for process in psutil.process_iter(["name"]):
        if process.pid not in pids and foreign & _sockets_of(process.pid):
            return f"process {process.pid} ({process.info['name']})"
    return "a process of another user"


def _listens(pid: int, port: int) -> bool:
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr[1:] == (port,) for c in connections)


def _listening_sockets(port: int) -> set[str]:
    """Inodes of the sockets that take connections to a loopback port, on whatever address they listen."""
    found = set()
    shown = b":%04X " % port
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_bytes().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            if shown not in line:
                continue  # nearly all, on a machine that serves
            fields = line.split()
            address, _, number = fields[1].decode("ascii").rpartition(":")
            if fields[3] == _TCP_LISTEN and int(number, 16) == port and _takes_loopback(address):
                found.add(f"socket:[{fields[9].decode('ascii')}]")
    return found


def _takes_loopback(address: str) -> bool:
    """Of an address as the kernel writes it: words of four bytes in the machine's order, in hexadecimal digits."""
    raw = b"".join(int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8))
    wildcard = not any(raw)
    return wildcard or raw[-4:] == socket.inet_aton(HOST)


def _sockets_of(pid: int) -> set[str]:
    try:
        entries = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - as below
    except OSError:
        return set()
    found = set()
    for entry in entries:
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{entry}"))  # noqa: PTH115 - a Path for each is dear
        except OSError:
            continue  # closed meanwhile
    return found
